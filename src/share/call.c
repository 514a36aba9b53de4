/* SPDX-License-Identifier: MIT */
/* One round trip with an exporter: connect, send, receive, and what every failure means. Answers are another process's
 * bytes: each is checked before it is used, and only codes that the protocol has are passed on.
 *
 * Round trips are made by one thread at a time per peer (the call slot) and without the import lock; only the receipt
 * of an answer, with the mapping of the page that came in it, is under that lock: no fork may happen while the open
 * file that stands for this process's life is a descriptor here. */
#include "share/call.h"

#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/liveness.h"
#include "share/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* How long a broken connection may be ahead of the lock that tells why. */
#define DYING_ROUNDS 100
#define DYING_ROUND_NS 200000u

/* --- errors as sentences ------------------------------------------------------------------------------------------ */

int lend__call_explain(const struct lend__peer *peer, int code, const struct lend__control_reply *reply,
                       const char *operation, struct lend_error *error) {
    unsigned long long limit = reply ? (unsigned long long)reply->limit : 0;
    const char *name = peer->address.sun_path[0] ? peer->address.sun_path : peer->address.sun_path + 1;
    switch (code) {
    case -EOWNERDEAD:
        return lend__fail(error, code, operation,
                          "the exporter %.90s is gone, and its memory cannot be reached any more", name);
    case -ETIMEDOUT:
        return lend__fail(
            error, code, operation,
            "the exporter %.90s did not answer within the deadline (is it stopped?); try again or raise deadline_ns",
            name);
    case -EPERM:
        return lend__fail(error, code, operation, "the exporter %.90s belongs to another user (or refuses this one)",
                          name);
    case -ESTALE:
        return lend__fail(
            error, code, operation,
            "the exporter %.90s has freed what the handle names; hold the tensor, or pin the handle, until "
            "it is rebuilt",
            name);
    case -EPROTONOSUPPORT:
        return lend__fail(error, code, operation,
                          "the exporter %.90s speaks another version of lend; use one version on both sides", name);
    case -EMFILE:
        if (limit)
            return lend__fail_bytes(
                error, code, operation, 0, limit,
                "the exporter %.90s has used up its limit of %llu descriptors; raise its RLIMIT_NOFILE", name, limit);
        break;
    case -ENOSPC:
        if (reply && reply->type == LEND__CONTROL_PIN)
            return lend__fail_bytes(
                error, code, operation, 0, limit,
                "the pin budget of the exporter is used up (%llu bytes left); its oldest pin (pid %u) is %llu ms "
                "old: rebuild or cancel it",
                limit, reply->oldest_pin_pid, (unsigned long long)(reply->oldest_pin_age_ns / 1000000));
        return lend__fail(error, code, operation,
                          "the exporter %.90s gives this process nothing new: the process keeps too much in limbo "
                          "(release some tensors), or "
                          "all %u pages are in use",
                          name, LEND_SHM_PAGES_MAX);
    case -EBADMSG:
        return lend__fail(error, code, operation, "what the exporter %.90s answered is not what it must be", name);
    default: break;
    }
    return lend__fail_sys(error, code, operation, "contact", name);
}

/* --- one round trip ----------------------------------------------------------------------------------------------- */

void lend__answer_drop(struct lend__peer *peer, struct lend__answer *answer) {
    lend__fd_close(&answer->table_fd);
    lend__fd_close(&answer->allocation_fd);
    lend__import_lock();
    if (peer->pending_page) lend__sys.munmap(peer->pending_page, LEND_SHM_PAGE_BYTES);
    peer->pending_page = NULL;
    lend__import_unlock();
}

int lend__call_check_sealed(int fd, uint64_t bytes) {
    struct stat st;
    long seals = lend__sys.get_seals(fd);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) return -EBADMSG;
    long r = lend__sys.fstat(fd, &st);
    if (r < 0) return (int)r;
    return (uint64_t)st.st_size >= bytes ? 0 : -EBADMSG;
}

/* Maps the page that came and closes its descriptor: from here on its mapping is what the exporter watches. */
static int map_page(struct lend__peer *peer, int *fd, const struct lend__control_reply *reply) {
    int r = lend__call_check_sealed(*fd, LEND_SHM_PAGE_BYTES);
    void *at = NULL;
    long n = r < 0 ? r
                   : lend__sys.mmap(NULL, LEND_SHM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd,
                                    0, &at);
    lend__fd_close(fd);
    if (n < 0) return (int)n;
    struct lend_shm_page *page = at;
    if (page->magic != LEND_SHM_PAGE_MAGIC || page->layout != lend__shm_layout() || page->nonce != reply->page_nonce ||
        page->index != reply->page_index || page->index >= LEND_SHM_PAGES_MAX) {
        lend__sys.munmap(at, LEND_SHM_PAGE_BYTES);
        return -EBADMSG;
    }
    page->pid = (uint32_t)getpid();
    peer->pending_page = page;
    LEND_POINT("C5.page-mapped");
    return 0;
}

/* Sorts the descriptors by what the reply says they are; all of them are owned by `ret` or closed. */
static int sort_descriptors(struct lend__peer *peer, struct lend__control_fds *fds, struct lend__answer *ret) {
    const struct lend__control_reply *reply = &ret->reply;
    unsigned wanted = !!reply->has_table + !!reply->has_page + !!reply->has_allocation, at = 0;
    int r = 0;
    if (fds->is_truncated)
        r = -EMFILE;
    else if (fds->n != wanted || reply->n_fds != wanted)
        r = -EBADMSG;
    if (r >= 0 && reply->has_table) ret->table_fd = LEND__TAKE_FD(fds->fd[at++]);
    if (r >= 0 && reply->has_page) r = map_page(peer, &fds->fd[at++], reply);
    if (r >= 0 && reply->has_allocation) ret->allocation_fd = LEND__TAKE_FD(fds->fd[at]);
    lend__control_drop_fds(fds);
    return r;
}

/* A refusal is a peer's word, too: only the codes that the protocol has are passed on to the caller. */
static int refusal(int32_t code) {
    switch (code) {
    case -EOWNERDEAD:
    case -EPERM:
    case -ESTALE:
    case -EPROTONOSUPPORT:
    case -EMFILE:
    case -ENFILE:
    case -ENOSPC:
    case -ENOMEM: return code;
    default: return -EBADMSG;
    }
}

struct lend__control_request lend__call_request(struct lend__peer *peer, uint16_t type) {
    struct lend__control_request request = {
        .magic = LEND__CONTROL_MAGIC,
        .type = type,
        .major = LEND_WIRE_MAJOR,
        .sequence = ++peer->sequence,
        .bytes = sizeof request,
        .layout = lend__shm_layout(),
        .pid = (uint32_t)getpid(),
        .allocation = LEND__CONTROL_NONE,
        .page_index = LEND__CONTROL_NONE,
    };
    if (!request.sequence) request.sequence = ++peer->sequence; /* 0 marks a refusal */
    memcpy(request.exporter_id, peer->id, LEND__ID_BYTES);
    return request;
}

/* An answer that came after its call had run into the deadline. A pin in it is known to nobody, so it ends here; the
 * answer to that cancel is an old one in its turn. */
static void drop_old_answer(struct lend__peer *peer, const struct lend__control_reply *reply) {
    if (reply->type != LEND__CONTROL_PIN || reply->code < 0 || !reply->token) return;
    struct lend__control_request cancel = lend__call_request(peer, LEND__CONTROL_CANCEL);
    cancel.token = reply->token;
    lend__control_send(peer->connection_fd, &cancel, sizeof cancel, NULL, 0);
}

/* Receives the answer to `request`; answers to calls that ran into their deadline earlier are thrown away. */
static int receive(struct lend__peer *peer, const struct lend__control_request *request, struct lend__answer *ret,
                   uint64_t deadline) {
    for (;;) {
        int r = lend__dial_wait(peer->connection_fd, peer, deadline);
        if (r < 0) return r;
        struct lend__control_fds fds;
        lend__import_lock();
        r = lend__control_recv(peer->connection_fd, &ret->reply, sizeof ret->reply, &fds);
        bool is_ours = r == sizeof ret->reply && ret->reply.magic == LEND__CONTROL_MAGIC &&
                       ret->reply.sequence == request->sequence;
        /* A refusal before hello has no sequence. */
        bool is_refusal = r == sizeof ret->reply && ret->reply.magic == LEND__CONTROL_MAGIC && !ret->reply.sequence &&
                          ret->reply.code < 0;
        if (is_ours && ret->reply.code >= 0) {
            r = ret->reply.type == request->type ? sort_descriptors(peer, &fds, ret) : -EBADMSG;
        } else if (is_ours || is_refusal) {
            r = ret->reply.code = refusal(ret->reply.code);
        } else if (r == sizeof ret->reply && ret->reply.magic == LEND__CONTROL_MAGIC) {
            drop_old_answer(peer, &ret->reply);
            r = -EAGAIN;
        } else if (r == 0) {
            r = -ECONNRESET;
        } else if (r > 0) {
            r = -EBADMSG;
        }
        lend__control_drop_fds(&fds);
        lend__import_unlock();
        if (r != -EAGAIN) return r;
    }
}

static int check_exporter(int fd, bool has_path, uint32_t *ret_pid) {
    uint32_t uid = 0;
    int r = lend__control_credentials(fd, &uid, ret_pid);
    if (r < 0) return r;
    if (lend__identity_is_same_user(uid)) return 0;
    return lend__context.peers == LEND_PEERS_GROUP && has_path ? 0 : -EPERM;
}

static int connect_peer(struct lend__peer *peer, uint64_t deadline) {
    int fd = lend__dial(&peer->address, peer->address_bytes, deadline);
    if (fd < 0) return fd;
    LEND_POINT("C3.connected");
    uint32_t pid = 0;
    int r = check_exporter(fd, peer->address.sun_path[0] != '\0', &pid);
    if (r < 0) {
        lend__fd_close(&fd);
        return r;
    }
    lend__import_lock();
    peer->connection_fd = fd;
    if (peer->pidfd < 0 && !lend__context.has_open_file_locks) peer->pidfd = lend__life_pidfd(fd, (int)pid);
    lend__import_unlock();
    lend__watch_add_connection(fd);
    return 0;
}

void lend__call_disconnect(struct lend__peer *peer) {
    lend__import_lock();
    lend__fd_close(&peer->connection_fd);
    lend__import_unlock();
}

/* After a broken connection: the lock follows within a moment, because a dying process closes its files one by one. */
static bool dies_soon(struct lend__peer *peer) {
    for (int i = 0; i < DYING_ROUNDS && !lend__peer_is_dead(peer); i++) lend__sleep_ns(DYING_ROUND_NS);
    return lend__peer_is_dead(peer);
}

/* Sends and receives on the connection there is. What a broken one means is found out by the table's lock. */
static int exchange(struct lend__peer *peer, struct lend__control_request *request, struct lend__answer *ret,
                    uint64_t deadline) {
    int r = lend__dial_send(peer->connection_fd, request, deadline);
    LEND_POINT("C3.sent");
    if (r >= 0) r = receive(peer, request, ret, deadline);
    LEND_POINT("C3.answered");
    if (r != -EPIPE && r != -ECONNRESET && r != -ENOTCONN) return r;
    if (r == -EPIPE) { /* it may have told why before it closed */
        int reason = receive(peer, request, ret, deadline);
        if (reason < 0 && reason != -ECONNRESET && reason != -EPIPE) return reason;
    }
    return peer->table && !dies_soon(peer) ? -ECONNRESET : -EOWNERDEAD;
}

/* A page that we have goes on after the connection broke: the exporter finds it by index and nonce. */
static int claim_page(struct lend__peer *peer, uint64_t deadline) {
    struct lend__answer answer = {.table_fd = -1, .allocation_fd = -1};
    struct lend__control_request hello = lend__call_request(peer, LEND__CONTROL_HELLO);
    hello.page_index = peer->page_index;
    hello.page_nonce = peer->page_nonce;
    int r = exchange(peer, &hello, &answer, deadline);
    lend__answer_drop(peer, &answer);
    return r;
}

int lend__peer_call(struct lend__peer *peer, struct lend__control_request *request, struct lend__answer *ret,
                    uint64_t deadline, const char *operation, struct lend_error *error) {
    int r = 0;
    for (int attempt = 0; attempt < 2; attempt++) {
        *ret = (struct lend__answer){.table_fd = -1, .allocation_fd = -1};
        r = 0;
        if (peer->connection_fd < 0) {
            r = connect_peer(peer, deadline);
            if (r >= 0 && peer->page && request->type != LEND__CONTROL_HELLO) r = claim_page(peer, deadline);
        }
        if (r >= 0) r = exchange(peer, request, ret, deadline);
        if (r >= 0) return 0;
        bool is_refusal = ret->reply.code == r;
        lend__answer_drop(peer, ret);
        /* After a deadline the connection is kept: the late answer is known by its sequence and thrown away. */
        if (!is_refusal && r != -ETIMEDOUT) lend__call_disconnect(peer);
        if (r != -ECONNRESET) break; /* a living exporter closed the connection: once more on a new one */
    }
    return lend__call_explain(peer, r, ret->reply.code == r ? &ret->reply : NULL, operation, error);
}
