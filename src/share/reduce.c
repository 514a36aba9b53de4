/* SPDX-License-Identifier: MIT */
/* lend_reduce: tensor -> handle. Own storages get a slot in the ledger, imported ones are forwarded (the handle names
 * their exporter), meta ones get a name, private memory is copied into a pool of the context and pinned. What is refused
 * is refused first. Tensors of components are gather.c's. */
#include "share/reduce.h"

#include "base/error.h"
#include "base/point.h"
#include "share/cancel.h"
#include "share/carry.h"
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

static const struct lend_reduce_opts defaults = {.size = sizeof defaults};

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
    lend__carry_fill_self(exporter, ret->socket_path);
    return 0;
}

/* Forwarded: the pin stands at the exporter. A dead exporter reuses nothing any more, so nothing needs to be pinned; its
 * tensors travel by lend_send, which carries the descriptors. */
static int reduce_imported(const struct lend_reduce_opts *opts, bool with_pin, struct lend__reduced *ret,
                           struct lend_error *error) {
    struct lend__storage *storage = ret->storage;
    struct lend__peer *peer = storage->peer;
    lend__carry_fill_peer(&ret->wire.exporter, peer, ret->socket_path);
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
    lend__carry_fill_tensor(&ret->wire.tensor, tensor, opts->flags);
    lend__carry_fill_storage(&ret->wire.storage, storage);
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
    int r = lend__carry_check_opts(opts, OPERATION, error);
    if (r >= 0 && !tensor) r = lend__fail(error, -EINVAL, OPERATION, "the tensor is NULL");
    if (r >= 0) r = lend__tensor_storage(tensor, &storage, OPERATION, error);
    if (r >= 0) r = lend__carry_check_attrs(tensor, true, OPERATION, error);
    if (r >= 0) r = lend__carry_check_storage(storage, opts, &copies, OPERATION, error);
    if (r < 0) return r;
    ret->storage = NULL;
    memset(&ret->wire, 0, offsetof(struct lend__wire, tensor.dims));
    if (!copies) {
        r = reduce_here(tensor, storage, opts, lend__carry_is_pinned(opts), ret, error);
    } else {
        bool is_news = storage->kind == LEND__STORAGE_PRIVATE || storage->kind == LEND__STORAGE_ZERO;
        r = reduce_copy(tensor, opts, ret, error);
        if (r >= 0 && is_news) r = LEND_COPIED;
    }
    if (r >= 0 && lend__carry_has_news_of_hooks(tensor))
        lend__log(
            LEND_LOG_WARNING,
            "lend_reduce: the tensor has hooks, which do not travel; mark them with LEND_ATTR_HOOKS_MARKED if they "
            "are meant to stay behind");
    return r;
}

void lend__reduce_end(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *reduced,
                      bool is_sent) {
    if (!is_sent && reduced->wire.exporter.pin_token) lend__pin_cancel_at(&reduced->wire.exporter, 0, NULL);
    if (is_sent && opts && opts->mode == LEND_MODE_MOVE) lend__carry_move_away(tensor);
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
