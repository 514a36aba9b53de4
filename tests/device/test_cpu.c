/* SPDX-License-Identifier: MIT */
/* What the kernel itself enforces and reports about CPU memory: seals, limits of the process, huge pages, NUMA, and
 * descriptors that callers bring. */
#include "base/sys.h"
#include "device/cpu/cpu.h"
#include "test.h"

#include <errno.h>
#include <lend/pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static struct lend__extent extent_make(struct lend__allocation_request request) {
    struct lend_error error;
    struct lend__extent extent = {0};
    CHECK_OK(lend__cpu_ops.allocation_new(&request, &extent, &error), &error);
    return extent;
}

static void expect_eperm(int r) {
    CHECK_INT(r, -1);
    CHECK_INT(errno, EPERM);
}

LEND_TEST(seals_are_kept_by_the_kernel) {
    for (int is_read_only = 0; is_read_only < 2; is_read_only++) {
        struct lend__extent e =
            extent_make((struct lend__allocation_request){.bytes = 2 * MIB, .is_peers_read_only = is_read_only});
        int seals = fcntl(e.fd, F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
        if (is_read_only) wanted |= F_SEAL_FUTURE_WRITE;
        CHECK_INT(seals & wanted, wanted);
        expect_eperm(ftruncate(e.fd, 0));
        expect_eperm(ftruncate(e.fd, (off_t)(4 * MIB)));
        expect_eperm(fallocate(e.fd, 0, 0, (off_t)(4 * MIB)));
        expect_eperm(fcntl(e.fd, F_ADD_SEALS, F_SEAL_WRITE));
        CHECK_INT(fcntl(e.fd, F_GETFD), FD_CLOEXEC);
        if (is_read_only) {
            CHECK_PTR(mmap(NULL, e.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, e.fd, 0), MAP_FAILED);
            CHECK_INT(errno, EPERM);
            expect_eperm((int)write(e.fd, "x", 1));
            expect_eperm(fallocate(e.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)lend__page_bytes()));
            void *reader = mmap(NULL, e.bytes, PROT_READ, MAP_SHARED, e.fd, 0);
            CHECK(reader != MAP_FAILED);
            CHECK_INT(mprotect(reader, e.bytes, PROT_READ | PROT_WRITE), -1);
            CHECK_INT(errno, EACCES);
            e.base[7] = 1;
            CHECK_INT(((char *)reader)[7], 1);
            munmap(reader, e.bytes);
        }
        lend__cpu_ops.allocation_free(&e);
    }
}

LEND_TEST(every_page_is_reserved) {
    struct stat st;
    struct lend__extent e = extent_make((struct lend__allocation_request){.bytes = 70 * MIB});
    CHECK_INT(fstat(e.fd, &st), 0);
    CHECK_UINT((uint64_t)st.st_blocks * 512, e.bytes);
    CHECK_UINT(st.st_ino, e.inode);
    lend__cpu_ops.allocation_free(&e);
}

/* How much of a mapping this process has page-table entries for. */
static uint64_t mapped_bytes(const struct lend__extent *extent) {
    char line[512];
    unsigned long long low, high, kib, sum = 0;
    bool is_ours = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-%llx ", &low, &high) == 2)
            is_ours = low < (uintptr_t)extent->base + extent->bytes && high > (uintptr_t)extent->base;
        else if (is_ours && sscanf(line, "Rss: %llu", &kib) == 1)
            sum += kib * 1024;
    }
    fclose(f);
    return sum;
}

LEND_TEST(touched_memory_is_mapped_already) {
    for (int is_pretouched = 0; is_pretouched < 2; is_pretouched++) {
        struct lend__extent e =
            extent_make((struct lend__allocation_request){.bytes = 4 * MIB, .is_pretouched = is_pretouched});
        CHECK_UINT(mapped_bytes(&e), is_pretouched ? e.bytes : 0);
        lend__cpu_ops.allocation_free(&e);
    }
}

LEND_TEST(a_file_size_limit_is_an_error_and_no_signal) {
    struct lend_error error;
    struct lend__extent e;
    struct rlimit limit = {MIB, MIB};
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct lend__allocation_request request = {.bytes = 2 * MIB};
    CHECK_CODE(lend__cpu_ops.allocation_new(&request, &e, &error), -ENOMEM);
    CHECK_UINT(error.asked, 2 * MIB);
    CHECK_UINT(error.available, MIB);
    CHECK_CONTAINS(error.text, "RLIMIT_FSIZE");
    e = extent_make((struct lend__allocation_request){.bytes = MIB});
    lend__cpu_ops.allocation_free(&e);
}

LEND_TEST(a_descriptor_limit_is_named) {
    struct lend_error error;
    struct lend__extent e;
    struct rlimit before, limit;
    int last = dup(0);
    close(last);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){(rlim_t)last, before.rlim_max};
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    struct lend__allocation_request request = {.bytes = 2 * MIB};
    int r = lend__cpu_ops.allocation_new(&request, &e, &error);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_CODE(r, -EMFILE);
    CHECK_UINT(error.available, last);
}

/* A setting of the kernel that the test changes for its own time. */
static char setting_before[128];

static bool setting_write(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return is_written;
}

static void setting_read(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, setting_before, sizeof setting_before - 1) : 0;
    if (fd >= 0) close(fd);
    setting_before[n > 0 ? n : 0] = '\0';
}

#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

LEND_TEST(hugetlb_is_used_where_reserved_and_reported) {
    uint64_t huge = lend__cpu_huge_page_bytes();
    setting_read(NR_HUGEPAGES);
    int n_before = atoi(setting_before), n_after;
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%d", n_before + 8);
    if (!huge || !setting_write(NR_HUGEPAGES, wanted)) SKIP("huge pages cannot be reserved here");
    setting_read(NR_HUGEPAGES);
    n_after = atoi(setting_before);
    snprintf(wanted, sizeof wanted, "%d", n_before);
    if (n_after < n_before + 8) {
        setting_write(NR_HUGEPAGES, wanted);
        SKIP("the kernel found %d of 8 huge pages", n_after - n_before);
    }
    struct lend__extent e = extent_make((struct lend__allocation_request){
        .bytes = 4 * huge, .huge_pages = LEND_HUGE_HUGETLB, .is_peers_read_only = true});
    uint32_t got = e.huge_page_bytes;
    memset(e.base, 1, e.bytes);
    /* More than are left: plain pages. */
    struct lend__extent plain = extent_make(
        (struct lend__allocation_request){.bytes = (uint64_t)(n_after + 1) * huge, .huge_pages = LEND_HUGE_HUGETLB});
    uint32_t got_plain = plain.huge_page_bytes;
    /* Not whole huge pages: plain ones. */
    struct lend__extent odd = extent_make(
        (struct lend__allocation_request){.bytes = huge + lend__page_bytes(), .huge_pages = LEND_HUGE_HUGETLB});
    struct lend__extent peer;
    int r = lend__cpu_ops.allocation_import(dup(e.fd), huge, 2 * huge, true, &peer, NULL);
    uint8_t seen = r == 0 ? peer.base[0] : 0;
    if (r == 0) lend__cpu_ops.allocation_free(&peer);
    lend__cpu_ops.allocation_free(&e);
    lend__cpu_ops.allocation_free(&plain);
    lend__cpu_ops.allocation_free(&odd);
    CHECK(setting_write(NR_HUGEPAGES, wanted));
    CHECK_UINT(got, huge);
    CHECK_UINT(got_plain, 0);
    CHECK_UINT(odd.huge_page_bytes, 0);
    CHECK_CODE(r, 0);
    CHECK_UINT(seen, 1);
}

LEND_TEST(hugetlb_with_a_policy_obeys_it) {
    uint64_t huge = lend__cpu_huge_page_bytes();
    setting_read(NR_HUGEPAGES);
    char wanted[32], before[32];
    snprintf(before, sizeof before, "%d", atoi(setting_before));
    snprintf(wanted, sizeof wanted, "%d", atoi(setting_before) + 2);
    if (!huge || !setting_write(NR_HUGEPAGES, wanted)) SKIP("huge pages cannot be reserved here");
    struct lend_error error;
    struct lend__extent e;
    struct lend__allocation_request request = {
        .bytes = 2 * huge, .huge_pages = LEND_HUGE_HUGETLB, .numa_mode = LEND_NUMA_BIND, .numa_nodes = 1};
    int r = lend__cpu_ops.allocation_new(&request, &e, &error);
    if (r == 0) {
        memset(e.base, 1, e.bytes);
        lend__cpu_ops.allocation_free(&e);
    }
    CHECK(setting_write(NR_HUGEPAGES, before));
    if (r == -EOPNOTSUPP) SKIP("no NUMA policy here: %s", error.text);
    CHECK_OK(r, &error);
    CHECK_UINT(e.numa_mode, LEND_NUMA_BIND);
    CHECK_UINT(e.numa_nodes, 1);
}

#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

LEND_TEST(transparent_huge_pages_are_counted) {
    uint64_t huge = lend__cpu_huge_page_bytes();
    struct lend__allocation_request request = {.bytes = 8 * MIB, .huge_pages = LEND_HUGE_THP};
    struct lend__extent e = extent_make(request);
    /* Whatever the setting: what is reported is whole huge pages, at most all of it. */
    uint64_t thp = lend__cpu_ops.thp_bytes(&e);
    CHECK(thp <= e.bytes && (!huge || thp % huge == 0));
    lend__cpu_ops.allocation_free(&e);
    setting_read(SHMEM_ENABLED);
    char *from = strchr(setting_before, '['), *to = strchr(setting_before, ']');
    if (!huge || huge > 4 * MIB || !from || !to || !setting_write(SHMEM_ENABLED, "advise"))
        SKIP("transparent huge pages cannot be allowed here");
    *to = '\0';
    e = extent_make(request);
    thp = lend__cpu_ops.thp_bytes(&e);
    struct lend__extent plain = extent_make((struct lend__allocation_request){.bytes = 8 * MIB, .is_pretouched = true});
    uint64_t thp_plain = lend__cpu_ops.thp_bytes(&plain);
    lend__cpu_ops.allocation_free(&e);
    lend__cpu_ops.allocation_free(&plain);
    CHECK(setting_write(SHMEM_ENABLED, from + 1));
    CHECK_UINT(thp_plain, 0);
    if (!thp) SKIP("the kernel has no huge page free");
    CHECK_UINT(thp % huge, 0);
}

LEND_TEST(numa_policy_is_read_back) {
    static const uint32_t wanted[] = {LEND_NUMA_BIND, LEND_NUMA_PREFERRED, LEND_NUMA_INTERLEAVE};
    struct lend_error error;
    struct lend__extent e;
    struct lend__allocation_request request = {.bytes = MIB, .numa_nodes = 1};
    for (unsigned i = 0; i < 3; i++) {
        request.numa_mode = wanted[i];
        int r = lend__cpu_ops.allocation_new(&request, &e, &error);
        if (r == -EOPNOTSUPP) SKIP("no NUMA policy here: %s", error.text);
        CHECK_OK(r, &error);
        CHECK_UINT(e.numa_mode, wanted[i]);
        CHECK_UINT(e.numa_nodes, 1);
        lend__cpu_ops.allocation_free(&e);
    }
    request.numa_nodes = (uint64_t)1 << 63;
    CHECK_CODE(lend__cpu_ops.allocation_new(&request, &e, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "NUMA");
    e = extent_make((struct lend__allocation_request){.bytes = MIB});
    CHECK_UINT(e.numa_mode, LEND_NUMA_DEFAULT);
    lend__cpu_ops.allocation_free(&e);
}

static int adopt(int fd, uint64_t off, uint64_t bytes, const char *part) {
    struct lend_error error = {0};
    struct lend__extent e;
    int r = lend__cpu_ops.allocation_adopt(fd, off, bytes, &e, &error);
    if (r == 0) lend__cpu_ops.allocation_free(&e);
    if (r < 0) CHECK_CONTAINS(error.text, part);
    return r;
}

LEND_TEST(adopted_descriptors_are_looked_at) {
    uint64_t page = lend__page_bytes();
    int fd = memfd_create("lend-adopt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_INT(ftruncate(fd, (off_t)(4 * page)), 0);
    CHECK_CODE(adopt(fd, 0, 5 * page, "not a range"), -EINVAL);
    CHECK_CODE(adopt(fd, 4 * page, page, "not a range"), -EINVAL);
    CHECK_CODE(adopt(fd, 64, page, "begins at a page"), -EINVAL);
    CHECK_CODE(adopt(fd, page, UINT64_MAX - page + 1, "not a range"), -EINVAL);
    CHECK_CODE(adopt(fd, page, 2 * page, ""), 0);
    CHECK(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
    CHECK_CODE(adopt(fd, page, 2 * page, ""), 0);   /* sealed already */
    CHECK_INT(ftruncate(fd, (off_t)(6 * page)), 0); /* it may still grow */
    CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    CHECK_CODE(adopt(fd, page, 2 * page, "sealed against writing"), -EINVAL);
    close(fd);
    fd = memfd_create("lend-unsealable", MFD_CLOEXEC);
    CHECK_INT(ftruncate(fd, (off_t)page), 0);
    CHECK_CODE(adopt(fd, 0, page, "MFD_ALLOW_SEALING"), -EOPNOTSUPP);
    close(fd);
    fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK_CODE(adopt(fd, 0, page, "not a memfd"), -EINVAL);
    close(fd);
    CHECK_CODE(adopt(-1, 0, page, ""), -EINVAL);
    fd = memfd_create("lend-adopt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_INT(ftruncate(fd, (off_t)page), 0);
    int reader = lend__fd_reopen(fd, O_RDONLY);
    CHECK_CODE(adopt(reader, 0, page, "not open for reading and writing"), -EINVAL);
    CHECK_CODE(adopt(fd, 0, page, ""), 0);
    CHECK_CODE(adopt(reader, 0, page, "not open for reading and writing"), -EINVAL);
    close(reader);
    close(fd);
}
