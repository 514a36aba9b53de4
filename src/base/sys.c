/* SPDX-License-Identifier: MIT */
/* The table of system calls: thin wrappers that turn -1 and errno into a negative errno, retry EINTR where a retry is
 * right, and ask for CLOEXEC. Calls that are newer than glibc 2.28 go by their number. In the twin with test points
 * each entry hits a point before and after the call ("sys.NAME<" and "sys.NAME>"). */
#include "base/sys.h"

#include "base/point.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL /* of 6.3: newer than the headers */
#define MFD_NOEXEC_SEAL 8u
#endif

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#endif

#define NO_EINTR(expression)              \
    ({                                    \
        long r_;                          \
        do r_ = (long)(expression);       \
        while (r_ < 0 && errno == EINTR); \
        r_ < 0 ? -(long)errno : r_;       \
    })

/* A descriptor of ours must never be 0, 1 or 2: in a program that closed those, its own output would be written into
 * tensors. Consumes fd; a negative errno passes through. */
static long lifted(long fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    long above = NO_EINTR(fcntl((int)fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    close((int)fd);
    return above;
}

/* Beyond RLIMIT_FSIZE the kernel sends a signal (SIGXFSZ) before it says so. */
static bool is_beyond_file_limit(uint64_t bytes) {
    struct rlimit limit;
    return !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

static long real_memfd_create(const char *name, unsigned flags) {
    return lifted(NO_EINTR(syscall(SYS_memfd_create, name, flags)));
}

static long real_ftruncate(int fd, uint64_t bytes) {
    if (is_beyond_file_limit(bytes)) return -EFBIG;
    return NO_EINTR(ftruncate(fd, (off_t)bytes));
}

static long real_fallocate(int fd, int mode, uint64_t off, uint64_t bytes) {
    if (!(mode & FALLOC_FL_PUNCH_HOLE) && is_beyond_file_limit(off + bytes)) return -EFBIG;
    return NO_EINTR(fallocate(fd, mode, (off_t)off, (off_t)bytes));
}

static long real_add_seals(int fd, unsigned seals) {
    return NO_EINTR(fcntl(fd, F_ADD_SEALS, seals));
}

static long real_get_seals(int fd) {
    return NO_EINTR(fcntl(fd, F_GET_SEALS));
}

static long real_fstat(int fd, struct stat *ret) {
    return NO_EINTR(fstat(fd, ret));
}

static long real_mmap(void *at, size_t bytes, int prot, int flags, int fd, uint64_t off, void **ret) {
    void *p = mmap(at, bytes, prot, flags, fd, (off_t)off);
    if (p == MAP_FAILED) return -(long)errno;
    *ret = p;
    return 0;
}

static long real_munmap(void *at, size_t bytes) {
    return NO_EINTR(munmap(at, bytes));
}

static long real_mprotect(void *at, size_t bytes, int prot) {
    return NO_EINTR(mprotect(at, bytes, prot));
}

static long real_madvise(void *at, size_t bytes, int advice) {
    return NO_EINTR(madvise(at, bytes, advice));
}

static long real_mbind(void *at, size_t bytes, int mode, const unsigned long *nodes, unsigned long max_node,
                       unsigned flags) {
    return NO_EINTR(syscall(SYS_mbind, at, bytes, mode, nodes, max_node, flags));
}

static long real_get_mempolicy(int *ret_mode, unsigned long *ret_nodes, unsigned long max_node, void *at,
                               unsigned long flags) {
    return NO_EINTR(syscall(SYS_get_mempolicy, ret_mode, ret_nodes, max_node, at, flags));
}

static long real_open(const char *path, int flags) {
    return lifted(NO_EINTR(open(path, flags | O_CLOEXEC, 0600)));
}

/* Never retried: on Linux the descriptor is gone even when close says EINTR. */
static long real_close(int fd) {
    return close(fd) < 0 ? -(long)errno : 0;
}

static long real_dup(int fd) {
    return NO_EINTR(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

static long real_flock(int fd, int operation) {
    return NO_EINTR(flock(fd, operation));
}

static long real_read(int fd, void *buf, size_t bytes) {
    return NO_EINTR(read(fd, buf, bytes));
}

static long real_write(int fd, const void *buf, size_t bytes) {
    return NO_EINTR(write(fd, buf, bytes));
}

static long real_pread(int fd, void *buf, size_t bytes, uint64_t off) {
    return NO_EINTR(pread(fd, buf, bytes, (off_t)off));
}

static long real_unlink(const char *path) {
    return NO_EINTR(unlink(path));
}

static long real_chmod(const char *path, mode_t mode) {
    return NO_EINTR(chmod(path, mode));
}

static long real_socket(int domain, int type, int protocol) {
    return lifted(NO_EINTR(socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol)));
}

static long real_bind(int fd, const struct sockaddr *addr, socklen_t bytes) {
    return NO_EINTR(bind(fd, addr, bytes));
}

static long real_listen(int fd, int backlog) {
    return NO_EINTR(listen(fd, backlog));
}

static long real_accept(int fd) {
    return lifted(NO_EINTR(accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)));
}

static long real_connect(int fd, const struct sockaddr *addr, socklen_t bytes) {
    return NO_EINTR(connect(fd, addr, bytes));
}

static long real_sendmsg(int fd, const struct msghdr *msg, int flags) {
    return NO_EINTR(sendmsg(fd, msg, flags | MSG_NOSIGNAL));
}

static long real_recvmsg(int fd, struct msghdr *msg, int flags) {
    return NO_EINTR(recvmsg(fd, msg, flags | MSG_CMSG_CLOEXEC));
}

static long real_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes) {
    return NO_EINTR(getsockopt(fd, level, name, value, bytes));
}

static long real_poll(struct pollfd *fds, unsigned n, const struct timespec *timeout) {
    int r = ppoll(fds, n, timeout, NULL);
    return r < 0 ? -(long)errno : r;
}

static long real_epoll_create(void) {
    return lifted(NO_EINTR(epoll_create1(EPOLL_CLOEXEC)));
}

static long real_epoll_ctl(int ep, int op, int fd, struct epoll_event *event) {
    return NO_EINTR(epoll_ctl(ep, op, fd, event));
}

static long real_epoll_wait(int ep, struct epoll_event *events, int n, int timeout_ms) {
    int r = epoll_wait(ep, events, n, timeout_ms);
    return r < 0 ? -(long)errno : r;
}

static long real_eventfd(unsigned value) {
    return lifted(NO_EINTR(eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK)));
}

static long real_pidfd_open(pid_t pid) {
    return lifted(NO_EINTR(syscall(SYS_pidfd_open, pid, 0)));
}

static long real_getrandom(void *buf, size_t bytes) {
    return NO_EINTR(getrandom(buf, bytes, 0));
}

/* All signals are blocked in a thread of ours: the program's handlers run in the program's threads. */
static long real_thread_create(pthread_t *ret, void *(*start)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(ret, NULL, start, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -(long)r;
}

static long real_calloc(size_t n, size_t bytes, void **ret) {
    void *p = calloc(n, bytes ? bytes : 1);
    if (!p) return -ENOMEM;
    *ret = p;
    return 0;
}

static long real_realloc(void *old, size_t bytes, void **ret) {
    void *p = realloc(old, bytes ? bytes : 1);
    if (!p) return -ENOMEM;
    *ret = p;
    return 0;
}

#define MEMBER_REAL(name, params, args) .name = real_##name,
const struct lend__sys lend__sys_real = {LEND__SYS_TABLE(MEMBER_REAL)};

#ifdef LEND_TEST_POINTS
/* The heap and the poll loops are not steps of the protocol: a point there would only repeat its neighbours. */
#define POINTED(name, params, args)        \
    static long pointed_##name params {    \
        LEND_POINT("sys." #name "<");      \
        long r = lend__sys_real.name args; \
        LEND_POINT("sys." #name ">");      \
        return r;                          \
    }
LEND__SYS_TABLE(POINTED)
#define MEMBER_POINTED(name, params, args) .name = pointed_##name,
struct lend__sys lend__sys = {LEND__SYS_TABLE(MEMBER_POINTED)};
#else
struct lend__sys lend__sys = {LEND__SYS_TABLE(MEMBER_REAL)};
#endif

void lend__fd_close(int *fd) {
    if (*fd < 0) return;
    lend__sys.close(*fd);
    *fd = -1;
}

int lend__fd_lift(int fd) {
    if (fd > STDERR_FILENO) return fd;
    int above = (int)lend__sys.dup(fd);
    lend__sys.close(fd);
    return above;
}

int lend__memfd_new(const char *name, unsigned flags) {
    flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
    long fd = lend__sys.memfd_create(name, flags | MFD_NOEXEC_SEAL);
    return (int)(fd == -EINVAL ? lend__sys.memfd_create(name, flags) : fd); /* before 6.3 */
}

int lend__fd_reopen(int fd, int flags) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return (int)lend__sys.open(path, flags);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t lend__now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t lend__boottime_ns(void) {
    return clock_ns(CLOCK_BOOTTIME);
}

void lend__sleep_ns(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

uint64_t lend__deadline(int64_t deadline_ns, int64_t default_ns) {
    if (deadline_ns == 0) deadline_ns = default_ns;
    if (deadline_ns < 0) return UINT64_MAX;
    return lend__now_ns() + (uint64_t)deadline_ns;
}

bool lend__deadline_passed(uint64_t deadline) {
    return deadline != UINT64_MAX && lend__now_ns() >= deadline;
}

int lend__poll_fd(int fd, short events, uint64_t deadline) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        struct timespec t, *timeout = NULL;
        if (deadline != UINT64_MAX) {
            uint64_t now = lend__now_ns(), left = deadline > now ? deadline - now : 0;
            t = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
            timeout = &t;
        }
        long r = lend__sys.poll(&p, 1, timeout);
        if (r == -EINTR) continue;
        if (r < 0) return (int)r;
        if (r > 0) return p.revents;
        return -ETIMEDOUT;
    }
}

size_t lend__page_bytes(void) {
    static size_t bytes;
    size_t b = __atomic_load_n(&bytes, __ATOMIC_RELAXED);
    if (!b) {
        b = (size_t)sysconf(_SC_PAGESIZE);
        __atomic_store_n(&bytes, b, __ATOMIC_RELAXED);
    }
    return b;
}
