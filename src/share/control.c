/* SPDX-License-Identifier: MIT */
/* Sending and receiving one control message with its descriptors. Every descriptor that arrives is either handed to
 * the caller or closed here, truncated control messages included. */
#include "share/control.h"

#include "base/sys.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

_Static_assert(sizeof(struct lend__control_request) == 112, "request");
_Static_assert(sizeof(struct lend__control_reply) == 112, "reply");

void lend__control_drop_fds(struct lend__control_fds *fds) {
    for (unsigned i = 0; i < fds->n; i++) lend__fd_close(&fds->fd[i]);
    fds->n = 0;
}

void lend__control_put_fds(struct msghdr *msg, void *space, const int *fds, unsigned n) {
    memset(space, 0, CMSG_SPACE(n * sizeof(int)));
    msg->msg_control = space;
    msg->msg_controllen = CMSG_SPACE(n * sizeof(int));
    struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, n * sizeof(int));
}

int lend__control_send(int socket_fd, const void *message, size_t bytes, const int *fds, unsigned n_fds) {
    struct iovec iov = {(void *)(uintptr_t)message, bytes};
    union lend__control_space space;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fds && n_fds) lend__control_put_fds(&msg, space.bytes, fds, n_fds);
    long r = lend__sys.sendmsg(socket_fd, &msg, MSG_DONTWAIT);
    return r < 0 ? (int)r : 0;
}

void lend__control_take_fds(struct msghdr *msg, struct lend__fds *ret) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            fd = lend__fd_lift(fd);
            if (fd < 0)
                ret->is_truncated = true;
            else if (ret->n < ret->room)
                ret->fd[ret->n++] = fd;
            else
                lend__fd_close(&fd);
        }
    }
    if (msg->msg_flags & MSG_CTRUNC) ret->is_truncated = true;
}

int lend__control_recv(int socket_fd, void *buf, size_t bytes, struct lend__control_fds *ret_fds) {
    *ret_fds = (struct lend__control_fds){0};
    struct iovec iov = {buf, bytes};
    union lend__control_space space;
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    long r = lend__sys.recvmsg(socket_fd, &msg, MSG_DONTWAIT);
    /* Closed with our message unread: the kernel tells that first and once, and what the peer had said comes after it. */
    if (r == -ECONNRESET) r = lend__sys.recvmsg(socket_fd, &msg, MSG_DONTWAIT);
    if (r < 0) return (int)r;
    struct lend__fds fds = {ret_fds->fd, 0, LEND__CONTROL_FDS_MAX, false};
    lend__control_take_fds(&msg, &fds);
    ret_fds->n = fds.n;
    ret_fds->is_truncated = fds.is_truncated;
    if (msg.msg_flags & MSG_TRUNC) {
        lend__control_drop_fds(ret_fds);
        return -EMSGSIZE;
    }
    return (int)r;
}

int lend__control_credentials(int socket_fd, uint32_t *ret_uid, uint32_t *ret_pid) {
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    long r = lend__sys.getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes);
    if (r < 0) return (int)r;
    *ret_uid = cred.uid;
    *ret_pid = (uint32_t)cred.pid;
    return 0;
}
