/* SPDX-License-Identifier: MIT */
/* The table of system calls (and of the heap): everything that the library asks of the kernel goes through it, so
 * that tests can fail each call once, answer as an old kernel does, or kill the process before and after each one.
 *
 * Convention: a negative errno instead of -1 and errno. EINTR is retried inside where a retry is right (not in poll
 * and epoll_wait, whose callers have deadlines). Descriptors are CLOEXEC at birth. */
#ifndef LEND_BASE_SYS_H_
#define LEND_BASE_SYS_H_

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>

/* X(name, parameters, arguments): every entry returns long (0, a count, a descriptor, or a negative errno). */
#define LEND__SYS_TABLE(X)                                                                                             \
    X(memfd_create, (const char *name, unsigned flags), (name, flags))                                                 \
    X(ftruncate, (int fd, uint64_t bytes), (fd, bytes))                                                                \
    X(fallocate, (int fd, int mode, uint64_t off, uint64_t bytes), (fd, mode, off, bytes))                             \
    X(add_seals, (int fd, unsigned seals), (fd, seals))                                                                \
    X(get_seals, (int fd), (fd))                                                                                       \
    X(fstat, (int fd, struct stat *ret), (fd, ret))                                                                    \
    X(mmap, (void *at, size_t bytes, int prot, int flags, int fd, uint64_t off, void **ret),                           \
      (at, bytes, prot, flags, fd, off, ret))                                                                          \
    X(munmap, (void *at, size_t bytes), (at, bytes))                                                                   \
    X(mprotect, (void *at, size_t bytes, int prot), (at, bytes, prot))                                                 \
    X(madvise, (void *at, size_t bytes, int advice), (at, bytes, advice))                                              \
    X(mbind, (void *at, size_t bytes, int mode, const unsigned long *nodes, unsigned long max_node, unsigned flags),   \
      (at, bytes, mode, nodes, max_node, flags))                                                                       \
    X(get_mempolicy, (int *ret_mode, unsigned long *ret_nodes, unsigned long max_node, void *at, unsigned long flags), \
      (ret_mode, ret_nodes, max_node, at, flags))                                                                      \
    X(open, (const char *path, int flags), (path, flags))                                                              \
    X(close, (int fd), (fd))                                                                                           \
    X(dup, (int fd), (fd))                                                                                             \
    X(flock, (int fd, int operation), (fd, operation))                                                                 \
    X(read, (int fd, void *buf, size_t bytes), (fd, buf, bytes))                                                       \
    X(write, (int fd, const void *buf, size_t bytes), (fd, buf, bytes))                                                \
    X(pread, (int fd, void *buf, size_t bytes, uint64_t off), (fd, buf, bytes, off))                                   \
    X(unlink, (const char *path), (path))                                                                              \
    X(chmod, (const char *path, mode_t mode), (path, mode))                                                            \
    X(socket, (int domain, int type, int protocol), (domain, type, protocol))                                          \
    X(bind, (int fd, const struct sockaddr *addr, socklen_t bytes), (fd, addr, bytes))                                 \
    X(listen, (int fd, int backlog), (fd, backlog))                                                                    \
    X(accept, (int fd), (fd))                                                                                          \
    X(connect, (int fd, const struct sockaddr *addr, socklen_t bytes), (fd, addr, bytes))                              \
    X(sendmsg, (int fd, const struct msghdr *msg, int flags), (fd, msg, flags))                                        \
    X(recvmsg, (int fd, struct msghdr *msg, int flags), (fd, msg, flags))                                              \
    X(getsockopt, (int fd, int level, int name, void *value, socklen_t *bytes), (fd, level, name, value, bytes))       \
    X(poll, (struct pollfd * fds, unsigned n, const struct timespec *timeout), (fds, n, timeout))                      \
    X(epoll_create, (void), ())                                                                                        \
    X(epoll_ctl, (int ep, int op, int fd, struct epoll_event *event), (ep, op, fd, event))                             \
    X(epoll_wait, (int ep, struct epoll_event *events, int n, int timeout_ms), (ep, events, n, timeout_ms))            \
    X(eventfd, (unsigned value), (value))                                                                              \
    X(pidfd_open, (pid_t pid), (pid))                                                                                  \
    X(getrandom, (void *buf, size_t bytes), (buf, bytes))                                                              \
    X(thread_create, (pthread_t * ret, void *(*start)(void *), void *arg), (ret, start, arg))                          \
    X(calloc, (size_t n, size_t bytes, void **ret), (n, bytes, ret))                                                   \
    X(realloc, (void *old, size_t bytes, void **ret), (old, bytes, ret))

struct lend__sys {
#define LEND__SYS_MEMBER(name, params, args) long(*name) params;
    LEND__SYS_TABLE(LEND__SYS_MEMBER)
#undef LEND__SYS_MEMBER
};

/* The table in force. Writable so that tests can replace entries; the library itself never writes it. */
extern struct lend__sys lend__sys;

/* The real calls, unwrapped: what a test's replacement calls through to. */
extern const struct lend__sys lend__sys_real;

/* calloc through the table: NULL when there is no memory. Freed with free(). */
static inline void *lend__zalloc(size_t bytes) {
    void *p = NULL;
    return lend__sys.calloc(1, bytes, &p) < 0 ? NULL : p;
}

/* Closes and sets to -1; does nothing for a negative descriptor. */
void lend__fd_close(int *fd);

/* A received descriptor, moved above standard error if it is one of 0, 1 and 2 (consumed); or a negative errno. */
int lend__fd_lift(int fd);

/* A new open file of the same object through /proc/self/fd (the lock of an open file follows it, not the inode).
 * Returns the descriptor or a negative errno. */
int lend__fd_reopen(int fd, int flags);

/* A memfd: close-on-exec, sealable, and where the kernel can (6.3) never executable, which vm.memfd_noexec may demand.
 * `flags`: MFD_HUGETLB or 0. Returns the descriptor or a negative errno. */
int lend__memfd_new(const char *name, unsigned flags);

/* Monotonic and boot-time clocks in nanoseconds (vDSO calls: not in the table). */
uint64_t lend__now_ns(void);
uint64_t lend__boottime_ns(void);

/* Sleeps; used only while waiting for a peer in the middle of something short. */
void lend__sleep_ns(uint64_t ns);

/* Deadlines. `deadline_ns` as public calls take it: relative, 0 = `default_ns`, negative = no limit.
 * lend__deadline gives an absolute monotonic time, UINT64_MAX for no limit. */
uint64_t lend__deadline(int64_t deadline_ns, int64_t default_ns);
bool lend__deadline_passed(uint64_t deadline);
/* Waits until fd is ready for `events`, or the deadline. Returns revents, -ETIMEDOUT, or a negative errno. */
int lend__poll_fd(int fd, short events, uint64_t deadline);

/* The page size of this machine, never a literal. */
size_t lend__page_bytes(void);

#define LEND__CLEANUP_FD __attribute__((cleanup(lend__fd_close))) int
/* Takes a descriptor out of a cleanup variable: the caller owns it now. */
#define LEND__TAKE_FD(fd)  \
    ({                     \
        int *at_ = &(fd);  \
        int taken_ = *at_; \
        *at_ = -1;         \
        taken_;            \
    })

#endif
