/* SPDX-License-Identifier: MIT */
/* Attributes: they arrive as given, on every layout; what does not go together is refused with its sentence. */
#include "compounds.h"
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "base/process.h"

#include <errno.h>
#include <stdlib.h>

static const DLDataType complex64 = {LEND_COMPLEX, 64, 1};

static struct lend_tensor_attrs attrs_of(const struct lend_tensor *tensor) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    CHECK_CODE(lend_tensor_attrs(tensor, &attrs), 0);
    return attrs;
}

/* The tensor again, with these marks and bytes. */
static struct lend_tensor *with(struct lend_tensor *tensor, uint32_t flags, uint32_t tag, const void *user,
                                size_t bytes) {
    struct lend_error error;
    struct lend_tensor *made;
    const struct lend_tensor_attrs attrs = {
        .size = sizeof attrs, .flags = flags, .user_tag = tag, .user = user, .user_bytes = bytes};
    CHECK_OK(lend_tensor_with_attrs(tensor, &attrs, &made, &error), &error);
    return made;
}

static void check_attrs(const struct lend_tensor *tensor, uint32_t flags, uint32_t tag, const void *user,
                        size_t bytes) {
    struct lend_tensor_attrs got = attrs_of(tensor);
    CHECK_UINT(got.size, sizeof got);
    CHECK_UINT(got.flags, flags);
    CHECK_UINT(naive_info(tensor).attrs, flags);
    CHECK_UINT(got.user_tag, tag);
    CHECK_UINT(got.user_bytes, bytes);
    if (!bytes) CHECK_PTR(got.user, NULL);
    if (bytes) CHECK_MEM(got.user, user, bytes);
}

LEND_TEST(attributes_arrive_as_given) {
    uint8_t user[LEND_USER_BYTES_MAX];
    for (size_t i = 0; i < sizeof user; i++) user[i] = (uint8_t)(i * 7);
    struct lend_tensor *tensor = tensor_of(complex64, SHAPE(2, 3));
    check_attrs(tensor, 0, 0, NULL, 0);
    uint32_t all = LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF | LEND_ATTR_PARAMETER | LEND_ATTR_CONJ | LEND_ATTR_NEG |
                   LEND_ATTR_INFERENCE | LEND_ATTR_NAMED | LEND_ATTR_UNINITIALIZED | LEND_ATTR_HOOKS |
                   LEND_ATTR_HOOKS_MARKED;
    struct lend_tensor *marked = with(tensor, all, 77, user, sizeof user);
    check_attrs(marked, all, 77, user, sizeof user);
    struct lend_tensor *buffer = with(marked, LEND_ATTR_BUFFER, 0, user, 1); /* exactly these, no others */
    check_attrs(buffer, LEND_ATTR_BUFFER, 0, user, 1);
    uint8_t first = user[0];
    user[0] = 99; /* the tensor has its own */
    check_attrs(buffer, LEND_ATTR_BUFFER, 0, &first, 1);
    struct lend_error error;
    struct lend_tensor *bare;
    CHECK_OK(lend_tensor_with_attrs(marked, NULL, &bare, &error), &error);
    check_attrs(bare, 0, 0, NULL, 0);
    check_attrs(tensor, 0, 0, NULL, 0);
    lend_tensor_unref(tensor);
    lend_tensor_unref(bare);
    lend_tensor_unref(buffer);
    lend_tensor_unref(marked);
}

/* Everything but the attributes stays, also what a geometry alone does not say. */
LEND_TEST(attributes_keep_the_tensor) {
    static uint8_t memory[64];
    struct lend_error error;
    int64_t shape[] = {2, 3, 1}, strides[] = {-7, 2, INT64_MAX};
    DLManagedTensorVersioned managed = {
        .version = {1, 3},
        .flags = DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
        .dl_tensor = {.data = memory + 20,
                      .device = {kDLCPU, 0},
                      .ndim = 3,
                      .dtype = {LEND_INT, 4, 1},
                      .shape = shape,
                      .strides = strides},
    };
    struct lend_tensor *tensor;
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    struct lend_tensor *made = with(tensor, LEND_ATTR_NEG, 0, NULL, 0);
    struct lend_tensor_info was = naive_info(tensor), is = naive_info(made);
    CHECK_UINT(is.storage_id, was.storage_id);
    CHECK_UINT(is.storage_offset_bits, was.storage_offset_bits);
    CHECK_PTR(is.data, was.data);
    CHECK_MEM(is.shape, shape, sizeof shape);
    CHECK_MEM(is.strides, strides, sizeof strides);
    CHECK_INT(is.numel, 6);
    CHECK_INT(is.is_read_only + is.is_padded + is.is_private, 3);
    CHECK_INT(is.is_contiguous, 0);
    CHECK_UINT(made->item_bits, tensor->item_bits);
    CHECK_UINT(tensor->storage->n_refs, 2);
    lend_tensor_unref(made);
    CHECK_UINT(tensor->storage->n_refs, 1);
    lend_tensor_unref(tensor);
}

LEND_TEST(attributes_of_every_layout) {
    for (uint32_t layout = LEND_LAYOUT_COO; layout <= LEND_LAYOUT_QUANTIZED_PER_CHANNEL; layout++) {
        struct sample s;
        sample_make(&s, layout, dtype_int32);
        struct lend_tensor *tensor = sample_tensor(&s);
        tensor->is_read_only = true;
        bool is_quantized = layout >= LEND_LAYOUT_QUANTIZED;
        uint32_t flags = LEND_ATTR_BUFFER | (is_quantized ? 0 : LEND_ATTR_REQUIRES_GRAD);
        struct lend_tensor *made = with(tensor, flags, 5, "meta", 4);
        check_attrs(made, flags, 5, "meta", 4);
        check_attrs(tensor, 0, 0, NULL, 0);
        CHECK_INT(naive_info(made).is_read_only, 1);
        struct lend_compound was = {.size = sizeof was}, is = {.size = sizeof is};
        CHECK_CODE(lend_tensor_components(tensor, &was), 0);
        CHECK_CODE(lend_tensor_components(made, &is), 0);
        CHECK_UINT(is.n_components, was.n_components);
        for (uint32_t i = 0; i < is.n_components; i++) {
            CHECK_PTR(is.components[i], s.parts[i]);
            CHECK_UINT(s.parts[i]->n_refs, 3);
        }
        CHECK_UINT(is.is_coalesced, was.is_coalesced);
        CHECK_INT(is.dim, was.dim);
        CHECK(is.scale == was.scale);
        CHECK_INT(is.zero_point, was.zero_point);
        CHECK_MEM(is.shape, was.shape, (size_t)was.ndim * sizeof(int64_t));
        lend_tensor_unref(tensor);
        lend_tensor_unref(made);
        sample_end(&s);
    }
}

/* Views are other values of the same memory: what says how to read it goes with them, the rest does not. */
LEND_TEST(attributes_of_views) {
    struct lend_error error;
    int64_t shape[] = {2, 3}, flat = 6, one = 1;
    struct lend_tensor *plain = tensor_of(complex64, 2, shape), *views[7];
    uint32_t values = LEND_ATTR_CONJ | LEND_ATTR_NEG;
    struct lend_tensor *tensor = with(plain, values | LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD, 3, "x", 1);
    CHECK_OK(lend_tensor_select(tensor, 0, 1, &views[0], &error), &error);
    CHECK_OK(lend_tensor_slice(tensor, 1, 1, 3, 1, &views[1], &error), &error);
    CHECK_OK(lend_tensor_transpose(tensor, 0, 1, &views[2], &error), &error);
    CHECK_OK(lend_tensor_expand(tensor, 2, shape, &views[3], &error), &error);
    CHECK_OK(lend_tensor_reshape(tensor, 1, &flat, &views[4], &error), &error);
    CHECK_OK(lend_tensor_as_strided(tensor, 1, &flat, &one, 0, &views[5], &error), &error);
    CHECK_OK(lend_tensor_as_bytes(tensor, &views[6], &error), &error);
    for (int i = 0; i < 7; i++) {
        check_attrs(views[i], i < 6 ? values : 0, 0, NULL, 0);
        lend_tensor_unref(views[i]);
    }
    lend_tensor_unref(tensor);
    lend_tensor_unref(plain);
}

/* What lend_reduce copies: bytes and marks of values; lend_tensor_copy gives neither marks nor other bytes. */
LEND_TEST(attributes_of_copies) {
    struct lend_error error;
    struct lend_tensor *plain = tensor_of(complex64, SHAPE(3)), *raw, *copy;
    struct lend_tensor *tensor = with(plain, LEND_ATTR_CONJ | LEND_ATTR_PARAMETER, 3, "x", 1);
    CHECK_OK(lend__tensor_copy_raw(tensor, NULL, &raw, "test", &error), &error);
    check_attrs(raw, LEND_ATTR_CONJ, 0, NULL, 0);
    CHECK_MEM(lend_tensor_data(raw), lend_tensor_data(tensor), 24);
    CHECK_OK(lend_tensor_copy(raw, NULL, &copy, &error), &error);
    check_attrs(copy, 0, 0, NULL, 0);
    CHECK_UINT(((uint8_t *)lend_tensor_data(copy))[7], ((uint8_t *)lend_tensor_data(tensor))[7] ^ 0x80u);
    CHECK_CODE(lend__tensor_copy_raw(tensor, NULL, NULL, "test", &error), -EINVAL);
    CHECK_STR(error.operation, "test");
    lend_tensor_unref(copy);
    lend_tensor_unref(raw);
    lend_tensor_unref(tensor);
    lend_tensor_unref(plain);
}

/* Whoever makes a tensor may give it attributes more than once: the last ones count. */
LEND_TEST(attributes_are_replaced) {
    struct lend_tensor *tensor = tensor_of(complex64, SHAPE(3));
    CHECK_CODE(lend__tensor_set_attrs(tensor, LEND_ATTR_CONJ | LEND_ATTR_BUFFER, 5, "long text", 9), 0);
    check_attrs(tensor, LEND_ATTR_CONJ | LEND_ATTR_BUFFER, 5, "long text", 9);
    CHECK_CODE(lend__tensor_set_attrs(tensor, LEND_ATTR_NEG, 6, "x", 1), 0);
    check_attrs(tensor, LEND_ATTR_NEG, 6, "x", 1);
    CHECK_CODE(lend__tensor_set_attrs(tensor, 0, 0, NULL, 0), 0);
    check_attrs(tensor, 0, 0, NULL, 0);
    lend_tensor_unref(tensor);
}

/* --- refusals -------------------------------------------------------------------------------------------------------- */

static void check_refused(struct lend_tensor *tensor, struct lend_tensor_attrs attrs, const char *text) {
    struct lend_error error;
    struct lend_tensor *none = NULL;
    CHECK_CODE(lend_tensor_with_attrs(tensor, &attrs, &none, &error), -EINVAL);
    CHECK_INT(error.code, -EINVAL);
    CHECK_STR(error.operation, "lend_tensor_with_attrs");
    CHECK_CONTAINS(error.text, text);
    CHECK_PTR(none, NULL);
    CHECK_UINT(tensor->n_refs, 1);
    CHECK_CODE(lend_tensor_with_attrs(tensor, &attrs, &none, NULL), -EINVAL);
}

#define REFUSED(tensor, text, ...) \
    check_refused((tensor), (struct lend_tensor_attrs){.size = sizeof(struct lend_tensor_attrs), __VA_ARGS__}, (text))

LEND_TEST(attributes_refuse_what_does_not_go_together) {
    struct lend_tensor *ints = tensor_of(dtype_int64, SHAPE(2)), *floats = tensor_of(dtype_float32, SHAPE(2));
    uint8_t user[LEND_USER_BYTES_MAX + 1] = {0};
    REFUSED(floats, "flags 0x80 are no attributes", .flags = 1u << 7 | LEND_ATTR_REQUIRES_GRAD);
    REFUSED(floats, "flags 0x80000000", .flags = 1u << 31);
    REFUSED(floats, "LEND_ATTR_NON_LEAF goes only with LEND_ATTR_REQUIRES_GRAD", .flags = LEND_ATTR_NON_LEAF);
    REFUSED(floats, "LEND_ATTR_PARAMETER and LEND_ATTR_BUFFER exclude",
            .flags = LEND_ATTR_PARAMETER | LEND_ATTR_BUFFER);
    REFUSED(ints, "LEND_ATTR_REQUIRES_GRAD needs a float or complex dtype, not int64",
            .flags = LEND_ATTR_REQUIRES_GRAD);
    REFUSED(floats, "LEND_ATTR_CONJ needs a complex dtype, not float32", .flags = LEND_ATTR_CONJ);
    check_refused(floats, (struct lend_tensor_attrs){.size = 1},
                  "attrs.size is 1; set it to sizeof(struct lend_tensor_attrs)");
    REFUSED(floats, "at most LEND_USER_BYTES_MAX = 512 bytes, not 513", .user = user, .user_bytes = 513);
    REFUSED(floats, "user is NULL and user_bytes is 3", .user_bytes = 3);
    REFUSED(floats, "user_tag is 4 without user bytes", .user_tag = 4, .user = user);
    struct lend_error error;
    struct lend_tensor *none = NULL;
    CHECK_CODE(lend_tensor_with_attrs(NULL, NULL, &none, &error), -EINVAL);
    CHECK_CODE(lend_tensor_with_attrs(floats, NULL, NULL, &error), -EINVAL);
    lend_tensor_unref(ints);
    lend_tensor_unref(floats);
}

/* Which marks go with which dtype, for all of them. */
LEND_TEST(attributes_by_dtype) {
    DLDataType dtypes[NAIVE_N_DTYPES];
    int n = naive_dtypes(dtypes);
    for (int i = 0; i < n; i++) {
        DLDataType d = dtypes[i];
        bool is_integer = d.code == LEND_INT || d.code == LEND_UINT || d.code == LEND_BOOL;
        bool is_complex = d.code == LEND_COMPLEX, is_signed = d.code != LEND_BOOL && d.code != LEND_FLOAT8_E8M0FNU;
        CHECK_INT(lend__attrs_check(LEND_ATTR_REQUIRES_GRAD, d, 0, "test", NULL), is_integer ? -EINVAL : 0);
        CHECK_INT(lend__attrs_check(LEND_ATTR_CONJ, d, 0, "test", NULL), is_complex ? 0 : -EINVAL);
        CHECK_INT(lend__attrs_check(LEND_ATTR_NEG, d, 0, "test", NULL), is_signed ? 0 : -EINVAL);
        CHECK_INT(lend__attrs_check(LEND_ATTR_PARAMETER | LEND_ATTR_INFERENCE, d, 0, "test", NULL), 0);
    }
    struct lend_error error;
    CHECK_CODE(lend__attrs_check(LEND_ATTR_NEG, (DLDataType){LEND_BOOL, 8, 1}, 0, "test", &error), -EINVAL);
    CHECK_STR(error.text, "LEND_ATTR_NEG needs a dtype with negatives, not bool");
    CHECK_STR(error.operation, "test");
}

LEND_TEST(attributes_by_layout) {
    struct lend_error error;
    for (uint32_t layout = LEND_LAYOUT_COO; layout <= LEND_LAYOUT_WRAPPER; layout++) {
        bool is_quantized = layout == LEND_LAYOUT_QUANTIZED || layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL;
        CHECK_CODE(lend__attrs_check(LEND_ATTR_CONJ, complex64, layout, "test", &error), -EINVAL);
        CHECK_CODE(lend__attrs_check(LEND_ATTR_NEG, complex64, layout, "test", &error), -EINVAL);
        CHECK_CONTAINS(error.text, "set them on the components");
        CHECK_CONTAINS(error.text, lend__layout_name(layout));
        CHECK_INT(lend__attrs_check(LEND_ATTR_REQUIRES_GRAD, dtype_float32, layout, "test", &error),
                  is_quantized ? -EINVAL : 0);
        if (is_quantized) CHECK_CONTAINS(error.text, "quantized");
        CHECK_INT(lend__attrs_check(LEND_ATTR_REQUIRES_GRAD, dtype_int64, layout, "test", &error),
                  layout == LEND_LAYOUT_WRAPPER ? 0 : -EINVAL);
    }
}

/* --- calling --------------------------------------------------------------------------------------------------------- */

LEND_TEST(attributes_writes_only_what_fits) {
    struct lend_tensor *plain = tensor_of(dtype_float32, SHAPE(2)), *tensor = with(plain, LEND_ATTR_BUFFER, 8, "y", 1);
    struct lend_tensor_attrs got;
    memset(&got, 0xee, sizeof got);
    got.size = offsetof(struct lend_tensor_attrs, user);
    CHECK_CODE(lend_tensor_attrs(tensor, &got), 0);
    CHECK_UINT(got.flags, LEND_ATTR_BUFFER);
    CHECK_UINT(got.user_tag, 8);
    CHECK_UINT(got.user_bytes, 0xeeeeeeeeeeeeeeee);
    struct {
        struct lend_tensor_attrs attrs;
        uint64_t behind;
    } newer = {.attrs.size = sizeof newer, .behind = 77};
    CHECK_CODE(lend_tensor_attrs(tensor, &newer.attrs), 0);
    CHECK_UINT(newer.behind, 77);
    got.size = 7;
    CHECK_CODE(lend_tensor_attrs(tensor, &got), -EINVAL);
    CHECK_CODE(lend_tensor_attrs(tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_attrs(NULL, &newer.attrs), -EINVAL);
    lend_tensor_unref(tensor);
    lend_tensor_unref(plain);
}

/* A dead tensor still says what it carried; a new one over its storage cannot be made. */
LEND_TEST(attributes_of_dead_tensors) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *plain, *none = NULL;
    CHECK_OK(lend_tensor_new(pool, dtype_float32, SHAPE(2), &plain, &error), &error);
    struct lend_tensor *tensor = with(plain, LEND_ATTR_BUFFER, 8, "y", 1);
    lend_tensor_unref(plain);
    tensor->storage->kind = LEND__STORAGE_DROPPED;
    CHECK_UINT(attrs_of(tensor).user_tag, 8);
    CHECK_CODE(lend_tensor_with_attrs(tensor, NULL, &none, &error), -ECHILD);
    CHECK_CONTAINS(error.text, "LEND_FORK_DROP");
    tensor->storage->kind = LEND__STORAGE_POOL;
    struct lend__storage *storage = lend__exchange_acquire(&tensor->storage, NULL);
    CHECK_UINT(attrs_of(tensor).flags, LEND_ATTR_BUFFER);
    CHECK_CODE(lend_tensor_with_attrs(tensor, NULL, &none, &error), -ESTALE);
    CHECK_CONTAINS(error.text, "moved away");
    lend__storage_unref(storage);
    static const volatile uint32_t wiped = 0;
    const volatile uint32_t *word = lend__process_word;
    struct lend_tensor_attrs got = {.size = sizeof got};
    lend__process_word = &wiped;
    CHECK_CODE(lend_tensor_attrs(tensor, &got), -ECHILD);
    CHECK_CODE(lend_tensor_with_attrs(tensor, NULL, &none, &error), -ECHILD);
    lend__process_word = word;
    CHECK_PTR(none, NULL);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

/* Tensor, what it is made of, and the user's bytes. */
LEND_TEST(attributes_when_memory_is_short) {
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    struct lend_tensor *compound = sample_tensor(&s);
    const struct lend_tensor_attrs attrs = {
        .size = sizeof attrs, .flags = LEND_ATTR_BUFFER, .user_tag = 1, .user = "user", .user_bytes = 4};
    for (int k = 0; k < 2; k++) {
        struct lend_tensor *tensor = k ? compound : s.parts[1];
        for (unsigned n = 0;; n++) {
            struct lend_error error;
            struct lend_tensor *made = NULL;
            fault_arm(n);
            int r = lend_tensor_with_attrs(tensor, &attrs, &made, &error);
            if (!fault_disarm()) {
                CHECK_OK(r, &error);
                CHECK_UINT(n, k ? 3 : 2);
                check_attrs(made, LEND_ATTR_BUFFER, 1, "user", 4);
                lend_tensor_unref(made);
                break;
            }
            CHECK_INT(r, -ENOMEM);
            CHECK_INT(error.code, -ENOMEM);
            CHECK_PTR(made, NULL);
            CHECK_UINT(s.parts[1]->storage->n_refs, 1);
            CHECK_UINT(s.parts[0]->n_refs, 2);
            CHECK_UINT(s.parts[1]->n_refs, 2);
        }
    }
    lend_tensor_unref(compound);
    sample_end(&s);
}
