/* SPDX-License-Identifier: MIT */
/* Tensors without memory: meta ones, which have only a shape, and zero ones, whose every element is 0. */
#include "compounds.h"
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "base/process.h"

#include <errno.h>

typedef int new_fn(DLDataType dtype, int32_t ndim, const int64_t *shape, struct lend_tensor **ret_tensor,
                   struct lend_error *error);
static const struct {
    new_fn *make;
    const char *name;
    bool is_meta;
} kinds[] = {{lend_tensor_new_meta, "lend_tensor_new_meta", true},
             {lend_tensor_new_zero, "lend_tensor_new_zero", false}};

static struct lend_tensor *make(int kind, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_error error;
    struct lend_tensor *tensor;
    CHECK_OK(kinds[kind].make(dtype, ndim, shape, &tensor, &error), &error);
    return tensor;
}

LEND_TEST(empty_says_what_it_is) {
    int64_t strides[] = {3, 1};
    for (int kind = 0; kind < 2; kind++) {
        struct lend_tensor *tensor = make(kind, dtype_float32, SHAPE(2, 3));
        struct lend_tensor_info info = naive_info(tensor);
        CHECK_INT(info.device.device_type, kinds[kind].is_meta ? LEND_DEVICE_META : (int)kDLCPU);
        CHECK_INT(info.device.device_id, 0);
        CHECK_INT(info.is_zero, !kinds[kind].is_meta);
        CHECK_INT(info.is_read_only, !kinds[kind].is_meta);
        CHECK_INT(info.is_imported + info.is_shared + info.is_padded + info.is_private + info.is_file, 0);
        CHECK_INT(info.is_contiguous, 1);
        CHECK_UINT(info.layout, LEND_LAYOUT_STRIDED);
        CHECK_INT(info.ndim, 2);
        CHECK_MEM(info.strides, strides, sizeof strides);
        CHECK_INT(info.numel, 6);
        CHECK_UINT(info.nbytes, 24);
        CHECK_PTR(info.data, NULL);
        CHECK_PTR(info.storage_data, NULL);
        CHECK_PTR(lend_tensor_data(tensor), NULL);
        CHECK_UINT(info.storage_bytes, 24);
        CHECK(info.storage_id != 0);
        CHECK_UINT(info.allocation_inode + info.allocation_bytes + info.allocation_offset, 0);
        lend_tensor_unref(tensor);
    }
}

LEND_TEST(empty_of_every_dtype) {
    DLDataType dtypes[NAIVE_N_DTYPES];
    int n = naive_dtypes(dtypes);
    for (int i = 0; i < 2 * n; i++) {
        dtypes[i / 2].lanes = 3;
        struct lend_tensor *tensor = make(i % 2, dtypes[i / 2], SHAPE(7));
        CHECK_UINT(naive_info(tensor).storage_bytes, (7u * 3u * dtypes[i / 2].bits + 7) / 8);
        lend_tensor_unref(tensor);
        tensor = make(i % 2, dtypes[i / 2], SHAPE(7, 0));
        CHECK_UINT(naive_info(tensor).storage_bytes, 0);
        lend_tensor_unref(tensor);
    }
    struct lend_tensor *huge = make(0, dtype_uint8, SHAPE((int64_t)1 << 60)); /* it takes nothing */
    CHECK_UINT(naive_info(huge).nbytes, (uint64_t)1 << 60);
    lend_tensor_unref(huge);
}

/* Views alias: the same storage, other places in it. */
LEND_TEST(empty_views_share_the_storage) {
    struct lend_error error;
    for (int kind = 0; kind < 2; kind++) {
        struct lend_tensor *tensor = make(kind, (DLDataType){LEND_INT, 4, 1}, SHAPE(3, 5)), *row, *bytes, *bit;
        CHECK_OK(lend_tensor_select(tensor, 0, 1, &row, &error), &error);
        CHECK_OK(lend_tensor_as_bytes(row, &bytes, &error), &error);
        CHECK_OK(lend_tensor_slice(row, 0, 2, 3, 1, &bit, &error), &error);
        struct lend_tensor_info info = naive_info(row);
        CHECK_UINT(info.storage_id, naive_info(tensor).storage_id);
        CHECK_UINT(info.storage_offset_bits, 20);
        CHECK_PTR(info.data, NULL);
        CHECK_UINT(info.data_bit, 0);
        CHECK_INT(info.is_zero, kind);
        CHECK_UINT(naive_info(bytes).storage_id, info.storage_id);
        CHECK_INT(naive_info(bytes).numel, 8);
        CHECK_PTR(lend_tensor_data(bit), NULL);
        struct lend_tensor *other = make(kind, (DLDataType){LEND_INT, 4, 1}, SHAPE(3, 5));
        CHECK(naive_info(other).storage_id != info.storage_id);
        int64_t outside[] = {16}, one[] = {1};
        CHECK_CODE(lend_tensor_as_strided(other, 1, outside, one, 1, &other, &error), -ERANGE);
        lend_tensor_unref(other);
        lend_tensor_unref(tensor);
        lend_tensor_unref(bit);
        lend_tensor_unref(row);
        CHECK_INT(naive_info(bytes).numel, 8);
        lend_tensor_unref(bytes);
    }
}

LEND_TEST(empty_zero_is_copied_to_zeros) {
    DLDataType dtypes[NAIVE_N_DTYPES];
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *dirty;
    CHECK_OK(lend_tensor_new(pool, dtype_uint8, SHAPE(64), &dirty, &error), &error);
    memset(lend_tensor_data(dirty), 0xff, 64); /* what the next tensor of the pool finds */
    lend_tensor_unref(dirty);
    int n = naive_dtypes(dtypes);
    for (int i = 0; i < 2 * n; i++) {
        struct lend_tensor *tensor = make(1, dtypes[i / 2], SHAPE(3)), *view, *copy;
        CHECK_OK(lend_tensor_slice(tensor, 0, 2, INT64_MIN, -1, &view, &error), &error);
        CHECK_OK(lend_tensor_copy(view, i % 2 ? pool : NULL, &copy, &error), &error);
        struct lend_tensor_info info = naive_info(copy);
        CHECK_INT(info.is_zero + info.is_read_only, 0);
        CHECK_INT(info.is_private, i % 2 == 0);
        CHECK_INT(info.numel, 3);
        CHECK_MEM(info.data, (uint8_t[48]){0}, info.storage_bytes);
        lend_tensor_unref(copy);
        lend_tensor_unref(view);
        lend_tensor_unref(tensor);
    }
    struct lend_tensor *nothing = make(1, dtype_float32, SHAPE(0, 4)), *copy;
    CHECK_OK(lend_tensor_copy(nothing, pool, &copy, &error), &error);
    CHECK_UINT(naive_info(copy).storage_bytes, 0);
    lend_tensor_unref(copy);
    lend_tensor_unref(nothing);
    pool_end(pool);
}

/* The raw copy has the marks of values, and what they make of 0 is 0: of a float it is -0. */
LEND_TEST(empty_zero_negated) {
    struct lend_error error;
    struct lend_tensor *zero = make(1, dtype_float32, SHAPE(2)), *marked, *raw, *copy;
    const struct lend_tensor_attrs neg = {.size = sizeof neg, .flags = LEND_ATTR_NEG};
    CHECK_OK(lend_tensor_with_attrs(zero, &neg, &marked, &error), &error);
    CHECK_INT(naive_info(marked).is_zero, 1);
    CHECK_OK(lend__tensor_copy_raw(marked, NULL, &raw, "test", &error), &error);
    CHECK_UINT(naive_info(raw).attrs, LEND_ATTR_NEG);
    CHECK_MEM(lend_tensor_data(raw), (uint8_t[8]){0}, 8);
    CHECK_OK(lend_tensor_copy(marked, NULL, &copy, &error), &error);
    for (int i = 0; i < 2; i++) CHECK(((float *)lend_tensor_data(copy))[i] == 0);
    lend_tensor_unref(copy);
    lend_tensor_unref(raw);
    lend_tensor_unref(marked);
    lend_tensor_unref(zero);
}

LEND_TEST(empty_refuses_what_needs_memory) {
    static const char *const sentences[2][3] = {
        {"a meta tensor has no elements to copy: make a tensor of its shape with lend_tensor_new",
         "a meta tensor has no memory to give out",
         "the storage of 24 bytes has no memory (meta) and cannot be resized to 25; make a new tensor and copy"},
        {NULL, "a zero tensor has no memory to give out: lend_tensor_resolve gives it some",
         "the storage of 24 bytes has no memory (zero tensor) and cannot be resized to 25"}};
    struct lend_error error;
    struct lend_tensor *copy = NULL;
    DLManagedTensorVersioned *managed = NULL;
    DLManagedTensor *legacy = NULL;
    for (int kind = 0; kind < 2; kind++) {
        for (int64_t columns = 3; columns >= 0; columns -= 3) {
            struct lend_tensor *tensor = make(kind, dtype_float32, SHAPE(2, columns));
            if (kind == 0) {
                CHECK_CODE(lend_tensor_copy(tensor, NULL, &copy, &error), -EOPNOTSUPP);
                CHECK_STR(error.text, sentences[kind][0]);
                CHECK_STR(error.operation, "lend_tensor_copy");
            }
            CHECK_CODE(lend_tensor_to_dlpack(tensor, &managed, &error), -EOPNOTSUPP);
            CHECK_CONTAINS(error.text, sentences[kind][1]);
            CHECK_CODE(lend_tensor_to_dlpack_legacy(tensor, &legacy, &error), -EOPNOTSUPP);
            CHECK_CONTAINS(error.text, sentences[kind][1]);
            if (columns) {
                CHECK_CODE(lend_tensor_resize(tensor, 25, &error), -EOPNOTSUPP);
                CHECK_CONTAINS(error.text, sentences[kind][2]);
                CHECK_CODE(lend_tensor_resize(tensor, 24, &error), 0);
            }
            lend_tensor_unref(tensor);
        }
    }
    CHECK_PTR(copy, NULL);
    CHECK_PTR(managed, NULL);
    CHECK_PTR(legacy, NULL);
}

LEND_TEST(empty_new_refuses) {
    static const volatile uint32_t wiped = 0;
    const volatile uint32_t *word = lend__process_word;
    struct lend_error error;
    struct lend_tensor *none = NULL;
    int64_t huge[] = {INT64_MAX / 4, 8}, negative[] = {-1}, one[] = {1};
    for (int kind = 0; kind < 2; kind++) {
        new_fn *new = kinds[kind].make;
        CHECK_CODE(new (dtype_float32, 1, NULL, &none, &error), -EINVAL);
        CHECK_STR(error.operation, kinds[kind].name);
        CHECK_CODE(new (dtype_float32, 0, NULL, NULL, &error), -EINVAL);
        CHECK_CODE(new (dtype_float32, 65, huge, &none, &error), -EINVAL);
        CHECK_CODE(new (dtype_float32, -1, huge, &none, &error), -EINVAL);
        CHECK_CODE(new (dtype_float32, 1, negative, &none, &error), -EINVAL);
        CHECK_CODE(new ((DLDataType){3, 64, 1}, 0, NULL, &none, &error), -EINVAL);
        CHECK_CODE(new (dtype_float32, 2, huge, &none, &error), -EOVERFLOW);
        CHECK_STR(error.operation, kinds[kind].name);
        lend__process_word = &wiped;
        CHECK_CODE(new (dtype_float32, 1, one, &none, &error), -ECHILD);
        lend__process_word = word;
    }
    CHECK_PTR(none, NULL);
}

static unsigned n_released;
static void count_release(void *ctx) {
    n_released += ctx == &n_released;
}

/* Whoever keeps a table of meta storages is told when one goes. */
LEND_TEST(empty_storage_tells_its_end) {
    struct lend__storage *storage;
    CHECK_CODE(lend__storage_new_empty(LEND__STORAGE_META, 7, &storage, NULL), 0);
    CHECK_INT(storage->kind, LEND__STORAGE_META);
    CHECK_UINT(storage->bytes, 7);
    storage->private_release = count_release;
    storage->private_ctx = &n_released;
    lend__storage_unref(lend__storage_ref(storage));
    CHECK_UINT(n_released, 0);
    lend__storage_unref(storage);
    CHECK_UINT(n_released, 1);
}

LEND_TEST(empty_when_memory_is_short) {
    for (int kind = 0; kind < 2; kind++) {
        for (unsigned n = 0;; n++) {
            struct lend_error error;
            struct lend_tensor *tensor = NULL;
            fault_arm(n);
            int r = kinds[kind].make(dtype_float32, SHAPE(2, 3), &tensor, &error);
            if (!fault_disarm()) {
                CHECK_OK(r, &error);
                CHECK_UINT(n, 2); /* storage and tensor */
                lend_tensor_unref(tensor);
                break;
            }
            CHECK_INT(r, -ENOMEM);
            CHECK_INT(error.code, -ENOMEM);
            CHECK_PTR(tensor, NULL);
        }
    }
}
