/* SPDX-License-Identifier: MIT */
/* What components of each layout must be: everything that is refused, with its sentence, and what is just allowed. */
#include "compounds.h"
#include "naive.h"
#include "test.h"

#include "tensor/compound.h"

#include <errno.h>
#include <math.h>

static void check_refused(const struct sample *s, int code, const char *text) {
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL;
    CHECK_CODE(lend_tensor_new_compound(&s->compound, &tensor, &error), code);
    CHECK_INT(error.code, code);
    CHECK_STR(error.operation, "lend_tensor_new_compound");
    CHECK_CONTAINS(error.text, text);
    CHECK_PTR(tensor, NULL);
    for (int i = 0; i < LEND_COMPONENTS_MAX; i++)
        if (s->parts[i]) CHECK_UINT(s->parts[i]->n_refs, 1);
    CHECK_CODE(lend_tensor_new_compound(&s->compound, &tensor, NULL), code);
}

/* A right sample of the layout, after the change, is refused. */
#define REFUSED(layout, code, text, ...)        \
    do {                                        \
        struct sample s;                        \
        sample_make(&s, (layout), dtype_int64); \
        __VA_ARGS__;                            \
        check_refused(&s, (code), (text));      \
        sample_end(&s);                         \
    } while (0)
#define INTS(...) tensor_of(dtype_int64, SHAPE(__VA_ARGS__))
#define FLOATS(...) tensor_of(dtype_float32, SHAPE(__VA_ARGS__))

LEND_TEST(layout_refuses_what_is_no_layout) {
    struct lend_tensor *other = NULL;
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "compound.size is 8; set it to sizeof(struct lend_compound)",
            s.compound.size = 8);
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "lend_tensor_new makes one", s.compound.layout = LEND_LAYOUT_STRIDED);
    REFUSED(LEND_LAYOUT_COO, -EOPNOTSUPP, "convert it to a strided one", s.compound.layout = LEND_LAYOUT_OPAQUE);
    REFUSED(LEND_LAYOUT_COO, -EOPNOTSUPP, "layout 12 is not one that lend knows", s.compound.layout = 12);
    REFUSED(LEND_LAYOUT_COO, -EOPNOTSUPP, "layout 4294967295", s.compound.layout = UINT32_MAX);
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "a COO tensor has 2 components, not 3", s.compound.n_components = 3);
    REFUSED(LEND_LAYOUT_CSR, -EINVAL, "a CSR tensor has 3 components, not 0", s.compound.n_components = 0);
    REFUSED(LEND_LAYOUT_JAGGED, -EINVAL, "a jagged tensor has 2 to 3 components, not 4", s.compound.n_components = 4);
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "components is NULL", s.compound.components = NULL);
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "component values of a COO tensor is NULL", sample_replace(&s, 1, NULL));
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "a tensor has 0 to 64 dimensions, not 65", s.compound.ndim = 65);
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "a tensor has 0 to 64 dimensions, not -1", s.compound.ndim = -1);
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "shape is NULL", s.compound.shape = NULL);
    REFUSED(LEND_LAYOUT_COO, -EINVAL, "the shape (3, -1, 2) of a COO tensor must not have -1 in dimension 1",
            s.shape[1] = LEND_RAGGED);
    REFUSED(LEND_LAYOUT_NESTED, -EINVAL, "must not have -1 in dimension 0", s.shape[0] = LEND_RAGGED);
    REFUSED(LEND_LAYOUT_NESTED, -EINVAL, "must not have -2 in dimension 2", s.shape[2] = -2);
    REFUSED(LEND_LAYOUT_JAGGED, -EINVAL, "must not have -1 in dimension 2", s.shape[2] = LEND_RAGGED);
    CHECK_CODE(lend_tensor_new_compound(NULL, &other, NULL), -EINVAL);
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    CHECK_CODE(lend_tensor_new_compound(&s.compound, NULL, NULL), -EINVAL);
    sample_end(&s);
}

LEND_TEST(layout_refuses_coo) {
    uint32_t coo = LEND_LAYOUT_COO;
    REFUSED(coo, -EINVAL, "component indices of a COO tensor is int32 (2, 3) and must be int64",
            sample_replace(&s, 0, tensor_of(dtype_int32, SHAPE(2, 3))));
    REFUSED(coo, -EINVAL, "component indices of a COO tensor is int64_x2 (2, 3) and must be int64",
            sample_replace(&s, 0, tensor_of((DLDataType){LEND_INT, 64, 2}, SHAPE(2, 3))));
    REFUSED(coo, -EINVAL, "must not be marked as negated", s.parts[0]->attrs = LEND_ATTR_NEG);
    REFUSED(coo, -EINVAL, "component indices of a COO tensor is int64 (6) and must have 2 dimensions",
            sample_replace(&s, 0, INTS(6)));
    REFUSED(coo, -EINVAL, "component values of a COO tensor is float32 () and must have at least 1 dimension",
            sample_replace(&s, 1, tensor_of(dtype_float32, 0, NULL)));
    REFUSED(coo, -EINVAL,
            "the shape (3, 4, 2) of a COO tensor must have 4 sizes: for 3 rows of indices and 1 dense dimensions",
            sample_replace(&s, 0, INTS(3, 3)));
    REFUSED(coo, -EINVAL, "must have 2 sizes", sample_replace(&s, 1, FLOATS(3)));
    REFUSED(
        coo, -EINVAL,
        "component values of a COO tensor is float32 (4, 2) and must have size 3 in dimension 0: one for each column",
        sample_replace(&s, 1, FLOATS(4, 2)));
    REFUSED(coo, -EINVAL, "must have size 2 in dimension 1: as the shape says", sample_replace(&s, 1, FLOATS(3, 5)));
}

LEND_TEST(layout_refuses_compressed) {
    uint32_t csr = LEND_LAYOUT_CSR, csc = LEND_LAYOUT_CSC;
    REFUSED(csr, -EINVAL, "component crow_indices of a CSR tensor is float32 (2, 4) and must be int32 or int64",
            sample_replace(&s, 0, FLOATS(2, 4)));
    REFUSED(csc, -EINVAL, "component row_indices of a CSC tensor is uint8 (2, 3) and must be int32 or int64",
            sample_replace(&s, 1, tensor_of(dtype_uint8, SHAPE(2, 3))));
    REFUSED(csr, -EINVAL,
            "component col_indices of a CSR tensor is int32 (2, 3) and must have the dtype of crow_indices",
            sample_replace(&s, 1, tensor_of(dtype_int32, SHAPE(2, 3))));
    REFUSED(csr, -EINVAL, "component col_indices of a CSR tensor is int64 (2, 3) and must not be marked as negated",
            s.parts[1]->attrs = LEND_ATTR_NEG);
    REFUSED(csr, -EINVAL, "int64 () and must have at least 1 dimension",
            sample_replace(&s, 0, tensor_of(dtype_int64, 0, NULL)));
    REFUSED(csr, -EINVAL, "int64 (6) and must have 2 dimensions", sample_replace(&s, 1, INTS(6)));
    REFUSED(csr, -EINVAL, "component values of a CSR tensor is float32 (3) and must have at least 2 dimensions",
            sample_replace(&s, 2, FLOATS(3)));
    REFUSED(csr, -EINVAL,
            "the shape (2, 3, 4) of a CSR tensor must have 4 sizes: 1 of batches, rows, columns, and 1 dense",
            sample_replace(&s, 2, FLOATS(2, 3, 7)));
    REFUSED(csr, -EINVAL, "int64 (3, 4) and must have size 2 in dimension 0: a batch dimension",
            sample_replace(&s, 0, INTS(3, 4)));
    REFUSED(csr, -EINVAL, "int64 (3, 3) and must have size 2 in dimension 0", sample_replace(&s, 1, INTS(3, 3)));
    REFUSED(csr, -EINVAL, "float32 (3, 3) and must have size 2 in dimension 0", sample_replace(&s, 2, FLOATS(3, 3)));
    REFUSED(csr, -EINVAL, "int64 (2, 5) and must have size 3 + 1 in dimension 1: one for each row, and the end",
            sample_replace(&s, 0, INTS(2, 5)));
    REFUSED(csr, -EINVAL, "int64 (2, 0) and must have size 3 + 1", sample_replace(&s, 0, INTS(2, 0)));
    REFUSED(csc, -EINVAL, "and must have size 4 + 1 in dimension 1: one for each column, and the end", s.shape[1] = 3,
            s.shape[2] = 4);
    REFUSED(csr, -EINVAL, "int64 (2, 4) and must have size 3 in dimension 1: one for each value",
            sample_replace(&s, 1, INTS(2, 4)));
}

LEND_TEST(layout_refuses_blocks) {
    uint32_t bsr = LEND_LAYOUT_BSR, bsc = LEND_LAYOUT_BSC;
    REFUSED(bsr, -EINVAL, "must have at least 3 dimensions: 0 of batches, one of elements, two of a block",
            sample_replace(&s, 2, FLOATS(3, 2)));
    REFUSED(bsr, -EINVAL,
            "the shape (5, 9, 2) of a BSR tensor must be divisible by the row size 2 of the blocks in dimension 0",
            s.shape[0] = 5);
    REFUSED(bsc, -EINVAL, "must be divisible by the column size 3 of the blocks in dimension 1", s.shape[1] = 8);
    REFUSED(bsr, -EINVAL, "must have size 3 + 1 in dimension 0: one for each row of blocks", s.shape[0] = 6);
    REFUSED(bsc, -EINVAL,
            "component ccol_indices of a BSC tensor is int64 (4) and must have size 4 + 1 in dimension 0: "
            "one for each column of blocks",
            s.shape[1] = 12);
    REFUSED(bsr, -EINVAL, "float32 (3, 2, 3, 7) and must have size 2 in dimension 3: as the shape says",
            sample_replace(&s, 2, FLOATS(3, 2, 3, 7)));
}

LEND_TEST(layout_refuses_nested) {
    uint32_t nested = LEND_LAYOUT_NESTED;
    REFUSED(nested, -EINVAL, "component values of a nested tensor is float32 (5, 2) and must have 1 dimension",
            sample_replace(&s, 0, FLOATS(5, 2)));
    for (uint32_t i = 1; i < 4; i++) {
        static const char *const names[] = {"", "component sizes", "component strides", "component offsets"};
        REFUSED(nested, -EINVAL, names[i], sample_replace(&s, i, tensor_of(dtype_int32, SHAPE(2, 2))));
        REFUSED(nested, -EINVAL, names[i], sample_replace(&s, i, INTS(1, 2, 2)));
    }
    REFUSED(nested, -EINVAL, "strides of a nested tensor is int64 (3, 2) and must have size 2 in dimension 0",
            sample_replace(&s, 2, INTS(3, 2)));
    REFUSED(nested, -EINVAL, "strides of a nested tensor is int64 (2, 3) and must have size 2 in dimension 1",
            sample_replace(&s, 2, INTS(2, 3)));
    REFUSED(nested, -EINVAL, "offsets of a nested tensor is int64 (3) and must have size 2",
            sample_replace(&s, 3, INTS(3)));
    REFUSED(nested, -EINVAL, "the shape (2, 2) of a nested tensor must have 3 sizes", s.compound.ndim = 2);
    REFUSED(nested, -EINVAL, "must begin with 2, the number of rows of sizes", s.shape[0] = 3);
}

LEND_TEST(layout_refuses_jagged) {
    uint32_t jagged = LEND_LAYOUT_JAGGED;
    REFUSED(jagged, -EINVAL,
            "the shape (2, 4, 4) of a jagged tensor must have its ragged dimension behind the first: "
            "dim 0 is not in [1, 3)",
            s.compound.dim = 0, s.shape[1] = 4);
    REFUSED(jagged, -EINVAL, "dim 3 is not in [1, 3)", s.compound.dim = 3, s.shape[1] = 4);
    REFUSED(jagged, -EINVAL, "must have LEND_RAGGED (-1) in its ragged dimension 1", s.shape[1] = 3);
    REFUSED(jagged, -EINVAL, "component offsets of a jagged tensor is float32 (3) and must be int32 or int64",
            sample_replace(&s, 1, FLOATS(3)));
    REFUSED(jagged, -EINVAL, "int64 (3, 1) and must have 1 dimension", sample_replace(&s, 1, INTS(3, 1)));
    REFUSED(jagged, -EINVAL, "int64 (4) and must have 2 + 1 elements", sample_replace(&s, 1, INTS(4)));
    REFUSED(jagged, -EINVAL, "component values of a jagged tensor is float32 (20) and must have 2 dimensions",
            sample_replace(&s, 0, FLOATS(20)));
    REFUSED(jagged, -EINVAL, "float32 (5, 3) and must have size 4 in dimension 1: as the shape says",
            sample_replace(&s, 0, FLOATS(5, 3)));
    REFUSED(jagged, -EINVAL, "component lengths of a jagged tensor is int32 (2) and must have the dtype of offsets",
            s.compound.n_components = 3, sample_replace(&s, 2, tensor_of(dtype_int32, SHAPE(2))));
    REFUSED(jagged, -EINVAL, "component lengths of a jagged tensor is int64 (2) and must not be marked as negated",
            s.compound.n_components = 3, s.parts[2]->attrs = LEND_ATTR_NEG);
    REFUSED(jagged, -EINVAL, "int64 (3) and must have size 2 in dimension 0: one for each constituent",
            s.compound.n_components = 3, sample_replace(&s, 2, INTS(3)));
    REFUSED(jagged, -EINVAL, "int64 (2, 1) and must have 1 dimension", s.compound.n_components = 3,
            sample_replace(&s, 2, INTS(2, 1)));
}

LEND_TEST(layout_refuses_quantized) {
    uint32_t quantized = LEND_LAYOUT_QUANTIZED, channels = LEND_LAYOUT_QUANTIZED_PER_CHANNEL;
    REFUSED(quantized, -EINVAL,
            "component values of a quantized tensor is float32 (2, 3) and must be int8, uint8, int32, "
            "uint4 or uint2",
            sample_replace(&s, 0, FLOATS(2, 3)));
    REFUSED(quantized, -EINVAL, "is int64 (2, 3) and must be int8", sample_replace(&s, 0, INTS(2, 3)));
    REFUSED(quantized, -EINVAL, "the scale of a quantized tensor must be a number, not NaN", s.compound.scale = NAN);
    REFUSED(quantized, -EINVAL, "uint8 (2, 3) and must have 1 dimension", s.compound.ndim = 1);
    REFUSED(channels, -EINVAL, "uint8 (2, 3) and must have size 9 in dimension 0: as the shape says", s.shape[0] = 9);
    REFUSED(channels, -EINVAL, "must have the axis of its channels: dim 2 is not in [0, 2)", s.compound.dim = 2);
    REFUSED(channels, -EINVAL, "dim -1 is not in [0, 2)", s.compound.dim = -1);
    REFUSED(channels, -EINVAL,
            "component scales of a quantized_per_channel tensor is int64 (3) and must be float32 or float64",
            sample_replace(&s, 1, INTS(3)));
    REFUSED(channels, -EINVAL, "uint8 (3) and must be int32, int64 or float32",
            sample_replace(&s, 2, tensor_of(dtype_uint8, SHAPE(3))));
    REFUSED(channels, -EINVAL, "float32 (1, 3) and must have 1 dimension", sample_replace(&s, 1, FLOATS(1, 3)));
    REFUSED(channels, -EINVAL, "float32 (2) and must have size 3 in dimension 0: one for each channel",
            sample_replace(&s, 1, FLOATS(2)));
    REFUSED(channels, -EINVAL, "int64 (2) and must have size 3", sample_replace(&s, 2, INTS(2)));
}

/* Dtypes that quantization knows, besides those of the sample. */
LEND_TEST(layout_takes_every_dtype_of_quantization) {
    static const DLDataType values[] = {
        {LEND_INT, 8, 1}, {LEND_UINT, 8, 1}, {LEND_INT, 32, 1}, {LEND_UINT, 4, 1}, {LEND_UINT, 2, 1}};
    static const DLDataType scales[] = {{LEND_FLOAT, 32, 1}, {LEND_FLOAT, 64, 1}};
    static const DLDataType zeros[] = {{LEND_INT, 32, 1}, {LEND_INT, 64, 1}, {LEND_FLOAT, 32, 1}};
    for (int i = 0; i < 5 * 2 * 3; i++) {
        struct sample s;
        sample_make(&s, LEND_LAYOUT_QUANTIZED_PER_CHANNEL, dtype_int64);
        sample_replace(&s, 0, tensor_of(values[i % 5], SHAPE(2, 3)));
        sample_replace(&s, 1, tensor_of(scales[i / 5 % 2], SHAPE(3)));
        sample_replace(&s, 2, tensor_of(zeros[i / 10], SHAPE(3)));
        struct lend_tensor *tensor = sample_tensor(&s);
        CHECK_MEM(&tensor->dtype, &values[i % 5], sizeof(DLDataType));
        lend_tensor_unref(tensor);
        sample_end(&s);
    }
}

/* Sizes at their limits that are still right. */
LEND_TEST(layout_takes_small_shapes) {
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64); /* no sparse dimension: values with one more in front */
    sample_replace(&s, 0, INTS(0, 3));
    s.compound.ndim = 1;
    s.shape[0] = 2;
    lend_tensor_unref(sample_tensor(&s));
    sample_replace(&s, 1, FLOATS(3));
    s.compound.ndim = 0;
    s.compound.shape = NULL;
    struct lend_tensor *tensor = sample_tensor(&s);
    CHECK_INT(naive_info(tensor).numel, 1);
    lend_tensor_unref(tensor);
    sample_end(&s);

    sample_make(&s, LEND_LAYOUT_BSR, dtype_int64); /* blocks of no elements count as blocks of 1 */
    sample_replace(&s, 2, FLOATS(3, 0, 0, 2));
    s.shape[0] = 2, s.shape[1] = 0;
    tensor = sample_tensor(&s);
    CHECK_INT(naive_info(tensor).numel, 0);
    lend_tensor_unref(tensor);
    sample_end(&s);

    sample_make(&s, LEND_LAYOUT_NESTED, dtype_int64); /* of nothing */
    sample_replace(&s, 1, INTS(0, 0));
    sample_replace(&s, 2, INTS(0, 0));
    sample_replace(&s, 3, INTS(0));
    s.compound.ndim = 1;
    s.shape[0] = 0;
    lend_tensor_unref(sample_tensor(&s));
    sample_end(&s);

    sample_make(&s, LEND_LAYOUT_JAGGED, dtype_int64); /* the last dimension is the ragged one */
    s.compound.dim = 2;
    s.shape[1] = 5, s.shape[2] = LEND_RAGGED;
    tensor = sample_tensor(&s);
    CHECK_INT(naive_info(tensor).numel, 20);
    lend_tensor_unref(tensor);
    sample_end(&s);
}

LEND_TEST(layout_names) {
    static const char *const names[] = {"strided", "COO",    "CSR",    "CSC",       "BSR",
                                        "BSC",     "nested", "jagged", "quantized", "quantized_per_channel",
                                        "wrapper", "opaque"};
    for (uint32_t i = 0; i < 12; i++) CHECK_STR(lend__layout_name(i), names[i]);
    CHECK_PTR(lend__layout_name(12), NULL);
    CHECK_PTR(lend__layout_name(UINT32_MAX), NULL);
    CHECK_STR(lend__component_name(LEND_LAYOUT_BSC, 0), "ccol_indices");
    CHECK_STR(lend__component_name(LEND_LAYOUT_NESTED, 3), "offsets");
    CHECK_STR(lend__component_name(LEND_LAYOUT_JAGGED, 2), "lengths");
    CHECK_PTR(lend__component_name(LEND_LAYOUT_COO, 2), NULL);
    CHECK_PTR(lend__component_name(LEND_LAYOUT_NESTED, 4), NULL);
    CHECK_PTR(lend__component_name(LEND_LAYOUT_WRAPPER, 0), NULL);
    CHECK_PTR(lend__component_name(LEND_LAYOUT_STRIDED, 0), NULL);
    CHECK_PTR(lend__component_name(12, 0), NULL);
}

LEND_TEST(layout_shapes_are_cut) {
    char buf[32];
    int64_t sizes[] = {1, -22, 333333, 4444444, 55555555, 6, INT64_MIN};
    CHECK_STR(lend__shape_format(0, NULL, buf, sizeof buf), "()");
    CHECK_STR(lend__shape_format(2, sizes, buf, sizeof buf), "(1, -22)");
    CHECK_STR(lend__shape_format(3, sizes, buf, sizeof buf), "(1, -22, 333333)");
    for (int32_t ndim = 5; ndim <= 7; ndim++)
        CHECK_STR(lend__shape_format(ndim, sizes, buf, sizeof buf), "(1, -22, 333333, 4444444, ...)");
    CHECK_STR(lend__shape_format(1, &sizes[6], buf, sizeof buf), "(-9223372036854775808)");
}
