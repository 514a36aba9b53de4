/* SPDX-License-Identifier: MIT */
/* lend_reduce: tensor -> handle. Own storages get a slot in the ledger, imported ones are forwarded (the handle names
 * their exporter), private memory is copied into a pool of the context and pinned. */
#include "share/reduce.h"

#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/peer.h"
#include "share/service.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <string.h>

#define OPERATION "lend_reduce"

static const struct lend_reduce_opts defaults = {.size = sizeof defaults};

static bool is_pinned(const struct lend_reduce_opts *opts) {
    return (opts->flags & LEND_REDUCE_PIN) || opts->mode != LEND_MODE_SHARE;
}

static int check_opts(const struct lend_reduce_opts *opts, struct lend_error *error) {
    if (opts->size != sizeof *opts)
        return lend__fail(error, -EINVAL, OPERATION,
                          "opts.size is %zu; set it to sizeof(struct lend_reduce_opts) = %zu", opts->size,
                          sizeof *opts);
    if (opts->mode > LEND_MODE_MOVE)
        return lend__fail(error, -EINVAL, OPERATION, "opts.mode %u is none of share (0), snapshot (1), move (2)",
                          opts->mode);
    if (opts->flags & ~(uint32_t)(LEND_REDUCE_PIN | LEND_REDUCE_NO_COPY | LEND_REDUCE_READ_ONLY))
        return lend__fail(error, -EINVAL, OPERATION, "opts.flags 0x%x has unknown bits", opts->flags);
    return 0;
}

/* A handle leaves out only the strides that its reader would fill in himself: with sizes of 0 or 1 a contiguous tensor
 * may have others, and they are part of what it is. */
static bool has_default_strides(const struct lend_tensor *tensor) {
    int64_t strides[LEND_NDIM_MAX];
    if (!tensor->is_contiguous) return false;
    lend__contiguous_strides(tensor->ndim, tensor->dims, strides);
    return !memcmp(strides, lend__tensor_strides(tensor), (size_t)tensor->ndim * sizeof strides[0]);
}

static void fill_tensor(struct lend__wire *wire, const struct lend_tensor *tensor, uint32_t flags) {
    wire->device_type = kDLCPU;
    wire->offset_bits = tensor->offset_bits;
    wire->dtype = tensor->dtype;
    wire->is_read_only = tensor->is_read_only || (flags & LEND_REDUCE_READ_ONLY);
    wire->is_padded = tensor->is_padded;
    wire->is_contiguous = has_default_strides(tensor);
    wire->ndim = (uint32_t)tensor->ndim;
    memcpy(wire->dims, tensor->dims, 2 * (size_t)tensor->ndim * sizeof tensor->dims[0]);
}

static void fill_range(struct lend__wire *wire, uint32_t allocation, uint32_t gen, uint64_t allocation_bytes,
                       uint64_t off, const struct lend__storage *storage) {
    wire->allocation = allocation;
    wire->allocation_gen = gen;
    wire->allocation_bytes = allocation_bytes;
    wire->storage_off = off;
    wire->storage_bytes = storage->bytes;
    wire->slot = storage->slot;
    wire->slot_gen = storage->slot_gen;
}

/* --- an own storage -------------------------------------------------------------------------------------------------- */

static int reduce_own(const struct lend_reduce_opts *opts, bool with_pin, struct lend__reduced *ret,
                      struct lend_error *error) {
    struct lend__storage *storage = ret->storage;
    int r = lend__service_start(error);
    if (r < 0) return r;
    lend__ledger_lock();
    r = lend__ledger_lend_locked(storage, OPERATION, error);
    if (r >= 0 && with_pin)
        r = lend__pin_new(storage->slot, LEND__PAGE_NONE, lend__context.identity.pid, opts->pin_ns_max,
                          &ret->wire.pin_token, error);
    lend__ledger_unlock();
    if (r < 0) return r;
    if (with_pin && opts->pin_ns_max) lend__service_wake(); /* somebody must look at the clock */
    ret->wire.exporter = lend__context.identity;
    const struct lend__allocation *allocation = storage->block ? storage->block->allocation : NULL;
    if (allocation)
        fill_range(&ret->wire, allocation->index, allocation->gen, allocation->extent.bytes, storage->block->off,
                   storage);
    else
        fill_range(&ret->wire, LEND__CONTROL_NONE, 0, 0, 0, storage);
    if (lend__context.socket_dir[0]) {
        struct sockaddr_un address;
        lend__identity_address(lend__context.identity.uid, lend__context.identity.id, lend__context.socket_dir,
                               &address);
        memcpy(ret->socket_path, address.sun_path, sizeof ret->socket_path);
        ret->wire.socket_path = ret->socket_path;
        ret->wire.socket_path_bytes = (uint32_t)strlen(ret->socket_path);
    }
    return 0;
}

/* --- another process's: forwarded ------------------------------------------------------------------------------------ */

static void fill_exporter(struct lend__reduced *ret, const struct lend__peer *peer) {
    const struct lend_shm_table *table = peer->table;
    memcpy(ret->wire.exporter.boot_id, table->boot_id, LEND__ID_BYTES);
    memcpy(ret->wire.exporter.id, peer->id, LEND__ID_BYTES);
    ret->wire.exporter.start_ns = table->start_ns;
    ret->wire.exporter.uid = table->uid;
    ret->wire.exporter.pid = table->pid;
    if (!peer->address.sun_path[0]) return;
    memcpy(ret->socket_path, peer->address.sun_path, sizeof ret->socket_path);
    ret->wire.socket_path = ret->socket_path;
    ret->wire.socket_path_bytes = (uint32_t)strnlen(ret->socket_path, sizeof ret->socket_path - 1);
}

/* The pin stands at the exporter. A dead exporter reuses nothing any more, so nothing needs to be pinned; its tensors
 * travel by lend_send, which carries the descriptors. */
static int reduce_imported(const struct lend_reduce_opts *opts, bool with_pin, struct lend__reduced *ret,
                           struct lend_error *error) {
    struct lend__storage *storage = ret->storage;
    struct lend__peer *peer = storage->peer;
    fill_exporter(ret, peer);
    if (storage->mapping)
        fill_range(&ret->wire, storage->mapping->index, storage->mapping->gen, storage->mapping->extent.bytes,
                   (uint64_t)(storage->data - storage->mapping->extent.base), storage);
    else
        fill_range(&ret->wire, LEND__CONTROL_NONE, 0, 0, 0, storage);
    if (!with_pin) return 0;
    lend__import_lock();
    peer->n_users++;
    lend__import_unlock();
    int r = 0;
    if (!lend__peer_is_dead(peer))
        r = lend__contact_pin(peer, storage->slot, storage->slot_gen, opts->pin_ns_max,
                              lend__context_deadline(opts->deadline_ns), &ret->wire.pin_token, error);
    if (r == -EOWNERDEAD && lend__peer_is_dead(peer)) r = 0; /* it died on the way; a refusal alone does not say so */
    lend__peer_release(peer);
    return r;
}

/* --- private memory -------------------------------------------------------------------------------------------------- */

/* Copies this view, and reduces the copy with a pin: nothing else holds it. */
static int reduce_copy(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *ret,
                       struct lend_error *error) {
    struct lend_pool *pool = NULL;
    struct lend_tensor *copy = NULL;
    int r = lend__context_pool(&pool, error);
    if (r >= 0) r = lend_tensor_copy(tensor, pool, &copy, error);
    if (r < 0) return r;
    ret->storage = lend__storage_ref(copy->storage);
    fill_tensor(&ret->wire, copy, opts->flags);
    ret->wire.is_read_only = opts->flags & LEND_REDUCE_READ_ONLY;
    r = reduce_own(opts, true, ret, error);
    if (r < 0) {
        lend__storage_unref(ret->storage);
        ret->storage = NULL;
    }
    lend_tensor_unref(copy);
    return r;
}

int lend__reduce_wire(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *ret,
                      struct lend_error *error) {
    if (!opts) opts = &defaults;
    struct lend__storage *storage = NULL;
    int r = check_opts(opts, error);
    if (r >= 0) r = lend__tensor_storage(tensor, &storage, OPERATION, error);
    if (r < 0) return r;
    ret->storage = NULL;
    memset(&ret->wire, 0, offsetof(struct lend__wire, dims));
    bool is_private = storage->kind == LEND__STORAGE_PRIVATE;
    if (is_private && (opts->flags & LEND_REDUCE_NO_COPY))
        return lend__fail(error, -EOPNOTSUPP, OPERATION,
                          "the tensor lies in private memory and LEND_REDUCE_NO_COPY forbids a copy; make it with "
                          "lend_tensor_new in a "
                          "pool, or lend_tensor_copy it into one");
    if (is_private || opts->mode == LEND_MODE_SNAPSHOT) {
        r = reduce_copy(tensor, opts, ret, error);
        return r < 0 ? r : is_private ? LEND_COPIED : 0;
    }
    ret->storage = lend__storage_ref(storage);
    fill_tensor(&ret->wire, tensor, opts->flags);
    r = storage->kind == LEND__STORAGE_IMPORTED ? reduce_imported(opts, is_pinned(opts), ret, error)
                                                : reduce_own(opts, is_pinned(opts), ret, error);
    if (r < 0) {
        lend__storage_unref(ret->storage);
        ret->storage = NULL;
    }
    return r;
}

void lend__reduce_end(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *reduced,
                      bool is_sent) {
    if (!is_sent && reduced->wire.pin_token) lend__pin_cancel_wire(&reduced->wire, 0, NULL);
    if (is_sent && opts && opts->mode == LEND_MODE_MOVE) {
        /* Whoever calls with the tensor from now on gets -ESTALE; other tensors of the storage live on. */
        struct lend__storage *moved = __atomic_exchange_n(&tensor->storage, NULL, __ATOMIC_ACQ_REL);
        if (moved) lend__storage_unref(moved);
    }
    lend__storage_unref(reduced->storage);
    reduced->storage = NULL;
}

int lend_reduce(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, void *buf, size_t buf_bytes,
                size_t *ret_bytes, struct lend_error *error) {
    struct lend__reduced reduced;
    int r = lend__context_check(OPERATION, error);
    if (r >= 0) r = lend__reduce_wire(tensor, opts, &reduced, error);
    if (r < 0) return r;
    int encoded = lend__wire_encode(&reduced.wire, buf, buf_bytes, ret_bytes);
    if (encoded < 0)
        lend__fail_bytes(
            error, encoded, OPERATION, *ret_bytes, buf_bytes,
            "the handle takes %zu bytes and the buffer has %zu; LEND_HANDLE_BYTES_MAX = %d are always enough",
            *ret_bytes, buf_bytes, LEND_HANDLE_BYTES_MAX);
    LEND_POINT("A5.reduced");
    lend__reduce_end(tensor, opts, &reduced, encoded >= 0);
    return encoded < 0 ? encoded : r;
}

/* --- cancelling ------------------------------------------------------------------------------------------------------ */

int lend__pin_cancel_wire(const struct lend__wire *wire, int64_t deadline_ns, struct lend_error *error) {
    if (!memcmp(wire->exporter.id, lend__context.identity.id, LEND__ID_BYTES)) {
        lend__ledger_lock();
        lend__pin_consume(wire->pin_token);
        lend__ledger_unlock();
        return 0;
    }
    uint64_t deadline = lend__context_deadline(deadline_ns);
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(wire);
    lend__import_unlock();
    if (!peer) return lend__fail(error, -ENOMEM, "lend_pin_cancel", "no memory for the record of an exporter");
    struct lend__wire contact = *wire;
    contact.allocation = LEND__CONTROL_NONE; /* the books are wanted, not the memory */
    int r = lend__contact(peer, &contact, deadline, error);
    if (r >= 0) r = lend__contact_cancel(peer, wire->pin_token, deadline, error);
    lend__peer_release(peer);
    return r;
}

int lend_pin_cancel(const void *handle, size_t bytes, int64_t deadline_ns, struct lend_error *error) {
    struct lend__wire wire;
    int r = lend__context_check("lend_pin_cancel", error);
    if (r >= 0) r = lend__wire_decode(handle, bytes, &wire, "lend_pin_cancel", error);
    if (r < 0) return r;
    if (!wire.pin_token)
        return lend__fail(error, -EINVAL, "lend_pin_cancel", "the handle has no pin: there is nothing to cancel");
    if (!wire.socket_path && wire.exporter.uid != lend__context.identity.uid)
        return lend__fail(error, -EPERM, "lend_pin_cancel",
                          "the handle names an exporter of user %u, and this process runs as %u", wire.exporter.uid,
                          lend__context.identity.uid);
    LEND_POINT("P7.cancel");
    return lend__pin_cancel_wire(&wire, deadline_ns, error);
}
