/* SPDX-License-Identifier: MIT */
/* Tensors: birth, what they say about themselves, counting, and how they answer when they are dead. */
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "base/process.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static const DLDataType float32 = {LEND_FLOAT, 32, 1};
static const DLDevice cpu = {.device_type = kDLCPU};

LEND_TEST(tensor_says_what_it_is) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor;
    int64_t shape[] = {2, 3, 1}, strides[] = {3, 1, 1};
    CHECK_CODE(lend_tensor_new(pool, float32, 3, shape, &tensor, NULL), 0);
    struct lend_tensor_info info = naive_info(tensor);
    CHECK_UINT(info.size, sizeof info);
    CHECK_MEM(&info.dtype, &float32, sizeof float32);
    CHECK_INT(info.device.device_type, kDLCPU);
    CHECK_INT(info.device.device_id, 0);
    CHECK_INT(info.ndim, 3);
    CHECK_MEM(info.shape, shape, sizeof shape);
    CHECK_MEM(info.strides, strides, sizeof strides);
    CHECK_INT(info.is_contiguous, 1);
    CHECK_INT(info.is_read_only + info.is_imported + info.is_shared + info.is_padded + info.is_private, 0);
    CHECK_INT(info.is_zero + info.is_file, 0);
    CHECK_UINT(info.layout, LEND_LAYOUT_STRIDED);
    CHECK_UINT(info.attrs, 0);
    CHECK_PTR(tensor->extra, NULL); /* one malloc */
    CHECK_PTR(info.data, info.storage_data);
    CHECK_PTR(info.data, lend_tensor_data(tensor));
    CHECK_UINT((uintptr_t)info.data % 64, 0);
    CHECK_UINT(info.data_bit, 0);
    CHECK_INT(info.numel, 6);
    CHECK_UINT(info.nbytes, 24);
    CHECK_UINT(info.storage_bytes, 24);
    CHECK_UINT(info.storage_offset_bits, 0);
    CHECK(info.storage_id != 0);
    CHECK(info.allocation_inode != 0);
    CHECK(info.allocation_offset + 24 <= info.allocation_bytes);
    memset(info.data, 0x5a, 24); /* it is memory */
    lend_tensor_unref(tensor);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    pool_end(pool);
}

LEND_TEST(tensor_info_writes_only_what_fits) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor;
    CHECK_CODE(lend_tensor_new(pool, float32, 0, NULL, &tensor, NULL), 0);
    struct lend_tensor_info info;
    memset(&info, 0xee, sizeof info);
    info.size = offsetof(struct lend_tensor_info, device);
    CHECK_CODE(lend_tensor_info(tensor, &info), 0);
    CHECK_INT(info.dtype.bits, 32);
    CHECK_UINT((uint32_t)info.ndim, 0xeeeeeeee);
    info.size = 0;
    CHECK_CODE(lend_tensor_info(tensor, &info), -EINVAL);
    CHECK_CODE(lend_tensor_info(tensor, NULL), -EINVAL);
    struct {
        struct lend_tensor_info info;
        uint64_t behind;
    } newer = {.info.size = sizeof newer, .behind = 77}; /* a program compiled against a later header */
    CHECK_CODE(lend_tensor_info(tensor, &newer.info), 0);
    CHECK_UINT(newer.behind, 77);
    CHECK_INT(newer.info.numel, 1);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

LEND_TEST(tensor_of_every_dtype_takes_its_bytes) {
    struct lend_pool *pool = pool_without_context();
    DLDataType dtypes[NAIVE_N_DTYPES];
    int n = naive_dtypes(dtypes);
    for (int i = 0; i < n; i++) {
        for (uint16_t lanes = 1; lanes <= 3; lanes++) {
            for (int64_t size = 0; size <= 9; size++) {
                struct lend_tensor *tensor;
                dtypes[i].lanes = lanes;
                CHECK_CODE(lend_tensor_new(pool, dtypes[i], 1, &size, &tensor, NULL), 0);
                struct lend_tensor_info info = naive_info(tensor);
                uint64_t bytes = ((uint64_t)size * dtypes[i].bits * lanes + 7) / 8;
                CHECK_UINT(info.nbytes, bytes);
                CHECK_UINT(info.storage_bytes, bytes);
                lend_tensor_unref(tensor);
            }
        }
    }
    pool_end(pool);
}

LEND_TEST(tensor_without_elements_takes_no_memory) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor;
    int64_t shape[] = {4, 0, 3};
    CHECK_CODE(lend_tensor_new(pool, float32, 3, shape, &tensor, NULL), 0);
    struct lend_tensor_info info = naive_info(tensor);
    CHECK_PTR(info.data, NULL);
    CHECK_PTR(info.storage_data, NULL);
    CHECK_UINT(info.storage_bytes, 0);
    CHECK_UINT(info.nbytes, 0);
    CHECK_INT(info.numel, 0);
    CHECK_INT(info.is_contiguous, 1);
    CHECK_INT(info.strides[0], 3);
    CHECK_INT(info.strides[1], 3);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

LEND_TEST(tensor_new_refuses) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor = (struct lend_tensor *)&pool, *before = tensor;
    struct lend_error error;
    int64_t huge[] = {INT64_MAX / 4, 8}, large[] = {(int64_t)1 << 45}, negative[] = {-1};
    CHECK_CODE(lend_tensor_new(NULL, float32, 0, NULL, &tensor, &error), -EINVAL);
    CHECK_CODE(lend_tensor_new(pool, float32, 1, NULL, &tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_new(pool, float32, 65, huge, &tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_new(pool, float32, -1, huge, &tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_new(pool, float32, 1, negative, &tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_new(pool, (DLDataType){3, 64, 1}, 0, NULL, &tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_new(pool, float32, 2, huge, &tensor, &error), -EOVERFLOW);
    CHECK_INT(error.code, -EOVERFLOW);
    CHECK_STR(error.operation, "lend_tensor_new");
    int r = lend_tensor_new(pool, float32, 1, large, &tensor, &error);
    CHECK(r == -ENOMEM || r == -ENOSPC);
    CHECK_UINT(error.asked, (uint64_t)4 << 45);
    CHECK_PTR(tensor, before); /* written on success only */
    pool_end(pool);
}

static void *ref_and_unref(void *arg) {
    for (int i = 0; i < 20000; i++) {
        struct lend_tensor *view, *held = lend_tensor_ref(arg);
        CHECK_CODE(lend_tensor_select(held, 0, i % 4, &view, NULL), 0);
        lend_tensor_unref(held);
        CHECK_PTR(lend_tensor_data(view), (uint8_t *)lend_tensor_data(arg) + 4 * (i % 4));
        lend_tensor_unref(view);
    }
    lend_tensor_unref(arg);
    return NULL;
}

LEND_TEST(tensor_counts_across_threads) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor;
    int64_t size = 4;
    CHECK_CODE(lend_tensor_new(pool, float32, 1, &size, &tensor, NULL), 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK_INT(pthread_create(&threads[i], NULL, ref_and_unref, lend_tensor_ref(tensor)), 0);
    lend_tensor_unref(tensor); /* whichever thread is last frees it */
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    pool_end(pool);
}

LEND_TEST(tensor_view_keeps_the_storage) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor, *view;
    int64_t size = 4;
    CHECK_CODE(lend_tensor_new(pool, float32, 1, &size, &tensor, NULL), 0);
    CHECK_CODE(lend_tensor_slice(tensor, 0, 1, 3, 1, &view, NULL), 0);
    CHECK_UINT(naive_info(tensor).storage_id, naive_info(view).storage_id);
    lend_tensor_unref(tensor);
    CHECK_UINT(pool_blocks_in_use(pool), 1);
    lend_tensor_unref(view);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    lend_tensor_unref(NULL);
    pool_end(pool);
}

/* A file's pages, which can be cut short under the tensor. */
LEND_TEST(tensor_says_that_its_memory_is_a_file) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor;
    int64_t size = 4;
    CHECK_CODE(lend_tensor_new(pool, float32, 1, &size, &tensor, NULL), 0);
    struct lend__extent *extent = &tensor->storage->block->allocation->extent;
    extent->is_file = true;
    CHECK_INT(naive_info(tensor).is_file, 1);
    extent->is_file = false;
    CHECK_INT(naive_info(tensor).is_file, 0);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

LEND_TEST(tensor_resize_is_refused) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor, *copy;
    struct lend_error error;
    int64_t size = 4;
    CHECK_CODE(lend_tensor_new(pool, float32, 1, &size, &tensor, NULL), 0);
    CHECK_CODE(lend_tensor_copy(tensor, NULL, &copy, NULL), 0);
    CHECK_CODE(lend_tensor_resize(tensor, 16, &error), 0);
    CHECK_CODE(lend_tensor_resize(copy, 16, &error), 0);
    CHECK_CODE(lend_tensor_resize(tensor, 17, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "16 bytes has a fixed place in its pool and cannot be resized to 17");
    CHECK_UINT(error.asked, 17);
    CHECK_UINT(error.available, 16);
    CHECK_CODE(lend_tensor_resize(copy, 8, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "make a new tensor and copy");
    tensor->storage->is_shared = true;
    CHECK_CODE(lend_tensor_resize(tensor, 16, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "shared with other processes");
    CHECK_INT(naive_info(tensor).is_shared, 1);
    tensor->storage->is_shared = false;
    lend_tensor_unref(copy);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

/* Every call on a tensor answers `code`, and nothing is written. */
static void check_dead(struct lend_tensor *tensor, int code) {
    struct lend_tensor *other = NULL;
    DLManagedTensorVersioned *managed = NULL;
    DLManagedTensor *legacy = NULL;
    struct lend_tensor_info info = {.size = sizeof info};
    int64_t one = 1;
    CHECK_CODE(lend_tensor_info(tensor, &info), code);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
    CHECK_CODE(lend_tensor_select(tensor, 0, 0, &other, NULL), code);
    CHECK_CODE(lend_tensor_slice(tensor, 0, 0, 1, 1, &other, NULL), code);
    CHECK_CODE(lend_tensor_transpose(tensor, 0, 0, &other, NULL), code);
    CHECK_CODE(lend_tensor_expand(tensor, 1, &one, &other, NULL), code);
    CHECK_CODE(lend_tensor_reshape(tensor, 1, &one, &other, NULL), code);
    CHECK_CODE(lend_tensor_as_strided(tensor, 1, &one, &one, 0, &other, NULL), code);
    CHECK_CODE(lend_tensor_as_bytes(tensor, &other, NULL), code);
    CHECK_CODE(lend_tensor_with_attrs(tensor, NULL, &other, NULL), code);
    CHECK_CODE(lend_tensor_resolve(tensor, NULL, &other, NULL), code);
    CHECK_CODE(lend_tensor_check(tensor, NULL), code);
    CHECK_CODE(lend_tensor_resize(tensor, 4, NULL), code);
    CHECK_CODE(lend_tensor_copy(tensor, NULL, &other, NULL), code);
    CHECK_CODE(lend_tensor_to_dlpack(tensor, &managed, NULL), code);
    CHECK_CODE(lend_tensor_to_dlpack_legacy(tensor, &legacy, NULL), code);
    CHECK_PTR(other, NULL);
    CHECK_PTR(managed, NULL);
    CHECK_PTR(legacy, NULL);
}

LEND_TEST(tensor_moved_away_is_stale) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor;
    int64_t size = 1;
    CHECK_CODE(lend_tensor_new(pool, float32, 1, &size, &tensor, NULL), 0);
    struct lend__storage *storage = lend__exchange_acquire(&tensor->storage, NULL);
    check_dead(tensor, -ESTALE);
    lend_tensor_unref(tensor);
    CHECK_UINT(pool_blocks_in_use(pool), 1); /* whoever took the storage still has it */
    lend__storage_unref(storage);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    pool_end(pool);
}

LEND_TEST(tensor_dropped_by_fork_is_the_parents) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor;
    int64_t size = 1;
    CHECK_CODE(lend_tensor_new(pool, float32, 1, &size, &tensor, NULL), 0);
    tensor->storage->kind = LEND__STORAGE_DROPPED;
    check_dead(tensor, -ECHILD);
    tensor->storage->kind = LEND__STORAGE_POOL;
    lend_tensor_unref(tensor);
    pool_end(pool);
}

static unsigned n_released;
static void count_release(void *ctx) {
    n_released += ctx == &n_released;
}

LEND_TEST(tensor_in_a_raw_clone) {
    static const volatile uint32_t wiped = 0;
    const volatile uint32_t *word = lend__process_word;
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor, *other;
    int64_t size = 1;
    struct lend__storage *storage;
    uint8_t memory[4];
    const struct lend__private_memory private = {memory, 4, cpu, false, count_release, &n_released};
    CHECK_CODE(lend__storage_new_private(&private, &storage, NULL), 0);
    struct lend__geometry geometry = {.dtype = float32, .ndim = 1, .shape = &size};
    struct lend__extent_bits checked;
    CHECK_CODE(lend__geometry_check(&geometry, 4, &checked, "test", NULL), 0);
    CHECK_CODE(lend__tensor_make(&geometry, &checked, storage, false, &tensor), 0);
    lend__process_word = &wiped;
    check_dead(tensor, -ECHILD);
    CHECK_CODE(lend_tensor_new(pool, float32, 1, &size, &other, NULL), -ECHILD);
    lend_tensor_unref(tensor); /* frees the structs, and nothing that belongs to the parent */
    lend__process_word = word;
    CHECK_UINT(n_released, 0);
    pool_end(pool);
}

LEND_TEST(storage_private_is_released_once) {
    struct lend__storage *storage;
    uint8_t memory[4];
    const struct lend__private_memory private = {memory, 4, cpu, true, count_release, &n_released};
    CHECK_CODE(lend__storage_new_private(&private, &storage, NULL), 0);
    CHECK(lend__storage_ref_unless_zero(storage));
    lend__storage_unref(storage);
    CHECK_UINT(n_released, 0);
    lend__storage_unref(storage);
    CHECK_UINT(n_released, 1);
}

LEND_TEST(storage_on_its_way_out_is_not_taken) {
    struct lend__storage storage = {.n_refs = 0};
    CHECK(!lend__storage_ref_unless_zero(&storage));
    CHECK_UINT(storage.n_refs, 0);
}

/* The nth call fails: an error, nothing written, no block left; at last none fails. */
LEND_TEST(tensor_new_when_memory_is_short) {
    struct lend_pool *pool = pool_without_context();
    struct lend_tensor *tensor = NULL;
    int64_t shape[] = {3, 5};
    CHECK_CODE(lend_tensor_new(pool, float32, 2, shape, &tensor, NULL), 0); /* the pool grows */
    lend_tensor_unref(tensor);
    for (unsigned n = 0;; n++) {
        struct lend_error error = {.code = 0};
        tensor = NULL;
        fault_arm(n);
        int r = lend_tensor_new(pool, float32, 2, shape, &tensor, &error);
        const char *failed = fault_disarm();
        if (!failed) {
            CHECK_OK(r, &error);
            CHECK(n >= 2); /* storage and tensor are one malloc each */
            break;
        }
        CHECK_INT(r, -ENOMEM);
        CHECK_INT(error.code, -ENOMEM);
        CHECK_PTR(tensor, NULL);
        CHECK_UINT(pool_blocks_in_use(pool), 0);
    }
    lend_tensor_unref(tensor);
    pool_end(pool);
}
