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

/* --- restore.c: trees ------------------------------------------------------------------------------------------------ */

/* One tensor of components. */
int lend__restore_tensor(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                         struct lend_tensor **ret_tensor, struct lend_error *error);

#endif
