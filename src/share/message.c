/* SPDX-License-Identifier: MIT */
/* lend_send and lend_recv: a tensor with its descriptors over a caller's own Unix socket.
 *
 * The message is {magic, bytes of the handle, which descriptors} and the handle, in one sendmsg; with it go the slot
 * table and the allocation, so what was sent survives its sender, and a pin keeps it while the exporter lives. The
 * receiver looks first (MSG_PEEK) and takes the message off the socket only when all of it has arrived with all its
 * descriptors: a full table of descriptors loses nothing. */
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/control.h"
#include "share/ledger.h"
#include "share/liveness.h"
#include "share/peer.h"
#include "share/rebuild.h"
#include "share/reduce.h"
#include "tensor/tensor.h"

#include <endian.h>
#include <errno.h>
#include <lend/message.h>
#include <string.h>
#include <sys/socket.h>

#define MESSAGE_MAGIC 0x47534d4cu /* "LMSG" */
#define DYING_WAIT_NS 1000000u
#define DYING_WAITS 1000 /* one second: a process with much memory dies slowly */
enum { HAS_TABLE = 1, HAS_ALLOCATION = 2 };

struct message_header {
    uint32_t magic;
    uint32_t handle_bytes;
    uint32_t has; /* descriptors, in this order */
    uint32_t reserved;
};

#define MESSAGE_BYTES_MAX (sizeof(struct message_header) + LEND_HANDLE_BYTES_MAX)

/* --- send ------------------------------------------------------------------------------------------------------------ */

/* The descriptors of what the handle names, borrowed: the caller keeps the storage alive. */
static unsigned descriptors_of(const struct lend__storage *storage, int fds[2], uint32_t *ret_has) {
    unsigned n = 0;
    *ret_has = 0;
    int table_fd = storage->kind == LEND__STORAGE_IMPORTED ? storage->peer->table_fd : lend__ledger.table_fd;
    int allocation_fd = -1;
    if (storage->kind == LEND__STORAGE_IMPORTED)
        allocation_fd = storage->mapping ? storage->mapping->extent.fd : -1;
    else if (storage->block)
        allocation_fd = storage->block->allocation->extent.fd;
    if (table_fd >= 0) {
        fds[n++] = table_fd;
        *ret_has |= HAS_TABLE;
    }
    if (allocation_fd >= 0) {
        fds[n++] = allocation_fd;
        *ret_has |= HAS_ALLOCATION;
    }
    return n;
}

/* Sends everything. On a stream a message may go in parts; once a part has gone the rest must follow. */
static int send_all(int fd, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds, uint64_t deadline,
                    size_t *ret_sent) {
    union lend__control_space space;
    *ret_sent = 0;
    while (*ret_sent < n) {
        struct iovec iov = {(void *)(uintptr_t)(bytes + *ret_sent), n - *ret_sent};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        if (n_fds && !*ret_sent) lend__control_put_fds(&msg, &space, fds, n_fds);
        long r = lend__sys.sendmsg(fd, &msg, MSG_DONTWAIT);
        if (r == -EAGAIN) {
            r = lend__poll_fd(fd, POLLOUT, deadline);
            if (r < 0) return (int)r;
            continue;
        }
        if (r < 0) return (int)r;
        *ret_sent += (size_t)r;
    }
    return 0;
}

static int explain_send(int code, struct lend_error *error) {
    if (code == -ETIMEDOUT)
        return lend__fail(error, code, "lend_send",
                          "the socket stayed full until the deadline; nothing was sent, and the tensor is not pinned");
    if (code == -ECONNRESET) code = -EPIPE;
    if (code == -EPIPE) return lend__fail(error, code, "lend_send", "the other end of the socket is closed");
    if (code == -ETOOMANYREFS)
        return lend__fail(
            error, code, "lend_send",
            "too many descriptors of this user are in flight in sockets; let a receiver read, or raise RLIMIT_NOFILE");
    return lend__fail_sys(error, code, "lend_send", "sendmsg", "the message");
}

int lend_send(int socket_fd, struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int64_t deadline_ns,
              struct lend_error *error) {
    int r = lend__context_check("lend_send", error);
    if (r < 0) return r;
    struct lend_reduce_opts pinned = {.size = sizeof pinned};
    if (opts && opts->size == sizeof pinned) pinned = *opts;
    if (opts) pinned.size = opts->size; /* a wrong size is lend__reduce_wire's to refuse */
    pinned.flags |= LEND_REDUCE_PIN;
    struct lend__reduced reduced;
    int outcome = lend__reduce_wire(tensor, &pinned, &reduced, error);
    if (outcome < 0) return outcome;
    union {
        struct message_header header;
        uint8_t bytes[MESSAGE_BYTES_MAX];
    } message = {.header = {.magic = htole32(MESSAGE_MAGIC)}};
    size_t n = 0, sent = 0;
    int fds[2];
    uint32_t has = 0;
    unsigned n_fds = descriptors_of(reduced.storage, fds, &has);
    r = lend__wire_encode(&reduced.wire, message.bytes + sizeof message.header, LEND_HANDLE_BYTES_MAX, &n);
    message.header.handle_bytes = htole32((uint32_t)n);
    message.header.has = htole32(has);
    LEND_POINT("S1.before-send");
    if (r >= 0)
        r = send_all(socket_fd, message.bytes, sizeof message.header + n, fds, n_fds,
                     lend__context_deadline(deadline_ns), &sent);
    LEND_POINT("S1.sent");
    lend__reduce_end(tensor, &pinned, &reduced, r >= 0);
    return r < 0 ? explain_send(r, error) : outcome;
}

/* --- receive --------------------------------------------------------------------------------------------------------- */

struct arrival {
    uint8_t bytes[MESSAGE_BYTES_MAX];
    size_t n;
    struct lend__control_fds fds;
};

/* Looks at what lies in front, without taking it. Returns its bytes so far, 0 at the end, or a negative errno. */
static long peek(int fd, struct arrival *arrival) {
    union lend__control_space space;
    struct iovec iov = {arrival->bytes, sizeof arrival->bytes};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    long r = lend__sys.recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT);
    if (r < 0) return r;
    lend__control_take_fds(&msg, &arrival->fds);
    arrival->n = (size_t)r;
    return r;
}

/* Takes n bytes off the socket; descriptors in them were received by the peek, so here they are dropped. */
static int consume(int fd, size_t n) {
    uint8_t sink[MESSAGE_BYTES_MAX] = {0};
    while (n) {
        struct iovec iov = {sink, n};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        long r = lend__sys.recvmsg(fd, &msg, MSG_DONTWAIT);
        if (r <= 0) return r < 0 ? (int)r : -EPIPE;
        n -= (size_t)r < n ? (size_t)r : n;
    }
    return 0;
}

static int check_header(const struct arrival *arrival, bool is_stream, size_t *ret_total, struct message_header *ret) {
    if (arrival->n < sizeof *ret) return is_stream ? -EAGAIN : -EBADMSG;
    memcpy(ret, arrival->bytes, sizeof *ret);
    uint32_t handle_bytes = le32toh(ret->handle_bytes);
    if (le32toh(ret->magic) != MESSAGE_MAGIC || handle_bytes > LEND_HANDLE_BYTES_MAX || ret->reserved ||
        le32toh(ret->has) > (HAS_TABLE | HAS_ALLOCATION))
        return -EBADMSG;
    *ret_total = sizeof *ret + handle_bytes;
    if (arrival->n >= *ret_total) return 0;
    return is_stream ? -EAGAIN : -EBADMSG;
}

/* Waits until one whole message lies in front; it is not yet taken off the socket. Descriptors are in arrival->fds,
 * owned by the caller; on error none is left open. */
static int receive(int fd, uint64_t deadline, struct arrival *arrival, struct message_header *ret_header,
                   struct lend_error *error) {
    int type = 0;
    socklen_t bytes = sizeof type;
    long r = lend__sys.getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes);
    if (r < 0) return lend__fail_sys(error, (int)r, "lend_recv", "getsockopt", "the socket");
    bool is_stream = type == SOCK_STREAM;
    for (size_t seen = 0, total = 0;;) {
        arrival->fds = (struct lend__control_fds){.n = 0};
        r = peek(fd, arrival);
        if (r == 0) {
            lend__control_drop_fds(&arrival->fds); /* an empty packet can carry some */
            return lend__fail(error, -EPIPE, "lend_recv",
                              "the other end of the socket is closed, and nothing is left to read");
        }
        if (r < 0 && r != -EAGAIN) return lend__fail_sys(error, (int)r, "lend_recv", "recvmsg", "the message");
        if (r > 0) {
            int code = check_header(arrival, is_stream, &total, ret_header);
            if (code == 0 && arrival->fds.is_truncated) {
                lend__control_drop_fds(&arrival->fds);
                return lend__fail_sys(error, -EMFILE, "lend_recv", "recvmsg", "the message (it is kept: call again)");
            }
            if (code == 0) return 0;
            lend__control_drop_fds(&arrival->fds);
            if (code == -EBADMSG) {
                consume(fd, arrival->n);
                return lend__fail(
                    error, code, "lend_recv",
                    "what lay on the socket (%zu bytes) is not a message of lend_send; it has been taken off",
                    arrival->n);
            }
        }
        /* Nothing, or a part: poll would say "readable" at once for a part, so wait a little for more of it. */
        if (r > 0 && arrival->n == seen) lend__sleep_ns(1000000);
        seen = r > 0 ? arrival->n : 0;
        r = lend__poll_fd(fd, POLLIN, deadline);
        if (r == -ETIMEDOUT || lend__deadline_passed(deadline))
            return lend__fail(error, -ETIMEDOUT, "lend_recv", "no (whole) message came within the deadline");
        if (r < 0) return lend__fail_sys(error, (int)r, "lend_recv", "poll", "the socket");
    }
}

/* The exporter is gone. When its table came along and its lock says so too, the frozen word decides what the handle is
 * worth; without the table there is no telling (-EOWNERDEAD). */
static int rebuild_frozen(const struct lend__wire *wire, struct arrival *arrival, uint32_t has,
                          const struct lend_rebuild_opts *opts, struct lend_tensor **ret_tensor,
                          struct lend_error *error) {
    if (!(has & HAS_TABLE)) return -EOWNERDEAD;
    /* Its socket was gone; the lock follows within a moment, unless something else still runs on its memory. */
    for (int n = 0; !lend__life_is_over_shared(arrival->fds.fd[0]); n++) {
        if (n == DYING_WAITS) return -EOWNERDEAD;
        lend__sleep_ns(DYING_WAIT_NS);
    }
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(wire);
    lend__import_unlock();
    if (!peer) return lend__fail(error, -ENOMEM, "lend_recv", "no memory for the record of an exporter");
    int none = -1;
    int r = lend__contact_frozen(peer, wire, &arrival->fds.fd[0], has & HAS_ALLOCATION ? &arrival->fds.fd[1] : &none,
                                 error);
    if (r >= 0) r = lend__rebuild_wire(wire, opts, ret_tensor, error);
    lend__peer_release(peer);
    return r;
}

/* Errors after which the same message may be received by a later call: it stays on the socket. */
static bool is_worth_another_try(int code) {
    return code == -EMFILE || code == -ENFILE || code == -ENOMEM || code == -ETIMEDOUT || code == -EAGAIN ||
           code == -EACCES || code == -EINVAL;
}

int lend_recv(int socket_fd, const struct lend_rebuild_opts *opts, int64_t deadline_ns, struct lend_tensor **ret_tensor,
              struct lend_error *error) {
    int r = lend__context_check("lend_recv", error);
    if (r < 0) return r;
    struct arrival arrival;
    struct message_header header;
    r = receive(socket_fd, lend__context_deadline(deadline_ns), &arrival, &header, error);
    if (r < 0) return r;
    LEND_POINT("S2.received");
    uint32_t has = le32toh(header.has);
    struct lend__wire wire;
    r = arrival.fds.n == (unsigned)!!(has & HAS_TABLE) + (unsigned)!!(has & HAS_ALLOCATION)
            ? lend__wire_decode(arrival.bytes + sizeof header, le32toh(header.handle_bytes), &wire, "lend_recv", error)
            : lend__fail(error, -EBADMSG, "lend_recv", "the message came with %u descriptors and announces others",
                         arrival.fds.n);
    if (r >= 0) r = lend__rebuild_wire(&wire, opts, ret_tensor, error);
    if (r == -EOWNERDEAD) r = rebuild_frozen(&wire, &arrival, has, opts, ret_tensor, error);
    lend__control_drop_fds(&arrival.fds);
    LEND_POINT("S3.rebuilt");
    if (!is_worth_another_try(r)) consume(socket_fd, sizeof header + le32toh(header.handle_bytes));
    return r;
}
