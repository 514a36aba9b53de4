/* SPDX-License-Identifier: MIT */
/* Reduce to a decoded handle: shared by lend_reduce and lend_send. For one strided tensor; gather.h has the rest. */
#ifndef LEND_SHARE_REDUCE_H_
#define LEND_SHARE_REDUCE_H_

#include "share/wire.h"
#include "tensor/storage.h"

#include <lend/handle.h>

struct lend__peer;

/* What lend__reduce_wire leaves behind. `storage` holds a reference until lend__reduce_end. */
struct lend__reduced {
    struct lend__wire wire;
    struct lend__storage *storage;
    char socket_path[108]; /* what the wire's path may point at */
};

/* Does everything that lend_reduce does but for writing the bytes, and for taking a moved tensor's storage away.
 * Return: as lend_reduce. */
int lend__reduce_wire(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *ret,
                      struct lend_error *error);

/* Completes it: `is_sent` false undoes the pin; true makes a moved tensor dead. Then drops the reference. */
void lend__reduce_end(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, struct lend__reduced *reduced,
                      bool is_sent);

#endif
