/* SPDX-License-Identifier: MIT */
/* Tensors over given places of a file that a pool maps. The elements are where the file has them: nothing is copied,
 * cleared or aligned, and nothing can be written.
 *
 * The same range asked for twice gives one storage while it lives, so that tensors which alias in the file are told
 * apart from copies here and in every process that rebuilds them.
 *
 * Locking: none here; the pool finds and owns under its lock. */
#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "base/sys.h"
#include "device/device.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>

#define OPERATION "lend_tensor_new_at"

/* A storage with one reference for the caller, perhaps of somebody who asked before. */
static int storage_at(struct lend_pool *pool, uint8_t *data, uint64_t off, uint64_t bytes, struct lend__storage **ret,
                      struct lend_error *error) {
    void *memory = NULL;
    if (lend__sys.realloc(NULL, sizeof(struct lend__storage), &memory) < 0)
        return lend__fail_bytes(error, -ENOMEM, OPERATION, sizeof(struct lend__storage), 0,
                                "no memory for the %zu bytes of a storage object", sizeof(struct lend__storage));
    struct lend__block *block = NULL; /* no bytes need none */
    int r = bytes ? lend__pool_place(pool, off, bytes, &block, error) : 0;
    if (r < 0) {
        free(memory);
        return r;
    }
    struct lend__storage *storage = memory;
    *storage = (struct lend__storage){
        .n_refs = 1,
        .kind = LEND__STORAGE_POOL,
        .is_read_only = true,
        .data = block ? data : NULL,
        .bytes = bytes,
        .device = {.device_type = lend__pool_device(pool)->device_type},
        .last_unref = lend__storage_last_unref_private,
        .block = block,
    };
    *ret = block ? lend__pool_place_own(block, storage) : storage;
    if (*ret != storage) lend__storage_unref(storage);
    return 0;
}

int lend_tensor_new_at(struct lend_pool *pool, uint64_t offset, DLDataType dtype, int32_t ndim, const int64_t *shape,
                       struct lend_tensor **ret_tensor, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, OPERATION, "this process was made by a raw clone");
    if (!pool || !ret_tensor || (ndim > 0 && !shape))
        return lend__fail(error, -EINVAL, OPERATION, "pool, shape and ret_tensor must not be NULL");
    const struct lend__geometry geometry = {.dtype = dtype, .ndim = ndim, .shape = shape};
    struct lend__extent_bits measured;
    const struct lend__extent *extent = NULL;
    int r = lend__pool_file(pool, &extent, OPERATION, error);
    if (r >= 0) r = lend__geometry_measure(&geometry, &measured, OPERATION, error);
    if (r < 0) return r;
    uint64_t bytes = measured.end_bits / 8 + (measured.end_bits % 8 != 0);
    if (!lend__range_fits(offset, bytes, extent->bytes))
        return lend__fail_bytes(error, -ERANGE, OPERATION, bytes, extent->bytes,
                                "%llu bytes at offset %llu do not lie in the pool's range of %llu",
                                (unsigned long long)bytes, (unsigned long long)offset,
                                (unsigned long long)extent->bytes);
    r = lend__extent_file_check(extent, offset, bytes, OPERATION, error);
    if (r < 0) return r;
    struct lend__storage *storage;
    r = storage_at(pool, extent->base + offset, offset, bytes, &storage, error);
    if (r < 0) return r;
    r = lend__tensor_make(&geometry, &measured, storage, true, ret_tensor);
    if (r < 0) {
        lend__storage_unref(storage);
        return lend__fail(error, r, OPERATION, "no memory for a tensor object of %d dimensions", ndim);
    }
    return 0;
}
