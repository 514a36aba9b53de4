/* SPDX-License-Identifier: MIT */
/* The bits of an element, inline: every rebuild asks. */
#ifndef LEND_TENSOR_DTYPE_H_
#define LEND_TENSOR_DTYPE_H_

#include <lend/dtype.h>
#include <stdbool.h>
#include <stdint.h>

#define LEND__N_DTYPE_CODES (LEND_FLOAT4_E2M1FN + 1)

/* By code: the widths that the code has, as the sum of those powers of two; 6 for the codes whose only width is 6. */
extern const uint8_t lend__dtype_widths[LEND__N_DTYPE_CODES];

static inline bool lend__dtype_has_width(uint8_t code, uint8_t bits) {
    if (code == LEND_FLOAT6_E2M3FN || code == LEND_FLOAT6_E3M2FN) return bits == 6;
    return code < LEND__N_DTYPE_CODES && (lend__dtype_widths[code] & bits) && !(bits & (bits - 1));
}

/* Bits that one element takes in memory; 0: not a dtype. Padding concerns only lanes of less than a byte. */
static inline uint32_t lend__dtype_item_bits(DLDataType dtype, bool is_padded) {
    if (!lend__dtype_has_width(dtype.code, dtype.bits)) return 0;
    return (uint32_t)dtype.lanes * (is_padded && dtype.bits < 8 ? 8u : dtype.bits);
}

#endif
