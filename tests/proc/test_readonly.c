/* SPDX-License-Identifier: MIT */
/* What a peer may do to memory that it was lent: the kernel refuses truncating and growing always, and writing where
 * the pool is read-only for peers. The peer here uses raw system calls on what it received. */
#include "peer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The descriptor of this process whose inode that is. */
static int descriptor_of(uint64_t inode) {
    for (int fd = 3; fd < 1024; fd++) {
        struct stat st;
        if (!fstat(fd, &st) && st.st_ino == inode) return fd;
    }
    FAIL("no descriptor has the inode %llu", (unsigned long long)inode);
}

/* Does fn end a child by SIGSEGV or SIGBUS? */
static bool faults(void *address) {
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile uint8_t *)address = 99;
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    /* A sanitizer reports the fault and exits. */
    return WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
}

static void expect_no_resize(int fd, uint64_t bytes) {
    struct stat st;
    CHECK(!fstat(fd, &st));
    uint64_t size = (uint64_t)st.st_size;
    CHECK(size >= bytes);
    CHECK_INT(ftruncate(fd, (off_t)size - 4096) ? errno : 0, EPERM);
    CHECK_INT(ftruncate(fd, 0) ? errno : 0, EPERM);
    CHECK_INT(ftruncate(fd, (off_t)size + (1 << 20)) ? errno : 0, EPERM);
    CHECK_INT(fallocate(fd, 0, (off_t)size, 1 << 20) ? errno : 0, EPERM);
    CHECK(!fstat(fd, &st));
    CHECK_UINT((uint64_t)st.st_size, size);
}

/* argv: handle, "ro" or "rw". */
LEND_ROLE(tamperer) {
    bool is_read_only = !strcmp(argv[1], "ro");
    struct lend_tensor *tensor = NULL, *copy = NULL;
    struct lend_error error = {0};
    struct lend_rebuild_opts writable = {.size = sizeof writable, .flags = LEND_REBUILD_WRITABLE};
    open_with(NULL);
    CHECK_OK(rebuild_text(argv[0], NULL, &tensor, &error), &error);
    struct lend_tensor_info info = info_of(tensor);
    CHECK_INT(info.is_read_only, is_read_only);
    CHECK(is_filled(tensor, 7));
    int fd = descriptor_of(info.allocation_inode);
    expect_no_resize(fd, info.allocation_bytes);
    /* Through another open file of the same memory, too. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0) expect_no_resize(again, info.allocation_bytes);
    if (is_read_only) {
        uint8_t byte = 99;
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        for (int i = 0; i < 2; i++) {
            int f = i ? again : fd;
            if (f < 0) continue;
            CHECK_INT(pwrite(f, &byte, 1, 0) < 0 ? errno : 0, EPERM);
            CHECK(mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0) == MAP_FAILED);
            CHECK_INT(errno, EPERM);
            CHECK_INT(fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)page) ? errno : 0, EPERM);
        }
        void *start = (void *)((uintptr_t)info.data & ~(uintptr_t)(page - 1));
        CHECK(mprotect(start, page, PROT_READ | PROT_WRITE) < 0);
        CHECK_INT(errno, EACCES);
        CHECK(faults(info.data));
        CHECK_CODE(rebuild_text(argv[0], &writable, &copy, &error), -EACCES);
        CHECK_CONTAINS(error.text, "read-only");
        struct DLManagedTensorVersioned *managed = NULL;
        struct DLManagedTensor *legacy = NULL;
        CHECK_OK(lend_tensor_to_dlpack(tensor, &managed, &error), &error);
        CHECK(managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
        managed->deleter(managed);
        CHECK_CODE(lend_tensor_to_dlpack_legacy(tensor, &legacy, &error), -EACCES);
    } else {
        CHECK_OK(rebuild_text(argv[0], &writable, &copy, &error), &error);
        lend_tensor_unref(copy);
    }
    if (again >= 0) close(again);
    CHECK(is_filled(tensor, 7));
    /* The way out: a private writable copy. */
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    CHECK_INT(info_of(copy).is_read_only, 0);
    memset(lend_tensor_data(copy), 1, info.nbytes);
    CHECK(is_filled(tensor, 7));
    lend_tensor_unref(copy);
    lend_tensor_unref(tensor);
    close_all(NULL);
    return 0;
}

static void tamper(uint32_t pool_flags, const char *kind) {
    struct lend_pool_opts opts = {.size = sizeof opts, .flags = pool_flags};
    open_with(NULL);
    struct lend_pool *pool = new_pool(&opts);
    struct lend_tensor *tensor = new_bytes(pool, 100000, 7);
    struct role r;
    ROLE_START(&r, NULL, "tamperer", reduce_text(tensor, NULL, 0), kind);
    role_end(&r);
    CHECK(is_filled(tensor, 7));
    memset(lend_tensor_data(tensor), 8, 100000); /* its owner may */
    lend_tensor_unref(tensor);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

LEND_TEST(a_peer_cannot_truncate_or_grow) {
    tamper(0, "rw");
}

LEND_TEST(a_peer_cannot_write_into_a_read_only_pool) {
    tamper(LEND_POOL_PEERS_READ_ONLY, "ro");
}

/* Table and page: what the protocol itself shares. */
LEND_ROLE(table_tamperer) {
    struct lend_tensor *tensor = NULL;
    char target[64], path[64];
    unsigned n = 0;
    open_with(NULL);
    CHECK_OK(rebuild_text(argv[0], NULL, &tensor, NULL), NULL);
    for (int fd = 3; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t bytes = readlink(path, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        if (strncmp(target, "/memfd:lend-table", 17)) continue;
        n++;
        uint8_t byte = 0;
        expect_no_resize(fd, 4096);
        CHECK_INT(pwrite(fd, &byte, 1, 0) < 0 ? errno : 0, EPERM);
        CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
        CHECK_INT(errno, EPERM);
    }
    CHECK_UINT(n, 1);
    lend_tensor_unref(tensor);
    close_all(NULL);
    return 0;
}

LEND_TEST(a_peer_cannot_write_the_slot_table) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 7);
    struct role r;
    ROLE_START(&r, NULL, "table_tamperer", reduce_text(tensor, NULL, 0));
    role_end(&r);
    lend_tensor_unref(tensor);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

/* The mark of one handle, in a pool that peers may write: it binds well-behaved peers, on the way on, too. */
LEND_TEST(a_read_only_handle_marks_the_tensor) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_READ_ONLY};
    char text[LEND_HANDLE_TEXT_MAX];
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 7);
    struct role b, c;
    actor_start(&b, NULL, NULL);
    actor_start(&c, NULL, NULL);
    actor_ok(&b, "rebuild 0 %s", reduce_text(tensor, &opts, 0));
    CHECK_CONTAINS(actor_ok(&b, "info 0"), "read_only 1");
    snprintf(text, sizeof text, "%s", actor_ok(&b, "reduce 0"));
    actor_ok(&c, "rebuild 0 %s", text);
    CHECK_CONTAINS(actor_ok(&c, "info 0"), "read_only 1");
    CHECK_INT(actor_code(&c, "rebuild 1 %s writable", text), -EACCES);
    /* Another handle of the same storage, without the mark. */
    actor_ok(&c, "rebuild 1 %s writable", reduce_text(tensor, NULL, 0));
    CHECK_CONTAINS(actor_ok(&c, "info 1"), "read_only 0");
    CHECK_INT(actor_int(&c, "same 0 1"), 1);
    actor_ok(&c, "rebuild 2 %s read_only", reduce_text(tensor, NULL, 0));
    CHECK_CONTAINS(actor_ok(&c, "info 2"), "read_only 1");
    lend_tensor_unref(tensor);
    role_end(&b);
    role_end(&c);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}
