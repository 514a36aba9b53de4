/* SPDX-License-Identifier: MIT */
/* Between a tensor and what a handle says of it: used by reduce.c and rebuild.c for one strided tensor, by gather.c and
 * restore.c for many. */
#ifndef LEND_SHARE_CARRY_H_
#define LEND_SHARE_CARRY_H_

#include "share/control.h"
#include "share/mapping.h"
#include "share/wire.h"
#include "tensor/tensor.h"

#include <lend/handle.h>
#include <string.h>

struct lend__peer;

int lend__carry_check_opts(const struct lend_reduce_opts *opts, const char *operation, struct lend_error *error);
bool lend__carry_is_pinned(const struct lend_reduce_opts *opts);

/* May a tensor with these marks cross at all? `is_outer`: not a component. 0 or -EOPNOTSUPP. */
int lend__carry_check_attrs(const struct lend_tensor *tensor, bool is_outer, const char *operation,
                            struct lend_error *error);

/* May this storage cross, given the options? 0 or -EOPNOTSUPP, -ESTALE (a file that was cut). ret_copies: it has to be
 * copied. */
int lend__carry_check_storage(const struct lend__storage *storage, const struct lend_reduce_opts *opts,
                              bool *ret_copies, const char *operation, struct lend_error *error);

/* Has the tensor hooks of which nobody was told yet? They are told of afterwards. */
bool lend__carry_has_news_of_hooks(struct lend_tensor *tensor);

/* A handle leaves out only the strides that its reader would fill in himself: with sizes of 0 or 1 a contiguous tensor
 * may have others, and they are part of what it is. */
static inline bool lend__carry_has_default_strides(const struct lend_tensor *tensor) {
    int64_t strides[LEND_NDIM_MAX];
    if (!tensor->is_contiguous) return false;
    lend__contiguous_strides(tensor->ndim, tensor->dims, strides);
    return !memcmp(strides, lend__tensor_strides(tensor), (size_t)tensor->ndim * sizeof strides[0]);
}

/* Fills dtype, flags, attributes, shape. Hot. */
static inline void lend__carry_fill_tensor(struct lend__wire_tensor *ret, const struct lend_tensor *tensor,
                                           uint32_t flags) {
    bool is_compound = tensor->layout != LEND_LAYOUT_STRIDED;
    ret->dtype = tensor->dtype;
    ret->is_read_only = tensor->is_read_only || (flags & LEND_REDUCE_READ_ONLY);
    ret->is_padded = tensor->is_padded;
    ret->is_contiguous = is_compound || lend__carry_has_default_strides(tensor);
    ret->attrs = tensor->attrs & LEND__ATTRS_CARRIED;
    ret->ndim = (uint32_t)tensor->ndim;
    ret->offset_bits = tensor->offset_bits;
    bool has_user = tensor->extra && tensor->extra->user_bytes;
    ret->user_tag = has_user ? tensor->extra->user_tag : 0;
    ret->user_bytes = has_user ? tensor->extra->user_bytes : 0;
    ret->user = has_user ? lend__extra_user(tensor->extra) : NULL;
    memcpy(ret->dims, tensor->dims, (is_compound ? 1u : 2u) * (size_t)tensor->ndim * sizeof tensor->dims[0]);
}

/* Who this process is to others, and who a peer is; `path` is where the socket's path may be kept. */
void lend__carry_fill_self(struct lend__wire_exporter *ret, char path[108]);
void lend__carry_fill_peer(struct lend__wire_exporter *ret, const struct lend__peer *peer, char path[108]);

/* Where a storage that has been lent, is imported, or is meta and has its name, lies. Hot. */
static inline void lend__carry_fill_storage(struct lend__wire_storage *ret, const struct lend__storage *storage) {
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

/* A move: whoever calls with the tensor from now on gets -ESTALE; other tensors of the storage live on. */
void lend__carry_move_away(struct lend_tensor *tensor);

/* Checks what a wire says of a tensor against the size of its storage, and makes the tensor, still without a storage, with
 * its attributes. `maker` NULL: by itself. Return: 0, -EBADMSG, -ENOMEM. */
int lend__carry_make(const struct lend__wire_tensor *wire, uint64_t storage_bytes, bool is_read_only,
                     struct lend__slab_maker *maker, struct lend_tensor **ret, struct lend_error *error);

#endif
