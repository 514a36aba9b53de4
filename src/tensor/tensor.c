/* SPDX-License-Identifier: MIT */
/* The tensor object: birth, counting, and what it says about itself.
 *
 * A tensor never changes after birth, except that lend_reduce(LEND_MODE_MOVE) takes its storage pointer out; so reads
 * need no lock. Addresses are computed from storage->data at every call, because a fork handler may give the storage
 * another place. One malloc per tensor: struct, shape and strides together. What only some tensors have, components and
 * user attributes, lies in a second one.
 *
 * Locking: none. */
#include "tensor/compound.h"

#include "base/error.h"
#include "base/process.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PRIVATE_ALIGNMENT 64

static inline void fill(struct lend_tensor *tensor, const struct lend__geometry *geometry,
                        const struct lend__extent_bits *checked, struct lend__storage *storage, bool is_read_only,
                        struct lend__slab *slab) {
    size_t n = (size_t)geometry->ndim;
    *tensor = (struct lend_tensor){
        .n_refs = 1,
        .ndim = geometry->ndim,
        .storage = storage,
        .slab = slab,
        .dtype = geometry->dtype,
        .item_bits = checked->item_bits,
        .offset_bits = geometry->offset_bits,
        .numel = checked->numel,
        .is_read_only = is_read_only,
        .is_padded = geometry->is_padded && geometry->dtype.bits < 8,
        .is_contiguous = checked->is_contiguous,
    };
    for (size_t i = 0; i < n; i++) tensor->dims[i] = geometry->shape[i];
    if (geometry->strides)
        for (size_t i = 0; i < n; i++) tensor->dims[n + i] = geometry->strides[i];
    else
        lend__contiguous_strides(geometry->ndim, tensor->dims, tensor->dims + n);
}

static inline size_t object_bytes(const struct lend__geometry *geometry) {
    return sizeof(struct lend_tensor) + 2 * (size_t)geometry->ndim * sizeof(int64_t);
}

int lend__tensor_make(const struct lend__geometry *geometry, const struct lend__extent_bits *checked,
                      struct lend__storage *storage, bool is_read_only, struct lend_tensor **ret) {
    void *memory = NULL;
    if (lend__sys.realloc(NULL, object_bytes(geometry), &memory) < 0) return -ENOMEM;
    fill(memory, geometry, checked, storage, is_read_only, NULL);
    *ret = memory;
    return 0;
}

int lend__tensor_make_in(struct lend__slab_maker *maker, const struct lend__geometry *geometry,
                         const struct lend__extent_bits *checked, struct lend__storage *storage, bool is_read_only,
                         struct lend_tensor **ret) {
    struct lend__slab *slab = NULL;
    void *memory = lend__slab_take(maker, object_bytes(geometry), &slab);
    if (!memory) return -ENOMEM;
    fill(memory, geometry, checked, storage, is_read_only, slab);
    *ret = memory;
    return 0;
}

/* realloc(NULL, n) is the table's malloc; the first multiple of the alignment inside is the storage. The bits of a
 * tensor fit 64 bits, so the sum cannot overflow. */
static int new_private(uint64_t bytes, struct lend__storage **ret, const char *operation, struct lend_error *error) {
    void *memory = NULL;
    if (bytes && lend__sys.realloc(NULL, bytes + PRIVATE_ALIGNMENT - 1, &memory) < 0)
        return lend__fail_bytes(error, -ENOMEM, operation, bytes, 0, "no private memory for %llu bytes",
                                (unsigned long long)bytes);
    uint8_t *data = memory;
    if (data) data += -(uintptr_t)data & (PRIVATE_ALIGNMENT - 1);
    const struct lend__private_memory owned = {
        .data = data, .bytes = bytes, .device = {.device_type = kDLCPU}, .release = free, .ctx = memory};
    int r = lend__storage_new_private(&owned, ret, error);
    if (r < 0) free(memory);
    return r;
}

/* Makes the tensor over a storage reference that is ours: gone on failure. */
static int make_or_drop(const struct lend__geometry *geometry, const struct lend__extent_bits *measured,
                        struct lend__storage *storage, struct lend_tensor **ret, const char *operation,
                        struct lend_error *error) {
    int r = lend__tensor_make(geometry, measured, storage, false, ret);
    if (r == 0) return 0;
    lend__storage_unref(storage);
    return lend__fail(error, r, operation, "no memory for a tensor object of %d dimensions", geometry->ndim);
}

int lend__tensor_new(struct lend_pool *pool, const struct lend__geometry *geometry, struct lend_tensor **ret,
                     const char *operation, struct lend_error *error) {
    struct lend__extent_bits measured;
    int r = lend__geometry_measure(geometry, &measured, operation, error);
    if (r < 0) return r;
    uint64_t bytes = measured.end_bits / 8 + (measured.end_bits % 8 != 0);
    struct lend__storage *storage;
    r = pool ? lend__storage_new_pool(pool, bytes, &storage, error) : new_private(bytes, &storage, operation, error);
    if (r < 0) return r;
    return make_or_drop(geometry, &measured, storage, ret, operation, error);
}

int lend_tensor_new(struct lend_pool *pool, DLDataType dtype, int32_t ndim, const int64_t *shape,
                    struct lend_tensor **ret_tensor, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
    if (!pool || !ret_tensor || (ndim > 0 && !shape))
        return lend__fail(error, -EINVAL, __func__, "pool, shape and ret_tensor must not be NULL");
    const struct lend__geometry geometry = {.dtype = dtype, .ndim = ndim, .shape = shape};
    return lend__tensor_new(pool, &geometry, ret_tensor, __func__, error);
}

/* A contiguous tensor over a storage that has a size and no memory. */
static int new_empty(enum lend__storage_kind kind, const struct lend__geometry *geometry,
                     struct lend_tensor **ret_tensor, const char *operation, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, operation, "this process was made by a raw clone");
    if (!ret_tensor || (geometry->ndim > 0 && !geometry->shape))
        return lend__fail(error, -EINVAL, operation, "shape and ret_tensor must not be NULL");
    struct lend__extent_bits measured;
    int r = lend__geometry_measure(geometry, &measured, operation, error);
    if (r < 0) return r;
    struct lend__storage *storage;
    r = lend__storage_new_empty(kind, measured.end_bits / 8 + (measured.end_bits % 8 != 0), &storage, error);
    if (r < 0) return r;
    return make_or_drop(geometry, &measured, storage, ret_tensor, operation, error);
}

int lend_tensor_new_meta(DLDataType dtype, int32_t ndim, const int64_t *shape, struct lend_tensor **ret_tensor,
                         struct lend_error *error) {
    const struct lend__geometry geometry = {.dtype = dtype, .ndim = ndim, .shape = shape};
    return new_empty(LEND__STORAGE_META, &geometry, ret_tensor, __func__, error);
}

int lend_tensor_new_zero(DLDataType dtype, int32_t ndim, const int64_t *shape, struct lend_tensor **ret_tensor,
                         struct lend_error *error) {
    const struct lend__geometry geometry = {.dtype = dtype, .ndim = ndim, .shape = shape};
    return new_empty(LEND__STORAGE_ZERO, &geometry, ret_tensor, __func__, error);
}

struct lend_tensor *lend_tensor_ref(struct lend_tensor *tensor) {
    lend__add_relaxed(&tensor->n_refs, 1);
    return tensor;
}

/* Gives a reference back; true with the last one: what the object held is given back, and the object is to be freed. */
static inline bool lower(struct lend_tensor *tensor) {
    /* Nobody can add to the last reference but its holder, which is us: no locked instruction is needed. */
    if (lend__load_acquire(&tensor->n_refs) != 1 && lend__sub_acq_rel(&tensor->n_refs, 1) != 1) return false;
    struct lend__storage *storage = lend__load_acquire(&tensor->storage);
    if (tensor->extra) lend__extra_free(tensor->extra);
    if (storage) lend__storage_unref(storage);
    return true;
}

void lend_tensor_unref(struct lend_tensor *tensor) {
    if (!tensor || !lower(tensor)) return;
    if (tensor->slab)
        lend__slab_give(tensor->slab, 1);
    else
        free(tensor);
}

void lend__tensors_unref(struct lend_tensor *const *tensors, size_t n) {
    struct lend__slab *slab = NULL; /* of which n_gone objects are gone */
    uint32_t n_gone = 0;
    for (size_t i = 0; i < n; i++) {
        struct lend_tensor *tensor = tensors[i];
        if (!tensor || !lower(tensor)) continue;
        if (!tensor->slab) {
            free(tensor);
            continue;
        }
        if (slab != tensor->slab && n_gone) {
            lend__slab_give(slab, n_gone);
            n_gone = 0;
        }
        slab = tensor->slab;
        n_gone++;
    }
    if (n_gone) lend__slab_give(slab, n_gone);
}

int lend__tensor_storage(const struct lend_tensor *tensor, struct lend__storage **ret, const char *operation,
                         struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, operation, "this process was made by a raw clone");
    if (!tensor) return lend__fail(error, -EINVAL, operation, "the tensor is NULL");
    struct lend__storage *storage = lend__load_acquire(&tensor->storage);
    if (!storage && tensor->layout != LEND_LAYOUT_STRIDED)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "a %s tensor has no memory of its own: use its components (lend_tensor_components)",
                          lend__layout_name(tensor->layout));
    if (!storage)
        return lend__fail(error, -ESTALE, operation, "the tensor was moved away by lend_reduce with LEND_MODE_MOVE");
    if (storage->kind == LEND__STORAGE_DROPPED)
        return lend__fail(error, -ECHILD, operation,
                          "the tensor belongs to the parent process: this child was forked under LEND_FORK_DROP");
    *ret = storage;
    return 0;
}

/* Of element (0,...,0); NULL: there is no such element, or no memory. */
static uint8_t *address_of(const struct lend_tensor *tensor, const struct lend__storage *storage) {
    return tensor->numel && storage->data ? storage->data + tensor->offset_bits / 8 : NULL;
}

void *lend_tensor_data(const struct lend_tensor *tensor) {
    struct lend__storage *storage = NULL;
    if (lend__tensor_storage(tensor, &storage, __func__, NULL) < 0) return NULL;
    return address_of(tensor, storage);
}

/* Where the storage lies in an allocation; nothing for private and for empty storages. */
static void fill_allocation(const struct lend__storage *storage, struct lend_tensor_info *info) {
    const struct lend__extent *extent = lend__storage_extent(storage);
    if (!extent) return;
    info->allocation_inode = extent->inode;
    info->allocation_offset = (uint64_t)(storage->data - extent->base);
    info->allocation_bytes = extent->bytes;
    info->is_file = extent->is_file;
}

/* Leaves `size` at 0. */
static int strided_info(const struct lend_tensor *tensor, struct lend_tensor_info *ret_info) {
    struct lend__storage *storage;
    int r = lend__tensor_storage(tensor, &storage, "lend_tensor_info", NULL);
    if (r < 0) return r;
    bool is_imported = storage->kind == LEND__STORAGE_IMPORTED;
    uint64_t bits = (uint64_t)tensor->numel * tensor->item_bits;
    uint8_t *data = address_of(tensor, storage);
    *ret_info = (struct lend_tensor_info){
        .dtype = tensor->dtype,
        .device = storage->device,
        .ndim = tensor->ndim,
        .is_read_only = tensor->is_read_only || storage->is_read_only,
        .is_imported = is_imported,
        .is_shared = is_imported || lend__load_relaxed(&storage->is_shared),
        .is_contiguous = tensor->is_contiguous,
        .is_padded = tensor->is_padded,
        .is_private = storage->kind == LEND__STORAGE_PRIVATE,
        .is_zero = storage->kind == LEND__STORAGE_ZERO,
        .layout = LEND_LAYOUT_STRIDED,
        .attrs = tensor->attrs,
        .shape = lend__tensor_shape(tensor),
        .strides = lend__tensor_strides(tensor),
        .data = data,
        .data_bit = data ? (uint32_t)(tensor->offset_bits % 8) : 0,
        .numel = tensor->numel,
        .nbytes = bits / 8 + (bits % 8 != 0),
        .storage_data = storage->data,
        .storage_bytes = storage->bytes,
        .storage_id = (uintptr_t)storage,
        .storage_offset_bits = tensor->offset_bits,
    };
    fill_allocation(storage, ret_info);
    return 0;
}

int lend_tensor_info(const struct lend_tensor *tensor, struct lend_tensor_info *ret_info) {
    struct lend_tensor_info info;
    bool is_compound = tensor && tensor->layout != LEND_LAYOUT_STRIDED;
    int r = is_compound ? lend__compound_info(tensor, &info) : strided_info(tensor, &info);
    if (r < 0) return r;
    if (!ret_info || ret_info->size < offsetof(struct lend_tensor_info, dtype)) return -EINVAL;
    info.size = ret_info->size;
    memcpy(ret_info, &info, info.size < sizeof info ? info.size : sizeof info);
    return 0;
}

int lend_tensor_resize(struct lend_tensor *tensor, uint64_t bytes, struct lend_error *error) {
    struct lend__storage *storage = NULL;
    int r = lend__tensor_storage(tensor, &storage, __func__, error);
    if (r < 0) return r;
    bool is_imported = storage->kind == LEND__STORAGE_IMPORTED;
    bool is_shared = is_imported || lend__load_relaxed(&storage->is_shared);
    if (bytes == storage->bytes && !is_shared) return 0;
    const char *why = is_imported                           ? "belongs to another process"
                      : is_shared                           ? "is shared with other processes"
                      : storage->kind == LEND__STORAGE_POOL ? "has a fixed place in its pool"
                      : storage->kind == LEND__STORAGE_META ? "has no memory (meta)"
                      : storage->kind == LEND__STORAGE_ZERO ? "has no memory (zero tensor)"
                                                            : "belongs to whoever made it";
    return lend__fail_bytes(error, -EOPNOTSUPP, __func__, bytes, storage->bytes,
                            "the storage of %llu bytes %s and cannot be resized to %llu; make a new tensor and copy",
                            (unsigned long long)storage->bytes, why, (unsigned long long)bytes);
}
