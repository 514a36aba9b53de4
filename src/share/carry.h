/* SPDX-License-Identifier: MIT */
/* Between a tensor and what a handle says of it: used by reduce.c and rebuild.c for one strided tensor, by gather.c and
 * restore.c for many. */
#ifndef LEND_SHARE_CARRY_H_
#define LEND_SHARE_CARRY_H_

#include "share/wire.h"
#include "tensor/tensor.h"

#include <lend/handle.h>

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

/* Fills dtype, flags, attributes, shape. */
void lend__carry_fill_tensor(struct lend__wire_tensor *ret, const struct lend_tensor *tensor, uint32_t flags);

/* Who this process is to others, and who a peer is; `path` is where the socket's path may be kept. */
void lend__carry_fill_self(struct lend__wire_exporter *ret, char path[108]);
void lend__carry_fill_peer(struct lend__wire_exporter *ret, const struct lend__peer *peer, char path[108]);

/* Where a storage that has been lent, is imported, or is meta and has its name, lies. */
void lend__carry_fill_storage(struct lend__wire_storage *ret, const struct lend__storage *storage);

/* A move: whoever calls with the tensor from now on gets -ESTALE; other tensors of the storage live on. */
void lend__carry_move_away(struct lend_tensor *tensor);

/* Checks what a wire says of a tensor against the size of its storage, and makes the tensor, still without a storage, with
 * its attributes. `maker` NULL: by itself. Return: 0, -EBADMSG, -ENOMEM. */
int lend__carry_make(const struct lend__wire_tensor *wire, uint64_t storage_bytes, bool is_read_only,
                     struct lend__slab_maker *maker, struct lend_tensor **ret, struct lend_error *error);

#endif
