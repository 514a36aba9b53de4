/* SPDX-License-Identifier: MIT */
/* All that can be told of a tree, as text: names, layouts, dtypes, shapes, strides, marks, user bytes, which tensors
 * share a storage, where it lies, and sums of the elements. Of two processes' trees that are equal, the texts are. */
#ifndef LEND_TESTS_PROC_PICTURE_H_
#define LEND_TESTS_PROC_PICTURE_H_

#include "random_tree.h"

/* How the tree is going to be sent. What reducing copies arrives otherwise than it is: the picture is of what arrives,
 * with '?' for what cannot be known before. */
struct sending {
    const struct lend_reduce_opts *opts;
    const uint64_t *read_only_ids; /* storages whose pool lets peers only read */
    unsigned n_read_only_ids;
};

/* `sending` NULL: as it is. `is_wanted` NULL: all entries. Freed by the caller. */
char *picture_of(const struct tree *tree, const struct sending *sending, const bool *is_wanted);

/* Fails the test, with the first line that differs, unless `actual` is what `expected` says. */
void picture_compare(const char *actual, const char *expected);

#endif
