/* SPDX-License-Identifier: MIT */
/* Negation and conjugation of every dtype, against what the bits mean; and tensors resolved. */
#include "compounds.h"
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "base/process.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* --- what bits mean -------------------------------------------------------------------------------------------------- */

/* A float of less than 17 bits. The largest exponent holds infinities and NaN (IEEE), or, where the format has few
 * values, one NaN of all ones (FN), or none; in the UZ formats NaN is the bits of -0. */
enum specials { IEEE, FN, FINITE, UZ };
struct format {
    uint8_t code, bits;
    int n_exponent, n_mantissa, bias;
    enum specials specials;
};
static const struct format formats[] = {
    {LEND_FLOAT, 16, 5, 10, 15, IEEE},          {LEND_BFLOAT, 16, 8, 7, 127, IEEE},
    {LEND_FLOAT8_E3M4, 8, 3, 4, 3, IEEE},       {LEND_FLOAT8_E4M3, 8, 4, 3, 7, IEEE},
    {LEND_FLOAT8_E4M3B11FNUZ, 8, 4, 3, 11, UZ}, {LEND_FLOAT8_E4M3FN, 8, 4, 3, 7, FN},
    {LEND_FLOAT8_E4M3FNUZ, 8, 4, 3, 8, UZ},     {LEND_FLOAT8_E5M2, 8, 5, 2, 15, IEEE},
    {LEND_FLOAT8_E5M2FNUZ, 8, 5, 2, 16, UZ},    {LEND_FLOAT6_E2M3FN, 6, 2, 3, 1, FINITE},
    {LEND_FLOAT6_E3M2FN, 6, 3, 2, 3, FINITE},   {LEND_FLOAT4_E2M1FN, 4, 2, 1, 1, FINITE},
};
#define N_FORMATS (sizeof formats / sizeof formats[0])

static double meaning(const struct format *f, uint32_t bits) {
    uint32_t mantissa = bits & ((1u << f->n_mantissa) - 1);
    uint32_t exponent = bits >> f->n_mantissa & ((1u << f->n_exponent) - 1), top = (1u << f->n_exponent) - 1;
    double sign = bits >> (f->bits - 1) ? -1 : 1;
    if (f->specials == UZ && bits == 1u << (f->bits - 1)) return NAN;
    if (f->specials == IEEE && exponent == top) return mantissa ? NAN : sign * INFINITY;
    if (f->specials == FN && exponent == top && mantissa == (1u << f->n_mantissa) - 1) return NAN;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - f->bias - f->n_mantissa);
    return sign * ldexp(mantissa + (1u << f->n_mantissa), (int)exponent - f->bias - f->n_mantissa);
}

/* `bits` bits from a place in packed memory, one by one. */
static uint64_t bits_at(const uint8_t *data, uint64_t at, uint32_t bits) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < bits; i++) value |= (uint64_t)(data[(at + i) / 8] >> (at + i) % 8 & 1) << i;
    return value;
}

static void put_bits(uint8_t *data, uint64_t at, uint32_t bits, uint64_t value) {
    for (uint32_t i = 0; i < bits; i++) {
        data[(at + i) / 8] &= (uint8_t) ~(1u << (at + i) % 8);
        data[(at + i) / 8] |= (uint8_t)((value >> i & 1) << (at + i) % 8);
    }
}

/* A copy of `tensor` as if it had these marks. */
static struct lend_tensor *copy_marked(struct lend_tensor *tensor, uint32_t marks) {
    struct lend_error error;
    struct lend_tensor *marked, *copy;
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = marks};
    CHECK_OK(lend_tensor_with_attrs(tensor, &attrs, &marked, &error), &error);
    CHECK_OK(lend_tensor_copy(marked, NULL, &copy, &error), &error);
    CHECK_UINT(naive_info(copy).attrs, 0);
    lend_tensor_unref(marked);
    return copy;
}

/* Every value of a small float format has its negative, its zero and its NaN. */
LEND_TEST(resolve_negates_every_small_float) {
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct format *f = &formats[i];
        int64_t n = (int64_t)1 << f->bits;
        struct lend_tensor *tensor = tensor_of((DLDataType){f->code, f->bits, 1}, 1, &n);
        uint8_t *data = lend_tensor_data(tensor);
        for (int64_t k = 0; k < n; k++) put_bits(data, (uint64_t)k * f->bits, f->bits, (uint64_t)k);
        struct lend_tensor *copy = copy_marked(tensor, LEND_ATTR_NEG);
        int64_t n_nan = 0;
        for (int64_t k = 0; k < n; k++) {
            uint64_t got = bits_at(lend_tensor_data(copy), (uint64_t)k * f->bits, f->bits);
            double was = meaning(f, (uint32_t)k), is = meaning(f, (uint32_t)got);
            if (isnan(was) ? !isnan(is) : is != -was)
                FAIL("code %u: the negative of 0x%llx is 0x%llx", f->code, (unsigned long long)k,
                     (unsigned long long)got);
            n_nan += isnan(was);
            if (was == 0 && f->specials != UZ) CHECK_INT(signbit(is) != 0, !signbit(was));
        }
        CHECK_INT(n_nan > 0, f->specials != FINITE);
        lend_tensor_unref(copy);
        lend_tensor_unref(tensor);
    }
}

LEND_TEST(resolve_negates_floats_and_doubles) {
    static const float floats[] = {0, -0.0f, 1.5f, -3e38f, INFINITY, -INFINITY, 1e-45f};
    static const double doubles[] = {0, -0.0, 1.5, -1e308, INFINITY, -INFINITY, 5e-324};
    struct lend_tensor *f = tensor_of(dtype_float32, SHAPE(8)),
                       *d = tensor_of((DLDataType){LEND_FLOAT, 64, 1}, SHAPE(8));
    float *f_data = lend_tensor_data(f);
    double *d_data = lend_tensor_data(d);
    memcpy(f_data, floats, sizeof floats);
    memcpy(d_data, doubles, sizeof doubles);
    f_data[7] = NAN;
    d_data[7] = NAN;
    struct lend_tensor *f_copy = copy_marked(f, LEND_ATTR_NEG), *d_copy = copy_marked(d, LEND_ATTR_NEG);
    const float *f_got = lend_tensor_data(f_copy);
    const double *d_got = lend_tensor_data(d_copy);
    for (int i = 0; i < 7; i++) {
        CHECK_MEM(&f_got[i], &(float){-floats[i]}, sizeof(float));
        CHECK_MEM(&d_got[i], &(double){-doubles[i]}, sizeof(double));
    }
    CHECK(isnan(f_got[7]) && isnan(d_got[7]));
    CHECK(f_data[2] == 1.5f && d_data[3] == -1e308); /* the source stays as it is */
    lend_tensor_unref(f);
    lend_tensor_unref(d);
    lend_tensor_unref(f_copy);
    lend_tensor_unref(d_copy);
}

/* --- every dtype, in every place ------------------------------------------------------------------------------------- */

static bool is_integer(DLDataType dtype) {
    return dtype.code == LEND_INT || dtype.code == LEND_UINT;
}

static bool is_fnuz(DLDataType dtype) {
    return dtype.code == LEND_FLOAT8_E4M3B11FNUZ || dtype.code == LEND_FLOAT8_E4M3FNUZ ||
           dtype.code == LEND_FLOAT8_E5M2FNUZ;
}

/* The negative of one number, as its bits. */
static uint64_t negative(DLDataType dtype, uint32_t bits, uint64_t value) {
    uint64_t mask = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1, sign = (uint64_t)1 << (bits - 1);
    if (is_integer(dtype)) return (~value + 1) & mask;
    if (is_fnuz(dtype) && (value == 0 || value == sign)) return value;
    return value ^ sign;
}

/* The bytes of the copy, from the bytes of the source, number by number. */
static void expect(const struct lend_tensor_info *info, uint32_t marks, uint8_t *ret) {
    bool is_complex = info->dtype.code == LEND_COMPLEX;
    uint32_t bits = info->dtype.bits / (is_complex ? 2 : 1), parts = info->dtype.lanes * (is_complex ? 2u : 1u);
    uint32_t pitch = naive_item_bits(info) / parts;
    naive_gather(info, ret);
    for (uint64_t i = 0; i < (uint64_t)info->numel * parts; i++) {
        bool is_negated = marks & LEND_ATTR_NEG;
        if (is_complex && i % 2 && (marks & LEND_ATTR_CONJ)) is_negated = !is_negated;
        if (is_negated) put_bits(ret, i * pitch, bits, negative(info->dtype, bits, bits_at(ret, i * pitch, bits)));
    }
}

static void check_copy(struct lend_tensor *tensor, uint32_t marks) {
    struct lend_tensor_info info = naive_info(tensor);
    struct lend_tensor *copy = copy_marked(tensor, marks);
    uint8_t *expected = calloc(1, info.nbytes + 1);
    expect(&info, marks, expected);
    CHECK_MEM(copy->storage->data, expected, info.nbytes);
    CHECK_INT(copy->is_padded, info.is_padded);
    free(expected);
    lend_tensor_unref(copy);
}

/* With lanes, padded, transposed with gaps, and with bits behind the last element. */
static void check_dtype(DLDataType dtype, bool is_padded, uint64_t *seed) {
    static uint8_t memory[4096];
    struct lend_error error;
    int64_t shape[] = {5, 3}, strides[] = {1, 6};
    for (size_t i = 0; i < sizeof memory; i++) memory[i] = (uint8_t)naive_random(seed);
    memset(memory + 32, 0, 8);
    memset(memory + 40, 0x80, 8); /* zeros and what is no -0 */
    DLManagedTensorVersioned managed = {
        .version = {1, 3},
        .flags = is_padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0,
        .dl_tensor =
            {.data = memory + 1, .device = {kDLCPU, 0}, .ndim = 2, .dtype = dtype, .shape = shape, .strides = strides},
    };
    struct lend_tensor *tensor;
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    bool is_signed = dtype.code != LEND_BOOL && dtype.code != LEND_FLOAT8_E8M0FNU;
    check_copy(tensor, 0);
    if (is_signed) check_copy(tensor, LEND_ATTR_NEG);
    if (dtype.code == LEND_COMPLEX) {
        check_copy(tensor, LEND_ATTR_CONJ);
        check_copy(tensor, LEND_ATTR_CONJ | LEND_ATTR_NEG);
    }
    lend_tensor_unref(tensor);
}

LEND_TEST(resolve_every_dtype) {
    DLDataType dtypes[NAIVE_N_DTYPES];
    uint64_t seed = 5;
    int n = naive_dtypes(dtypes);
    for (int i = 0; i < n; i++) {
        for (uint16_t lanes = 1; lanes <= 3; lanes++) {
            dtypes[i].lanes = lanes;
            for (int is_padded = 0; is_padded <= (dtypes[i].bits < 8); is_padded++)
                check_dtype(dtypes[i], is_padded, &seed);
        }
    }
}

/* Complex numbers by hand, so that nobody has to trust the formula above. */
LEND_TEST(resolve_conjugates) {
    static const struct {
        uint32_t marks;
        float values[4];
    } rows[] = {{0, {1, 2, -3, -4}},
                {LEND_ATTR_CONJ, {1, -2, -3, 4}},
                {LEND_ATTR_NEG, {-1, -2, 3, 4}},
                {LEND_ATTR_CONJ | LEND_ATTR_NEG, {-1, 2, 3, -4}}};
    struct lend_tensor *tensor = tensor_of((DLDataType){LEND_COMPLEX, 64, 1}, SHAPE(2));
    memcpy(lend_tensor_data(tensor), rows[0].values, sizeof rows[0].values);
    for (int i = 0; i < 4; i++) {
        struct lend_tensor *copy = copy_marked(tensor, rows[i].marks);
        CHECK_MEM(lend_tensor_data(copy), rows[i].values, sizeof rows[i].values);
        lend_tensor_unref(copy);
    }
    lend_tensor_unref(tensor);
}

/* --- lend_tensor_resolve --------------------------------------------------------------------------------------------- */

LEND_TEST(resolve_gives_what_needs_nothing_itself) {
    struct lend_error error;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_CSR, dtype_int64);
    struct lend_tensor *tensor = sample_tensor(&s), *meta, *resolved;
    CHECK_OK(lend_tensor_new_meta(dtype_float32, SHAPE(3), &meta, &error), &error);
    struct lend_tensor *const given[] = {s.parts[2], tensor, meta};
    for (int i = 0; i < 3; i++) {
        uint32_t n_refs = given[i]->n_refs;
        CHECK_OK(lend_tensor_resolve(given[i], NULL, &resolved, &error), &error);
        CHECK_PTR(resolved, given[i]);
        CHECK_UINT(given[i]->n_refs, n_refs + 1);
        lend_tensor_unref(resolved);
    }
    for (int i = 0; i < 3; i++) CHECK_UINT(s.parts[i]->n_refs, 2);
    lend_tensor_unref(meta);
    lend_tensor_unref(tensor);
    sample_end(&s);
}

LEND_TEST(resolve_keeps_the_other_attributes) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs,
                                            .flags = LEND_ATTR_NEG | LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_PARAMETER |
                                                     LEND_ATTR_HOOKS,
                                            .user_tag = 9,
                                            .user = "four",
                                            .user_bytes = 4};
    struct lend_tensor *plain = tensor_of(dtype_float32, SHAPE(4)), *view, *tensor, *resolved;
    CHECK_OK(lend_tensor_slice(plain, 0, 3, INT64_MIN, -1, &view, &error), &error);
    CHECK_OK(lend_tensor_with_attrs(view, &attrs, &tensor, &error), &error);
    CHECK_OK(lend_tensor_resolve(tensor, pool, &resolved, &error), &error);
    struct lend_tensor_attrs got = {.size = sizeof got};
    CHECK_CODE(lend_tensor_attrs(resolved, &got), 0);
    CHECK_UINT(got.flags, attrs.flags & ~(uint32_t)LEND_ATTR_NEG);
    CHECK_UINT(got.user_tag, 9);
    CHECK_UINT(got.user_bytes, 4);
    CHECK_MEM(got.user, "four", 4);
    CHECK_INT(naive_info(resolved).is_private, 0);
    CHECK_INT(naive_info(resolved).is_contiguous, 1);
    const float *was = lend_tensor_data(plain), *is = lend_tensor_data(resolved);
    for (int i = 0; i < 4; i++) CHECK_MEM(&is[i], &(float){-was[3 - i]}, sizeof(float));
    lend_tensor_unref(resolved);
    lend_tensor_unref(tensor);
    lend_tensor_unref(view);
    lend_tensor_unref(plain);
    pool_end(pool);
}

LEND_TEST(resolve_gives_a_zero_tensor_memory) {
    struct lend_error error;
    struct lend_tensor *zero, *marked, *resolved;
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = LEND_ATTR_REQUIRES_GRAD};
    CHECK_OK(lend_tensor_new_zero(dtype_float32, SHAPE(2, 3), &zero, &error), &error);
    CHECK_OK(lend_tensor_with_attrs(zero, &attrs, &marked, &error), &error);
    CHECK_OK(lend_tensor_resolve(marked, NULL, &resolved, &error), &error);
    CHECK_INT(naive_info(resolved).is_zero, 0);
    CHECK_UINT(naive_info(resolved).attrs, LEND_ATTR_REQUIRES_GRAD);
    CHECK_MEM(lend_tensor_data(resolved), (float[6]){0}, 6 * sizeof(float));
    lend_tensor_unref(resolved);
    lend_tensor_unref(marked);
    lend_tensor_unref(zero);
}

/* A wrapper of a COO tensor whose values are negated: both are made anew, the indices are not. */
LEND_TEST(resolve_goes_into_components) {
    struct lend_error error;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    const struct lend_tensor_attrs neg = {.size = sizeof neg, .flags = LEND_ATTR_NEG}, own = {.size = sizeof own,
                                                                                              .flags = LEND_ATTR_BUFFER,
                                                                                              .user_tag = 1,
                                                                                              .user = "x",
                                                                                              .user_bytes = 1};
    struct lend_tensor *values, *marked, *resolved;
    CHECK_OK(lend_tensor_with_attrs(s.parts[1], &neg, &values, &error), &error);
    struct lend_tensor *expected = copy_marked(s.parts[1], LEND_ATTR_NEG);
    sample_replace(&s, 1, values);
    struct lend_tensor *coo = sample_tensor(&s);
    CHECK_OK(lend_tensor_with_attrs(coo, &own, &marked, &error), &error);
    struct lend_tensor *parts[] = {marked, s.parts[0]}, *wrapper;
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = LEND_LAYOUT_WRAPPER,
                                           .n_components = 2,
                                           .components = parts,
                                           .dtype = dtype_uint8};
    CHECK_OK(lend_tensor_new_compound(&compound, &wrapper, &error), &error);
    wrapper->is_read_only = true;
    CHECK_OK(lend_tensor_resolve(wrapper, NULL, &resolved, &error), &error);
    struct lend_compound outer = {.size = sizeof outer}, inner = {.size = sizeof inner};
    CHECK_CODE(lend_tensor_components(resolved, &outer), 0);
    CHECK_UINT(outer.layout, LEND_LAYOUT_WRAPPER);
    CHECK_PTR(outer.components[1], s.parts[0]);
    CHECK_INT(naive_info(resolved).is_read_only, 1);
    CHECK_CODE(lend_tensor_components(outer.components[0], &inner), 0);
    CHECK_UINT(inner.is_coalesced, 1);
    CHECK_PTR(inner.components[0], s.parts[0]);
    CHECK_UINT(naive_info(inner.components[1]).attrs, 0);
    CHECK_MEM(lend_tensor_data(inner.components[1]), lend_tensor_data(expected), 24);
    struct lend_tensor_attrs got = {.size = sizeof got};
    CHECK_CODE(lend_tensor_attrs(outer.components[0], &got), 0);
    CHECK_UINT(got.flags, LEND_ATTR_BUFFER);
    CHECK_MEM(got.user, "x", 1);
    lend_tensor_unref(resolved);
    lend_tensor_unref(wrapper);
    lend_tensor_unref(marked);
    lend_tensor_unref(coo);
    lend_tensor_unref(expected);
    sample_end(&s);
}

LEND_TEST(resolve_refuses) {
    struct lend_error error;
    struct lend_tensor *meta, *marked, *none = NULL;
    const struct lend_tensor_attrs neg = {.size = sizeof neg, .flags = LEND_ATTR_NEG};
    CHECK_OK(lend_tensor_new_meta(dtype_float32, SHAPE(3), &meta, &error), &error);
    CHECK_OK(lend_tensor_with_attrs(meta, &neg, &marked, &error), &error);
    CHECK_CODE(lend_tensor_resolve(marked, NULL, &none, &error), -EOPNOTSUPP);
    CHECK_STR(error.operation, "lend_tensor_resolve");
    CHECK_CONTAINS(error.text, "a meta tensor has no elements to copy");
    CHECK_CODE(lend_tensor_resolve(NULL, NULL, &none, &error), -EINVAL);
    CHECK_CODE(lend_tensor_resolve(meta, NULL, NULL, &error), -EINVAL);
    static const volatile uint32_t wiped = 0;
    const volatile uint32_t *word = lend__process_word;
    lend__process_word = &wiped;
    CHECK_CODE(lend_tensor_resolve(meta, NULL, &none, &error), -ECHILD);
    lend__process_word = word;
    struct lend__storage *storage = lend__exchange_acquire(&meta->storage, NULL);
    CHECK_CODE(lend_tensor_resolve(meta, NULL, &none, &error), -ESTALE);
    CHECK_PTR(none, NULL);
    meta->storage = storage;
    lend_tensor_unref(marked);
    lend_tensor_unref(meta);
}

/* The nth allocation fails: no tensor, and no component has one reference more. */
LEND_TEST(resolve_when_memory_is_short) {
    struct lend_pool *pool = pool_without_context();
    struct sample s;
    struct lend_error error;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    s.parts[1]->attrs = LEND_ATTR_NEG;
    struct lend_tensor *tensor = sample_tensor(&s), *warm;
    CHECK_CODE(lend__tensor_set_attrs(tensor, LEND_ATTR_BUFFER, 3, "user", 4), 0);
    CHECK_OK(lend_tensor_resolve(tensor, pool, &warm, &error), &error); /* the pool grows */
    lend_tensor_unref(warm);
    for (unsigned n = 0;; n++) {
        struct lend_tensor *resolved = NULL;
        fault_arm(n);
        int r = lend_tensor_resolve(tensor, pool, &resolved, &error);
        const char *failed = fault_disarm();
        if (!failed) {
            CHECK_OK(r, &error);
            CHECK(n >= 5); /* storage and tensor of the values, the whole and what it is made of, the user's bytes */
            lend_tensor_unref(resolved);
            break;
        }
        CHECK_INT(r, -ENOMEM);
        CHECK_INT(error.code, -ENOMEM);
        CHECK_PTR(resolved, NULL);
        CHECK_UINT(s.parts[0]->n_refs, 2);
        CHECK_UINT(s.parts[1]->n_refs, 2);
        CHECK_UINT(pool_blocks_in_use(pool), 0);
    }
    lend_tensor_unref(tensor);
    sample_end(&s);
    pool_end(pool);
}
