/* SPDX-License-Identifier: MIT */
/* Layouts: their names, and what their components must be.
 *
 * Each layout is one row of the table at the end. The rules are those by which PyTorch validates its own sparse, nested
 * and quantized tensors, as far as dtypes and sizes go; whether the elements of indices are right is the matter of
 * layout_check.c. A component that breaks a rule is named in the sentence with what it is and what it must be. The
 * numbers may come from another process.
 *
 * Pure functions, no state. */
#include "tensor/compound.h"

#include "base/error.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct rules;

struct check {
    const struct lend_compound *compound;
    const struct rules *rules;
    const char *operation;
    struct lend_error *error;
};

struct rules {
    const char *name;
    const char *components[4];
    uint32_t n_min, n_max;
    uint32_t values; /* which component, or UINT32_MAX */
    int (*check)(const struct check *check);
};

const char *lend__shape_format(int32_t ndim, const int64_t *shape, char *buf, size_t buf_bytes) {
    size_t at = 1;
    snprintf(buf, buf_bytes, "(");
    for (int32_t i = 0; i < ndim; i++) {
        char size[24];
        size_t n = (size_t)snprintf(size, sizeof size, "%s%lld", i ? ", " : "", (long long)shape[i]);
        if (at + n + sizeof ", ...)" > buf_bytes) {
            at += (size_t)snprintf(buf + at, buf_bytes - at, ", ...");
            break;
        }
        memcpy(buf + at, size, n + 1);
        at += n;
    }
    snprintf(buf + at, buf_bytes - at, ")");
    return buf;
}

/* --- sentences ------------------------------------------------------------------------------------------------------- */

/* "indices", or of a wrapper "number 3". */
static const char *label(const struct check *check, uint32_t i, char *buf, size_t buf_bytes) {
    const char *name = lend__component_name(check->compound->layout, i);
    if (name)
        snprintf(buf, buf_bytes, "%s", name);
    else
        snprintf(buf, buf_bytes, "number %u", i);
    return buf;
}

__attribute__((format(printf, 3, 4))) static int refuse(const struct check *check, uint32_t i, const char *must, ...) {
    const struct lend_tensor *t = check->compound->components[i];
    char name[24], dtype[32], shape[72], rule[112];
    va_list args;
    va_start(args, must);
    vsnprintf(rule, sizeof rule, must, args);
    va_end(args);
    lend_dtype_format(t->dtype, dtype, sizeof dtype);
    return lend__fail(check->error, -EINVAL, check->operation, "component %s of a %s tensor is %s %s and must %s",
                      label(check, i, name, sizeof name), check->rules->name, dtype,
                      lend__shape_format(t->ndim, lend__tensor_shape(t), shape, sizeof shape), rule);
}

__attribute__((format(printf, 2, 3))) static int refuse_shape(const struct check *check, const char *must, ...) {
    char shape[80], rule[112];
    va_list args;
    va_start(args, must);
    vsnprintf(rule, sizeof rule, must, args);
    va_end(args);
    lend__shape_format(check->compound->ndim, check->compound->shape, shape, sizeof shape);
    return lend__fail(check->error, -EINVAL, check->operation, "the shape %s of a %s tensor must %s", shape,
                      check->rules->name, rule);
}

/* --- what every layout asks ------------------------------------------------------------------------------------------ */

static const struct lend_tensor *component(const struct check *check, uint32_t i) {
    return check->compound->components[i];
}

static int64_t size_of(const struct check *check, uint32_t i, int32_t dim) {
    return lend__tensor_shape(component(check, i))[dim];
}

static bool has_dtype(const struct lend_tensor *t, uint8_t code, uint8_t bits) {
    return t->dtype.code == code && t->dtype.bits == bits && t->dtype.lanes == 1;
}

static int expect_ndim(const struct check *check, uint32_t i, int32_t ndim) {
    if (component(check, i)->ndim == ndim) return 0;
    return refuse(check, i, "have %d dimension%s", ndim, ndim == 1 ? "" : "s");
}

static int expect_size(const struct check *check, uint32_t i, int32_t dim, int64_t size, const char *why) {
    if (size_of(check, i, dim) == size) return 0;
    return refuse(check, i, "have size %lld in dimension %d: %s", (long long)size, dim, why);
}

/* Numbers by which others are found: they are read as they lie in memory. */
static int expect_index(const struct check *check, uint32_t i, bool is_narrow_allowed) {
    const struct lend_tensor *t = component(check, i);
    if (!has_dtype(t, LEND_INT, 64) && !(is_narrow_allowed && has_dtype(t, LEND_INT, 32)))
        return refuse(check, i, "be %s", is_narrow_allowed ? "int32 or int64" : "int64");
    if (t->attrs & LEND__ATTRS_OF_VALUES)
        return refuse(check, i, "not be marked as negated: lend_tensor_resolve it first");
    return 0;
}

static int expect_same_dtype(const struct check *check, uint32_t i, uint32_t other) {
    if (!memcmp(&component(check, i)->dtype, &component(check, other)->dtype, sizeof(DLDataType))) return 0;
    return refuse(check, i, "have the dtype of %s", check->rules->components[other]);
}

/* --- the layouts ----------------------------------------------------------------------------------------------------- */

static int check_coo(const struct check *check) {
    enum { INDICES, VALUES };
    const struct lend_compound *compound = check->compound;
    int r = expect_index(check, INDICES, false);
    if (r == 0) r = expect_ndim(check, INDICES, 2);
    if (r < 0) return r;
    int32_t n_dense = component(check, VALUES)->ndim - 1;
    if (n_dense < 0) return refuse(check, VALUES, "have at least 1 dimension");
    int64_t n_sparse = size_of(check, INDICES, 0);
    if (compound->ndim - n_dense != n_sparse)
        return refuse_shape(check, "have %lld sizes: for %lld rows of indices and %d dense dimensions of values",
                            (long long)n_sparse + n_dense, (long long)n_sparse, n_dense);
    r = expect_size(check, VALUES, 0, size_of(check, INDICES, 1), "one for each column of indices");
    for (int32_t i = 0; r == 0 && i < n_dense; i++)
        r = expect_size(check, VALUES, 1 + i, compound->shape[n_sparse + i], "as the shape says");
    return r;
}

enum { POINTERS, INDICES, COMPRESSED_VALUES };

/* Rows (or columns, where those are compressed) of the shape, in blocks, against the pointers. */
static int check_compressed_sizes(const struct check *check, int32_t n_batch, bool is_blocked) {
    static const char *const names[] = {"row", "column"};
    uint32_t layout = check->compound->layout;
    int compressed = layout == LEND_LAYOUT_CSC || layout == LEND_LAYOUT_BSC;
    const int64_t *shape = check->compound->shape + n_batch;
    int64_t block[2] = {1, 1};
    for (int i = 0; i < 2 && is_blocked; i++) {
        /* Blocks of no elements count as blocks of 1, as in PyTorch. */
        int64_t size = size_of(check, COMPRESSED_VALUES, n_batch + 1 + i);
        if (size > 1) block[i] = size;
        if (shape[i] % block[i])
            return refuse_shape(check, "be divisible by the %s size %lld of the blocks in dimension %d", names[i],
                                (long long)block[i], n_batch + i);
    }
    int64_t n = shape[compressed] / block[compressed], n_pointers = size_of(check, POINTERS, n_batch);
    if (n_pointers - 1 != n)
        return refuse(check, POINTERS, "have size %lld + 1 in dimension %d: one for each %s%s, and the end",
                      (long long)n, n_batch, names[compressed], is_blocked ? " of blocks" : "");
    return 0;
}

static int check_compressed(const struct check *check) {
    const struct lend_compound *compound = check->compound;
    bool is_blocked = compound->layout == LEND_LAYOUT_BSR || compound->layout == LEND_LAYOUT_BSC;
    int r = expect_index(check, POINTERS, true);
    if (r == 0) r = expect_index(check, INDICES, true);
    if (r == 0) r = expect_same_dtype(check, INDICES, POINTERS);
    if (r < 0) return r;
    int32_t n_batch = component(check, POINTERS)->ndim - 1, n_block = is_blocked ? 2 : 0;
    if (n_batch < 0) return refuse(check, POINTERS, "have at least 1 dimension");
    r = expect_ndim(check, INDICES, n_batch + 1);
    if (r < 0) return r;
    int32_t n_dense = component(check, COMPRESSED_VALUES)->ndim - n_batch - n_block - 1;
    if (n_dense < 0)
        return refuse(check, COMPRESSED_VALUES, "have at least %d dimensions: %d of batches, one of elements%s",
                      n_batch + 1 + n_block, n_batch, is_blocked ? ", two of a block" : "");
    if (compound->ndim != n_batch + 2 + n_dense)
        return refuse_shape(check, "have %d sizes: %d of batches, rows, columns, and %d dense ones of values",
                            n_batch + 2 + n_dense, n_batch, n_dense);
    for (uint32_t i = POINTERS; r == 0 && i <= COMPRESSED_VALUES; i++)
        for (int32_t dim = 0; r == 0 && dim < n_batch; dim++)
            r = expect_size(check, i, dim, compound->shape[dim], "a batch dimension of the shape");
    if (r == 0) r = check_compressed_sizes(check, n_batch, is_blocked);
    if (r == 0)
        r = expect_size(check, INDICES, n_batch, size_of(check, COMPRESSED_VALUES, n_batch), "one for each value");
    for (int32_t i = 0; r == 0 && i < n_dense; i++)
        r = expect_size(check, COMPRESSED_VALUES, n_batch + 1 + n_block + i, compound->shape[n_batch + 2 + i],
                        "as the shape says");
    return r;
}

static int check_nested(const struct check *check) {
    enum { VALUES, SIZES, STRIDES, OFFSETS };
    const struct lend_compound *compound = check->compound;
    int r = expect_ndim(check, VALUES, 1);
    for (uint32_t i = SIZES; r == 0 && i <= OFFSETS; i++) {
        r = expect_index(check, i, false);
        if (r == 0) r = expect_ndim(check, i, i == OFFSETS ? 1 : 2);
    }
    if (r < 0) return r;
    int64_t n = size_of(check, SIZES, 0), n_dims = size_of(check, SIZES, 1);
    r = expect_size(check, STRIDES, 0, n, "one row for each row of sizes");
    if (r == 0) r = expect_size(check, STRIDES, 1, n_dims, "one for each of sizes");
    if (r == 0) r = expect_size(check, OFFSETS, 0, n, "one for each row of sizes");
    if (r < 0) return r;
    if (compound->ndim - 1 != n_dims)
        return refuse_shape(check, "have %lld sizes: the number of constituents and %lld of each",
                            (long long)n_dims + 1, (long long)n_dims);
    if (compound->shape[0] != n)
        return refuse_shape(check, "begin with %lld, the number of rows of sizes", (long long)n);
    return 0;
}

static int check_jagged(const struct check *check) {
    enum { VALUES, OFFSETS, LENGTHS };
    const struct lend_compound *compound = check->compound;
    if (compound->dim < 1 || compound->dim >= compound->ndim)
        return refuse_shape(check, "have its ragged dimension behind the first: dim %d is not in [1, %d)",
                            compound->dim, compound->ndim);
    if (compound->shape[compound->dim] != LEND_RAGGED)
        return refuse_shape(check, "have LEND_RAGGED (%d) in its ragged dimension %d", LEND_RAGGED, compound->dim);
    int r = expect_index(check, OFFSETS, true);
    if (r == 0) r = expect_ndim(check, OFFSETS, 1);
    if (r < 0) return r;
    int64_t n = compound->shape[0];
    if (size_of(check, OFFSETS, 0) - 1 != n)
        return refuse(check, OFFSETS, "have %lld + 1 elements: one for each constituent, and the end", (long long)n);
    if (compound->n_components > LENGTHS) {
        r = expect_same_dtype(check, LENGTHS, OFFSETS);
        if (r == 0) r = expect_index(check, LENGTHS, true);
        if (r == 0) r = expect_ndim(check, LENGTHS, 1);
        if (r == 0) r = expect_size(check, LENGTHS, 0, n, "one for each constituent");
    }
    if (r == 0) r = expect_ndim(check, VALUES, compound->ndim - 1);
    /* The constituents lie one behind the other in the dimension that is ragged outside. */
    for (int32_t i = 1; r == 0 && i < compound->ndim; i++)
        if (i != compound->dim) r = expect_size(check, VALUES, i - 1, compound->shape[i], "as the shape says");
    return r;
}

static int check_quantized_values(const struct check *check) {
    const struct lend_compound *compound = check->compound;
    const struct lend_tensor *values = component(check, 0);
    if (!has_dtype(values, LEND_INT, 8) && !has_dtype(values, LEND_UINT, 8) && !has_dtype(values, LEND_INT, 32) &&
        !has_dtype(values, LEND_UINT, 4) && !has_dtype(values, LEND_UINT, 2))
        return refuse(check, 0, "be int8, uint8, int32, uint4 or uint2");
    int r = expect_ndim(check, 0, compound->ndim);
    for (int32_t i = 0; r == 0 && i < compound->ndim; i++)
        r = expect_size(check, 0, i, compound->shape[i], "as the shape says");
    return r;
}

static int check_quantized(const struct check *check) {
    if (isnan(check->compound->scale))
        return lend__fail(check->error, -EINVAL, check->operation, "the scale of a %s tensor must be a number, not NaN",
                          check->rules->name);
    return check_quantized_values(check);
}

static int check_quantized_per_channel(const struct check *check) {
    enum { VALUES, SCALES, ZERO_POINTS };
    const struct lend_compound *compound = check->compound;
    if (compound->dim < 0 || compound->dim >= compound->ndim)
        return refuse_shape(check, "have the axis of its channels: dim %d is not in [0, %d)", compound->dim,
                            compound->ndim);
    int r = check_quantized_values(check);
    if (r < 0) return r;
    const struct lend_tensor *scales = component(check, SCALES), *zeros = component(check, ZERO_POINTS);
    if (!has_dtype(scales, LEND_FLOAT, 32) && !has_dtype(scales, LEND_FLOAT, 64))
        return refuse(check, SCALES, "be float32 or float64");
    if (!has_dtype(zeros, LEND_INT, 32) && !has_dtype(zeros, LEND_INT, 64) && !has_dtype(zeros, LEND_FLOAT, 32))
        return refuse(check, ZERO_POINTS, "be int32, int64 or float32");
    for (uint32_t i = SCALES; r == 0 && i <= ZERO_POINTS; i++) {
        r = expect_ndim(check, i, 1);
        if (r == 0) r = expect_size(check, i, 0, compound->shape[compound->dim], "one for each channel");
    }
    return r;
}

static int check_wrapper(const struct check *check) {
    DLDataType dtype = check->compound->dtype;
    if (lend_dtype_is_valid(dtype)) return 0;
    return lend__fail(check->error, -EINVAL, check->operation,
                      "dtype (code %u, bits %u, lanes %u) of a wrapper is not one that lend carries", dtype.code,
                      dtype.bits, dtype.lanes);
}

static const struct rules layouts[] = {
    [LEND_LAYOUT_STRIDED] = {.name = "strided"},
    [LEND_LAYOUT_COO] = {"COO", {"indices", "values"}, 2, 2, 1, check_coo},
    [LEND_LAYOUT_CSR] = {"CSR", {"crow_indices", "col_indices", "values"}, 3, 3, 2, check_compressed},
    [LEND_LAYOUT_CSC] = {"CSC", {"ccol_indices", "row_indices", "values"}, 3, 3, 2, check_compressed},
    [LEND_LAYOUT_BSR] = {"BSR", {"crow_indices", "col_indices", "values"}, 3, 3, 2, check_compressed},
    [LEND_LAYOUT_BSC] = {"BSC", {"ccol_indices", "row_indices", "values"}, 3, 3, 2, check_compressed},
    [LEND_LAYOUT_NESTED] = {"nested", {"values", "sizes", "strides", "offsets"}, 4, 4, 0, check_nested},
    [LEND_LAYOUT_JAGGED] = {"jagged", {"values", "offsets", "lengths"}, 2, 3, 0, check_jagged},
    [LEND_LAYOUT_QUANTIZED] = {"quantized", {"values"}, 1, 1, 0, check_quantized},
    [LEND_LAYOUT_QUANTIZED_PER_CHANNEL] =
        {"quantized_per_channel", {"values", "scales", "zero_points"}, 3, 3, 0, check_quantized_per_channel},
    [LEND_LAYOUT_WRAPPER] = {"wrapper", {NULL}, 0, LEND_COMPONENTS_MAX, UINT32_MAX, check_wrapper},
    [LEND_LAYOUT_OPAQUE] = {.name = "opaque"},
};

#define N_LAYOUTS (sizeof layouts / sizeof layouts[0])

const char *lend__layout_name(uint32_t layout) {
    return layout < N_LAYOUTS ? layouts[layout].name : NULL;
}

const char *lend__component_name(uint32_t layout, uint32_t index) {
    bool has_names = layout < N_LAYOUTS && index < sizeof layouts[0].components / sizeof layouts[0].components[0];
    return has_names ? layouts[layout].components[index] : NULL;
}

uint32_t lend__layout_values(uint32_t layout) {
    return layouts[layout].values;
}

/* --- together -------------------------------------------------------------------------------------------------------- */

static int find_rules(struct check *check) {
    const struct lend_compound *compound = check->compound;
    if (compound->layout == LEND_LAYOUT_STRIDED)
        return lend__fail(check->error, -EINVAL, check->operation,
                          "a strided tensor is not made of components: lend_tensor_new makes one");
    if (compound->layout == LEND_LAYOUT_OPAQUE)
        return lend__fail(check->error, -EOPNOTSUPP, check->operation,
                          "an opaque tensor has no storage that could be lent: convert it to a strided one");
    if (compound->layout >= N_LAYOUTS)
        return lend__fail(check->error, -EOPNOTSUPP, check->operation, "layout %u is not one that lend knows",
                          compound->layout);
    check->rules = &layouts[compound->layout];
    uint32_t least = check->rules->n_min, most = check->rules->n_max;
    if ((compound->n_components < least || compound->n_components > most) && least == most)
        return lend__fail(check->error, -EINVAL, check->operation, "a %s tensor has %u component%s, not %u",
                          check->rules->name, least, least == 1 ? "" : "s", compound->n_components);
    if (compound->n_components < least || compound->n_components > most)
        return lend__fail(check->error, -EINVAL, check->operation, "a %s tensor has %u to %u components, not %u",
                          check->rules->name, least, most, compound->n_components);
    if (compound->n_components && !compound->components)
        return lend__fail(check->error, -EINVAL, check->operation, "components is NULL");
    return 0;
}

static int check_shape(const struct check *check) {
    const struct lend_compound *compound = check->compound;
    if (compound->ndim < 0 || compound->ndim > LEND_NDIM_MAX)
        return lend__fail(check->error, -EINVAL, check->operation, "a tensor has 0 to %d dimensions, not %d",
                          LEND_NDIM_MAX, compound->ndim);
    if (compound->ndim > 0 && !compound->shape)
        return lend__fail(check->error, -EINVAL, check->operation, "shape is NULL");
    for (int32_t i = 0; i < compound->ndim; i++) {
        bool can_be_ragged = (compound->layout == LEND_LAYOUT_NESTED && i > 0) ||
                             (compound->layout == LEND_LAYOUT_JAGGED && i == compound->dim);
        if (compound->shape[i] < 0 && !(can_be_ragged && compound->shape[i] == LEND_RAGGED))
            return refuse_shape(check, "not have %lld in dimension %d", (long long)compound->shape[i], i);
    }
    return 0;
}

/* Is everything still here that the tensor is made of? */
static int check_living(const struct lend_tensor *tensor, const char *operation, struct lend_error *error) {
    struct lend__storage *storage;
    if (tensor->layout == LEND_LAYOUT_STRIDED) return lend__tensor_storage(tensor, &storage, operation, error);
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < tensor->extra->n_components; i++)
        r = check_living(tensor->extra->components[i], operation, error);
    return r;
}

static int check_component(const struct check *check, uint32_t i) {
    const struct lend_tensor *t = component(check, i);
    char name[24];
    if (!t)
        return lend__fail(check->error, -EINVAL, check->operation, "component %s of a %s tensor is NULL",
                          label(check, i, name, sizeof name), check->rules->name);
    if (t->layout != LEND_LAYOUT_STRIDED && check->compound->layout != LEND_LAYOUT_WRAPPER)
        return lend__fail(check->error, -EINVAL, check->operation,
                          "component %s of a %s tensor is itself a %s tensor and must be strided",
                          label(check, i, name, sizeof name), check->rules->name, lend__layout_name(t->layout));
    struct lend_error why;
    int r = check_living(t, check->operation, &why);
    if (r < 0)
        return lend__fail(check->error, r, check->operation, "component %s of a %s tensor: %s",
                          label(check, i, name, sizeof name), check->rules->name, why.text);
    return 0;
}

int lend__layout_check(const struct lend_compound *compound, const char *operation, struct lend_error *error) {
    struct check check = {.compound = compound, .operation = operation, .error = error};
    int r = find_rules(&check);
    if (r == 0) r = check_shape(&check);
    for (uint32_t i = 0; r == 0 && i < compound->n_components; i++) r = check_component(&check, i);
    return r < 0 ? r : check.rules->check(&check);
}
