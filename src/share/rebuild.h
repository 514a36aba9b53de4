/* SPDX-License-Identifier: MIT */
/* Rebuild from a decoded handle: shared by lend_rebuild and lend_recv. */
#ifndef LEND_SHARE_REBUILD_H_
#define LEND_SHARE_REBUILD_H_

#include "share/wire.h"

#include <lend/handle.h>

int lend__rebuild_wire(const struct lend__wire *wire, const struct lend_rebuild_opts *opts,
                       struct lend_tensor **ret_tensor, struct lend_error *error);

#endif
