/* SPDX-License-Identifier: MIT */
/* Answers as an older kernel does, in every actor: LEND_TEST_KERNEL names it. What is newer than 5.4, the oldest that
 * is supported, must be optional; "no-locks" has no /proc/self/fd, so that pidfds decide who lives. */
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NOEXEC_SEAL 8u    /* memfd_create, 6.3 */
#define SEAL_WRITE 8      /* such a memfd cannot be mapped shared, not even for reading, before 6.7 */
#define POPULATE_WRITE 23 /* madvise, 5.14 */
#define PEERPIDFD 77      /* SO_PEERPIDFD, 6.5 */

static struct lend__sys next;

static long old_memfd_create(const char *name, unsigned flags) {
    return flags & NOEXEC_SEAL ? -EINVAL : next.memfd_create(name, flags);
}

static long old_mmap(void *at, size_t bytes, int prot, int flags, int fd, uint64_t off, void **ret) {
    if (fd >= 0 && (flags & MAP_TYPE) == MAP_SHARED) {
        long seals = next.get_seals(fd);
        if (seals > 0 && (seals & SEAL_WRITE)) return -EPERM;
    }
    return next.mmap(at, bytes, prot, flags, fd, off, ret);
}

static long old_madvise(void *at, size_t bytes, int advice) {
    return advice == POPULATE_WRITE ? -EINVAL : next.madvise(at, bytes, advice);
}

static long old_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes) {
    return level == SOL_SOCKET && name == PEERPIDFD ? -ENOPROTOOPT : next.getsockopt(fd, level, name, value, bytes);
}

static long no_pidfd_open(pid_t pid) {
    (void)pid;
    return -ENOSYS;
}

static long no_proc_open(const char *path, int flags) {
    return strncmp(path, "/proc/self/fd/", 14) ? next.open(path, flags) : -ENOENT;
}

__attribute__((constructor)) static void become_old(void) {
    const char *kernel = getenv("LEND_TEST_KERNEL");
    if (!kernel) return;
    bool is_54 = strstr(kernel, "5.4"), has_no_locks = strstr(kernel, "no-locks");
    next = lend__sys;
    lend__sys.memfd_create = old_memfd_create;
    lend__sys.mmap = old_mmap;
    if (is_54) lend__sys.madvise = old_madvise;
    if (is_54 || strstr(kernel, "6.1")) lend__sys.getsockopt = old_getsockopt;
    if (strstr(kernel, "no-pidfd")) lend__sys.pidfd_open = no_pidfd_open;
    if (has_no_locks) lend__sys.open = no_proc_open;
}
