/* SPDX-License-Identifier: MIT */
/* Where elements lie: fixed cases, and a million hostile geometries against slow 128-bit arithmetic. */
#include "naive.h"
#include "test.h"

#include "tensor/tensor.h"

#include <errno.h>

static const DLDataType float32 = {LEND_FLOAT, 32, 1};

static int check(DLDataType dtype, int32_t ndim, const int64_t *shape, const int64_t *strides, uint64_t offset_bits,
                 uint64_t storage_bytes, struct lend__extent_bits *ret, struct lend_error *error) {
    struct lend__geometry g = {
        .dtype = dtype, .ndim = ndim, .shape = shape, .strides = strides, .offset_bits = offset_bits};
    return lend__geometry_check(&g, storage_bytes, ret, "test", error);
}

LEND_TEST(geometry_edges_of_the_storage) {
    struct lend__extent_bits e;
    struct lend_error error;
    int64_t shape[] = {2, 3}, forward[] = {3, 1}, backward[] = {-3, -1};
    CHECK_OK(check(float32, 2, shape, NULL, 0, 24, &e, &error), &error);
    CHECK_UINT(e.item_bits, 32);
    CHECK_INT(e.numel, 6);
    CHECK(e.is_contiguous);
    CHECK_UINT(e.below_bits, 0);
    CHECK_UINT(e.end_bits, 192);
    CHECK_CODE(check(float32, 2, shape, forward, 0, 23, &e, &error), -ERANGE);
    CHECK_CONTAINS(error.text, "184 bits");
    CHECK_CODE(check(float32, 2, shape, forward, 8, 24, &e, NULL), -ERANGE);
    CHECK_CODE(check(float32, 2, shape, forward, 8, 25, &e, NULL), 0);
    CHECK_CODE(check(float32, 2, shape, forward, 4, 25, &e, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "offset of 4 bits");
    CHECK_CODE(check(float32, 2, shape, backward, 160, 24, &e, NULL), 0);
    CHECK(!e.is_contiguous);
    CHECK_UINT(e.below_bits, 160);
    CHECK_UINT(e.end_bits, 32);
    CHECK_CODE(check(float32, 2, shape, backward, 152, 24, &e, NULL), -ERANGE);
    CHECK_CODE(check(float32, 2, shape, backward, 168, 24, &e, NULL), -ERANGE);
}

LEND_TEST(geometry_no_elements_and_no_dimensions) {
    struct lend__extent_bits e;
    int64_t empty[] = {3, 0, INT64_MAX}, wild[] = {INT64_MIN, INT64_MAX, INT64_MIN};
    CHECK_CODE(check(float32, 0, NULL, NULL, 0, 4, &e, NULL), 0);
    CHECK_INT(e.numel, 1);
    CHECK_CODE(check(float32, 0, NULL, NULL, 0, 3, &e, NULL), -ERANGE);
    int64_t small[] = {3, 0, 7};
    CHECK_CODE(check(float32, 3, small, wild, 0, 0, &e, NULL), 0);
    CHECK_INT(e.numel, 0);
    CHECK(e.is_contiguous);
    CHECK_CODE(check(float32, 3, small, wild, 64, 8, &e, NULL), 0);
    CHECK_CODE(check(float32, 3, small, wild, 72, 8, &e, NULL), -ERANGE);
    CHECK_CODE(check(float32, 3, empty, wild, 0, 0, &e, NULL), -EOVERFLOW); /* contiguous strides would not fit */
}

LEND_TEST(geometry_refuses) {
    struct lend__extent_bits e;
    struct lend_error error;
    int64_t negative[] = {2, -1}, huge[] = {INT64_MAX, 2}, wide[] = {INT64_MAX}, one[] = {1}, two[] = {2};
    int64_t far[] = {INT64_MIN};
    CHECK_CODE(check((DLDataType){LEND_INT, 1, 1}, 1, one, NULL, 0, 8, &e, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "bits 1");
    CHECK_CODE(check(float32, -1, one, NULL, 0, 8, &e, NULL), -EINVAL);
    CHECK_CODE(check(float32, 65, one, NULL, 0, 8, &e, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "not 65");
    CHECK_CODE(check(float32, 2, negative, NULL, 0, 8, &e, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "dimension 1 has the negative size -1");
    CHECK_CODE(check(float32, 2, huge, NULL, 0, 8, &e, NULL), -EOVERFLOW);
    CHECK_CODE(check(float32, 1, wide, NULL, 0, 8, &e, NULL), -EOVERFLOW);
    CHECK_CODE(check(float32, 1, one, NULL, 0, UINT64_MAX / 8 + 1, &e, NULL), -EOVERFLOW);
    CHECK_CODE(check(float32, 1, one, far, 0, 4, &e, NULL), 0);
    CHECK_CODE(check(float32, 1, two, far, 0, UINT64_MAX / 8, &e, &error), -ERANGE);
    CHECK_CONTAINS(error.text, "2^64");
}

LEND_TEST(geometry_sixty_four_dimensions) {
    struct lend__extent_bits e;
    int64_t shape[LEND_NDIM_MAX], strides[LEND_NDIM_MAX];
    for (int i = 0; i < LEND_NDIM_MAX; i++) shape[i] = i % 4 == 0 ? 2 : 1; /* 2^16 elements */
    CHECK_CODE(check(float32, LEND_NDIM_MAX, shape, NULL, 0, 4 << 16, &e, NULL), 0);
    CHECK_INT(e.numel, 1 << 16);
    lend__contiguous_strides(LEND_NDIM_MAX, shape, strides);
    CHECK_INT(strides[63], 1);
    CHECK_INT(strides[0], 1 << 15);
    CHECK_CODE(check(float32, LEND_NDIM_MAX, shape, strides, 0, 4 << 16, &e, NULL), 0);
    CHECK(e.is_contiguous);
    CHECK_CODE(check(float32, LEND_NDIM_MAX, shape, strides, 0, (4 << 16) - 1, &e, NULL), -ERANGE);
    for (int i = 0; i < LEND_NDIM_MAX; i++) shape[i] = 2;
    CHECK_CODE(check(float32, LEND_NDIM_MAX, shape, strides, 0, UINT64_MAX / 8, &e, NULL), -EOVERFLOW);
}

LEND_TEST(geometry_packed_offsets) {
    struct lend__extent_bits e;
    int64_t shape[] = {3};
    static const struct {
        DLDataType dtype;
        uint32_t alignment;
    } rows[] = {
        {{LEND_INT, 2, 1}, 2},  {{LEND_INT, 4, 1}, 4},           {{LEND_FLOAT6_E2M3FN, 6, 1}, 2},
        {{LEND_INT, 4, 2}, 8},  {{LEND_FLOAT6_E3M2FN, 6, 2}, 4}, {{LEND_FLOAT6_E3M2FN, 6, 4}, 8},
        {{LEND_UINT, 2, 3}, 2}, {{LEND_BOOL, 8, 1}, 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (uint64_t offset = 0; offset < 24; offset++)
            CHECK_CODE(check(rows[i].dtype, 1, shape, NULL, offset, 1000, &e, NULL),
                       offset % rows[i].alignment ? -EINVAL : 0);
    struct lend__geometry padded = {.dtype = {LEND_INT, 4, 2}, .is_padded = true, .ndim = 1, .shape = shape};
    CHECK_CODE(lend__geometry_check(&padded, 6, &e, "test", NULL), 0);
    CHECK_UINT(e.item_bits, 16);
    CHECK_CODE(lend__geometry_check(&padded, 5, &e, "test", NULL), -ERANGE);
}

typedef __int128 wide_int;

/* So large that nothing fits, so small that 64 of them still add up. */
#define FAR ((wide_int)1 << 110)

static wide_int times(wide_int a, wide_int b) {
    wide_int r;
    return __builtin_mul_overflow(a, b, &r) || r > FAR ? FAR : r;
}

/* lend__geometry_check as one would say it, in numbers that cannot overflow. */
static int slow_check(const struct lend__geometry *g, uint64_t storage_bytes, struct lend__extent_bits *ret) {
    wide_int item = lend_dtype_bits(g->dtype), span = 1, below = 0, above = 0, expected = 1;
    bool is_empty = false, is_contiguous = true;
    if (g->is_padded && g->dtype.bits < 8) item = 8 * (wide_int)g->dtype.lanes;
    if (!lend_dtype_bits(g->dtype) || g->ndim < 0 || g->ndim > 64) return -EINVAL;
    for (int i = g->ndim - 1; i >= 0; i--) {
        if (g->shape[i] < 0) return -EINVAL;
        if (g->shape[i] == 0) is_empty = true;
        if (g->shape[i] <= 1) continue;
        wide_int stride = g->strides ? g->strides[i] : span;
        if (stride != expected) is_contiguous = false;
        if (stride < 0)
            below += times(-stride, (wide_int)g->shape[i] - 1);
        else
            above += times(stride, (wide_int)g->shape[i] - 1);
        span = times(span, g->shape[i]);
        if (span > INT64_MAX) return -EOVERFLOW;
        expected = span;
    }
    if (span * item > UINT64_MAX) return -EOVERFLOW;
    wide_int storage_bits = (wide_int)storage_bytes * 8, offset = g->offset_bits, alignment = 1;
    if (storage_bits > UINT64_MAX) return -EOVERFLOW;
    while (alignment < 8 && item % (alignment * 2) == 0) alignment *= 2;
    if (offset % alignment) return -EINVAL;
    wide_int low = is_empty ? offset : offset - times(below, item);
    wide_int end = is_empty ? offset : offset + times(above, item) + item;
    if (low < 0 || end > storage_bits) return -ERANGE;
    ret->item_bits = (uint32_t)item;
    ret->numel = is_empty ? 0 : (int64_t)span;
    ret->is_contiguous = is_empty || is_contiguous;
    ret->below_bits = (uint64_t)(offset - low);
    ret->end_bits = (uint64_t)(end - offset);
    return 0;
}

/* Numbers as a forger would choose them, and as they are. */
static int64_t hostile(uint64_t *seed) {
    switch (naive_between(seed, 0, 9)) {
    case 0: return (int64_t)naive_random(seed);
    case 1: return INT64_MIN + naive_between(seed, 0, 2);
    case 2: return INT64_MAX - naive_between(seed, 0, 2);
    case 3: return (int64_t)(((uint64_t)1 << naive_between(seed, 0, 63)) - (naive_random(seed) & 1));
    case 4: return -(int64_t)((uint64_t)1 << naive_between(seed, 0, 62));
    default: return naive_between(seed, -3, 12);
    }
}

LEND_TEST_TIMED(geometry_a_million_hostile_ones, 240) {
    DLDataType dtypes[NAIVE_N_DTYPES];
    int n_dtypes = naive_dtypes(dtypes);
    uint64_t seed = 20240607, n_ok = 0, n_inval = 0, n_overflow = 0, n_range = 0;
    for (int round = 0; round < 1000000; round++) {
        int64_t shape[65], strides[65];
        bool is_wild = naive_between(&seed, 0, 2) == 0; /* the others are likely to be right */
        struct lend__geometry g = {
            .dtype = dtypes[naive_between(&seed, 0, n_dtypes - 1)],
            .is_padded = naive_random(&seed) & 1,
            .ndim = (int32_t)(naive_between(&seed, 0, 19) ? naive_between(&seed, 0, 5) : naive_between(&seed, -1, 65)),
            .shape = shape,
            .strides = naive_between(&seed, 0, 3) ? strides : NULL,
            .offset_bits = (uint64_t)(is_wild ? hostile(&seed) : 8 * naive_between(&seed, 0, 300)),
        };
        if (naive_between(&seed, 0, 9) == 0) g.dtype.lanes = (uint16_t)naive_random(&seed);
        if (naive_between(&seed, 0, 99) == 0) g.dtype.bits = (uint8_t)naive_random(&seed);
        for (int i = 0; i < 65; i++) {
            shape[i] = is_wild ? hostile(&seed) : naive_between(&seed, g.ndim > 8 ? 1 : 0, g.ndim > 8 ? 2 : 5);
            strides[i] = is_wild || shape[i] <= 1 ? hostile(&seed) : naive_between(&seed, -6, 30);
        }
        uint64_t storage_bytes = is_wild ? (uint64_t)hostile(&seed) : (uint64_t)naive_between(&seed, 0, 3000);
        struct lend__extent_bits fast = {0}, slow = {0};
        int r = lend__geometry_check(&g, storage_bytes, &fast, "test", NULL);
        int expected = slow_check(&g, storage_bytes, &slow);
        if (r != expected) FAIL("round %d: answer %d, expected %d", round, r, expected);
        n_ok += r == 0;
        n_inval += r == -EINVAL;
        n_overflow += r == -EOVERFLOW;
        n_range += r == -ERANGE;
        if (r < 0) continue;
        CHECK_UINT(fast.item_bits, slow.item_bits);
        CHECK_INT(fast.numel, slow.numel);
        CHECK_INT(fast.is_contiguous, slow.is_contiguous);
        CHECK_UINT(fast.below_bits, slow.below_bits);
        CHECK_UINT(fast.end_bits, slow.end_bits);
    }
    /* The mixture is worth something only if it meets every answer. */
    CHECK(n_ok > 100000);
    CHECK(n_inval > 10000);
    CHECK(n_overflow > 10000);
    CHECK(n_range > 10000);
}
