/* SPDX-License-Identifier: MIT */
/* lend_reduce: tensor -> handle. Own storages get a slot in the ledger, imported ones are forwarded (the handle names
 * their exporter), meta ones get a name, private memory is copied into a pool of the context and pinned. What is refused
 * is refused first. Tensors of components are gather.c's. */
#include "share/reduce.h"

#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/gather.h"
#include "share/ledger.h"
#include "share/meta.h"
#include "share/peer.h"
#include "share/service.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OPERATION "lend_reduce"
#define FLAGS_KNOWN (LEND_REDUCE_PIN | LEND_REDUCE_NO_COPY | LEND_REDUCE_READ_ONLY | LEND_REDUCE_MATERIALIZE)

static const struct lend_reduce_opts defaults = {.size = sizeof defaults};

/* --- what may cross --------------------------------------------------------------------------------------------------- */

bool lend__reduce_is_pinned(const struct lend_reduce_opts *opts) {
    return (opts->flags & LEND_REDUCE_PIN) || opts->mode != LEND_MODE_SHARE;
}

int lend__reduce_check_opts(const struct lend_reduce_opts *opts, const char *operation, struct lend_error *error) {
    if (opts->size != sizeof *opts)
        return lend__fail(error, -EINVAL, operation,
                          "opts.size is %zu; set it to sizeof(struct lend_reduce_opts) = %zu", opts->size,
                          sizeof *opts);
    if (opts->mode > LEND_MODE_MOVE)
        return lend__fail(error, -EINVAL, operation, "opts.mode %u is none of share (0), snapshot (1), move (2)",
                          opts->mode);
    if (opts->flags & ~(uint32_t)FLAGS_KNOWN)
        return lend__fail(error, -EINVAL, operation, "opts.flags 0x%x has unknown bits", opts->flags);
    return 0;
}

int lend__reduce_check_attrs(const struct lend_tensor *tensor, bool is_outer, const char *operation,
                             struct lend_error *error) {
    const uint32_t grad_of_non_leaf = LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF;
    uint32_t attrs = tensor->attrs;
    if (__builtin_expect(!attrs, 1)) return 0;
    if (is_outer && (attrs & grad_of_non_leaf) == grad_of_non_leaf)
        return lend__fail(
            error, -EOPNOTSUPP, operation,
            "the tensor requires grad and is not a leaf: autograd does not cross a process boundary; lend "
            "a detached one (lend_tensor_with_attrs without LEND_ATTR_REQUIRES_GRAD)");
    if (attrs & LEND_ATTR_NAMED)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "the tensor has named dimensions, which do not travel: drop the names first (in PyTorch "
                          "rename(None))");
    if (attrs & LEND_ATTR_UNINITIALIZED)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "the parameter is uninitialised, it has neither shape nor memory: materialise it first");
    return 0;
}

int lend__reduce_check_storage(const struct lend__storage *storage, const struct lend_reduce_opts *opts,
                               bool *ret_copies, const char *operation, struct lend_error *error) {
    *ret_copies = false;
    switch (storage->kind) {
    case LEND__STORAGE_META: return 0;
    case LEND__STORAGE_ZERO:
        *ret_copies = true;
        if (opts->flags & LEND_REDUCE_MATERIALIZE) return 0;
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "it is a zero tensor without memory: materialise it (lend_tensor_resolve, or "
                          "LEND_REDUCE_MATERIALIZE)");
    case LEND__STORAGE_PRIVATE:
        *ret_copies = true;
        if (!(opts->flags & LEND_REDUCE_NO_COPY)) return 0;
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "the tensor lies in private memory and LEND_REDUCE_NO_COPY forbids a copy; make it with "
                          "lend_tensor_new in a pool, or lend_tensor_copy it into one");
    default: break;
    }
    *ret_copies = opts->mode == LEND_MODE_SNAPSHOT;
    const struct lend__extent *extent = lend__storage_extent(storage);
    if (!extent || !extent->is_file) return 0;
    return lend__extent_file_check(extent, (uint64_t)(storage->data - extent->base), storage->bytes, operation, error);
}

bool lend__reduce_has_news_of_hooks(struct lend_tensor *tensor) {
    return (tensor->attrs & LEND_ATTR_HOOKS) && !(tensor->attrs & LEND_ATTR_HOOKS_MARKED) &&
           !__atomic_exchange_n(&tensor->is_warned, true, __ATOMIC_RELAXED);
}

/* --- filling ---------------------------------------------------------------------------------------------------------- */

/* A handle leaves out only the strides that its reader would fill in himself: with sizes of 0 or 1 a contiguous tensor
 * may have others, and they are part of what it is. */
static bool has_default_strides(const struct lend_tensor *tensor) {
    int64_t strides[LEND_NDIM_MAX];
    if (!tensor->is_contiguous) return false;
    lend__contiguous_strides(tensor->ndim, tensor->dims, strides);
    return !memcmp(strides, lend__tensor_strides(tensor), (size_t)tensor->ndim * sizeof strides[0]);
}

void lend__reduce_fill_tensor(struct lend__wire_tensor *ret, const struct lend_tensor *tensor, uint32_t flags) {
    bool is_compound = tensor->layout != LEND_LAYOUT_STRIDED;
    ret->dtype = tensor->dtype;
    ret->is_read_only = tensor->is_read_only || (flags & LEND_REDUCE_READ_ONLY);
    ret->is_padded = tensor->is_padded;
    ret->is_contiguous = is_compound || has_default_strides(tensor);
    ret->attrs = tensor->attrs & LEND__ATTRS_CARRIED;
    ret->ndim = (uint32_t)tensor->ndim;
    ret->offset_bits = tensor->offset_bits;
    bool has_user = tensor->extra && tensor->extra->user_bytes;
    ret->user_tag = has_user ? tensor->extra->user_tag : 0;
    ret->user_bytes = has_user ? tensor->extra->user_bytes : 0;
    ret->user = has_user ? lend__extra_user(tensor->extra) : NULL;
    memcpy(ret->dims, tensor->dims, (is_compound ? 1u : 2u) * (size_t)tensor->ndim * sizeof tensor->dims[0]);
}

void lend__reduce_fill_self(struct lend__wire_exporter *ret, char path[108]) {
    ret->identity = lend__context.identity;
    if (!lend__context.socket_dir[0]) return;
    struct sockaddr_un address;
    lend__identity_address(lend__context.identity.uid, lend__context.identity.id, lend__context.socket_dir, &address);
    memcpy(path, address.sun_path, sizeof address.sun_path);
    ret->socket_path = path;
    ret->socket_path_bytes = (uint32_t)strlen(path);
}

void lend__reduce_fill_peer(struct lend__wire_exporter *ret, const struct lend__peer *peer, char path[108]) {
    const struct lend_shm_table *table = peer->table;
    memcpy(ret->identity.boot_id, table->boot_id, LEND__ID_BYTES);
    memcpy(ret->identity.id, peer->id, LEND__ID_BYTES);
    ret->identity.start_ns = table->start_ns;
    ret->identity.uid = table->uid;
    ret->identity.pid = table->pid;
    if (!peer->address.sun_path[0]) return;
    memcpy(path, peer->address.sun_path, sizeof peer->address.sun_path);
    ret->socket_path = path;
    ret->socket_path_bytes = (uint32_t)strnlen(path, sizeof peer->address.sun_path - 1);
}

void lend__reduce_fill_storage(struct lend__wire_storage *ret, const struct lend__storage *storage) {
    *ret = (struct lend__wire_storage){.device_type = (int32_t)storage->device.device_type,
                                       .allocation = LEND__CONTROL_NONE,
                                       .bytes = storage->bytes,
                                       .slot = storage->slot,
                                       .slot_gen = storage->slot_gen};
    const struct lend__extent *extent = lend__storage_extent(storage);
    if (!extent) return;
    ret->allocation = storage->block ? storage->block->allocation->index : storage->mapping->index;
    ret->allocation_gen = storage->block ? storage->block->allocation->gen : storage->mapping->gen;
    ret->allocation_bytes = extent->bytes;
    ret->off = (uint64_t)(storage->data - extent->base);
}

/* --- one strided tensor ------------------------------------------------------------------------------------------------ */

static int reduce_own(const struct lend_reduce_opts *opts, bool with_pin, struct lend__reduced *ret,
                      struct lend_error *error) {
    struct lend__storage *storage = ret->storage;
    struct lend__wire_exporter *exporter = &ret->wire.exporter;
    int r = lend__service_start(error);
    if (r < 0) return r;
    lend__ledger_lock();
    r = lend__ledger_lend_locked(storage, OPERATION, error);
    if (r >= 0 && with_pin) {
        const struct lend__pin_request pin = {LEND__PAGE_NONE, lend__context.identity.pid, opts->pin_ns_max};
        r = lend__pin_add(&pin, &storage->slot, 1, &exporter->pin_token, error);
    }
    lend__ledger_unlock();
    if (r < 0) return r;
    if (with_pin && opts->pin_ns_max) lend__service_wake(); /* somebody must look at the clock */
    lend__reduce_fill_self(exporter, ret->socket_path);
    return 0;
}

/* Forwarded: the pin stands at the exporter. A dead exporter reuses nothing any more, so nothing needs to be pinned; its
 * tensors travel by lend_send, which carries the descriptors. */
static int reduce_imported(const struct lend_reduce_opts *opts, bool with_pin, struct lend__reduced *ret,
                           struct lend_error *error) {
    struct lend__storage *storage = ret->storage;
    struct lend__peer *peer = storage->peer;
    lend__reduce_fill_peer(&ret->wire.exporter, peer, ret->socket_path);
    if (!with_pin) return 0;
    lend__import_lock();
    peer->n_users++;
    lend__import_unlock();
    int r = 0;
    if (!lend__peer_is_dead(peer)) {
        const struct lend__control_slot slot = {.slot = storage->slot, .gen = storage->slot_gen};
        r = lend__contact_pin(peer, &slot, 1, opts->pin_ns_max, lend__context_deadline(opts->deadline_ns),
                              &ret->wire.exporter.pin_token, error);
    }
    if (r == -EOWNERDEAD && lend__peer_is_dead(peer)) r = 0; /* it died on the way; a refusal alone does not say so */
    lend__peer_release(peer);
    return r;
}

/* By value: there is nothing to lend. */
static int reduce_meta(struct lend__reduced *ret, uint64_t *ret_number, struct lend_error *error) {
    int r = lend__meta_name(ret->storage, &ret->wire.exporter.identity, ret_number);
    return r < 0 ? lend__fail(error, r, OPERATION, "no memory for the name of a meta storage") : 0;
}

/* Reduces `tensor`, whose storage crosses as it is. */
static int reduce_here(struct lend_tensor *tensor, struct lend__storage *storage, const struct lend_reduce_opts *opts,
                       bool with_pin, struct lend__reduced *ret, struct lend_error *error) {
    uint64_t meta_number = 0;
    int r;
    ret->storage = lend__storage_ref(storage);
    if (storage->kind == LEND__STORAGE_META)
        r = reduce_meta(ret, &meta_number, error);
    else if (storage->kind == LEND__STORAGE_IMPORTED)
        r = reduce_imported(opts, with_pin, ret, error);
    else
        r = reduce_own(opts, with_pin, ret, error);
    if (r < 0) {
        lend__storage_unref(ret->storage);
        ret->storage = NULL;
        return r;
    }
    lend__reduce_fill_tensor(&ret->wire.tensor, tensor, opts->flags);
    lend__reduce_fill_storage(&ret->wire.storage, storage);
    if (meta_number) ret->wire.storage.slot_gen = meta_number;
    return 0;
}

/* Copies this view, and reduces the copy with a pin: nothing else holds it. The marks and the user attribute are the
 * original's. */
static int reduce_copy(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *ret,
                       struct lend_error *error) {
    struct lend_pool *pool = NULL;
    struct lend_tensor *copy = NULL;
    int r = lend__context_pool(&pool, error);
    if (r >= 0) r = lend__tensor_copy_raw(tensor, pool, &copy, OPERATION, error);
    if (r < 0) return r;
    r = reduce_here(copy, copy->storage, opts, true, ret, error);
    if (r >= 0) {
        struct lend__wire_tensor *wire = &ret->wire.tensor;
        wire->attrs = tensor->attrs & LEND__ATTRS_CARRIED;
        bool has_user = tensor->extra && tensor->extra->user_bytes;
        wire->user_tag = has_user ? tensor->extra->user_tag : 0;
        wire->user_bytes = has_user ? tensor->extra->user_bytes : 0;
        wire->user = has_user ? lend__extra_user(tensor->extra) : NULL;
    }
    lend_tensor_unref(copy);
    return r;
}

int lend__reduce_wire(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *ret,
                      struct lend_error *error) {
    if (!opts) opts = &defaults;
    struct lend__storage *storage = NULL;
    bool copies = false;
    int r = lend__reduce_check_opts(opts, OPERATION, error);
    if (r >= 0) r = lend__tensor_storage(tensor, &storage, OPERATION, error);
    if (r >= 0) r = lend__reduce_check_attrs(tensor, true, OPERATION, error);
    if (r >= 0) r = lend__reduce_check_storage(storage, opts, &copies, OPERATION, error);
    if (r < 0) return r;
    ret->storage = NULL;
    memset(&ret->wire, 0, offsetof(struct lend__wire, tensor.dims));
    if (!copies) {
        r = reduce_here(tensor, storage, opts, lend__reduce_is_pinned(opts), ret, error);
    } else {
        bool is_news = storage->kind == LEND__STORAGE_PRIVATE || storage->kind == LEND__STORAGE_ZERO;
        r = reduce_copy(tensor, opts, ret, error);
        if (r >= 0 && is_news) r = LEND_COPIED;
    }
    if (r >= 0 && lend__reduce_has_news_of_hooks(tensor))
        lend__log(
            LEND_LOG_WARNING,
            "lend_reduce: the tensor has hooks, which do not travel; mark them with LEND_ATTR_HOOKS_MARKED if they "
            "are meant to stay behind");
    return r;
}

void lend__reduce_move_away(struct lend_tensor *tensor) {
    struct lend__storage *moved = __atomic_exchange_n(&tensor->storage, NULL, __ATOMIC_ACQ_REL);
    if (moved) lend__storage_unref(moved);
}

void lend__reduce_end(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *reduced,
                      bool is_sent) {
    if (!is_sent && reduced->wire.exporter.pin_token) lend__pin_cancel_at(&reduced->wire.exporter, 0, NULL);
    if (is_sent && opts && opts->mode == LEND_MODE_MOVE) lend__reduce_move_away(tensor);
    lend__storage_unref(reduced->storage);
    reduced->storage = NULL;
}

static int too_small(size_t needed, size_t room, struct lend_error *error) {
    return lend__fail_bytes(
        error, -ERANGE, OPERATION, needed, room,
        "the handle takes %zu bytes and the buffer has %zu; LEND_HANDLE_BYTES_MAX = %d are enough for all but wrappers",
        needed, room, LEND_HANDLE_BYTES_MAX);
}

static int reduce_components(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, void *buf,
                             size_t buf_bytes, size_t *ret_bytes, struct lend_error *error) {
    const struct lend__gather_request request = {.operation = OPERATION, .tensors = &tensor, .n = 1, .opts = opts};
    struct lend__gather *gather = NULL;
    int r = lend__gather_begin(&request, &gather, error);
    if (r < 0) return r;
    const void *bytes = lend__gather_bytes(gather, ret_bytes);
    bool fits = *ret_bytes <= buf_bytes;
    if (fits)
        memcpy(buf, bytes, *ret_bytes);
    else
        r = too_small(*ret_bytes, buf_bytes, error);
    LEND_POINT("A6.tree-reduced");
    lend__gather_end(gather, fits);
    return r;
}

int lend_reduce(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, void *buf, size_t buf_bytes,
                size_t *ret_bytes, struct lend_error *error) {
    struct lend__reduced reduced;
    int r = lend__context_check(OPERATION, error);
    if (r >= 0 && tensor && tensor->layout != LEND_LAYOUT_STRIDED)
        return reduce_components(tensor, opts, buf, buf_bytes, ret_bytes, error);
    if (r >= 0) r = lend__reduce_wire(tensor, opts, &reduced, error);
    if (r < 0) return r;
    int encoded = lend__wire_encode(&reduced.wire, buf, buf_bytes, ret_bytes);
    if (encoded < 0) too_small(*ret_bytes, buf_bytes, error);
    LEND_POINT("A5.reduced");
    lend__reduce_end(tensor, opts, &reduced, encoded >= 0);
    return encoded < 0 ? encoded : r;
}

/* --- cancelling ------------------------------------------------------------------------------------------------------ */

int lend__pin_cancel_at(const struct lend__wire_exporter *exporter, int64_t deadline_ns, struct lend_error *error) {
    if (!memcmp(exporter->identity.id, lend__context.identity.id, LEND__ID_BYTES)) {
        lend__ledger_lock();
        lend__pin_consume(exporter->pin_token);
        lend__ledger_unlock();
        return 0;
    }
    const struct lend__contact_request books = {
        .exporter = exporter, .allocation = LEND__CONTROL_NONE, .deadline = lend__context_deadline(deadline_ns)};
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(exporter);
    lend__import_unlock();
    if (!peer) return lend__fail(error, -ENOMEM, "lend_pin_cancel", "no memory for the record of an exporter");
    int r = lend__contact(peer, &books, error);
    if (r >= 0) r = lend__contact_cancel(peer, exporter->pin_token, books.deadline, error);
    lend__peer_release(peer);
    return r;
}

/* Every exporter's part of the pin; the first failure is what the caller hears of. */
static int cancel_all(const struct lend__wire_exporter *exporters, uint32_t n, int64_t deadline_ns,
                      struct lend_error *error) {
    bool has_pin = false;
    int code = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct lend__wire_exporter *exporter = &exporters[i];
        if (!exporter->pin_token) continue;
        has_pin = true;
        int r;
        if (!exporter->socket_path && exporter->identity.uid != lend__context.identity.uid)
            r = lend__fail(code < 0 ? NULL : error, -EPERM, "lend_pin_cancel",
                           "the handle names an exporter of user %u, and this process runs as %u",
                           exporter->identity.uid, lend__context.identity.uid);
        else
            r = lend__pin_cancel_at(exporter, deadline_ns, code < 0 ? NULL : error);
        if (code >= 0) code = r;
    }
    if (!has_pin)
        return lend__fail(error, -EINVAL, "lend_pin_cancel", "the handle has no pin: there is nothing to cancel");
    return code;
}

static int cancel_tree(const void *handle, size_t bytes, int64_t deadline_ns, struct lend_error *error) {
    struct lend__tree tree;
    int r = lend__tree_open(handle, bytes, &tree, "lend_pin_cancel", error);
    if (r >= 0) r = lend__tree_check(&tree, "lend_pin_cancel", error);
    if (r < 0) return r;
    struct lend__wire_exporter *exporters = lend__zalloc((tree.n_exporters + 1ull) * sizeof *exporters);
    if (!exporters) return lend__fail(error, -ENOMEM, "lend_pin_cancel", "no memory for a list of exporters");
    lend__tree_exporters(&tree, exporters);
    r = cancel_all(exporters, tree.n_exporters, deadline_ns, error);
    free(exporters);
    return r;
}

int lend_pin_cancel(const void *handle, size_t bytes, int64_t deadline_ns, struct lend_error *error) {
    struct lend__wire wire;
    int r = lend__context_check("lend_pin_cancel", error);
    if (r < 0) return r;
    LEND_POINT("P7.cancel");
    if (lend__wire_is_tree(handle, bytes)) return cancel_tree(handle, bytes, deadline_ns, error);
    r = lend__wire_decode(handle, bytes, &wire, "lend_pin_cancel", error);
    return r < 0 ? r : cancel_all(&wire.exporter, 1, deadline_ns, error);
}
