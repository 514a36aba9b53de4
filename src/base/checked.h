/* SPDX-License-Identifier: MIT */
/* Arithmetic that says when it does not fit. Each returns true on overflow, like the builtins. */
#ifndef LEND_BASE_CHECKED_H_
#define LEND_BASE_CHECKED_H_

#include <stdbool.h>
#include <stdint.h>

#define lend__add_overflows(a, b, ret) __builtin_add_overflow((a), (b), (ret))
#define lend__sub_overflows(a, b, ret) __builtin_sub_overflow((a), (b), (ret))
#define lend__mul_overflows(a, b, ret) __builtin_mul_overflow((a), (b), (ret))

/* Rounds up to a multiple of a power of two; true on overflow. */
static inline bool lend__round_up_overflows(uint64_t value, uint64_t power, uint64_t *ret) {
    uint64_t sum;
    if (lend__add_overflows(value, power - 1, &sum)) return true;
    *ret = sum & ~(power - 1);
    return false;
}

/* Does [off, off + n) lie in [0, total)? */
static inline bool lend__range_fits(uint64_t off, uint64_t n, uint64_t total) {
    return off <= total && n <= total - off;
}

static inline bool lend__is_power_of_two(uint64_t v) {
    return v && !(v & (v - 1));
}

#endif
