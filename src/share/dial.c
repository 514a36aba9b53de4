/* SPDX-License-Identifier: MIT */
/* Sockets to an exporter, with deadlines: connect, send, wait. Nothing here blocks longer than it was told, also when
 * the exporter is stopped and its backlog is full. */
#include "base/sys.h"
#include "share/peer.h"

#include <errno.h>

/* Between two looks at the table's lock while an answer is awaited, or at a full backlog. */
#define LIFE_SLICE_NS 100000000ull
#define BACKLOG_RETRY_NS 1000000ull

int lend__dial(const struct sockaddr_un *address, socklen_t bytes, uint64_t deadline) {
    LEND__CLEANUP_FD fd = (int)lend__sys.socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (fd < 0) return fd;
    for (;;) {
        long r = lend__sys.connect(fd, (const struct sockaddr *)address, bytes);
        if (r >= 0) return LEND__TAKE_FD(fd);
        if (r == -ECONNREFUSED || r == -ENOENT) return -EOWNERDEAD;
        if (r == -EACCES) return -EPERM;
        if (r != -EAGAIN) return (int)r;
        if (lend__deadline_passed(deadline)) return -ETIMEDOUT;
        lend__sleep_ns(BACKLOG_RETRY_NS); /* the backlog is full; poll cannot wait for that */
    }
}

int lend__dial_send(int fd, const struct lend__control_request *request, uint64_t deadline) {
    for (;;) {
        int r = lend__control_send(fd, request, request->bytes, NULL, 0);
        if (r != -EAGAIN) return r;
        r = lend__poll_fd(fd, POLLOUT, deadline);
        if (r < 0) return r;
    }
}

int lend__dial_wait(int fd, struct lend__peer *peer, uint64_t deadline) {
    for (;;) {
        uint64_t slice = lend__now_ns() + LIFE_SLICE_NS;
        int r = lend__poll_fd(fd, POLLIN, slice < deadline ? slice : deadline);
        if (r != -ETIMEDOUT) return r < 0 ? r : 0;
        /* A forked child may hold the connection open: the lock tells. */
        if (peer && lend__peer_is_dead(peer)) return -EOWNERDEAD;
        if (lend__deadline_passed(deadline)) return -ETIMEDOUT;
    }
}
