/* SPDX-License-Identifier: MIT */
/* Tensors with given elements, and one right tensor of each layout. */
#ifndef LEND_TESTS_UNIT_COMPOUNDS_H_
#define LEND_TESTS_UNIT_COMPOUNDS_H_

#include "test.h"

#include "tensor/tensor.h"

#include <string.h>

/* ndim and shape, as two arguments. */
#define SHAPE(...)                                                                   \
    (int32_t)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                  \
    }
#define LIST(...)       \
    (const int64_t[]) { \
        __VA_ARGS__     \
    }

static const DLDataType dtype_int32 = {LEND_INT, 32, 1}, dtype_int64 = {LEND_INT, 64, 1},
                        dtype_float32 = {LEND_FLOAT, 32, 1}, dtype_uint8 = {LEND_UINT, 8, 1};

/* A private tensor; its bytes are 1, 2, 3, ... */
static inline struct lend_tensor *tensor_of(DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_error error;
    struct lend_tensor *tensor;
    const struct lend__geometry geometry = {.dtype = dtype, .ndim = ndim, .shape = shape};
    CHECK_OK(lend__tensor_new(NULL, &geometry, &tensor, "test", &error), &error);
    for (uint64_t i = 0; i < tensor->storage->bytes; i++) tensor->storage->data[i] = (uint8_t)(i + 1);
    return tensor;
}

/* One of int32 or int64, with these elements. */
static inline struct lend_tensor *tensor_of_ints(DLDataType dtype, int32_t ndim, const int64_t *shape,
                                                 const int64_t *values) {
    struct lend_tensor *tensor = tensor_of(dtype, ndim, shape);
    for (int64_t i = 0; i < tensor->numel; i++) {
        if (dtype.bits == 64)
            memcpy(tensor->storage->data + i * 8, &values[i], 8);
        else
            memcpy(tensor->storage->data + i * 4, &(int32_t){(int32_t)values[i]}, 4);
    }
    return tensor;
}

/* What a tensor is to be made of. The parts belong to the sample. */
struct sample {
    struct lend_compound compound;
    struct lend_tensor *parts[LEND_COMPONENTS_MAX];
    int64_t shape[8];
};

static inline void sample_shape(struct sample *s, uint32_t n_parts, int32_t ndim, const int64_t *shape) {
    memcpy(s->shape, shape, (size_t)ndim * sizeof *shape);
    s->compound.n_components = n_parts;
    s->compound.ndim = ndim;
}

static inline void sample_compressed(struct sample *s, DLDataType index) {
    switch (s->compound.layout) {
    case LEND_LAYOUT_CSR: /* two batches of 3 rows and 4 columns */
    case LEND_LAYOUT_CSC:
        s->parts[0] = tensor_of_ints(index, SHAPE(2, 4), LIST(0, 1, 3, 3, 0, 0, 2, 3));
        s->parts[1] = tensor_of_ints(index, SHAPE(2, 3), LIST(1, 0, 3, 0, 2, 3));
        s->parts[2] = tensor_of(dtype_float32, SHAPE(2, 3));
        if (s->compound.layout == LEND_LAYOUT_CSR)
            sample_shape(s, 3, SHAPE(2, 3, 4));
        else
            sample_shape(s, 3, SHAPE(2, 4, 3));
        return;
    case LEND_LAYOUT_BSR: /* 2 x 3 blocks of 2 x 3, with a dense dimension of 2 */
        s->parts[0] = tensor_of_ints(index, SHAPE(3), LIST(0, 2, 3));
        s->parts[1] = tensor_of_ints(index, SHAPE(3), LIST(0, 2, 1));
        break;
    default:
        s->parts[0] = tensor_of_ints(index, SHAPE(4), LIST(0, 1, 1, 3));
        s->parts[1] = tensor_of_ints(index, SHAPE(3), LIST(1, 0, 1));
    }
    s->parts[2] = tensor_of(dtype_float32, SHAPE(3, 2, 3, 2));
    sample_shape(s, 3, SHAPE(4, 9, 2));
}

static inline void sample_nested(struct sample *s, DLDataType index) {
    if (s->compound.layout == LEND_LAYOUT_NESTED) {
        s->parts[0] = tensor_of(dtype_float32, SHAPE(10));
        s->parts[1] = tensor_of_ints(dtype_int64, SHAPE(2, 2), LIST(2, 3, 2, 2));
        s->parts[2] = tensor_of_ints(dtype_int64, SHAPE(2, 2), LIST(3, 1, -2, 1));
        s->parts[3] = tensor_of_ints(dtype_int64, SHAPE(2), LIST(0, 8));
        sample_shape(s, 4, SHAPE(2, 2, LEND_RAGGED));
        return;
    }
    s->parts[0] = tensor_of(dtype_float32, SHAPE(5, 4));
    s->parts[1] = tensor_of_ints(index, SHAPE(3), LIST(0, 2, 5));
    s->parts[2] = tensor_of_ints(index, SHAPE(2), LIST(1, 3)); /* lengths, for who wants them: n_components 3 */
    s->compound.dim = 1;
    sample_shape(s, 2, SHAPE(2, LEND_RAGGED, 4));
}

static inline void sample_quantized(struct sample *s) {
    s->parts[0] = tensor_of(dtype_uint8, SHAPE(2, 3));
    sample_shape(s, 1, SHAPE(2, 3));
    if (s->compound.layout == LEND_LAYOUT_QUANTIZED) {
        s->compound.scale = 0.25;
        s->compound.zero_point = -3;
        return;
    }
    s->parts[1] = tensor_of(dtype_float32, SHAPE(3));
    s->parts[2] = tensor_of_ints(dtype_int64, SHAPE(3), LIST(4, 5, 6));
    s->compound.n_components = 3;
    s->compound.dim = 1;
}

/* The layouts from COO to QUANTIZED_PER_CHANNEL. Where an index may be int32, it is as `index` says. */
static inline void sample_make(struct sample *s, uint32_t layout, DLDataType index) {
    *s = (struct sample){.compound = {.size = sizeof s->compound, .layout = layout}};
    if (layout == LEND_LAYOUT_COO) { /* 3 x 4, of vectors of 2 */
        s->parts[0] = tensor_of_ints(dtype_int64, SHAPE(2, 3), LIST(0, 1, 1, 1, 0, 3));
        s->parts[1] = tensor_of(dtype_float32, SHAPE(3, 2));
        s->compound.is_coalesced = 1;
        sample_shape(s, 2, SHAPE(3, 4, 2));
    } else if (layout <= LEND_LAYOUT_BSC) {
        sample_compressed(s, index);
    } else if (layout <= LEND_LAYOUT_JAGGED) {
        sample_nested(s, index);
    } else {
        sample_quantized(s);
    }
    s->compound.components = s->parts;
    s->compound.shape = s->shape;
}

static inline void sample_end(struct sample *s) {
    for (int i = 0; i < LEND_COMPONENTS_MAX; i++) lend_tensor_unref(s->parts[i]);
}

static inline struct lend_tensor *sample_tensor(const struct sample *s) {
    struct lend_error error;
    struct lend_tensor *tensor;
    CHECK_OK(lend_tensor_new_compound(&s->compound, &tensor, &error), &error);
    return tensor;
}

/* Puts another tensor in the place of a part. */
static inline void sample_replace(struct sample *s, uint32_t part, struct lend_tensor *tensor) {
    lend_tensor_unref(s->parts[part]);
    s->parts[part] = tensor;
}

#endif
