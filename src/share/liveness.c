/* SPDX-License-Identifier: MIT */
/* The open-file lock, and pidfds for where it does not work. Nothing here keeps state. */
#include "share/liveness.h"

#include "base/point.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

int lend__life_lend(int memfd, bool with_lock, int *ret_lent, int *ret_mine) {
    LEND__CLEANUP_FD lent = with_lock ? lend__fd_reopen(memfd, O_RDWR) : (int)lend__sys.dup(memfd);
    if (lent < 0) return lent;
    LEND__CLEANUP_FD mine = with_lock ? lend__fd_reopen(memfd, O_RDWR) : (int)lend__sys.dup(memfd);
    if (mine < 0) return mine;
    long r = with_lock ? lend__sys.flock(lent, LOCK_EX | LOCK_NB) : 0;
    if (r < 0) return (int)r;
    *ret_lent = LEND__TAKE_FD(lent);
    *ret_mine = LEND__TAKE_FD(mine);
    return 0;
}

static bool is_over(int fd, int how) {
    if (lend__sys.flock(fd, how | LOCK_NB) < 0) return false;
    lend__sys.flock(fd, LOCK_UN);
    return true;
}

bool lend__life_is_over(int mine) {
    return is_over(mine, LOCK_EX);
}

bool lend__life_is_over_shared(int fd) {
#ifdef LEND_MUTANT_LOCKEX
    return is_over(fd, LOCK_EX);
#else
    return is_over(fd, LOCK_SH);
#endif
}

bool lend__life_selftest(void) {
    LEND__CLEANUP_FD memfd = (int)lend__sys.memfd_create("lend-selftest", MFD_CLOEXEC);
    if (memfd < 0 || lend__sys.ftruncate(memfd, lend__page_bytes()) < 0) return false;
    int lent = -1;
    LEND__CLEANUP_FD mine = -1;
    if (lend__life_lend(memfd, true, &lent, &mine) < 0) return false;
    void *at = NULL;
    long r = lend__sys.mmap(NULL, lend__page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, lent, 0, &at);
    lend__fd_close(&lent);
    if (r < 0) return false;
    bool lives_while_mapped = !lend__life_is_over(mine);
    lend__sys.munmap(at, lend__page_bytes());
    return lives_while_mapped && lend__life_is_over(mine);
}

int lend__life_pidfd(int socket_fd, int pid) {
    int pidfd = -1;
    socklen_t bytes = sizeof pidfd;
    if (!lend__sys.getsockopt(socket_fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes)) return pidfd;
    return pid > 0 ? (int)lend__sys.pidfd_open(pid) : -ESRCH;
}

bool lend__life_pidfd_is_over(int pidfd) {
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    struct timespec none = {0, 0};
    return lend__sys.poll(&p, 1, &none) > 0 && (p.revents & POLLIN);
}
