/* SPDX-License-Identifier: MIT */
/* What the benches lend, on either side. Where elements are written, whoever rebuilds can tell one tensor from another:
 * a matrix holds its number, a sparse one counts its stored elements. */
#include "bench.h"

#include <stdio.h>

const DLDataType uint8 = {kDLUInt, 8, 1};
static const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1}, complex64 = {kDLComplex, 64, 1};

static struct lend_tensor *new_tensor(struct lend_pool *pool, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error;
    must(lend_tensor_new(pool, dtype, ndim, shape, &tensor, &error), &error, "lend_tensor_new");
    return tensor;
}

struct lend_tensor *tensor_of(struct lend_pool *pool, uint64_t bytes) {
    int64_t shape = (int64_t)bytes;
    return new_tensor(pool, uint8, 1, &shape);
}

void handle_of(struct lend_tensor *tensor, uint32_t flags, struct record *ret, size_t *ret_bytes) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = flags};
    struct lend_error error;
    must(lend_reduce(tensor, &opts, ret->bytes, sizeof ret->bytes, ret_bytes, &error), &error, "lend_reduce");
}

/* --- groups ----------------------------------------------------------------------------------------------------- */

void matrix_name(uint64_t number, char ret[MATRIX_NAME_ROOM]) {
    snprintf(ret, MATRIX_NAME_ROOM, "blocks.%05u.proj", (unsigned)number);
}

static struct lend_tensor *matrix_of(struct lend_pool *pool, uint64_t number) {
    static const int64_t shape[2] = {4, 8};
    struct lend_tensor *tensor = new_tensor(pool, float32, 2, shape);
    float *elements = lend_tensor_data(tensor);
    for (int i = 0; i < 32; i++) elements[i] = (float)number;
    return tensor;
}

bool is_matrix(const struct lend_tensor *tensor, uint64_t number) {
    const float *elements = tensor ? lend_tensor_data(tensor) : NULL;
    return elements && elements[0] == (float)number && elements[31] == (float)number;
}

struct lend_group *group_of(struct lend_pool *pool, uint64_t n) {
    struct lend_group *group = NULL;
    struct lend_error error;
    must(lend_group_new(&group, &error), &error, "lend_group_new");
    for (uint64_t i = 0; i < n; i++) {
        char name[MATRIX_NAME_ROOM];
        struct lend_tensor *tensor = matrix_of(pool, i);
        matrix_name(i, name);
        must(lend_group_add(group, name, tensor, &error), &error, "lend_group_add");
        lend_tensor_unref(tensor);
    }
    return group;
}

/* --- other kinds ------------------------------------------------------------------------------------------------ */

/* 8 rows and 8 columns with two elements in each row, in the first and the last column. */
struct lend_tensor *csr_of(struct lend_pool *pool) {
    static const int64_t shape[2] = {8, 8}, n_pointers = 9, n_stored = CSR_STORED;
    struct lend_tensor *parts[3] = {new_tensor(pool, int64, 1, &n_pointers), new_tensor(pool, int64, 1, &n_stored),
                                    new_tensor(pool, float32, 1, &n_stored)};
    int64_t *pointers = lend_tensor_data(parts[0]), *columns = lend_tensor_data(parts[1]);
    float *values = lend_tensor_data(parts[2]);
    for (int i = 0; i < n_pointers; i++) pointers[i] = 2 * i;
    for (int i = 0; i < n_stored; i++) {
        columns[i] = i % 2 ? 7 : 0;
        values[i] = (float)i;
    }
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = LEND_LAYOUT_CSR,
                                           .n_components = 3,
                                           .components = parts,
                                           .ndim = 2,
                                           .shape = shape};
    struct lend_tensor *tensor = NULL;
    struct lend_error error;
    must(lend_tensor_new_compound(&compound, &tensor, &error), &error, "lend_tensor_new_compound");
    for (int i = 0; i < 3; i++) lend_tensor_unref(parts[i]);
    return tensor;
}

/* As long as the tensors of 64 B that it is compared with. */
struct lend_tensor *conjugated_of(struct lend_pool *pool) {
    static const int64_t n = 8;
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = LEND_ATTR_CONJ};
    struct lend_tensor *plain = new_tensor(pool, complex64, 1, &n), *tensor = NULL;
    struct lend_error error;
    must(lend_tensor_with_attrs(plain, &attrs, &tensor, &error), &error, "lend_tensor_with_attrs");
    lend_tensor_unref(plain);
    return tensor;
}
