/* SPDX-License-Identifier: MIT */
/* What `lend show` says about a tensor's elements. */
#ifndef LEND_CLI_STATS_H_
#define LEND_CLI_STATS_H_

#include <lend/tensor.h>
#include <stdbool.h>
#include <stdint.h>

struct stats {
    bool has_values;   /* there is an element that is not a NaN: min, max and mean are set */
    bool is_integer;   /* int_min and int_max are exact too (uint64 as its bits) */
    bool is_magnitude; /* complex: of the absolute value */
    double min, max, mean;
    int64_t int_min, int_max;
    uint64_t n_nan;  /* left out of min, max and mean */
    char sha256[65]; /* of the elements in C order; sub-byte elements packed */
};

/* Reads every element of `tensor`, which is strided and not meta, once (twice where it has gaps, or is marked as
 * conjugated or negated: through a private copy). The figures are those of the values.
 * Returns 0 or the code of lend_tensor_copy; -EOPNOTSUPP for a dtype without numbers. */
int stats_compute(struct lend_tensor *tensor, struct stats *ret, struct lend_error *error);

#endif
