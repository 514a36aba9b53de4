/* SPDX-License-Identifier: MIT */
/* Rebuild from bytes: shared by lend_rebuild, lend_group_rebuild and lend_recv. */
#ifndef LEND_SHARE_REBUILD_H_
#define LEND_SHARE_REBUILD_H_

#include "share/obtain.h"
#include "tensor/tensor.h"

#include <lend/group.h>
#include <lend/handle.h>

/* One strided tensor. */
int lend__rebuild_wire(const struct lend__wire *wire, const struct lend_rebuild_opts *opts,
                       struct lend_tensor **ret_tensor, struct lend_error *error);

/* One tensor of any layout. */
int lend__rebuild_any(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                      struct lend_tensor **ret_tensor, struct lend_error *error);

/* Checks the options and fills what obtaining needs of them. */
int lend__rebuild_read_opts(const struct lend_rebuild_opts *opts, struct lend__obtain *job);

/* Is what a wire says of a tensor sound, and does it fit its storage? 0 or -EBADMSG. */
int lend__rebuild_check_tensor(const struct lend__wire_tensor *tensor, uint64_t storage_bytes,
                               struct lend__extent_bits *ret, struct lend_error *error);

/* Makes the tensor, still without a storage, and with its attributes. 0 or -ENOMEM. */
int lend__rebuild_make(const struct lend__wire_tensor *wire, const struct lend__extent_bits *checked, bool is_read_only,
                       struct lend_tensor **ret, struct lend_error *error);

/* --- restore.c: trees ------------------------------------------------------------------------------------------------ */

/* One tensor of components. */
int lend__restore_tensor(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                         struct lend_tensor **ret_tensor, struct lend_error *error);

#endif
