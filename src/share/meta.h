/* SPDX-License-Identifier: MIT */
/* Meta storages between processes. They have no memory, so there is nothing to lease: a handle says all there is, and
 * works when its exporter is gone. What must be kept is identity: two handles that name one meta storage give one
 * storage, as with any other. A name is (the id of the process that first reduced it, a number of its). */
#ifndef LEND_SHARE_META_H_
#define LEND_SHARE_META_H_

#include "share/wire.h"
#include "tensor/storage.h"

/* The name of a meta storage, which gets one if it has none. Return: 0, -ENOMEM. Unlocked. */
int lend__meta_name(struct lend__storage *storage, struct lend__identity *ret_identity, uint64_t *ret_number);

/* The storage of that name that lives here, or a new one, with a reference.
 * Return: 0, -ENOMEM, -EBADMSG (it lives here with another size). Unlocked. */
int lend__meta_obtain(const struct lend__identity *identity, const struct lend__wire_storage *wire,
                      struct lend__storage **ret, struct lend_error *error);

#endif
