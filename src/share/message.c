/* SPDX-License-Identifier: MIT */
/* lend_send and lend_recv, and the same for groups: a handle with its descriptors over a caller's own Unix socket
 * (parcel.c). With it go the slot tables and the allocations, so what was sent survives its sender, and a pin keeps it
 * while the exporter lives. */
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/gather.h"
#include "share/group.h"
#include "share/ledger.h"
#include "share/liveness.h"
#include "share/parcel.h"
#include "share/peer.h"
#include "share/rebuild.h"
#include "share/reduce.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <lend/message.h>
#include <stdlib.h>
#include <string.h>

#define DYING_WAIT_NS 1000000u
#define DYING_NS 1000000000u /* a process with much memory dies slowly */

/* --- send ------------------------------------------------------------------------------------------------------------ */

static int explain_send(int code, const char *operation, struct lend_error *error) {
    switch (code) {
    case -ETIMEDOUT:
        return lend__fail(error, code, operation,
                          "the socket stayed full until the deadline; nothing was sent, and nothing is pinned");
    case -ENOTCONN:
    case -EDESTADDRREQ:
        return lend__fail(error, -EINVAL, operation, "the socket is not connected: connect(2) it first");
    case -ECONNRESET:
    case -EPIPE: return lend__fail(error, -EPIPE, operation, "the other end of the socket is closed");
    case -ETOOMANYREFS:
        return lend__fail(
            error, code, operation,
            "too many descriptors of this user are in flight in sockets; let a receiver read, or raise RLIMIT_NOFILE");
    case -E2BIG:
        return lend__fail(error, code, operation,
                          "the tensors lie in more allocations than one message can carry descriptors of (%u); send "
                          "several",
                          LEND__PARCEL_FDS_MAX);
    default: return lend__fail_sys(error, code, operation, "sendmsg", "the message");
    }
}

/* The options with the pin that a message implies; a wrong size is for reducing to refuse. */
static struct lend_reduce_opts pinned(const struct lend_reduce_opts *opts) {
    struct lend_reduce_opts ret = {.size = sizeof ret};
    if (opts && opts->size == sizeof ret) ret = *opts;
    if (opts) ret.size = opts->size;
    ret.flags |= LEND_REDUCE_PIN;
    return ret;
}

/* A tensor of components, or a group. */
static int send_many(int socket_fd, const struct lend__gather_request *request, int64_t deadline_ns,
                     struct lend_error *error) {
    struct lend__gather *gather = NULL;
    int outcome = lend__gather_begin(request, &gather, error);
    if (outcome < 0) return outcome;
    struct lend__parcel parcel;
    uint32_t n_allocations = 0, n_exporters = lend__gather_count(gather, &n_allocations);
    parcel.n_fds = 0;
    parcel.handle = lend__gather_bytes(gather, &parcel.handle_bytes);
    bool fits = true;
    for (uint32_t i = 0; i < n_exporters; i++)
        fits &= lend__parcel_add(&parcel, LEND__PARCEL_TABLE, i, lend__gather_table_fd(gather, i));
    for (uint32_t i = 0; i < n_allocations; i++)
        fits &= lend__parcel_add(&parcel, LEND__PARCEL_ALLOCATION, i, lend__gather_allocation_fd(gather, i));
    LEND_POINT("S4.before-send-tree");
    int r = fits ? lend__parcel_send(socket_fd, &parcel, lend__context_deadline(deadline_ns)) : -E2BIG;
    LEND_POINT("S4.tree-sent");
    lend__gather_end(gather, r >= 0);
    return r < 0 ? explain_send(r, request->operation, error) : outcome;
}

static int send_one(int socket_fd, struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int64_t deadline_ns,
                    struct lend_error *error) {
    struct lend__reduced reduced;
    int outcome = lend__reduce_wire(tensor, opts, &reduced, error);
    if (outcome < 0) return outcome;
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    struct lend__parcel parcel;
    parcel.n_fds = 0;
    parcel.handle = handle;
    const struct lend__storage *storage = reduced.storage;
    const struct lend__extent *extent = lend__storage_extent(storage);
    bool has_table = storage->kind != LEND__STORAGE_META;
    int table_fd = storage->kind == LEND__STORAGE_IMPORTED ? storage->peer->table_fd : lend__ledger.table_fd;
    lend__parcel_add(&parcel, LEND__PARCEL_TABLE, 0, has_table ? table_fd : -1);
    lend__parcel_add(&parcel, LEND__PARCEL_ALLOCATION, 0, extent ? extent->fd : -1);
    int r = lend__wire_encode(&reduced.wire, handle, sizeof handle, &parcel.handle_bytes);
    LEND_POINT("S1.before-send");
    if (r >= 0) r = lend__parcel_send(socket_fd, &parcel, lend__context_deadline(deadline_ns));
    LEND_POINT("S1.sent");
    lend__reduce_end(tensor, opts, &reduced, r >= 0);
    return r < 0 ? explain_send(r, "lend_send", error) : outcome;
}

int lend_send(int socket_fd, struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int64_t deadline_ns,
              struct lend_error *error) {
    int r = lend__context_check(__func__, error);
    if (r >= 0) r = lend__parcel_check_socket(socket_fd, __func__, error);
    if (r < 0) return r;
    const struct lend_reduce_opts with_pin = pinned(opts);
    if (!tensor || tensor->layout == LEND_LAYOUT_STRIDED)
        return send_one(socket_fd, tensor, &with_pin, deadline_ns, error);
    const struct lend__gather_request request = {.operation = __func__, .tensors = &tensor, .n = 1, .opts = &with_pin};
    return send_many(socket_fd, &request, deadline_ns, error);
}

int lend_group_send(int socket_fd, struct lend_group *group, const struct lend_reduce_opts *opts, int64_t deadline_ns,
                    struct lend_error *error) {
    int r = lend__context_check(__func__, error);
    if (r >= 0) r = lend__parcel_check_socket(socket_fd, __func__, error);
    if (r < 0) return r;
    if (!group) return lend__fail(error, -EINVAL, __func__, "the group is NULL");
    const struct lend_reduce_opts with_pin = pinned(opts);
    const struct lend__gather_request request = {.operation = __func__,
                                                 .tensors = group->tensors,
                                                 .names = group->names,
                                                 .n = group->n,
                                                 .is_group = true,
                                                 .opts = &with_pin};
    return send_many(socket_fd, &request, deadline_ns, error);
}

/* --- receive --------------------------------------------------------------------------------------------------------- */

/* What the handle of a message names, as far as it is needed to use the descriptors that came along. */
struct named {
    uint32_t n_exporters, n_allocations;
    struct lend__wire_exporter *exporters;
    struct lend__tree_allocation *allocations;
    struct lend__peer **frozen; /* by exporter: kept until the rebuild is done */
    bool accepts_files;
};

static void forget_named(struct named *named) {
    for (uint32_t i = 0; named->frozen && i < named->n_exporters; i++)
        if (named->frozen[i]) lend__peer_release(named->frozen[i]);
    free(named->frozen);
    free(named->exporters);
    free(named->allocations);
}

static int make_room(struct named *named, struct lend_error *error) {
    named->exporters = lend__zalloc((named->n_exporters + 1ull) * sizeof *named->exporters);
    named->allocations = lend__zalloc((named->n_allocations + 1ull) * sizeof *named->allocations);
    named->frozen = lend__zalloc((named->n_exporters + 1ull) * sizeof(void *));
    if (named->exporters && named->allocations && named->frozen) return 0;
    return lend__fail(error, -ENOMEM, "lend_recv", "no memory for a list of %u exporters and %u allocations",
                      named->n_exporters, named->n_allocations);
}

static int read_named(const struct lend__arrival *arrival, struct named *ret, struct lend_error *error) {
    struct lend__wire wire;
    struct lend__tree tree;
    *ret = (struct named){.n_exporters = 1, .n_allocations = 1};
    if (!lend__wire_is_tree(arrival->handle, arrival->handle_bytes)) {
        int r = lend__wire_decode(arrival->handle, arrival->handle_bytes, &wire, "lend_recv", NULL);
        if (r >= 0) r = make_room(ret, error);
        if (r < 0) return r;
        ret->exporters[0] = wire.exporter;
        ret->allocations[0] = (struct lend__tree_allocation){
            .index = wire.storage.allocation, .gen = wire.storage.allocation_gen, .device_type = kDLCPU};
        return 0;
    }
    int r = lend__tree_open(arrival->handle, arrival->handle_bytes, &tree, "lend_recv", NULL);
    if (r < 0) return r;
    ret->n_exporters = tree.n_exporters;
    ret->n_allocations = tree.n_allocations;
    r = make_room(ret, error);
    if (r < 0) return r;
    lend__tree_exporters(&tree, ret->exporters);
    for (uint32_t i = 0; i < tree.n_allocations; i++) lend__tree_allocation(&tree, i, &ret->allocations[i]);
    return 0;
}

/* An exporter whose table came along, and whose table's lock says that it is gone: everything of it that came is put in
 * place. The frozen words then decide what the handle is worth. */
static int freeze(struct lend__arrival *arrival, struct named *named, uint32_t exporter, int *table_fd,
                  struct lend_error *error) {
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(&named->exporters[exporter]);
    lend__import_unlock();
    if (!peer) return lend__fail(error, -ENOMEM, "lend_recv", "no memory for the record of an exporter");
    named->frozen[exporter] = peer;
    int none = -1;
    struct lend__contact_request request = {.exporter = &named->exporters[exporter],
                                            .allocation = LEND__CONTROL_NONE,
                                            .accepts_files = named->accepts_files};
    int r = lend__contact_frozen(peer, &request, table_fd, &none, error);
    for (uint32_t i = 0; r >= 0 && i < arrival->n_fds; i++) {
        const struct lend__parcel_item *item = &arrival->items[i];
        if (item->kind != LEND__PARCEL_ALLOCATION || item->index >= named->n_allocations) continue;
        const struct lend__tree_allocation *row = &named->allocations[item->index];
        if (row->exporter != exporter || row->index == LEND__CONTROL_NONE) continue;
        request.allocation = row->index;
        request.allocation_gen = row->gen;
        r = lend__contact_frozen(peer, &request, table_fd, &arrival->fds[i], error);
    }
    lend__fd_close(table_fd); /* once is enough */
    return r;
}

/* Freezes what can be. Returns how many, or a negative errno. Goes by what came along, which is little, whatever number
 * of exporters the handle names. */
static int freeze_dead(struct lend__arrival *arrival, struct named *named, struct lend_error *error) {
    int n = 0;
    for (uint32_t i = 0; i < arrival->n_fds; i++) {
        const struct lend__parcel_item *item = &arrival->items[i];
        int *fd = &arrival->fds[i];
        if (item->kind != LEND__PARCEL_TABLE || item->index >= named->n_exporters || named->frozen[item->index])
            continue;
        if (*fd < 0 || !lend__life_is_over_shared(*fd)) continue;
        int r = freeze(arrival, named, item->index, fd, error);
        if (r < 0) return r;
        n++;
    }
    return n;
}

static bool has_open_table(const struct lend__arrival *arrival) {
    for (uint32_t i = 0; i < arrival->n_fds; i++)
        if (arrival->items[i].kind == LEND__PARCEL_TABLE && arrival->fds[i] >= 0) return true;
    return false;
}

/* What is rebuilt: one of the two is asked for. */
struct wanted {
    const char *operation;
    const struct lend_rebuild_opts *opts;
    struct lend_tensor **ret_tensor;
    struct lend_group **ret_group;
};

static int rebuild(const struct lend__arrival *arrival, const struct wanted *wanted, struct lend_error *error) {
    if (wanted->ret_tensor)
        return lend__rebuild_any(arrival->handle, arrival->handle_bytes, wanted->opts, wanted->ret_tensor, error);
    return lend_group_rebuild(arrival->handle, arrival->handle_bytes, NULL, 0, wanted->opts, wanted->ret_group, error);
}

/* An exporter is gone. When its table came along and its lock says so too, its frozen words decide what the handle is
 * worth; without the table there is no telling (-EOWNERDEAD). */
static int rebuild_frozen(struct lend__arrival *arrival, const struct wanted *wanted, struct lend_error *error) {
    struct named named;
    int r = read_named(arrival, &named, error);
    named.accepts_files = wanted->opts && (wanted->opts->flags & LEND_REBUILD_FILE_IN_PLACE);
    /* Its socket was gone; the lock follows within a moment, unless something else still runs on its memory. */
    for (uint64_t until = lend__now_ns() + DYING_NS; r >= 0;) {
        int frozen = freeze_dead(arrival, &named, error);
        r = frozen > 0 ? rebuild(arrival, wanted, error) : frozen < 0 ? frozen : -EOWNERDEAD;
        if (r != -EOWNERDEAD || !has_open_table(arrival) || lend__now_ns() >= until) break;
        r = 0;
        lend__sleep_ns(DYING_WAIT_NS);
    }
    forget_named(&named);
    return r;
}

/* A tensor is asked for and the message is a group's, or the other way round: the sentence names the call for it. */
static int explain_other_kind(const struct lend__arrival *arrival, const struct wanted *wanted,
                              struct lend_error *error) {
    struct lend__tree tree = {.is_group = false};
    if (lend__wire_is_tree(arrival->handle, arrival->handle_bytes) &&
        lend__tree_open(arrival->handle, arrival->handle_bytes, &tree, wanted->operation, NULL) < 0)
        return -EINVAL;
    if (tree.is_group == (wanted->ret_tensor == NULL)) return -EINVAL;
    if (tree.is_group)
        return lend__fail(error, -EINVAL, wanted->operation,
                          "the message is of a group of %u tensors (it is kept); use lend_group_recv", tree.n_entries);
    return lend__fail(error, -EINVAL, wanted->operation, "the message is of one tensor (it is kept); use lend_recv");
}

/* Errors after which the same message may be received by a later call: it stays on the socket. */
static bool is_worth_another_try(int code) {
    return code == -EMFILE || code == -ENFILE || code == -ENOMEM || code == -ETIMEDOUT || code == -EAGAIN ||
           code == -EACCES || code == -EINVAL;
}

static int receive(int socket_fd, const struct wanted *wanted, int64_t deadline_ns, struct lend_error *error) {
    int r = lend__context_check(wanted->operation, error);
    if (r >= 0) r = lend__parcel_check_socket(socket_fd, wanted->operation, error);
    if (r < 0) return r;
    struct lend__arrival arrival;
    r = lend__arrival_wait(socket_fd, lend__context_deadline(deadline_ns), &arrival, wanted->operation, error);
    if (r < 0) return r;
    LEND_POINT("S2.received");
    r = rebuild(&arrival, wanted, error);
    if (r == -EOWNERDEAD) r = rebuild_frozen(&arrival, wanted, error);
    if (r == -EINVAL) r = explain_other_kind(&arrival, wanted, error);
    lend__arrival_drop(&arrival);
    LEND_POINT("S3.rebuilt");
    if (!is_worth_another_try(r)) lend__arrival_consume(socket_fd, &arrival);
    return r;
}

int lend_recv(int socket_fd, const struct lend_rebuild_opts *opts, int64_t deadline_ns, struct lend_tensor **ret_tensor,
              struct lend_error *error) {
    const struct wanted wanted = {.operation = __func__, .opts = opts, .ret_tensor = ret_tensor};
    return receive(socket_fd, &wanted, deadline_ns, error);
}

int lend_group_recv(int socket_fd, const struct lend_rebuild_opts *opts, int64_t deadline_ns,
                    struct lend_group **ret_group, struct lend_error *error) {
    const struct wanted wanted = {.operation = __func__, .opts = opts, .ret_group = ret_group};
    return receive(socket_fd, &wanted, deadline_ns, error);
}
