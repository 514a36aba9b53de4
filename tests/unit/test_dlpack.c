/* SPDX-License-Identifier: MIT */
/* DLPack in and out: values, flags, where storages begin, and how often each deleter is called. */
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>

static const DLDataType float32 = {LEND_FLOAT, 32, 1};

static unsigned n_deleted;

static void count_deleted(struct DLManagedTensorVersioned *managed) {
    CHECK_PTR(managed->manager_ctx, &n_deleted);
    n_deleted++;
}

static void count_deleted_legacy(struct DLManagedTensor *managed) {
    CHECK_PTR(managed->manager_ctx, &n_deleted);
    n_deleted++;
}

static DLManagedTensorVersioned producer(void *data, DLDataType dtype, int32_t ndim, int64_t *shape, int64_t *strides) {
    n_deleted = 0;
    return (DLManagedTensorVersioned){
        .version = {1, 0},
        .manager_ctx = &n_deleted,
        .deleter = count_deleted,
        .dl_tensor =
            {.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape, .strides = strides},
    };
}

LEND_TEST(dlpack_in_private) {
    float memory[12];
    struct lend_error error;
    struct lend_tensor *tensor, *view;
    int64_t shape[] = {2, 2}, strides[] = {4, 1};
    DLManagedTensorVersioned managed = producer(memory, float32, 2, shape, strides);
    managed.dl_tensor.byte_offset = 8;
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    shape[0] = strides[0] = 99; /* the tensor keeps its own */
    struct lend_tensor_info info = naive_info(tensor);
    CHECK_INT(info.is_private, 1);
    CHECK_INT(info.is_read_only, 0);
    CHECK_INT(info.shape[0], 2);
    CHECK_INT(info.strides[0], 4);
    CHECK_PTR(info.data, memory + 2);
    CHECK_PTR(info.storage_data, memory + 2);
    CHECK_UINT(info.storage_bytes, 24); /* elements 0, 1, 4, 5 */
    CHECK_UINT(info.allocation_inode, 0);
    CHECK_UINT(info.allocation_bytes, 0);
    CHECK_OK(lend_tensor_select(tensor, 0, 1, &view, &error), &error);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_deleted, 0);
    lend_tensor_unref(view);
    CHECK_UINT(n_deleted, 1);
}

LEND_TEST(dlpack_in_negative_strides) {
    float memory[12];
    struct lend_error error;
    struct lend_tensor *tensor;
    int64_t shape[] = {2, 3}, strides[] = {-5, -1};
    DLManagedTensorVersioned managed = producer(memory + 8, float32, 2, shape, strides);
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    struct lend_tensor_info info = naive_info(tensor);
    CHECK_PTR(info.data, memory + 8);
    CHECK_PTR(info.storage_data, memory + 1);
    CHECK_UINT(info.storage_bytes, 32);
    CHECK_UINT(info.storage_offset_bits, 7 * 32);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_deleted, 1);

    /* Packed: elements 0, -1, -2 of int4 lie in bits 0, -4, -8 of the byte given. */
    int64_t three = 3, back = -1;
    managed = producer(memory + 8, (DLDataType){LEND_INT, 4, 1}, 1, &three, &back);
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    info = naive_info(tensor);
    CHECK_PTR(info.storage_data, (uint8_t *)(memory + 8) - 1);
    CHECK_UINT(info.storage_bytes, 2);
    CHECK_UINT(info.storage_offset_bits, 8);
    lend_tensor_unref(tensor);
}

LEND_TEST(dlpack_in_flags) {
    uint8_t memory[4];
    struct lend_error error;
    struct lend_tensor *tensor;
    int64_t size = 4;
    DLManagedTensorVersioned managed = producer(memory, (DLDataType){LEND_UINT, 4, 1}, 1, &size, NULL);
    managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    CHECK_INT(naive_info(tensor).is_read_only, 1);
    CHECK_INT(naive_info(tensor).is_padded, 0);
    CHECK_UINT(naive_info(tensor).storage_bytes, 2);
    lend_tensor_unref(tensor);
    managed.flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED | DLPACK_FLAG_BITMASK_IS_COPIED;
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    CHECK_INT(naive_info(tensor).is_read_only, 0);
    CHECK_INT(naive_info(tensor).is_padded, 1);
    CHECK_UINT(naive_info(tensor).storage_bytes, 4);
    lend_tensor_unref(tensor);
    managed.dl_tensor.dtype = (DLDataType){LEND_UINT, 8, 1}; /* padding says nothing about whole bytes */
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    CHECK_INT(naive_info(tensor).is_padded, 0);
    lend_tensor_unref(tensor);
}

LEND_TEST(dlpack_in_no_elements) {
    struct lend_error error;
    struct lend_tensor *tensor;
    int64_t shape[] = {0, 7};
    DLManagedTensorVersioned managed = producer(NULL, float32, 2, shape, NULL);
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    CHECK_INT(naive_info(tensor).numel, 0);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_deleted, 1);
}

/* On every error the caller still owns its struct. */
LEND_TEST(dlpack_in_refuses) {
    float memory[4];
    struct lend_error error;
    struct lend_tensor *tensor = NULL;
    int64_t size = 4, negative = -1, huge[] = {INT64_MAX, INT64_MAX}, far = INT64_MIN, one = 1;
    DLManagedTensorVersioned good = producer(memory, float32, 1, &size, NULL), m;
#define REFUSED(answer, ...)                                              \
    do {                                                                  \
        m = good;                                                         \
        __VA_ARGS__;                                                      \
        CHECK_CODE(lend_tensor_from_dlpack(&m, &tensor, &error), answer); \
        CHECK_INT(error.code, answer);                                    \
        CHECK_STR(error.operation, "lend_tensor_from_dlpack");            \
        CHECK_PTR(tensor, NULL);                                          \
        CHECK_UINT(n_deleted, 0);                                         \
    } while (0)
    REFUSED(-EPROTONOSUPPORT, m.version.major = 2);
    CHECK_CONTAINS(error.text, "DLPack 2.0");
    REFUSED(-EPROTONOSUPPORT, m.version.major = 0);
    REFUSED(-ENODEV, m.dl_tensor.device.device_type = kDLVulkan);
    CHECK_CONTAINS(error.text, "device type 7");
    REFUSED(-ENODEV, m.dl_tensor.device.device_type = (DLDeviceType)LEND_DEVICE_META);
    CHECK_CONTAINS(error.text, "DLPack has no meta device: 1024 is a number of lend's own");
    REFUSED(-EOPNOTSUPP, m.dl_tensor.dtype = ((DLDataType){kDLOpaqueHandle, 64, 1}));
    REFUSED(-EOPNOTSUPP, m.dl_tensor.dtype = ((DLDataType){LEND_INT, 1, 1}));
    REFUSED(-EOPNOTSUPP, m.dl_tensor.dtype.lanes = 0);
    REFUSED(-EINVAL, m.dl_tensor.shape = NULL);
    REFUSED(-EINVAL, m.dl_tensor.data = NULL);
    REFUSED(-EINVAL, m.dl_tensor.ndim = 65);
    REFUSED(-EINVAL, m.dl_tensor.ndim = -1);
    REFUSED(-EINVAL, m.dl_tensor.shape = &negative);
    REFUSED(-EOVERFLOW, m.dl_tensor.ndim = 2; m.dl_tensor.shape = huge);
    REFUSED(-EOVERFLOW, m.dl_tensor.strides = &far);
    REFUSED(-EOVERFLOW, m.dl_tensor.strides = &huge[0]);
    REFUSED(-EOVERFLOW, m.dl_tensor.byte_offset = UINT64_MAX);
    int64_t below = -((int64_t)1 << 58);
    REFUSED(-EOVERFLOW, m.dl_tensor.strides = &below); /* under address 0 */
#undef REFUSED
    CHECK_CODE(lend_tensor_from_dlpack(NULL, &tensor, NULL), -EINVAL);
    CHECK_CODE(lend_tensor_from_dlpack(&good, NULL, NULL), -EINVAL);
    good.dl_tensor.shape = &one;
    good.dl_tensor.strides = &far; /* never multiplied by anything */
    CHECK_OK(lend_tensor_from_dlpack(&good, &tensor, &error), &error);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_deleted, 1);
}

LEND_TEST(dlpack_in_legacy) {
    float memory[4];
    struct lend_error error;
    struct lend_tensor *tensor;
    int64_t size = 4;
    n_deleted = 0;
    DLManagedTensor managed = {
        .dl_tensor = {.data = memory, .device = {kDLCPU, 0}, .ndim = 1, .dtype = float32, .shape = &size},
        .manager_ctx = &n_deleted,
        .deleter = count_deleted_legacy,
    };
    CHECK_OK(lend_tensor_from_dlpack_legacy(&managed, &tensor, &error), &error);
    CHECK_INT(naive_info(tensor).is_read_only, 0);
    CHECK_PTR(lend_tensor_data(tensor), memory);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_deleted, 1);
    managed.deleter = NULL;
    CHECK_OK(lend_tensor_from_dlpack_legacy(&managed, &tensor, &error), &error);
    lend_tensor_unref(tensor);
    managed.dl_tensor.device.device_type = kDLMetal;
    CHECK_CODE(lend_tensor_from_dlpack_legacy(&managed, &tensor, &error), -ENODEV);
    CHECK_STR(error.operation, "lend_tensor_from_dlpack_legacy");
    CHECK_CODE(lend_tensor_from_dlpack_legacy(NULL, &tensor, &error), -EINVAL);
}

LEND_TEST(dlpack_out) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor, *view;
    DLManagedTensorVersioned *managed;
    DLManagedTensor *legacy;
    int64_t shape[] = {3, 4};
    CHECK_OK(lend_tensor_new(pool, float32, 2, shape, &tensor, &error), &error);
    CHECK_OK(lend_tensor_slice(tensor, 1, 3, INT64_MIN, -2, &view, &error), &error);
    CHECK_OK(lend_tensor_to_dlpack(view, &managed, &error), &error);
    CHECK_OK(lend_tensor_to_dlpack_legacy(view, &legacy, &error), &error);
    uint8_t *first = lend_tensor_data(view);
    CHECK_PTR(first, (uint8_t *)lend_tensor_data(tensor) + 12);
    lend_tensor_unref(view);
    lend_tensor_unref(tensor);
    CHECK_UINT(managed->version.major, 1);
    CHECK_UINT(managed->version.minor, 3);
    CHECK_UINT(managed->flags, 0);
    for (int k = 0; k < 2; k++) {
        const DLTensor *t = k ? &legacy->dl_tensor : &managed->dl_tensor;
        CHECK_PTR(t->data, first);
        CHECK_UINT(t->byte_offset, 0);
        CHECK_INT(t->device.device_type, kDLCPU);
        CHECK_INT(t->ndim, 2);
        CHECK_MEM(&t->dtype, &float32, sizeof float32);
        CHECK_INT(t->shape[0], 3);
        CHECK_INT(t->shape[1], 2);
        CHECK_INT(t->strides[0], 4);
        CHECK_INT(t->strides[1], -2);
    }
    CHECK_UINT(pool_blocks_in_use(pool), 1);
    managed->deleter(managed);
    CHECK_UINT(pool_blocks_in_use(pool), 1);
    legacy->deleter(legacy);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    pool_end(pool);
}

LEND_TEST(dlpack_out_without_dimensions_or_elements) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor;
    DLManagedTensorVersioned *managed;
    int64_t shape[] = {2, 0};
    CHECK_OK(lend_tensor_new(pool, float32, 0, NULL, &tensor, &error), &error);
    CHECK_OK(lend_tensor_to_dlpack(tensor, &managed, &error), &error);
    CHECK(managed->dl_tensor.data != NULL);
    CHECK_INT(managed->dl_tensor.ndim, 0);
    managed->deleter(managed);
    lend_tensor_unref(tensor);
    CHECK_OK(lend_tensor_new(pool, float32, 2, shape, &tensor, &error), &error);
    CHECK_OK(lend_tensor_to_dlpack(tensor, &managed, &error), &error);
    CHECK_PTR(managed->dl_tensor.data, NULL);
    CHECK(managed->dl_tensor.strides != NULL);
    CHECK_INT(managed->dl_tensor.shape[1], 0);
    managed->deleter(managed);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

LEND_TEST(dlpack_out_refuses) {
    static const DLDataType unknown_to_legacy[] = {
        {LEND_FLOAT8_E5M2, 8, 1}, {LEND_FLOAT6_E2M3FN, 6, 1}, {LEND_FLOAT4_E2M1FN, 4, 2}, {LEND_INT, 4, 1}};
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor, *view;
    DLManagedTensorVersioned *managed = NULL;
    DLManagedTensor *legacy = NULL;
    int64_t size = 4;
    for (int i = 0; i < 4; i++) {
        CHECK_OK(lend_tensor_new(pool, unknown_to_legacy[i], 1, &size, &tensor, &error), &error);
        CHECK_CODE(lend_tensor_to_dlpack_legacy(tensor, &legacy, &error), -EOPNOTSUPP);
        CHECK_OK(lend_tensor_to_dlpack(tensor, &managed, &error), &error);
        managed->deleter(managed);
        managed = NULL;
        lend_tensor_unref(tensor);
    }
    CHECK_CONTAINS(error.text, "int4");
    CHECK_OK(lend_tensor_new(pool, (DLDataType){LEND_INT, 4, 1}, 1, &size, &tensor, &error), &error);
    CHECK_OK(lend_tensor_slice(tensor, 0, 1, 3, 1, &view, &error), &error);
    CHECK_CODE(lend_tensor_to_dlpack(view, &managed, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "bit 4 of a byte");
    CHECK_CODE(lend_tensor_to_dlpack_legacy(view, &legacy, &error), -EOPNOTSUPP);
    CHECK_CODE(lend_tensor_to_dlpack(view, NULL, &error), -EINVAL);
    CHECK_PTR(managed, NULL);
    CHECK_PTR(legacy, NULL);
    lend_tensor_unref(view);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

/* What changes the values cannot be left behind; the other attributes are no part of DLPack. */
LEND_TEST(dlpack_out_with_attributes) {
    static const struct {
        uint32_t flags;
        const char *text;
    } refused[] = {{LEND_ATTR_CONJ, "the values are conjugated: lend_tensor_resolve the tensor first"},
                   {LEND_ATTR_NEG, "the values are negated: lend_tensor_resolve the tensor first"},
                   {LEND_ATTR_CONJ | LEND_ATTR_NEG, "the values are conjugated"}};
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor, *marked, *resolved;
    DLManagedTensorVersioned *managed = NULL;
    DLManagedTensor *legacy = NULL;
    int64_t size = 4;
    CHECK_OK(lend_tensor_new(pool, (DLDataType){LEND_COMPLEX, 64, 1}, 1, &size, &tensor, &error), &error);
    memset(lend_tensor_data(tensor), 0, 32);
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    for (int i = 0; i < 3; i++) {
        attrs.flags = refused[i].flags | LEND_ATTR_PARAMETER;
        CHECK_OK(lend_tensor_with_attrs(tensor, &attrs, &marked, &error), &error);
        CHECK_CODE(lend_tensor_to_dlpack(marked, &managed, &error), -EOPNOTSUPP);
        CHECK_CONTAINS(error.text, refused[i].text);
        CHECK_CODE(lend_tensor_to_dlpack_legacy(marked, &legacy, &error), -EOPNOTSUPP);
        CHECK_CONTAINS(error.text, refused[i].text);
        CHECK_PTR(managed, NULL);
        CHECK_PTR(legacy, NULL);
        CHECK_OK(lend_tensor_resolve(marked, pool, &resolved, &error), &error);
        CHECK_OK(lend_tensor_to_dlpack(resolved, &managed, &error), &error);
        managed->deleter(managed);
        managed = NULL;
        lend_tensor_unref(resolved);
        lend_tensor_unref(marked);
    }
    attrs.flags = LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD;
    CHECK_OK(lend_tensor_with_attrs(tensor, &attrs, &marked, &error), &error);
    CHECK_OK(lend_tensor_to_dlpack(marked, &managed, &error), &error);
    lend_tensor_unref(marked);
    CHECK_OK(lend_tensor_from_dlpack(managed, &marked, &error), &error);
    CHECK_UINT(naive_info(marked).attrs, 0);
    CHECK_UINT(naive_info(marked).storage_id, naive_info(tensor).storage_id);
    lend_tensor_unref(marked);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

LEND_TEST(dlpack_out_says_read_only_and_padded) {
    uint8_t memory[4];
    struct lend_error error;
    struct lend_tensor *tensor;
    DLManagedTensorVersioned *out;
    DLManagedTensor *legacy;
    int64_t size = 4;
    DLManagedTensorVersioned in = producer(memory, (DLDataType){LEND_INT, 4, 1}, 1, &size, NULL);
    in.flags = DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    CHECK_OK(lend_tensor_from_dlpack(&in, &tensor, &error), &error);
    CHECK_OK(lend_tensor_to_dlpack(tensor, &out, &error), &error);
    CHECK_CODE(lend_tensor_to_dlpack_legacy(tensor, &legacy, &error), -EACCES);
    CHECK_UINT(out->flags, DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
    CHECK_PTR(out->dl_tensor.data, memory);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_deleted, 0); /* what was given out still needs the memory */
    out->deleter(out);
    CHECK_UINT(n_deleted, 1);
}

/* Memory that lies in an allocation of ours finds its storage again. */
LEND_TEST(dlpack_round_trip_finds_the_storage) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor, *view, *again;
    DLManagedTensorVersioned *managed;
    DLManagedTensor *legacy;
    int64_t shape[] = {3, 4};
    CHECK_OK(lend_tensor_new(pool, float32, 2, shape, &tensor, &error), &error);
    CHECK_OK(lend_tensor_slice(tensor, 0, INT64_MAX, INT64_MIN, -1, &view, &error), &error);
    struct lend_tensor_info info = naive_info(view);
    CHECK_OK(lend_tensor_to_dlpack(view, &managed, &error), &error);
    managed->flags |= DLPACK_FLAG_BITMASK_READ_ONLY; /* a producer may promise less than it has */
    CHECK_OK(lend_tensor_from_dlpack(managed, &again, &error), &error);
    struct lend_tensor_info back = naive_info(again);
    CHECK_UINT(back.storage_id, info.storage_id);
    CHECK_UINT(back.storage_offset_bits, info.storage_offset_bits);
    CHECK_PTR(back.data, info.data);
    CHECK_INT(back.strides[0], -4);
    CHECK_INT(back.is_private, 0);
    CHECK_INT(back.is_read_only, 1);
    CHECK_INT(naive_info(view).is_read_only, 0);
    CHECK_UINT(back.allocation_inode, info.allocation_inode);
    CHECK_UINT(again->storage->n_refs, 3); /* tensor, view, again: the DLPack struct has gone */
    lend_tensor_unref(again);
    CHECK_OK(lend_tensor_to_dlpack_legacy(view, &legacy, &error), &error);
    CHECK_OK(lend_tensor_from_dlpack_legacy(legacy, &again, &error), &error);
    CHECK_UINT(naive_info(again).storage_id, info.storage_id);
    lend_tensor_unref(tensor);
    lend_tensor_unref(view);
    CHECK_UINT(pool_blocks_in_use(pool), 1);
    lend_tensor_unref(again);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    pool_end(pool);
}

/* Somebody else's struct over our memory, of another dtype, from an odd byte on. */
LEND_TEST(dlpack_in_finds_other_dtypes) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor, *found;
    int64_t size = 8, bytes = 5, sixes = 4;
    CHECK_OK(lend_tensor_new(pool, float32, 1, &size, &tensor, &error), &error);
    uint8_t *data = lend_tensor_data(tensor);
    DLManagedTensorVersioned managed = producer(data + 3, (DLDataType){LEND_UINT, 16, 1}, 1, &bytes, NULL);
    CHECK_OK(lend_tensor_from_dlpack(&managed, &found, &error), &error);
    CHECK_UINT(n_deleted, 1);
    CHECK_UINT(naive_info(found).storage_id, naive_info(tensor).storage_id);
    CHECK_UINT(naive_info(found).storage_offset_bits, 24);
    CHECK_UINT(naive_info(found).storage_bytes, 32);
    CHECK_PTR(lend_tensor_data(found), data + 3);
    lend_tensor_unref(found);
    CHECK_UINT(n_deleted, 1);
    managed = producer(data + 1, (DLDataType){LEND_FLOAT6_E3M2FN, 6, 1}, 1, &sixes, NULL);
    CHECK_OK(lend_tensor_from_dlpack(&managed, &found, &error), &error);
    CHECK_UINT(naive_info(found).storage_id, naive_info(tensor).storage_id);
    CHECK_UINT(naive_info(found).storage_offset_bits, 8); /* not a whole number of 6-bit elements */
    lend_tensor_unref(found);
    lend_tensor_unref(tensor);
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    pool_end(pool);
}

/* Bytes of the block that lie behind the storage are nobody's: they are taken as any other memory. */
LEND_TEST(dlpack_in_behind_the_storage) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor, *other;
    int64_t size = 3, bytes = 5;
    CHECK_OK(lend_tensor_new(pool, float32, 1, &size, &tensor, &error), &error);
    uint8_t *data = lend_tensor_data(tensor);
    for (int off = 7; off <= 8; off++) {
        DLManagedTensorVersioned managed = producer(data + off, (DLDataType){LEND_UINT, 8, 1}, 1, &bytes, NULL);
        CHECK_OK(lend_tensor_from_dlpack(&managed, &other, &error), &error);
        CHECK_INT(naive_info(other).is_private, off == 8);
        CHECK_UINT(tensor->storage->n_refs, off == 8 ? 1 : 2);
        lend_tensor_unref(other);
        CHECK_UINT(n_deleted, 1);
    }
    lend_tensor_unref(tensor);
    pool_end(pool);
}

LEND_TEST(dlpack_when_memory_is_short) {
    struct lend_pool *pool = pool_without_context();
    struct lend_error error;
    struct lend_tensor *tensor, *taken = NULL;
    DLManagedTensorVersioned *out = NULL;
    DLManagedTensor *legacy = NULL;
    float memory[4];
    int64_t size = 4;
    CHECK_OK(lend_tensor_new(pool, float32, 1, &size, &tensor, &error), &error);
    for (int k = 0; k < 2; k++) { /* private memory: storage and tensor; our own: tensor */
        void *data = k ? lend_tensor_data(tensor) : memory;
        DLManagedTensorVersioned managed = producer(data, float32, 1, &size, NULL);
        for (unsigned n = 0;; n++) {
            fault_arm_call("realloc", n, -ENOMEM);
            int r = lend_tensor_from_dlpack(&managed, &taken, &error);
            if (!fault_disarm()) {
                CHECK_OK(r, &error);
                CHECK_UINT(n, k ? 1 : 2);
                break;
            }
            CHECK_INT(r, -ENOMEM);
            CHECK_PTR(taken, NULL);
            CHECK_UINT(n_deleted, 0);
            CHECK_UINT(tensor->storage->n_refs, 1);
        }
        lend_tensor_unref(taken);
        taken = NULL;
        CHECK_UINT(n_deleted, 1);
    }
    fault_arm_call("realloc", 0, -ENOMEM);
    CHECK_CODE(lend_tensor_to_dlpack(tensor, &out, &error), -ENOMEM);
    CHECK(fault_disarm() != NULL);
    fault_arm_call("realloc", 0, -ENOMEM);
    CHECK_CODE(lend_tensor_to_dlpack_legacy(tensor, &legacy, &error), -ENOMEM);
    CHECK(fault_disarm() != NULL);
    CHECK_PTR(out, NULL);
    CHECK_PTR(legacy, NULL);
    CHECK_UINT(tensor->storage->n_refs, 1);
    lend_tensor_unref(tensor);
    pool_end(pool);
}

/* Random extents: every element that the producer names lies in the storage, and the storage in what it could have. */
LEND_TEST(dlpack_in_random_extents) {
    static uint8_t memory[4096];
    DLDataType dtypes[NAIVE_N_DTYPES];
    uint64_t seed = 99;
    int n = naive_dtypes(dtypes);
    for (int round = 0; round < 20000; round++) {
        DLDataType dtype = dtypes[naive_between(&seed, 0, n - 1)];
        int64_t shape[3], strides[3], index[3] = {0}, low = INT64_MAX, end = INT64_MIN;
        int32_t ndim = (int32_t)naive_between(&seed, 1, 3);
        for (int i = 0; i < ndim; i++) {
            shape[i] = naive_between(&seed, 1, 3);
            strides[i] = naive_between(&seed, -8, 8);
        }
        DLManagedTensorVersioned managed = producer(memory + 2048, dtype, ndim, shape, strides);
        struct lend_tensor *tensor;
        struct lend_error error;
        CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
        struct lend_tensor_info info = naive_info(tensor);
        do {
            int64_t bit = naive_bit(&info, index);
            low = bit < low ? bit : low;
            end = bit + dtype.bits > end ? bit + dtype.bits : end;
        } while (naive_next(ndim, shape, index));
        CHECK_PTR(info.data, memory + 2048);
        CHECK(low >= 0 && low < 8); /* the first byte is reached, and so is the last */
        CHECK_UINT(info.storage_bytes, (uint64_t)(end + 7) / 8);
        CHECK_PTR((uint8_t *)info.storage_data + info.storage_offset_bits / 8, info.data);
        lend_tensor_unref(tensor);
    }
}
