/* SPDX-License-Identifier: MIT */
/* How much memory there is: read from made-up files of the kernel in every form they come in, then from a real memory
 * cgroup in which a shortage would mean death. */
#include "base/sys.h"
#include "device/cpu/cpu.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

struct fake {
    const char *path, *text;
};
static const struct fake *fakes;

/* Opens the fake of that name as a memfd; nothing else exists. */
static long fake_open(const char *path, int flags) {
    (void)flags;
    for (const struct fake *f = fakes; f->path; f++) {
        if (strcmp(f->path, path) != 0) continue;
        int fd = memfd_create("fake", MFD_CLOEXEC);
        CHECK_INT(write(fd, f->text, strlen(f->text)), (ssize_t)strlen(f->text));
        lseek(fd, 0, SEEK_SET);
        return fd;
    }
    return -ENOENT;
}

static struct lend__cpu_room room_of(const struct fake *files) {
    struct lend__cpu_room room;
    fakes = files;
    lend__sys.open = fake_open;
    lend__cpu_room_read(&room);
    lend__sys.open = lend__sys_real.open;
    return room;
}

#define MEMINFO \
    { "/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8192 kB\nHugepagesize:       2048 kB\n" }

LEND_TEST(without_any_file_there_is_no_limit) {
    static const struct fake files[] = {{0}};
    CHECK_UINT(room_of(files).bytes, UINT64_MAX);
}

LEND_TEST(what_the_machine_has) {
    static const struct fake files[] = {MEMINFO, {0}};
    struct lend__cpu_room room = room_of(files);
    CHECK_UINT(room.bytes, 8 * MIB);
    CHECK_CONTAINS(room.limit, "MemAvailable");
    fakes = files;
    lend__sys.open = fake_open;
    CHECK_UINT(lend__cpu_huge_page_bytes(), 2 * MIB);
    lend__sys.open = lend__sys_real.open;
}

LEND_TEST(version_2_takes_the_tightest_ancestor_less_reclaimable_cache) {
    static const struct fake files[] = {
        MEMINFO,
        {"/proc/self/cgroup", "0::/a/b/c\n"},
        {"/proc/self/mountinfo",
         "22 1 0:5 / /proc rw shared:5 - proc proc rw\n"
         "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"},
        {"/sys/fs/cgroup/a/b/c/memory.max", "max\n"},
        {"/sys/fs/cgroup/a/b/memory.max", "5242880\n"},
        {"/sys/fs/cgroup/a/b/memory.current", "4194304\n"},
        {"/sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file_x 9\ninactive_file 1048576\nactive_file 2\n"},
        {"/sys/fs/cgroup/a/memory.max", "7340032\n"},
        {"/sys/fs/cgroup/a/memory.current", "1000\n"},
        {0}};
    struct lend__cpu_room room = room_of(files);
    CHECK_UINT(room.bytes, 2 * MIB);
    CHECK_STR(room.limit, "memory cgroup /sys/fs/cgroup/a/b");
}

LEND_TEST(version_1_beside_version_2) {
    static const struct fake files[] = {MEMINFO,
                                        {"/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/elsewhere\n"},
                                        {"/proc/self/mountinfo",
                                         "31 1 0:6 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                                         "32 1 0:7 / /cg/my\\040memory rw - cgroup cgroup rw,memory\n"
                                         "33 1 0:8 / /cg/unified rw - cgroup2 cgroup2 rw\n"},
                                        {"/cg/my memory/x/y/memory.limit_in_bytes", "9223372036854771712\n"},
                                        {"/cg/my memory/x/memory.limit_in_bytes", "9223372036854771712\n"},
                                        {"/cg/my memory/memory.limit_in_bytes", "3145728\n"},
                                        {"/cg/my memory/memory.usage_in_bytes", "2097152\n"},
                                        {"/cg/my memory/memory.stat", "inactive_file 77\ntotal_inactive_file 4096\n"},
                                        {0}};
    struct lend__cpu_room room = room_of(files);
    CHECK_UINT(room.bytes, MIB + 4096);
    CHECK_STR(room.limit, "memory cgroup /cg/my memory");
}

LEND_TEST(a_container_sees_its_group_as_the_root_of_the_mount) {
    static const struct fake files[] = {
        {"/proc/self/cgroup", "4:memory:/docker/abc\n"},
        {"/proc/self/mountinfo", "32 1 0:7 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "2097152\n"},
        {0}};
    CHECK_UINT(room_of(files).bytes, 0);
    /* A group outside of what is mounted: the root of the mount is all that can be known. */
    static const struct fake outside[] = {
        {"/proc/self/cgroup", "0::/../other\n"},
        {"/proc/self/mountinfo", "32 1 0:7 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"},
        {"/sys/fs/cgroup/memory.max", "4096\n"},
        {0}};
    CHECK_UINT(room_of(outside).bytes, 4096);
    static const struct fake sibling[] = {
        {"/proc/self/cgroup", "0::/abcd\n"},
        {"/proc/self/mountinfo", "32 1 0:7 /abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"},
        {"/sys/fs/cgroup/d/memory.max", "1\n"},
        {"/sys/fs/cgroup/memory.max", "4096\n"},
        {0}};
    CHECK_UINT(room_of(sibling).bytes, 4096);
}

LEND_TEST(damaged_files_are_no_limit) {
    static const struct fake files[] = {{"/proc/meminfo", "MemAvailable"},
                                        {"/proc/self/cgroup", "\n:\n::\n0::\n4:memory\nmemory:memory:memory"},
                                        {"/proc/self/mountinfo",
                                         " - \n - cgroup2 - - \n1 - cgroup2 x y\n1 2 3 - cgroup x memory\n- \n"
                                         "1 2 3 \\ \\0 - cgroup2 a b\n"},
                                        {0}};
    CHECK_UINT(room_of(files).bytes, UINT64_MAX);
}

LEND_TEST(a_long_group_name_keeps_its_end) {
    static char cgroup[512], max[1024];
    struct fake files[] = {{"/proc/self/cgroup", cgroup},
                           {"/proc/self/mountinfo", "32 1 0:7 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
                           {max, "4096\n"},
                           {0}};
    int n = snprintf(cgroup, sizeof cgroup, "0::/%0200d/the-end", 7);
    snprintf(max, sizeof max, "/sys/fs/cgroup%s/memory.max", cgroup + 3);
    snprintf(cgroup + n, sizeof cgroup - (size_t)n, "\n");
    struct lend__cpu_room room = room_of(files);
    CHECK_UINT(room.bytes, 4096);
    CHECK_CONTAINS(room.limit, "/the-end");
    CHECK_CONTAINS(room.limit, "memory cgroup ...0");
}

/* A group of our own, of the version that this machine has; with a limit in it or in its parent. */
static char parent_dir[256], group_dir[300];
static bool is_v2;

static bool file_write(const char *dir, const char *name, const char *text) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return is_written;
}

static void groups_remove(void) {
    for (int i = 0; i < 200 && rmdir(group_dir) < 0 && errno == EBUSY; i++) test_pause();
    for (int i = 0; i < 200 && rmdir(parent_dir) < 0 && errno == EBUSY; i++) test_pause();
}

static void groups_make(const char *limit) {
    static const char *const roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    for (int v2 = 0; v2 < 2; v2++) {
        char probe[64];
        snprintf(probe, sizeof probe, "%s/%s", roots[v2], v2 ? "cgroup.controllers" : "memory.limit_in_bytes");
        if (access(probe, R_OK) < 0) continue;
        is_v2 = v2;
        snprintf(parent_dir, sizeof parent_dir, "%s/lend-test-%d", roots[v2], (int)getpid());
        snprintf(group_dir, sizeof group_dir, "%s/inner", parent_dir);
        if (v2) file_write(roots[1], "cgroup.subtree_control", "+memory");
        bool is_made = mkdir(parent_dir, 0755) == 0 &&
                       file_write(parent_dir, v2 ? "memory.max" : "memory.limit_in_bytes", limit) &&
                       (!v2 || file_write(parent_dir, "cgroup.subtree_control", "+memory")) &&
                       mkdir(group_dir, 0755) == 0;
        if (is_made) return;
        groups_remove();
    }
    SKIP("no memory cgroup can be made here");
}

/* In the group, whose parent has 64 MiB. Exit status: which check failed. */
static int in_the_group(void) {
    struct lend_error error = {0};
    struct lend__extent e;
    struct lend__allocation_request request = {.bytes = 256 * MIB};
    if (!file_write(group_dir, "cgroup.procs", "0")) return 1;
    if (lend__cpu_ops.allocation_new(&request, &e, &error) != -ENOMEM) return 2;
    if (error.asked != 256 * MIB || error.available > 64 * MIB || error.available < 32 * MIB) return 3;
    if (!strstr(error.text, "lend-test-") || !strstr(error.text, "memory cgroup")) return 4;
    /* What was said to be available is (sanitizers need memory of their own meanwhile). */
    request.bytes = (error.available - 2 * MIB) & ~(uint64_t)(lend__page_bytes() - 1);
    if (lend__cpu_ops.allocation_new(&request, &e, &error) < 0) return 5;
    memset(e.base, 1, e.bytes);
    struct lend__extent other;
    request.bytes = 8 * MIB;
    if (lend__cpu_ops.allocation_new(&request, &other, &error) != -ENOMEM) return 6;
    lend__cpu_ops.allocation_free(&e);
    if (lend__cpu_ops.allocation_new(&request, &e, &error) < 0) return 7;
    lend__cpu_ops.allocation_free(&e);
    return 0;
}

LEND_TEST(a_real_group_refuses_instead_of_killing) {
#if defined(__SANITIZE_THREAD__)
    SKIP("the thread sanitizer takes several bytes of the group for each byte written");
#endif
    groups_make("67108864");
    int status = 0;
    pid_t pid = fork();
    if (!pid) _exit(in_the_group());
    waitpid(pid, &status, 0);
    groups_remove();
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
}
