/* SPDX-License-Identifier: MIT */
/* Between a tensor and what a handle says of it, for one and for many: what may cross at all, what is written, and what is
 * made of it again. Nothing here touches another process. */
#include "share/carry.h"

#include "base/error.h"
#include "share/context.h"
#include "share/control.h"
#include "share/mapping.h"
#include "share/peer.h"

#include <errno.h>
#include <string.h>

#define FLAGS_KNOWN (LEND_REDUCE_PIN | LEND_REDUCE_NO_COPY | LEND_REDUCE_READ_ONLY | LEND_REDUCE_MATERIALIZE)

/* --- what may cross --------------------------------------------------------------------------------------------------- */

bool lend__carry_is_pinned(const struct lend_reduce_opts *opts) {
    return (opts->flags & LEND_REDUCE_PIN) || opts->mode != LEND_MODE_SHARE;
}

int lend__carry_check_opts(const struct lend_reduce_opts *opts, const char *operation, struct lend_error *error) {
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

int lend__carry_check_attrs(const struct lend_tensor *tensor, bool is_outer, const char *operation,
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

int lend__carry_check_storage(const struct lend__storage *storage, const struct lend_reduce_opts *opts,
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
    return lend__storage_check_file(storage, operation, error);
}

bool lend__carry_has_news_of_hooks(struct lend_tensor *tensor) {
    return (tensor->attrs & LEND_ATTR_HOOKS) && !(tensor->attrs & LEND_ATTR_HOOKS_MARKED) &&
           !__atomic_exchange_n(&tensor->is_warned, true, __ATOMIC_RELAXED);
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

void lend__carry_fill_self(struct lend__wire_exporter *ret, char path[108]) {
    ret->identity = lend__context.identity;
    if (!lend__context.socket_dir[0]) return;
    struct sockaddr_un address;
    lend__identity_address(lend__context.identity.uid, lend__context.identity.id, lend__context.socket_dir, &address);
    memcpy(path, address.sun_path, sizeof address.sun_path);
    ret->socket_path = path;
    ret->socket_path_bytes = (uint32_t)strlen(path);
}

void lend__carry_fill_peer(struct lend__wire_exporter *ret, const struct lend__peer *peer, char path[108]) {
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

void lend__carry_move_away(struct lend_tensor *tensor) {
    struct lend__storage *moved = __atomic_exchange_n(&tensor->storage, NULL, __ATOMIC_ACQ_REL);
    if (moved) lend__storage_unref(moved);
}

/* --- reading --------------------------------------------------------------------------------------------------------- */

#define OPERATION "lend_rebuild"

static int add_attrs(const struct lend__wire_tensor *wire, struct lend_tensor *tensor, struct lend_error *error) {
    if (lend__attrs_check(wire->attrs, wire->dtype, LEND_LAYOUT_STRIDED, OPERATION, NULL) < 0)
        return lend__fail(error, -EBADMSG, OPERATION, "the handle's attributes 0x%x do not go with its dtype",
                          wire->attrs);
    int r = lend__tensor_set_attrs(tensor, wire->attrs, wire->user_tag, wire->user, wire->user_bytes);
    return r < 0 ? lend__fail(error, r, OPERATION, "no memory for the attributes of a tensor") : 0;
}

int lend__carry_make(const struct lend__wire_tensor *wire, uint64_t storage_bytes, bool is_read_only,
                     struct lend__slab_maker *maker, struct lend_tensor **ret, struct lend_error *error) {
    const struct lend__geometry geometry = {
        .dtype = wire->dtype,
        .is_padded = wire->is_padded,
        .ndim = (int32_t)wire->ndim,
        .shape = wire->dims,
        .strides = wire->is_contiguous ? NULL : wire->dims + wire->ndim,
        .offset_bits = wire->offset_bits,
    };
    struct lend__extent_bits checked;
    if (lend__geometry_check(&geometry, storage_bytes, &checked, OPERATION, NULL) < 0)
        return lend__fail(error, -EBADMSG, OPERATION,
                          "the handle's dtype, shape, strides and offset do not fit its storage of %llu bytes",
                          (unsigned long long)storage_bytes);
    is_read_only |= wire->is_read_only;
    int r = maker ? lend__tensor_make_in(maker, &geometry, &checked, NULL, is_read_only, ret)
                  : lend__tensor_make(&geometry, &checked, NULL, is_read_only, ret);
    if (r < 0) return lend__fail(error, r, OPERATION, "no memory for the tensor object");
    if (__builtin_expect(!wire->attrs && !wire->user, 1)) return 0;
    r = add_attrs(wire, *ret, error);
    if (r >= 0) return 0;
    lend_tensor_unref(*ret);
    *ret = NULL;
    return r;
}
