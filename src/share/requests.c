/* SPDX-License-Identifier: MIT */
/* The service's answers. A request is input from another process: it is checked field by field, and the worst answer
 * is a typed refusal. The whole of a reply that carries descriptors is made and sent under one hold of the ledger
 * lock, so that a fork of ours cannot inherit the open file that stands for another process's life. */
#include "share/requests.h"

#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/liveness.h"
#include "share/report.h"
#include "share/shm.h"

#include <errno.h>
#include <lend/watch.h>
#include <string.h>
#include <sys/resource.h>

#define LEDGER (&lend__ledger)

static uint64_t descriptor_limit(void) {
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

static struct lend__control_reply reply_to(const struct lend__control_request *request, int code) {
    struct lend__control_reply reply = {
        .magic = LEND__CONTROL_MAGIC,
        .type = request ? request->type : LEND__CONTROL_HELLO,
        .major = LEND_WIRE_MAJOR,
        .sequence = request ? request->sequence : 0,
        .bytes = sizeof reply,
        .code = code,
        .limit = code == -EMFILE ? descriptor_limit() : 0,
        .page_index = LEND__CONTROL_NONE,
        .report_next = UINT64_MAX,
    };
    memcpy(reply.exporter_id, lend__context.identity.id, sizeof reply.exporter_id);
    return reply;
}

void lend__request_refuse(int fd, int code) {
    struct lend__control_reply reply = reply_to(NULL, code);
    lend__control_send(fd, &reply, sizeof reply, NULL, 0);
}

static bool send_plain(struct lend__connection *connection, const struct lend__control_reply *reply) {
    return lend__control_send(connection->fd, reply, sizeof *reply, NULL, 0) >= 0;
}

/* --- first contact ------------------------------------------------------------------------------------------------ */

/* The allocation that the peer wants, if it still is what the handle says. */
static struct lend__allocation *wanted_allocation(const struct lend__control_request *request) {
    uint32_t index = request->allocation;
    struct lend__allocation *allocation = index < LEDGER->n_allocations ? LEDGER->allocations[index] : NULL;
    return allocation && allocation->gen == request->allocation_gen ? allocation : NULL;
}

static int check_hello(const struct lend__control_request *request) {
    if (request->layout != lend__shm_layout()) return -EPROTONOSUPPORT;
    /* Another exporter has this name now (it was squatted, or we are a fork's child): the one meant is dead. */
    if (memcmp(request->exporter_id, lend__context.identity.id, LEND__ID_BYTES) != 0) return -EOWNERDEAD;
    uint64_t budget = lend__context.limbo_bytes_max;
    for (uint32_t i = 0; budget && i < LEDGER->n_pages; i++)
        if (LEDGER->pages[i]->is_over_budget && LEDGER->pages[i]->pid == request->pid) return -ENOSPC;
    return 0;
}

/* A page for this connection: the one it claims (after a fork or a broken connection), or a new one. */
static int page_for(struct lend__connection *connection, const struct lend__control_request *request,
                    struct lend__page **ret, int *ret_lent_fd) {
    struct lend__page *page = NULL;
    int r = 0;
    if (request->page_index != LEND__CONTROL_NONE) {
        page = lend__page_find(request->page_index, request->page_nonce);
        if (!page || page->has_connection) return -ESTALE;
    } else {
        r = lend__page_new(request->pid, &page, ret_lent_fd);
        if (r < 0) return r;
    }
    if (!lend__context.has_open_file_locks && page->pidfd < 0)
        page->pidfd = lend__life_pidfd(connection->fd, (int)connection->pid);
    page->pid = request->pid;
    *ret = page;
    return 0;
}

static void connect_page(struct lend__connection *connection, struct lend__page *page) {
    connection->page = page;
    page->has_connection = true;
    LEDGER->n_unconnected--;
}

static bool handle_hello(struct lend__connection *connection, const struct lend__control_request *request) {
    struct lend__control_reply reply = reply_to(request, 0);
    struct lend__page *page = NULL;
    int lent_fd = -1;
    lend__ledger_lock();
    int r = connection->page ? -EBADMSG : check_hello(request);
    struct lend__allocation *allocation = NULL;
    if (r >= 0 && request->allocation != LEND__CONTROL_NONE && !(allocation = wanted_allocation(request))) r = -ESTALE;
    if (r >= 0) r = page_for(connection, request, &page, &lent_fd);
    if (r >= 0 && allocation) r = lend__page_give(page, allocation->index);
    if (r >= 0) {
        int fds[LEND__CONTROL_FDS_MAX];
        unsigned n = 0;
        if (lent_fd >= 0) { /* a claimed page comes with a process that has the table */
            reply.has_table = reply.has_page = 1;
            fds[n++] = LEDGER->table_fd;
            fds[n++] = lent_fd;
        }
        reply.page_index = page->index;
        reply.page_nonce = page->nonce;
        if (allocation) {
            reply.has_allocation = 1; /* what it is, the table says */
            fds[n++] = allocation->extent.fd;
        }
        reply.n_fds = n;
        LEND_POINT("C2.welcome");
        r = lend__control_send(connection->fd, &reply, sizeof reply, fds, n);
        if (r >= 0) connect_page(connection, page);
    }
    lend__fd_close(&lent_fd);
    /* A page that was not sent has no holder: drop it at once instead of at the next tick. */
    if (r < 0 && page && !page->has_connection && request->page_index == LEND__CONTROL_NONE) lend__page_drop(page);
    lend__ledger_unlock();
    if (r < 0) {
        reply = reply_to(request, r);
        send_plain(connection, &reply);
    }
    return r >= 0;
}

/* --- after it ----------------------------------------------------------------------------------------------------- */

static bool handle_allocation(struct lend__connection *connection, const struct lend__control_request *request) {
    struct lend__control_reply reply = reply_to(request, 0);
    lend__ledger_lock();
    struct lend__allocation *allocation = wanted_allocation(request);
    int r = !connection->page ? -EBADMSG : connection->page->is_over_budget ? -ENOSPC : !allocation ? -ESTALE : 0;
    if (r >= 0) r = lend__page_give(connection->page, allocation->index);
    bool sent;
    if (r >= 0) {
        reply.has_allocation = 1;
        reply.n_fds = 1;
        LEND_POINT("C4.allocation");
        sent = lend__control_send(connection->fd, &reply, sizeof reply, &allocation->extent.fd, 1) >= 0;
    } else {
        reply.code = r;
        sent = send_plain(connection, &reply);
    }
    lend__ledger_unlock();
    return sent;
}

/* A page for a child that the peer is about to fork. Until the child makes a connection of its own, the tick tests
 * it; what the peer has been given, the child will have (page.c, lend__page_give). */
static bool handle_spare(struct lend__connection *connection, const struct lend__control_request *request) {
    struct lend__control_reply reply = reply_to(request, 0);
    struct lend__page *spare = NULL;
    int lent_fd = -1;
    bool sent = false;
    lend__ledger_lock();
    struct lend__page *mine = connection->page;
    int r = mine ? lend__page_new(0, &spare, &lent_fd) : -EBADMSG;
    for (uint32_t i = 0; r >= 0 && i < mine->given_bits; i++)
        if (lend__page_was_given(mine, i)) r = lend__page_give(spare, i);
    if (r >= 0) {
        spare->parent_index = mine->index;
        reply.has_page = 1;
        reply.n_fds = 1;
        reply.page_index = spare->index;
        reply.page_nonce = spare->nonce;
        LEND_POINT("F1.spare");
        sent = lend__control_send(connection->fd, &reply, sizeof reply, &lent_fd, 1) >= 0;
    }
    lend__fd_close(&lent_fd);
    if (spare && !sent) lend__page_drop(spare);
    lend__ledger_unlock();
    if (r < 0) {
        reply = reply_to(request, r);
        sent = send_plain(connection, &reply);
    }
    return sent;
}

/* The slots that a forwarder wants pinned: all of them must be lent storages. 0, -EBADMSG or -ESTALE. Locked. */
static int wanted_slots(const struct lend__control_request *request, const uint8_t *behind, uint32_t *ret_slots,
                        uint32_t *ret_n) {
    struct lend__control_slot wanted;
    uint32_t n = (request->bytes - (uint32_t)sizeof *request) / (uint32_t)sizeof wanted;
    if (!n || n > LEND__CONTROL_SLOTS_MAX || request->bytes != sizeof *request + n * sizeof wanted) return -EBADMSG;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(&wanted, behind + i * sizeof wanted, sizeof wanted);
        if (wanted.slot >= LEDGER->n_slots || !LEDGER->slots[wanted.slot].storage ||
            LEDGER->slots[wanted.slot].gen != wanted.gen)
            return -ESTALE;
        ret_slots[i] = wanted.slot;
    }
    *ret_n = n;
    return 0;
}

/* A forwarder's pin: the storages must be held by its page, or be open anyway; it stands in our ledger at once. */
static bool handle_pin(struct lend__connection *connection, const struct lend__control_request *request,
                       const uint8_t *behind) {
    static uint32_t slots[LEND__CONTROL_SLOTS_MAX]; /* the service thread is alone here */
    struct lend__control_reply reply = reply_to(request, 0);
    uint32_t n = 0;
    lend__ledger_lock();
    struct lend__page *page = connection->page;
    reply.code = page ? wanted_slots(request, behind, slots, &n) : -EBADMSG;
    if (!reply.code) {
        reply.token = request->token;
        const struct lend__pin_request pin = {page->index, page->pid, request->pin_ns_max};
        reply.code = lend__pin_add(&pin, slots, n, &reply.token, NULL);
    }
    if (reply.code == -ENOSPC && LEDGER->oldest_pin) {
        reply.limit = lend__context.pin_bytes_max - LEDGER->pin_bytes;
        reply.oldest_pin_pid = LEDGER->oldest_pin->sender_pid;
        reply.oldest_pin_age_ns = lend__boottime_ns() - LEDGER->oldest_pin->made_ns;
    }
    LEND_POINT("P6.pinned-for-peer");
    lend__ledger_unlock();
    bool sent = send_plain(connection, &reply);
    if (!sent && !reply.code) { /* nobody knows it */
        lend__ledger_lock();
        lend__pin_consume(reply.token);
        lend__ledger_unlock();
    }
    return sent;
}

static bool handle_cancel(struct lend__connection *connection, const struct lend__control_request *request) {
    struct lend__control_reply reply = reply_to(request, connection->page ? 0 : -EBADMSG);
    lend__ledger_lock();
    if (!reply.code) lend__pin_consume(request->token);
    LEND_POINT("P8.cancelled-for-peer");
    lend__ledger_unlock();
    return send_plain(connection, &reply);
}

static bool handle_kick(struct lend__connection *connection) {
    lend__ledger_lock();
    if (connection->page) lend__page_drain(connection->page);
    lend__ledger_unlock();
    return true;
}

static bool handle_report(struct lend__connection *connection, const struct lend__control_request *request) {
    static union { /* the service thread is alone here */
        struct lend__control_reply reply;
        uint8_t bytes[LEND__CONTROL_BYTES_MAX];
    } message;
    message.reply = reply_to(request, 0);
    size_t n = lend__report_fill(request, &message.reply, message.bytes + sizeof message.reply,
                                 sizeof message.bytes - sizeof message.reply);
    message.reply.bytes = (uint32_t)(sizeof message.reply + n);
    return lend__control_send(connection->fd, message.bytes, message.reply.bytes, NULL, 0) >= 0;
}

bool lend__request_handle(struct lend__connection *connection, const void *message, size_t bytes) {
    struct lend__control_request request;
    if (bytes < sizeof request) return false;
    memcpy(&request, message, sizeof request);
    if (request.magic != LEND__CONTROL_MAGIC || request.bytes != bytes) return false;
    if (request.type != LEND__CONTROL_PIN && bytes != sizeof request) return false;
    if (request.major != LEND_WIRE_MAJOR) {
        lend__request_refuse(connection->fd, -EPROTONOSUPPORT);
        return false;
    }
    switch (request.type) {
    case LEND__CONTROL_HELLO: return handle_hello(connection, &request);
    case LEND__CONTROL_ALLOCATION: return handle_allocation(connection, &request);
    case LEND__CONTROL_SPARE: return handle_spare(connection, &request);
    case LEND__CONTROL_PIN: return handle_pin(connection, &request, (const uint8_t *)message + sizeof request);
    case LEND__CONTROL_CANCEL: return handle_cancel(connection, &request);
    case LEND__CONTROL_KICK: return handle_kick(connection);
    case LEND__CONTROL_REPORT: return handle_report(connection, &request);
    default: return false;
    }
}
