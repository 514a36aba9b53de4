/* SPDX-License-Identifier: MIT */
/* Contact with an exporter: identities, table, page and the first allocation in one round trip; later allocations,
 * spare pages, pins and cancels in one each. All or nothing, one deadline, and everything that comes back is checked
 * before it is used.
 *
 * Round trips are made by one thread at a time per peer (the call slot) and without the import lock; only the receipt
 * of an answer, with the mapping of the page that came in it, is under that lock: no fork may happen while the open
 * file that stands for this process's life is a descriptor here. */
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/liveness.h"
#include "share/peer.h"
#include "share/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OPERATION "lend_rebuild"

/* How long a broken connection may be ahead of the lock that tells why. */
#define DYING_ROUNDS 100
#define DYING_ROUND_NS 200000u

/* --- errors as sentences ------------------------------------------------------------------------------------------ */

static int explain(const struct lend__peer *peer, int code, const struct lend__control_reply *reply, const char *operation,
                   struct lend_error *error) {
    unsigned long long limit = reply ? (unsigned long long)reply->limit : 0;
    const char *name = peer->address.sun_path[0] ? peer->address.sun_path : peer->address.sun_path + 1;
    switch (code) {
    case -EOWNERDEAD:
        return lend__fail(error, code, operation, "the exporter %.90s is gone, and its memory cannot be reached any more", name);
    case -ETIMEDOUT:
        return lend__fail(error, code, operation,
                          "the exporter %.90s did not answer within the deadline (is it stopped?); try again or raise deadline_ns", name);
    case -EPERM:
        return lend__fail(error, code, operation, "the exporter %.90s belongs to another user (or refuses this one)", name);
    case -ESTALE:
        return lend__fail(error, code, operation, "the exporter %.90s has freed what the handle names", name);
    case -EPROTONOSUPPORT:
        return lend__fail(error, code, operation, "the exporter %.90s speaks another version of lend; use one version on both sides", name);
    case -EMFILE:
        if (limit)
            return lend__fail_bytes(error, code, operation, 0, limit,
                                    "the exporter %.90s has used up its limit of %llu descriptors; raise its RLIMIT_NOFILE", name, limit);
        break;
    case -ENOSPC:
        if (reply && reply->type == LEND__CONTROL_PIN)
            return lend__fail_bytes(error, code, operation, 0, limit,
                                    "the pin budget of the exporter is used up (%llu bytes left); its oldest pin (pid %u) is %llu ms "
                                    "old: rebuild or cancel it", limit, reply->oldest_pin_pid,
                                    (unsigned long long)(reply->oldest_pin_age_ns / 1000000));
        return lend__fail(error, code, operation,
                          "the exporter %.90s gives this process nothing new: the process keeps too much in limbo (release some tensors), or "
                          "all %u pages are in use", name, LEND_SHM_PAGES_MAX);
    case -EBADMSG:
        return lend__fail(error, code, operation, "what the exporter %.90s answered is not what it must be", name);
    default:
        break;
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

/* A sealed memfd of at least this length? A peer that could shrink it could kill us by SIGBUS. */
static int check_sealed(int fd, uint64_t bytes) {
    struct stat st;
    long seals = lend__sys.get_seals(fd);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) return -EBADMSG;
    long r = lend__sys.fstat(fd, &st);
    if (r < 0) return (int)r;
    return (uint64_t)st.st_size >= bytes ? 0 : -EBADMSG;
}

/* Maps the page that came and closes its descriptor: from here on its mapping is what the exporter watches. */
static int map_page(struct lend__peer *peer, int *fd, const struct lend__control_reply *reply) {
    int r = check_sealed(*fd, LEND_SHM_PAGE_BYTES);
    void *at = NULL;
    long n = r < 0 ? r
                   : lend__sys.mmap(NULL, LEND_SHM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd, 0, &at);
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
    case -ENOMEM:
        return code;
    default:
        return -EBADMSG;
    }
}

static struct lend__control_request request_to(struct lend__peer *peer, uint16_t type) {
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
    struct lend__control_request cancel = request_to(peer, LEND__CONTROL_CANCEL);
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

static void disconnect(struct lend__peer *peer) {
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
static int exchange(struct lend__peer *peer, struct lend__control_request *request, struct lend__answer *ret, uint64_t deadline) {
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
    struct lend__control_request hello = request_to(peer, LEND__CONTROL_HELLO);
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
        if (!is_refusal && r != -ETIMEDOUT) disconnect(peer);
        if (r != -ECONNRESET) break; /* a living exporter closed the connection: once more on a new one */
    }
    return explain(peer, r, ret->reply.code == r ? &ret->reply : NULL, operation, error);
}

/* --- what is asked ------------------------------------------------------------------------------------------------ */

static int map_table(int fd, const uint8_t id[LEND__ID_BYTES], struct lend_shm_table **ret) {
    int r = check_sealed(fd, LEND_SHM_TABLE_BYTES);
    if (r < 0) return r;
    void *at = NULL;
    long n = lend__sys.mmap(NULL, LEND_SHM_TABLE_BYTES, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0, &at);
    if (n < 0) return (int)n;
    struct lend_shm_table *table = at;
    if (table->magic != LEND_SHM_TABLE_MAGIC || table->layout != lend__shm_layout() ||
        memcmp(table->exporter_id, id, LEND__ID_BYTES) != 0) {
        lend__sys.munmap(at, LEND_SHM_TABLE_BYTES);
        return -EBADMSG;
    }
    *ret = table;
    return 0;
}

/* Maps the allocation that a handle names. What it is, the table says (I-5: the real object is checked against that).
 * The region lock is outermost, so without the import lock. fd is consumed on success. */
static int map_allocation(struct lend__peer *peer, const struct lend_shm_table *table, const struct lend__wire *wire, int *fd,
                          struct lend__mapping **ret, struct lend_error *error) {
    if (wire->allocation == LEND__CONTROL_NONE) return 0;
    if (wire->allocation >= LEND_SHM_ALLOCATIONS_MAX || *fd < 0) return explain(peer, -EBADMSG, NULL, OPERATION, error);
    struct lend_shm_allocation *entry = &lend__shm_allocations(table)[wire->allocation];
    uint64_t bytes = entry->bytes, offset = entry->fd_offset, is_read_only = entry->is_read_only;
    if (lend__load_acquire(&entry->state) != (uint64_t)wire->allocation_gen << 1)
        return explain(peer, -ESTALE, NULL, OPERATION, error);
    int r = lend__mapping_new(peer, *fd, wire->allocation, wire->allocation_gen, offset, bytes, is_read_only, ret, error);
    if (r >= 0) *fd = -1;
    return r;
}

/* Puts a mapping into its place; one that is there already (of an older, retired generation) must hold nothing. */
static int install_mapping(struct lend__peer *peer, struct lend__mapping **mapping, struct lend__mapping **ret_old) {
    if (!*mapping) return 0;
    uint32_t index = (*mapping)->index;
    int r = lend__peer_room_mappings(peer, index);
    if (r < 0) return r;
    struct lend__mapping *old = peer->mappings[index];
    if (old && old->gen == (*mapping)->gen && !old->is_given) { /* inherited; now our own page has been given it, too */
        old->is_given = true;
        *ret_old = *mapping;
        *mapping = NULL;
        return 0;
    }
    if (old && old->n_storages) return -EBADMSG; /* an exporter that gives one index twice */
    *ret_old = old;
    peer->mappings[index] = *mapping;
    *mapping = NULL;
    return 0;
}

static int install_contact(struct lend__peer *peer, struct lend__answer *answer, struct lend_shm_table *table,
                           struct lend__mapping *mapping) {
    struct lend__mapping *old = NULL;
    lend__import_lock();
    int r = install_mapping(peer, &mapping, &old);
    if (r >= 0 && table) {
        peer->table = table;
        peer->table_fd = LEND__TAKE_FD(answer->table_fd);
        peer->seen_retired = lend__load_acquire(&table->n_retired);
    }
    if (r >= 0 && answer->reply.has_page) {
        peer->page = peer->pending_page;
        peer->page_index = answer->reply.page_index;
        peer->page_nonce = answer->reply.page_nonce;
        peer->pending_page = NULL;
        peer->ring_head = 0;
    }
    lend__import_unlock();
    lend__mapping_free(r < 0 ? mapping : old);
    LEND_POINT("C7.installed");
    return r;
}

static int first_contact(struct lend__peer *peer, const struct lend__wire *wire, uint64_t deadline, struct lend_error *error) {
    struct lend__answer answer;
    struct lend__control_request hello = request_to(peer, LEND__CONTROL_HELLO);
    hello.allocation = wire->allocation;
    hello.allocation_gen = wire->allocation_gen;
    disconnect(peer); /* a greeted connection whose page we no longer have would be refused */
    int r = lend__peer_call(peer, &hello, &answer, deadline, OPERATION, error);
    if (r < 0) return r;
    struct lend_shm_table *table = NULL;
    struct lend__mapping *mapping = NULL;
    if (!answer.reply.has_page || (!answer.reply.has_table && !peer->table))
        r = explain(peer, -EBADMSG, NULL, OPERATION, error);
    if (r >= 0 && !peer->table && (r = map_table(answer.table_fd, peer->id, &table)) < 0) explain(peer, r, NULL, OPERATION, error);
    if (r >= 0) r = map_allocation(peer, table ? table : peer->table, wire, &answer.allocation_fd, &mapping, error);
    if (r >= 0 && (r = install_contact(peer, &answer, table, mapping)) < 0) {
        explain(peer, r, NULL, OPERATION, error);
        mapping = NULL;
    }
    if (r < 0) {
        if (table) lend__sys.munmap(table, LEND_SHM_TABLE_BYTES);
        disconnect(peer);
    }
    lend__answer_drop(peer, &answer);
    return r;
}

static int more_contact(struct lend__peer *peer, const struct lend__wire *wire, uint64_t deadline, struct lend_error *error) {
    struct lend__answer answer;
    struct lend__control_request request = request_to(peer, LEND__CONTROL_ALLOCATION);
    request.allocation = wire->allocation;
    request.allocation_gen = wire->allocation_gen;
    int r = lend__peer_call(peer, &request, &answer, deadline, OPERATION, error);
    if (r < 0) return r;
    struct lend__mapping *mapping = NULL;
    r = map_allocation(peer, peer->table, wire, &answer.allocation_fd, &mapping, error);
    if (r >= 0 && (r = install_contact(peer, &answer, NULL, mapping)) < 0) explain(peer, r, NULL, OPERATION, error);
    lend__answer_drop(peer, &answer);
    return r;
}

int lend__contact(struct lend__peer *peer, const struct lend__wire *wire, uint64_t deadline, struct lend_error *error) {
    if (memcmp(wire->exporter.boot_id, lend__context.identity.boot_id, LEND__ID_BYTES) != 0)
        return lend__fail(error, -EREMOTE, OPERATION,
                          "the handle was made on another host (or before a reboot), and there is no gateway; send the bytes instead");
    int r = lend__peer_begin_call(peer, deadline);
    if (r < 0) return explain(peer, r, NULL, OPERATION, error);
    lend__import_lock();
    bool has_page = peer->page != NULL;
    bool has_all = has_page && (wire->allocation == LEND__CONTROL_NONE || lend__peer_mapping(peer, wire->allocation, wire->allocation_gen));
    lend__import_unlock();
    if (!has_all) {
        if (lend__peer_is_dead(peer))
            r = explain(peer, -EOWNERDEAD, NULL, OPERATION, error);
        else
            r = has_page ? more_contact(peer, wire, deadline, error) : first_contact(peer, wire, deadline, error);
    }
    lend__peer_end_call(peer);
    return r;
}

int lend__contact_frozen(struct lend__peer *peer, const struct lend__wire *wire, int *table_fd, int *allocation_fd,
                         struct lend_error *error) {
    struct lend_shm_table *table = NULL;
    struct lend__mapping *mapping = NULL;
    int r = lend__peer_begin_call(peer, UINT64_MAX);
    if (r < 0) return explain(peer, r, NULL, OPERATION, error);
    if (!peer->table && (r = map_table(*table_fd, peer->id, &table)) < 0) explain(peer, r, NULL, OPERATION, error);
    /* A table that we have speaks for itself; one without a lock cannot say that its exporter is dead. */
    if (r >= 0 && (table ? !table->has_lock : !lend__peer_is_dead(peer))) r = explain(peer, -EOWNERDEAD, NULL, OPERATION, error);
    lend__import_lock();
    bool has_mapping = lend__peer_mapping(peer, wire->allocation, wire->allocation_gen) != NULL;
    lend__import_unlock();
    if (r >= 0 && !has_mapping) r = map_allocation(peer, table ? table : peer->table, wire, allocation_fd, &mapping, error);
    if (r >= 0) {
        struct lend__answer answer = {.table_fd = table ? LEND__TAKE_FD(*table_fd) : -1, .allocation_fd = -1};
        lend__store_relaxed(&peer->is_dead, true);
        r = install_contact(peer, &answer, table, mapping);
        if (r < 0) explain(peer, r, NULL, OPERATION, error);
        lend__fd_close(&answer.table_fd);
    }
    if (r < 0 && table) lend__sys.munmap(table, LEND_SHM_TABLE_BYTES);
    lend__peer_end_call(peer);
    return r;
}

/* --- pins, spares, kicks ------------------------------------------------------------------------------------------ */

/* A round trip whose answer is only a code and a token. */
static int simple_call(struct lend__peer *peer, struct lend__control_request *request, uint64_t deadline, uint64_t *ret_token,
                       const char *operation, struct lend_error *error) {
    struct lend__answer answer;
    int r = lend__peer_call(peer, request, &answer, deadline, operation, error);
    if (r < 0) return r;
    if (ret_token) *ret_token = answer.reply.token;
    lend__answer_drop(peer, &answer);
    return 0;
}

int lend__contact_pin(struct lend__peer *peer, uint32_t slot, uint64_t gen, uint64_t ns_max, uint64_t deadline,
                      uint64_t *ret_token, struct lend_error *error) {
    int r = lend__peer_begin_call(peer, deadline);
    if (r < 0) return explain(peer, r, NULL, "lend_reduce", error);
    struct lend__control_request request = request_to(peer, LEND__CONTROL_PIN);
    request.slot = slot;
    request.slot_gen = gen;
    request.pin_ns_max = ns_max;
    r = lend__peer_is_dead(peer) ? explain(peer, -EOWNERDEAD, NULL, "lend_reduce", error)
                                 : simple_call(peer, &request, deadline, ret_token, "lend_reduce", error);
    lend__peer_end_call(peer);
    return r;
}

int lend__contact_cancel(struct lend__peer *peer, uint64_t token, uint64_t deadline, struct lend_error *error) {
    int r = lend__peer_begin_call(peer, deadline);
    if (r < 0) return explain(peer, r, NULL, "lend_pin_cancel", error);
    struct lend__control_request request = request_to(peer, LEND__CONTROL_CANCEL);
    request.token = token;
    r = lend__peer_is_dead(peer) ? explain(peer, -EOWNERDEAD, NULL, "lend_pin_cancel", error)
                                 : simple_call(peer, &request, deadline, NULL, "lend_pin_cancel", error);
    lend__peer_end_call(peer);
    return r;
}

void lend__peer_get_spare(struct lend__peer *peer, uint64_t deadline) {
    if (lend__peer_begin_call(peer, deadline) < 0) return;
    struct lend__answer answer;
    struct lend__control_request request = request_to(peer, LEND__CONTROL_SPARE);
    if (peer->page && !lend__peer_is_dead(peer) && lend__peer_call(peer, &request, &answer, deadline, "fork", NULL) >= 0) {
        lend__import_lock();
        peer->spare = (struct lend__spare){peer->pending_page, answer.reply.page_index, answer.reply.page_nonce};
        peer->pending_page = NULL;
        lend__import_unlock();
        lend__answer_drop(peer, &answer);
    }
    lend__peer_end_call(peer);
}

void lend__peer_kick(struct lend__peer *peer) {
    if (peer->connection_fd < 0) return;
    struct lend__control_request kick = {.magic = LEND__CONTROL_MAGIC,
                                         .type = LEND__CONTROL_KICK,
                                         .major = LEND_WIRE_MAJOR,
                                         .bytes = sizeof kick,
                                         .allocation = LEND__CONTROL_NONE,
                                         .page_index = LEND__CONTROL_NONE};
    lend__control_send(peer->connection_fd, &kick, sizeof kick, NULL, 0);
}
