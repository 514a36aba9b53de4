/* SPDX-License-Identifier: MIT */
/* One message is one sendmsg: header, items, handle, with all descriptors. The receiver looks first (MSG_PEEK) and takes
 * it off the socket only when all of it has arrived with all its descriptors: a full table of descriptors loses nothing.
 * It looks twice: at the bytes, which say whether descriptors came with them, and then with those. On a stream a look ends
 * at the first piece that has some, however few bytes are asked for: with a message that has none it would come back with
 * those of the next one. A handle that would make the message too long for looking travels as a sealed memfd. */
#include "share/parcel.h"

#include "base/error.h"
#include "base/sys.h"
#include "share/call.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <lend/group.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define MAGIC 0x47534d4cu /* "LMSG" */

/* What is longer travels as a memfd. With the smallest send buffer that the kernel gives (4,608 bytes), a stream socket
 * cuts messages into pieces of 2,240, and the receiver cannot look further than the piece with the descriptors. */
#define INLINE_BYTES_MAX 2048u
_Static_assert(sizeof(struct lend__parcel_header) + LEND__PARCEL_FDS_MAX * sizeof(struct lend__parcel_item) <=
                   INLINE_BYTES_MAX,
               "whatever comes with it, a message without its handle is short");

/* What else the caller may have asked this socket to tell: credentials, a security label, a pidfd, time stamps. */
#define OTHER_CONTROL_BYTES 1024u
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

union space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(LEND__PARCEL_FDS_MAX * sizeof(int)) + OTHER_CONTROL_BYTES];
};

int lend__parcel_check_socket(int socket_fd, const char *operation, struct lend_error *error) {
    int domain = 0;
    socklen_t bytes = sizeof domain;
    long r = lend__sys.getsockopt(socket_fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes);
    if (r < 0) return lend__fail_sys(error, (int)r, operation, "getsockopt", "the socket");
    if (domain == AF_UNIX) return 0;
    return lend__fail(error, -EINVAL, operation,
                      "the socket is of address family %d; descriptors travel over AF_UNIX sockets (%d) only", domain,
                      AF_UNIX);
}

/* --- out -------------------------------------------------------------------------------------------------------------- */

bool lend__parcel_add(struct lend__parcel *parcel, enum lend__parcel_kind kind, uint32_t index, int fd) {
    if (fd < 0) return true;
    if (parcel->n_fds == LEND__PARCEL_FDS_MAX) return false;
    parcel->items[parcel->n_fds] = (struct lend__parcel_item){kind, index};
    parcel->fds[parcel->n_fds++] = fd;
    return true;
}

/* Sends everything. On a stream a message may go in parts; once a part has gone the rest must follow. */
static int send_all(int socket_fd, const uint8_t *bytes, size_t n, const struct lend__parcel *parcel,
                    uint64_t deadline) {
    union space space;
    for (size_t sent = 0; sent < n;) {
        struct iovec iov = {(void *)(uintptr_t)(bytes + sent), n - sent};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        if (parcel->n_fds && !sent) lend__control_put_fds(&msg, space.bytes, parcel->fds, parcel->n_fds);
        long r = lend__sys.sendmsg(socket_fd, &msg, MSG_DONTWAIT);
        if (r == -EAGAIN) r = lend__poll_fd(socket_fd, POLLOUT, deadline) < 0 ? -ETIMEDOUT : 0;
        if (r < 0) return (int)r;
        sent += (size_t)r;
    }
    return 0;
}

/* A handle as a memfd that nobody can change any more. */
static int seal_handle(const struct lend__parcel *parcel) {
    LEND__CLEANUP_FD memfd = lend__memfd_new("lend-handle", 0);
    if (memfd < 0) return memfd;
    for (size_t done = 0; done < parcel->handle_bytes;) {
        long r = lend__sys.write(memfd, (const uint8_t *)parcel->handle + done, parcel->handle_bytes - done);
        if (r < 0) return (int)r;
        done += (size_t)r;
    }
    long r = lend__sys.add_seals(memfd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    return r < 0 ? (int)r : LEND__TAKE_FD(memfd);
}

int lend__parcel_send(int socket_fd, struct lend__parcel *parcel, uint64_t deadline) {
    uint8_t bytes[INLINE_BYTES_MAX];
    bool is_long = sizeof(struct lend__parcel_header) + parcel->n_fds * sizeof parcel->items[0] + parcel->handle_bytes >
                   INLINE_BYTES_MAX;
    LEND__CLEANUP_FD sealed = is_long ? seal_handle(parcel) : -1;
    if (is_long && sealed < 0) return sealed;
    if (!lend__parcel_add(parcel, LEND__PARCEL_HANDLE, 0, sealed)) return -E2BIG;
    const struct lend__parcel_header header = {
        .magic = htole32(MAGIC),
        .handle_bytes = htole32((uint32_t)parcel->handle_bytes),
        .n_fds = htole32(parcel->n_fds),
    };
    size_t n = sizeof header;
    memcpy(bytes, &header, sizeof header);
    for (uint32_t i = 0; i < parcel->n_fds; i++, n += sizeof parcel->items[0]) {
        const struct lend__parcel_item item = {htole32(parcel->items[i].kind), htole32(parcel->items[i].index)};
        memcpy(bytes + n, &item, sizeof item);
    }
    if (!is_long) {
        memcpy(bytes + n, parcel->handle, parcel->handle_bytes);
        n += parcel->handle_bytes;
    }
    return send_all(socket_fd, bytes, n, parcel, deadline);
}

/* --- in --------------------------------------------------------------------------------------------------------------- */

void lend__arrival_drop(struct lend__arrival *arrival) {
    for (uint32_t i = 0; i < arrival->n_fds; i++) lend__fd_close(&arrival->fds[i]);
    arrival->n_fds = 0;
    if (arrival->mapped) lend__sys.munmap(arrival->mapped, arrival->handle_bytes);
    arrival->mapped = NULL;
}

int *lend__arrival_fd(struct lend__arrival *arrival, enum lend__parcel_kind kind, uint32_t index) {
    for (uint32_t i = 0; i < arrival->n_fds; i++)
        if (arrival->items[i].kind == kind && arrival->items[i].index == index) return &arrival->fds[i];
    return NULL;
}

/* Looks at the bytes in front, without taking them; of descriptors none is installed. Returns their number so far, 0 at
 * the end, or a negative errno. */
static long peek_bytes(int socket_fd, struct lend__arrival *arrival) {
    struct iovec iov = {arrival->room, sizeof arrival->room};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    long r = lend__sys.recvmsg(socket_fd, &msg, MSG_PEEK | MSG_DONTWAIT);
    arrival->bytes = r > 0 ? (size_t)r : 0;
    return r;
}

/* With SO_PASSPIDFD each look makes one. */
static void close_pidfds(struct msghdr *msg) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        int fd;
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_PIDFD || c->cmsg_len < CMSG_LEN(sizeof fd)) continue;
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
        if (fd >= 0) lend__fd_close(&fd);
    }
}

/* Looks at the whole message once more, with its descriptors. Returns 0, or a negative errno: -EAGAIN when it is
 * not there any more. */
static int peek_fds(int socket_fd, struct lend__arrival *arrival, bool *ret_is_truncated) {
    union space space;
    struct iovec iov = {arrival->room, arrival->bytes};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    long r = lend__sys.recvmsg(socket_fd, &msg, MSG_PEEK | MSG_DONTWAIT);
    if (r < 0) return (int)r;
    struct lend__fds fds = {arrival->fds, 0, LEND__PARCEL_FDS_MAX, false};
    lend__control_take_fds(&msg, &fds);
    close_pidfds(&msg);
    arrival->n_fds = fds.n;
    *ret_is_truncated = fds.is_truncated;
    if ((size_t)r == arrival->bytes) return 0;
    lend__arrival_drop(arrival); /* somebody else reads here */
    return -EAGAIN;
}

/* Takes n bytes off the socket; descriptors in them were received by the peek, so here they are dropped. */
static int consume(int socket_fd, size_t n) {
    uint8_t sink[4096] = {0};
    while (n) {
        struct iovec iov = {sink, n < sizeof sink ? n : sizeof sink};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        long r = lend__sys.recvmsg(socket_fd, &msg, MSG_DONTWAIT);
        if (r <= 0) return r < 0 ? (int)r : -EPIPE;
        if (msg.msg_flags & MSG_TRUNC) return 0; /* the rest of a packet went with it */
        n -= (size_t)r < n ? (size_t)r : n;
    }
    return 0;
}

void lend__arrival_consume(int socket_fd, const struct lend__arrival *arrival) {
    (void)consume(socket_fd, arrival->bytes);
}

/* Reads header and items. 0: whole, and arrival->bytes is its length; -EAGAIN: more is to come; -EBADMSG. */
static int take_apart(struct lend__arrival *arrival, bool is_stream) {
    struct lend__parcel_header header;
    const int more = is_stream ? -EAGAIN : -EBADMSG;
    if (arrival->bytes < sizeof header) return more;
    memcpy(&header, arrival->room, sizeof header);
    uint32_t n = le32toh(header.n_fds);
    arrival->handle_bytes = le32toh(header.handle_bytes);
    if (le32toh(header.magic) != MAGIC || n > LEND__PARCEL_FDS_MAX || header.reserved ||
        arrival->handle_bytes > LEND_GROUP_BYTES_MAX || !arrival->handle_bytes)
        return -EBADMSG;
    size_t at = sizeof header + n * sizeof arrival->items[0];
    if (arrival->bytes < at) return more;
    bool is_long = false;
    for (uint32_t i = 0; i < n; i++) {
        struct lend__parcel_item item;
        memcpy(&item, arrival->room + sizeof header + i * sizeof item, sizeof item);
        arrival->items[i] = (struct lend__parcel_item){le32toh(item.kind), le32toh(item.index)};
        is_long |= arrival->items[i].kind == LEND__PARCEL_HANDLE;
    }
    if (!is_long && arrival->handle_bytes > LEND_HANDLE_BYTES_MAX) return -EBADMSG;
    size_t total = at + (is_long ? 0 : arrival->handle_bytes);
    if (arrival->bytes < total) return more;
    arrival->bytes = total;
    arrival->handle = is_long ? NULL : arrival->room + at;
    return 0;
}

/* How many items does the header of a message that has been taken apart announce? */
static uint32_t announced(const struct lend__arrival *arrival) {
    struct lend__parcel_header header;
    memcpy(&header, arrival->room, sizeof header);
    return le32toh(header.n_fds);
}

static int map_handle(struct lend__arrival *arrival) {
    int *fd = lend__arrival_fd(arrival, LEND__PARCEL_HANDLE, 0);
    long seals = fd ? lend__sys.get_seals(*fd) : -EBADMSG;
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_WRITE)) return -EBADMSG;
    int r = lend__call_check_sealed(*fd, arrival->handle_bytes);
    if (r < 0) return r;
    void *at = NULL;
    /* Private, although nobody writes: before Linux 6.7 a memfd sealed against writing could not be mapped shared. */
    long n = lend__sys.mmap(NULL, arrival->handle_bytes, PROT_READ, MAP_PRIVATE, *fd, 0, &at);
    if (n < 0) return (int)n;
    arrival->mapped = at;
    arrival->handle = at;
    return 0;
}

static int explain_peek(int code, const char *operation, struct lend_error *error) {
    if (code == -EINVAL || code == -ENOTCONN)
        return lend__fail(error, -EINVAL, operation,
                          "the socket is not connected: connect(2) it first, or use the one that accept(2) returns");
    return lend__fail_sys(error, code, operation, "recvmsg", "the message");
}

/* A whole message is in front: are its descriptors what it says? -EAGAIN: look again; nothing was said. */
static int accept_whole(int socket_fd, struct lend__arrival *arrival, bool is_stream, const char *operation,
                        struct lend_error *error) {
    bool is_truncated = false;
    int r = is_stream && !announced(arrival) ? 0 : peek_fds(socket_fd, arrival, &is_truncated);
    if (r == -EAGAIN) return r;
    if (r < 0) return explain_peek(r, operation, error);
    if (is_truncated)
        r = lend__fail_sys(error, -EMFILE, operation, "recvmsg", "the message (it is kept: call again)");
    else if (arrival->n_fds != announced(arrival))
        r = lend__fail(error, -EBADMSG, operation, "the message came with %u descriptors and announces %u",
                       arrival->n_fds, announced(arrival));
    else if (!arrival->handle && (r = map_handle(arrival)) == -EBADMSG)
        lend__fail(
            error, r, operation,
            "the message's handle does not lie in a memfd of its %zu bytes, sealed against shrinking and writing",
            arrival->handle_bytes);
    else if (r < 0)
        lend__fail_sys(error, r, operation, "mmap", "the message's handle");
    if (r == -EBADMSG) lend__arrival_consume(socket_fd, arrival);
    if (r < 0) lend__arrival_drop(arrival);
    return r;
}

static int refuse(int socket_fd, struct lend__arrival *arrival, const char *operation, struct lend_error *error) {
    (void)consume(socket_fd, arrival->bytes);
    return lend__fail(error, -EBADMSG, operation,
                      "what lay on the socket (%zu bytes) is not a message of lend_send; it has been taken off",
                      arrival->bytes);
}

int lend__arrival_wait(int socket_fd, uint64_t deadline, struct lend__arrival *arrival, const char *operation,
                       struct lend_error *error) {
    int type = 0;
    socklen_t bytes = sizeof type;
    long r = lend__sys.getsockopt(socket_fd, SOL_SOCKET, SO_TYPE, &type, &bytes);
    if (r < 0) return lend__fail_sys(error, (int)r, operation, "getsockopt", "the socket");
    for (size_t seen = 0;;) {
        arrival->n_fds = 0;
        arrival->mapped = NULL;
        r = peek_bytes(socket_fd, arrival);
        if (r == 0)
            return lend__fail(error, -EPIPE, operation,
                              "the other end of the socket is closed, and nothing is left to read");
        if (r < 0 && r != -EAGAIN) return explain_peek((int)r, operation, error);
        if (r > 0) {
            int code = take_apart(arrival, type == SOCK_STREAM);
            if (code == -EBADMSG) return refuse(socket_fd, arrival, operation, error);
            if (code == 0) code = accept_whole(socket_fd, arrival, type == SOCK_STREAM, operation, error);
            if (code != -EAGAIN) return code;
        }
        /* Nothing, or a part: poll would say "readable" at once for a part, so wait a little for more of it. */
        if (r > 0 && (size_t)r == seen) lend__sleep_ns(1000000);
        seen = r > 0 ? (size_t)r : 0;
        r = lend__poll_fd(socket_fd, POLLIN, deadline);
        if (r == -ETIMEDOUT || lend__deadline_passed(deadline))
            return lend__fail(error, -ETIMEDOUT, operation, "no (whole) message came within the deadline");
        if (r < 0) return lend__fail_sys(error, (int)r, operation, "poll", "the socket");
    }
}
