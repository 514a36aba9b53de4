/* SPDX-License-Identifier: MIT */
/* Copies of every dtype in every stride pattern, bit by bit against a naive gather. */
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>

#define MEMORY_BYTES 65536
static uint8_t memory[MEMORY_BYTES];

static void fill_memory(uint64_t *seed) {
    for (int i = 0; i < MEMORY_BYTES; i++) memory[i] = (uint8_t)naive_random(seed);
}

/* A tensor over `memory` from byte `at` on. */
static struct lend_tensor *borrow(DLDataType dtype, bool is_padded, int32_t ndim, int64_t *shape, int64_t *strides,
                                  size_t at, bool is_read_only) {
    static DLManagedTensorVersioned managed; /* has no deleter, so nobody looks at it later */
    struct lend_error error;
    struct lend_tensor *tensor;
    managed = (DLManagedTensorVersioned){
        .version = {1, 3},
        .flags = (is_padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0) |
                 (is_read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0),
        .dl_tensor = {.data = memory,
                      .byte_offset = at,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = dtype,
                      .shape = shape,
                      .strides = strides},
    };
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    return tensor;
}

/* Copies, and compares all bytes, the bits behind the last element included (they are 0). */
static void check_copy(struct lend_tensor *tensor, struct lend_pool *pool) {
    struct lend_error error;
    struct lend_tensor *copy;
    struct lend_tensor_info from = naive_info(tensor);
    CHECK_OK(lend_tensor_copy(tensor, pool, &copy, &error), &error);
    struct lend_tensor_info to = naive_info(copy);
    CHECK_MEM(&to.dtype, &from.dtype, sizeof to.dtype);
    CHECK_INT(to.ndim, from.ndim);
    CHECK_MEM(to.shape, from.shape, (size_t)to.ndim * sizeof(int64_t));
    CHECK_INT(to.is_padded, from.is_padded);
    CHECK_INT(to.is_contiguous, 1);
    CHECK_INT(to.is_read_only, 0);
    CHECK_INT(to.is_private, !pool);
    CHECK_UINT(to.nbytes, from.nbytes);
    CHECK_UINT(to.storage_bytes, from.nbytes);
    CHECK_UINT((uintptr_t)to.data % 64, 0);
    uint8_t *expected = calloc(1, from.nbytes + 1);
    naive_gather(&from, expected);
    CHECK_MEM(to.storage_data, expected, from.nbytes);
    free(expected);
    lend_tensor_unref(copy);
}

/* The shapes and strides that people make; offsets are odd on purpose. */
LEND_TEST_TIMED(copy_every_dtype_and_pattern, 240) {
    static const struct {
        int32_t ndim;
        int64_t shape[4], strides[4], first;
    } patterns[] = {
        {0, {0}, {0}, 5},
        {1, {0}, {1}, 0},
        {1, {1}, {77}, 3},
        {1, {13}, {1}, 4},   /* contiguous */
        {1, {13}, {3}, 1},   /* steps */
        {1, {13}, {-1}, 15}, /* backwards */
        {1, {7}, {-2}, 13},
        {1, {9}, {0}, 2}, /* expanded */
        {2, {3, 5}, {5, 1}, 0},
        {2, {5, 3}, {1, 5}, 0}, /* transposed */
        {2, {4, 3}, {7, 1}, 2}, /* rows of a wider matrix */
        {2, {4, 3}, {-7, 1}, 23},
        {2, {3, 4}, {0, 1}, 6},
        {2, {3, 4}, {1, 0}, 6},
        {3, {2, 3, 4}, {12, 4, 1}, 1},
        {3, {2, 3, 4}, {24, 4, 1}, 1}, /* two dimensions merge */
        {3, {2, 3, 4}, {4, 8, 1}, 1},
        {3, {2, 1, 4}, {4, INT64_MAX, 1}, 1}, /* a stride that means nothing */
        {3, {4, 3, 2}, {1, 4, 12}, 1},
        {4, {2, 2, 2, 2}, {-16, 8, -4, 2}, 24},
        {4, {2, 0, 2, 2}, {8, 4, 2, 1}, 0},
    };
    struct lend_pool *pool = pool_without_context();
    DLDataType dtypes[NAIVE_N_DTYPES];
    uint64_t seed = 3;
    int n = naive_dtypes(dtypes);
    fill_memory(&seed);
    for (int i = 0; i < n; i++) {
        for (uint16_t lanes = 1; lanes <= 3; lanes++) {
            for (int is_padded = 0; is_padded <= (dtypes[i].bits < 8); is_padded++) {
                dtypes[i].lanes = lanes;
                int64_t size = 200;
                struct lend_tensor *all = borrow(dtypes[i], is_padded, 1, &size, NULL, 1, true);
                for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
                    struct lend_error error;
                    struct lend_tensor *view;
                    CHECK_OK(lend_tensor_as_strided(all, patterns[p].ndim, patterns[p].shape, patterns[p].strides,
                                                    patterns[p].first, &view, &error),
                             &error);
                    check_copy(view, p % 2 ? pool : NULL);
                    lend_tensor_unref(view);
                }
                lend_tensor_unref(all);
            }
        }
    }
    pool_end(pool);
}

LEND_TEST_TIMED(copy_random_strides, 240) {
    DLDataType dtypes[NAIVE_N_DTYPES];
    uint64_t seed = 11;
    int n = naive_dtypes(dtypes), n_done = 0;
    fill_memory(&seed);
    for (int round = 0; round < 20000; round++) {
        DLDataType dtype = dtypes[naive_between(&seed, 0, n - 1)];
        dtype.lanes = naive_between(&seed, 0, 3) ? 1 : (uint16_t)naive_between(&seed, 1, 5);
        int64_t size = 8 * (MEMORY_BYTES - 8) / (dtype.bits * dtype.lanes), shape[5], strides[5];
        int32_t ndim = (int32_t)naive_between(&seed, 0, 5);
        for (int i = 0; i < ndim; i++) {
            shape[i] = naive_between(&seed, 1, 4);
            strides[i] = naive_between(&seed, -9, 20);
        }
        struct lend_tensor *all = borrow(dtype, false, 1, &size, NULL, (size_t)naive_between(&seed, 0, 7), false),
                           *view;
        int r = lend_tensor_as_strided(all, ndim, shape, strides, naive_between(&seed, 0, 200), &view, NULL);
        CHECK(r == 0 || r == -ERANGE);
        if (r == 0) {
            check_copy(view, NULL);
            lend_tensor_unref(view);
            n_done++;
        }
        lend_tensor_unref(all);
    }
    CHECK(n_done > 10000);
}

/* A raw copy has the bytes of the memory and the marks that say how to read them. */
LEND_TEST(copy_raw_keeps_bytes_and_marks) {
    struct lend_pool *pool = pool_without_context();
    DLDataType dtypes[NAIVE_N_DTYPES];
    uint64_t seed = 17;
    int n = naive_dtypes(dtypes);
    fill_memory(&seed);
    for (int i = 0; i < 2 * n; i++) {
        struct lend_error error;
        int64_t shape[] = {3, 5}, strides[] = {1, 4};
        struct lend_tensor *tensor = borrow(dtypes[i / 2], false, 2, shape, strides, 3, true), *copy;
        bool is_complex = dtypes[i / 2].code == LEND_COMPLEX;
        uint32_t marks = is_complex ? LEND_ATTR_CONJ | LEND_ATTR_NEG : LEND_ATTR_NEG;
        tensor->attrs = marks | LEND_ATTR_BUFFER;
        CHECK_OK(lend__tensor_copy_raw(tensor, i % 2 ? pool : NULL, &copy, "test", &error), &error);
        struct lend_tensor_info from = naive_info(tensor), to = naive_info(copy);
        uint8_t expected[256] = {0};
        naive_gather(&from, expected);
        CHECK_MEM(to.data, expected, to.nbytes);
        CHECK_UINT(to.attrs, marks);
        CHECK_INT(to.is_read_only, 0);
        lend_tensor_unref(copy);
        lend_tensor_unref(tensor);
    }
    pool_end(pool);
}

/* The source ends exactly at the end of its memory: not a byte more may be read (the address sanitizer looks). */
LEND_TEST(copy_reads_no_byte_too_many) {
    struct lend_error error;
    DLDataType int4 = {LEND_INT, 4, 1}, float6 = {LEND_FLOAT6_E2M3FN, 6, 1};
    for (int64_t size = 1; size < 20; size++) {
        for (int k = 0; k < 2; k++) {
            DLDataType dtype = k ? float6 : int4;
            size_t bytes = ((size_t)size * dtype.bits + 7) / 8;
            uint8_t *exact = malloc(bytes);
            memset(exact, 0xa7, bytes);
            DLManagedTensorVersioned managed = {
                .version = {1, 3},
                .dl_tensor = {.data = exact, .device = {kDLCPU, 0}, .ndim = 1, .dtype = dtype, .shape = &size},
            };
            struct lend_tensor *tensor, *part;
            CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
            CHECK_OK(lend_tensor_slice(tensor, 0, size / 2, size, 1, &part, &error), &error);
            check_copy(tensor, NULL);
            check_copy(part, NULL);
            lend_tensor_unref(part);
            lend_tensor_unref(tensor);
            free(exact);
        }
    }
}

LEND_TEST(copy_is_independent) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    int64_t size = 4;
    struct lend_tensor *tensor, *copies[2];
    CHECK_OK(lend_tensor_new(pool, (DLDataType){LEND_INT, 32, 1}, 1, &size, &tensor, &error), &error);
    int32_t *data = lend_tensor_data(tensor);
    for (int i = 0; i < 4; i++) data[i] = i + 1;
    CHECK_OK(lend_tensor_copy(tensor, pool, &copies[0], &error), &error);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copies[1], &error), &error);
    data[2] = 99;
    for (int k = 0; k < 2; k++) {
        int32_t *copied = lend_tensor_data(copies[k]);
        CHECK_INT(copied[2], 3);
        copied[0] = 50 + k; /* writable */
        CHECK_INT(naive_info(copies[k]).is_private, k);
        CHECK_INT(naive_info(copies[k]).allocation_inode != 0, !k);
        CHECK(naive_info(copies[k]).storage_id != naive_info(tensor).storage_id);
    }
    CHECK_INT(data[0], 1);
    lend_tensor_unref(tensor);
    lend_tensor_unref(copies[0]);
    lend_tensor_unref(copies[1]);
    pool_end(pool);
}

LEND_TEST(copy_without_elements_takes_no_memory) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    int64_t shape[] = {3, 0};
    struct lend_tensor *tensor, *copy;
    CHECK_OK(lend_tensor_new(pool, (DLDataType){LEND_INT, 32, 1}, 2, shape, &tensor, &error), &error);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    CHECK_PTR(lend_tensor_data(copy), NULL);
    CHECK_UINT(naive_info(copy).storage_bytes, 0);
    lend_tensor_unref(copy);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

/* An expanded tensor can be larger than any memory; the error says how large. */
LEND_TEST(copy_too_large) {
    struct lend_error error;
    int64_t shape[] = {(int64_t)1 << 50, 8}, strides[] = {0, 0};
    struct lend_tensor *tensor = borrow((DLDataType){LEND_INT, 8, 1}, false, 2, shape, strides, 0, false), *copy = NULL;
    fault_arm_call("realloc", 0, -ENOMEM); /* the address sanitizer ends programs that ask for so much */
    CHECK_CODE(lend_tensor_copy(tensor, NULL, &copy, &error), -ENOMEM);
    CHECK(fault_disarm() != NULL);
    CHECK_UINT(error.asked, (uint64_t)1 << 53);
    CHECK_PTR(copy, NULL);
    CHECK_CODE(lend_tensor_copy(tensor, NULL, NULL, &error), -EINVAL);
    lend_tensor_unref(tensor);
}

LEND_TEST(copy_when_memory_is_short) {
    struct lend_error error;
    int64_t size = 9;
    struct lend_tensor *tensor = borrow((DLDataType){LEND_INT, 16, 1}, false, 1, &size, NULL, 0, false), *copy;
    for (unsigned n = 0;; n++) {
        copy = NULL;
        fault_arm(n);
        int r = lend_tensor_copy(tensor, NULL, &copy, &error);
        if (!fault_disarm()) {
            CHECK_OK(r, &error);
            CHECK_UINT(n, 3); /* elements, storage, tensor */
            break;
        }
        CHECK_INT(r, -ENOMEM);
        CHECK_INT(error.code, -ENOMEM);
        CHECK_PTR(copy, NULL);
    }
    lend_tensor_unref(copy);
    lend_tensor_unref(tensor);
}
