/* SPDX-License-Identifier: MIT */
/* Copies of bytes: any strided tensor gathered into C order. What lend_tensor_copy makes of them is in resolve.c.
 *
 * The source's dimensions are first merged where they have no gap between them; what remains is a number of equal rows,
 * walked in C order while the destination grows from its start. Rows without gaps are copied whole; elements of 1, 2,
 * 4, 8 and 16 bytes go by loads and stores of that size; packed elements of less than a byte go by groups of bits.
 * Every address belongs to an element that lend__geometry_check has seen. Memory is read through bytes, so nothing has
 * to be aligned, and a source that others write meanwhile gives torn elements, nothing worse.
 *
 * Locking: none. */
#include "tensor/tensor.h"

#include "base/checked.h"
#include "base/error.h"

#include <errno.h>
#include <string.h>

/* What to gather: rows of `n` elements, `stride` bits apart, at every index of the outer dimensions. */
struct gather {
    const uint8_t *src;
    uint64_t src_bit; /* of the current row, from src; modulo 2^64 */
    uint8_t *dst;
    uint64_t dst_bit;
    uint64_t item_bits;
    int32_t n_outer;
    int64_t n;
    int64_t stride_bits;
    int64_t size[LEND_NDIM_MAX], step_bits[LEND_NDIM_MAX]; /* outer dimensions, outermost first */
};

/* Copies n bits, little bit-endian, into bits that are 0. Touches no byte without a bit of the run. */
static void copy_bits(uint8_t *dst, uint64_t dst_bit, const uint8_t *src, uint64_t src_bit, uint64_t n) {
    dst += dst_bit / 8;
    src += src_bit / 8;
    unsigned dst_at = dst_bit % 8, src_at = src_bit % 8;
    if (dst_at == 0 && src_at == 0) {
        memcpy(dst, src, n / 8);
        dst += n / 8;
        src += n / 8;
        n %= 8;
    }
    while (n > 0) {
        unsigned take = 8 - (dst_at > src_at ? dst_at : src_at);
        if (take > n) take = (unsigned)n;
        unsigned bits = (*src >> src_at) & ((1u << take) - 1);
        *dst = (uint8_t)(*dst | bits << dst_at);
        dst_at += take;
        src_at += take;
        n -= take;
        dst += dst_at / 8;
        src += src_at / 8;
        dst_at %= 8;
        src_at %= 8;
    }
}

/* memcpy of a constant size is one load and one store. */
#define GATHER_ITEMS(BYTES)                                                                   \
    case BYTES:                                                                               \
        for (int64_t i = 0; i < n; i++, src += stride, dst += BYTES) memcpy(dst, src, BYTES); \
        break

static void gather_items(uint8_t *dst, const uint8_t *src, int64_t n, int64_t stride, size_t item_bytes) {
    switch (item_bytes) {
        GATHER_ITEMS(1);
        GATHER_ITEMS(2);
        GATHER_ITEMS(4);
        GATHER_ITEMS(8);
        GATHER_ITEMS(16);
    default:
        for (int64_t i = 0; i < n; i++, src += stride, dst += item_bytes) memcpy(dst, src, item_bytes);
    }
}

static void gather_row(struct gather *g) {
    uint64_t row_bits = (uint64_t)g->n * g->item_bits;
    if (g->stride_bits == (int64_t)g->item_bits) {
        copy_bits(g->dst, g->dst_bit, g->src, g->src_bit, row_bits);
    } else if (g->item_bits % 8 == 0) {
        gather_items(g->dst + g->dst_bit / 8, g->src + g->src_bit / 8, g->n, g->stride_bits / 8, g->item_bits / 8);
    } else {
        for (uint64_t i = 0; i < (uint64_t)g->n; i++)
            copy_bits(g->dst, g->dst_bit + i * g->item_bits, g->src, g->src_bit + i * (uint64_t)g->stride_bits,
                      g->item_bits);
    }
    g->dst_bit += row_bits;
}

/* Walks the outer dimensions like an odometer. */
static void gather_rows(struct gather *g) {
    int64_t index[LEND_NDIM_MAX] = {0};
    int32_t dim;
    do {
        gather_row(g);
        for (dim = g->n_outer - 1; dim >= 0; dim--) {
            g->src_bit += (uint64_t)g->step_bits[dim];
            if (++index[dim] < g->size[dim]) break;
            g->src_bit -= (uint64_t)g->size[dim] * (uint64_t)g->step_bits[dim];
            index[dim] = 0;
        }
    } while (dim >= 0);
}

/* Drops sizes of 1 and merges a dimension into the one before it where that one steps exactly over it. */
static void plan(struct gather *g, const struct lend_tensor *tensor) {
    const int64_t *shape = lend__tensor_shape(tensor), *strides = lend__tensor_strides(tensor);
    int32_t n = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (shape[i] == 1) continue;
        /* Both index 0 and 1 exist here, so the distance between them, in bits, fits. */
        int64_t step = (int64_t)((uint64_t)strides[i] * tensor->item_bits), reach;
        if (n > 0 && !lend__mul_overflows(step, shape[i], &reach) && g->step_bits[n - 1] == reach) {
            g->size[n - 1] *= shape[i];
            g->step_bits[n - 1] = step;
        } else {
            g->size[n] = shape[i];
            g->step_bits[n++] = step;
        }
    }
    g->n_outer = n > 0 ? n - 1 : 0;
    g->n = n > 0 ? g->size[n - 1] : 1;
    g->stride_bits = n > 0 ? g->step_bits[n - 1] : (int64_t)tensor->item_bits;
}

static void gather_tensor(const struct lend_tensor *tensor, const uint8_t *storage_data, uint8_t *dst) {
    struct gather g = {
        .src = storage_data,
        .src_bit = tensor->offset_bits,
        .dst = dst,
        .item_bits = tensor->item_bits,
    };
    plan(&g, tensor);
    /* Packed elements are or-ed into place, and the bits behind the last one are 0. */
    if (g.item_bits % 8) memset(dst, 0, ((uint64_t)tensor->numel * g.item_bits + 7) / 8);
    gather_rows(&g);
}

int lend__tensor_copy_raw(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret,
                          const char *operation, struct lend_error *error) {
    struct lend__storage *storage;
    int r = lend__tensor_storage(tensor, &storage, operation, error);
    if (r < 0) return r;
    if (!ret) return lend__fail(error, -EINVAL, operation, "ret_tensor is NULL");
    if (storage->kind == LEND__STORAGE_META)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "a meta tensor has no elements to copy: make a tensor of its shape with lend_tensor_new");
    if (storage->device.device_type != kDLCPU)
        return lend__fail(error, -EOPNOTSUPP, operation, "memory of device type %d cannot be read by the CPU",
                          (int)storage->device.device_type);
    r = lend__storage_check_file(storage, operation, error);
    if (r < 0) return r;
    struct lend_tensor *copy;
    const struct lend__geometry geometry = {.dtype = tensor->dtype,
                                            .is_padded = tensor->is_padded,
                                            .ndim = tensor->ndim,
                                            .shape = lend__tensor_shape(tensor)};
    r = lend__tensor_new(pool, &geometry, &copy, operation, error);
    if (r < 0) return r;
    if (copy->storage->device.device_type != kDLCPU) {
        r = lend__fail(error, -EOPNOTSUPP, operation, "memory of device type %d cannot be written by the CPU",
                       (int)copy->storage->device.device_type);
        lend_tensor_unref(copy);
        return r;
    }
    if (tensor->numel && storage->kind == LEND__STORAGE_ZERO)
        memset(copy->storage->data, 0, copy->storage->bytes);
    else if (tensor->numel)
        gather_tensor(tensor, storage->data, copy->storage->data);
    copy->attrs = tensor->attrs & LEND__ATTRS_OF_VALUES;
    *ret = copy;
    return 0;
}
