/* SPDX-License-Identifier: MIT */
/* Reducing many tensors to one handle: a group, or a tensor of components. Shared by lend_reduce, lend_group_reduce and
 * lend_send. */
#ifndef LEND_SHARE_GATHER_H_
#define LEND_SHARE_GATHER_H_

#include "share/tree.h"
#include "tensor/storage.h"

#include <lend/group.h>
#include <lend/handle.h>

struct lend__gather; /* everything that one handle names, held */

/* What is to be reduced: one tensor, or the entries of a group with their names. All borrowed until the end. */
struct lend__gather_request {
    const char *operation;
    struct lend_tensor *const *tensors;
    const char *const *names;
    uint32_t n;
    bool is_group;
    const struct lend_reduce_opts *opts; /* NULL: defaults */
};

/* Does everything that reducing does but for moving tensors away; and writes the bytes. All or nothing: what is refused
 * is refused before anything is copied, lent or pinned.
 * Return: as lend_group_reduce. */
int lend__gather_begin(const struct lend__gather_request *request, struct lend__gather **ret, struct lend_error *error);

/* The handle; owned by the gather until lend__gather_take_bytes. */
const void *lend__gather_bytes(const struct lend__gather *gather, size_t *ret_n);
void *lend__gather_take_bytes(struct lend__gather *gather, size_t *ret_n);

/* The descriptors of what it names, borrowed: the table of exporter `i`, and the allocation of row `i`; -1: none. */
uint32_t lend__gather_count(const struct lend__gather *gather, uint32_t *ret_allocations);
int lend__gather_table_fd(const struct lend__gather *gather, uint32_t i);
int lend__gather_allocation_fd(const struct lend__gather *gather, uint32_t i);

/* Completes it: `is_sent` false ends its pins; true makes moved tensors dead. Frees it. */
void lend__gather_end(struct lend__gather *gather, bool is_sent);

#endif
