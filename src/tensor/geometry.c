/* SPDX-License-Identifier: MIT */
/* Where do the elements of a tensor lie? Every tensor passes here once, at birth, and a handle's numbers come from
 * another process: any values must give an answer, in tens of nanoseconds.
 *
 * Element (i0, i1, ...) begins at bit offset + (i0 * stride0 + i1 * stride1 + ...) * item. The lowest one takes the
 * last index wherever the stride is negative, the highest one wherever it is positive, so two sums of
 * (size - 1) * |stride| say everything. They are unsigned, and what does not fit is held at the maximum, which lies
 * outside every storage. The product of the sizes counts sizes of 0 as 1, so that contiguous strides, and the copy of
 * any view, fit even when there are no elements (NumPy refuses such shapes, too). */
#include "tensor/tensor.h"

#include "base/checked.h"
#include "base/error.h"
#include "tensor/dtype.h"

#include <errno.h>

static int refuse_numel(int32_t dim, int64_t size, const char *operation, struct lend_error *error) {
    return lend__fail(error, -EOVERFLOW, operation,
                      "the number of elements does not fit 63 bits (dimension %d has size %lld)", dim, (long long)size);
}

static int refuse_size(int32_t dim, int64_t size, const char *operation, struct lend_error *error) {
    return lend__fail(error, -EINVAL, operation, "dimension %d has the negative size %lld", dim, (long long)size);
}

static int refuse_bits(int64_t numel, uint32_t item_bits, const char *operation, struct lend_error *error) {
    return lend__fail(error, -EOVERFLOW, operation, "%lld elements of %u bits do not fit 64 bits", (long long)numel,
                      item_bits);
}

/* C order without gaps, as most tensors come: the product of the sizes says everything. */
static inline int measure_contiguous(const struct lend__geometry *geometry, uint32_t item_bits,
                                     struct lend__extent_bits *ret, const char *operation, struct lend_error *error) {
    int64_t numel = 1;
    bool is_empty = false;
    for (int32_t i = geometry->ndim - 1; i >= 0; i--) {
        int64_t size = geometry->shape[i];
        if (size < 0) return refuse_size(i, size, operation, error);
        if (size == 0)
            is_empty = true;
        else if (lend__mul_overflows(numel, size, &numel))
            return refuse_numel(i, size, operation, error);
    }
    uint64_t bits;
    if (lend__mul_overflows((uint64_t)numel, item_bits, &bits)) return refuse_bits(numel, item_bits, operation, error);
    *ret = (struct lend__extent_bits){item_bits, is_empty ? 0 : numel, true, 0, is_empty ? 0 : bits};
    return 0;
}

/* Inline in both callers, so that the results stay in registers. */
static inline int measure(const struct lend__geometry *geometry, struct lend__extent_bits *ret, const char *operation,
                          struct lend_error *error) {
    uint32_t item_bits = lend__dtype_item_bits(geometry->dtype, geometry->is_padded);
    if (!item_bits)
        return lend__fail(error, -EINVAL, operation, "dtype (code %u, bits %u, lanes %u) is not one that lend carries",
                          geometry->dtype.code, geometry->dtype.bits, geometry->dtype.lanes);
    if (geometry->ndim < 0 || geometry->ndim > LEND_NDIM_MAX)
        return lend__fail(error, -EINVAL, operation, "a tensor has 0 to %d dimensions, not %d", LEND_NDIM_MAX,
                          geometry->ndim);
    if (!geometry->strides) return measure_contiguous(geometry, item_bits, ret, operation, error);
    int64_t span = 1;
    uint64_t below = 0, above = 0, span_bits;
    bool is_empty = false, is_contiguous = true, is_far = false;
    for (int32_t i = geometry->ndim - 1; i >= 0; i--) {
        int64_t size = geometry->shape[i];
        if (size < 0) return refuse_size(i, size, operation, error);
        is_empty |= size == 0;
        if (size <= 1) continue; /* the stride is never multiplied by anything */
        int64_t stride = geometry->strides[i], inner = span;
        if (lend__mul_overflows(span, size, &span)) return refuse_numel(i, size, operation, error);
        uint64_t reach;
        if (stride == inner) {
            reach = (uint64_t)(span - inner); /* (size - 1) * stride, without another multiplication */
        } else {
            is_contiguous = false;
            is_far |=
                lend__mul_overflows(stride < 0 ? -(uint64_t)stride : (uint64_t)stride, (uint64_t)size - 1, &reach);
        }
        is_far |= stride < 0 ? lend__add_overflows(below, reach, &below) : lend__add_overflows(above, reach, &above);
    }
    if (lend__mul_overflows((uint64_t)span, item_bits, &span_bits))
        return refuse_bits(span, item_bits, operation, error);
    ret->item_bits = item_bits;
    ret->numel = is_empty ? 0 : span;
    ret->is_contiguous = is_empty || is_contiguous;
    ret->below_bits = 0;
    ret->end_bits = is_empty ? 0 : span_bits;
    if (ret->is_contiguous) return 0;
    is_far |= lend__mul_overflows(below, item_bits, &ret->below_bits);
    is_far |= lend__mul_overflows(above, item_bits, &ret->end_bits);
    is_far |= lend__add_overflows(ret->end_bits, item_bits, &ret->end_bits);
    if (is_far) ret->below_bits = ret->end_bits = UINT64_MAX;
    return 0;
}

int lend__geometry_measure(const struct lend__geometry *geometry, struct lend__extent_bits *ret, const char *operation,
                           struct lend_error *error) {
    return measure(geometry, ret, operation, error);
}

/* The sentence for elements outside the storage. */
static int refuse_range(const struct lend__extent_bits *extent, uint64_t offset, uint64_t storage_bits,
                        const char *operation, struct lend_error *error) {
    if (extent->end_bits == UINT64_MAX)
        return lend__fail(error, -ERANGE, operation,
                          "the strides lead more than 2^64 bits away from the first element; the storage has %llu bits",
                          (unsigned long long)storage_bits);
    return lend__fail(
        error, -ERANGE, operation,
        "the elements reach from %llu bits before to %llu bits behind offset %llu, outside the storage of "
        "%llu bits",
        (unsigned long long)extent->below_bits, (unsigned long long)extent->end_bits, (unsigned long long)offset,
        (unsigned long long)storage_bits);
}

int lend__geometry_check(const struct lend__geometry *geometry, uint64_t storage_bytes, struct lend__extent_bits *ret,
                         const char *operation, struct lend_error *error) {
    int r = measure(geometry, ret, operation, error);
    if (r < 0) return r;
    uint64_t storage_bits, offset = geometry->offset_bits;
    if (lend__mul_overflows(storage_bytes, 8, &storage_bits))
        return lend__fail(error, -EOVERFLOW, operation, "the bits of a storage of %llu bytes do not fit 64 bits",
                          (unsigned long long)storage_bytes);
    uint32_t alignment = lend__offset_alignment(ret->item_bits);
    if (offset & (alignment - 1))
        return lend__fail(error, -EINVAL, operation, "the offset of %llu bits is not a multiple of %u",
                          (unsigned long long)offset, alignment);
    if (offset > storage_bits || ret->below_bits > offset || ret->end_bits > storage_bits - offset)
        return refuse_range(ret, offset, storage_bits, operation, error);
    return 0;
}
