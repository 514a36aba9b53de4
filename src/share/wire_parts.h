/* SPDX-License-Identifier: MIT */
/* Reading what both forms of a handle have of a tensor, inline: decoding is counted in nanoseconds. For wire.c and tree.c
 * alone. */
#ifndef LEND_SHARE_WIRE_PARTS_H_
#define LEND_SHARE_WIRE_PARTS_H_

#include "base/error.h"
#include "share/bytes.h"
#include "share/wire.h"
#include "tensor/tensor.h"

#include <errno.h>

enum lend__wire_flag {
    LEND__WIRE_READ_ONLY = 1,
    LEND__WIRE_PADDED = 2,
    LEND__WIRE_CONTIGUOUS = 4, /* the strides are those of C order, and left out */
    LEND__WIRE_WIDE = 8,       /* sizes and strides take 8 bytes each, not 4 */
    LEND__WIRE_ATTRS_SHIFT = 4
};
_Static_assert(LEND__ATTRS_CARRIED == 0x7f && LEND__WIRE_FLAGS_KNOWN == (0x7f << LEND__WIRE_ATTRS_SHIFT | 15), "flags");

static inline uint32_t lend__wire_count_dims(const struct lend__wire_tensor *t) {
    return t->is_contiguous ? t->ndim : 2 * t->ndim;
}

static inline int lend__wire_take_flags(struct lend__wire_tensor *ret, uint32_t flags, uint32_t known,
                                        bool *ret_is_wide, const char *operation, struct lend_error *error) {
    if (flags & ~known)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has flags 0x%x that this library (wire %d.%d) does not know; update lend",
                          flags & ~known, LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    ret->is_read_only = flags & LEND__WIRE_READ_ONLY;
    ret->is_padded = flags & LEND__WIRE_PADDED;
    ret->is_contiguous = flags & LEND__WIRE_CONTIGUOUS;
    ret->attrs = flags >> LEND__WIRE_ATTRS_SHIFT & LEND__ATTRS_CARRIED;
    *ret_is_wide = flags & LEND__WIRE_WIDE;
    return 0;
}

static inline int lend__wire_take_dims(struct lend__wire_tensor *t, bool is_wide, const uint8_t *at, size_t left,
                                       const char *operation, struct lend_error *error) {
    if (t->ndim > LEND_NDIM_MAX) return lend__wire_bad(error, operation, "it has more than 64 dimensions");
    uint32_t n = lend__wire_count_dims(t), bytes = n * (is_wide ? 8u : 4u), padded = lend__padded8(bytes);
    if (padded > left) return lend__wire_bad(error, operation, "its shape is cut off");
    if (is_wide)
        for (uint32_t i = 0; i < n; i++) t->dims[i] = (int64_t)lend__get64(at + 8 * (size_t)i);
    else
        for (uint32_t i = 0; i < n; i++) t->dims[i] = (int32_t)lend__get32(at + 4 * (size_t)i);
    if (!lend__bytes_are_zero(at + bytes, padded - bytes))
        return lend__wire_bad(error, operation, "its padding is not zero");
    return (int)padded;
}

#endif
