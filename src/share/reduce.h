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

/* Ends a pin, at whoever owns it. Return: as lend_pin_cancel. */
int lend__pin_cancel_at(const struct lend__wire_exporter *exporter, int64_t deadline_ns, struct lend_error *error);

/* --- what one and many have in common --------------------------------------------------------------------------------- */

int lend__reduce_check_opts(const struct lend_reduce_opts *opts, const char *operation, struct lend_error *error);
bool lend__reduce_is_pinned(const struct lend_reduce_opts *opts);

/* May a tensor with these marks cross at all? `is_outer`: not a component. 0 or -EOPNOTSUPP. */
int lend__reduce_check_attrs(const struct lend_tensor *tensor, bool is_outer, const char *operation,
                             struct lend_error *error);

/* May this storage cross, given the options? 0 or -EOPNOTSUPP, -ESTALE (a file that was cut). ret_copies: it has to be
 * copied. */
int lend__reduce_check_storage(const struct lend__storage *storage, const struct lend_reduce_opts *opts,
                               bool *ret_copies, const char *operation, struct lend_error *error);

/* Has the tensor hooks of which nobody was told yet? They are told of afterwards. */
bool lend__reduce_has_news_of_hooks(struct lend_tensor *tensor);

/* Fills dtype, flags, attributes, shape. */
void lend__reduce_fill_tensor(struct lend__wire_tensor *ret, const struct lend_tensor *tensor, uint32_t flags);

/* Who this process is to others, and who a peer is; `path` is where the socket's path may be kept. */
void lend__reduce_fill_self(struct lend__wire_exporter *ret, char path[108]);
void lend__reduce_fill_peer(struct lend__wire_exporter *ret, const struct lend__peer *peer, char path[108]);

/* Where a storage that has been lent, is imported, or is meta and has its name, lies. */
void lend__reduce_fill_storage(struct lend__wire_storage *ret, const struct lend__storage *storage);

/* A move: whoever calls with the tensor from now on gets -ESTALE; other tensors of the storage live on. */
void lend__reduce_move_away(struct lend_tensor *tensor);

#endif
