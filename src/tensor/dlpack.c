/* SPDX-License-Identifier: MIT */
/* DLPack in and out, versioned (1.x) and legacy.
 *
 * In: DLPack tells where element 0 lies, not how large the memory is; so the storage is what shape and strides reach,
 * from the lowest byte (below `data` when strides are negative) to the highest. If that range lies in a storage that
 * this process knows, the tensor becomes a view of it and the producer's struct is given back at once.
 *
 * Out: one struct that holds a reference to the storage (not to the tensor, which could be moved away meanwhile), with
 * its own shape and strides. Deleters are plain C: consumers call them from any thread, and after Python has gone.
 *
 * Locking: none. The caller's deleter runs without a lock of ours. */
#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "base/sys.h"
#include "device/device.h"
#include "memory/region.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A producer's struct of either kind, while it is taken in. */
struct producer {
    const DLTensor *tensor;
    bool is_read_only, is_padded;
    void (*give_back)(void *managed);
    void *managed;
};

static void give_back_versioned(void *managed) {
    DLManagedTensorVersioned *m = managed;
    if (m->deleter) m->deleter(m);
}

static void give_back_legacy(void *managed) {
    DLManagedTensor *m = managed;
    if (m->deleter) m->deleter(m);
}

/* The bytes that the elements reach, and where element 0 lies in them. */
struct reached {
    uint8_t *lowest; /* NULL without elements */
    uint64_t bytes, offset_bits;
};

static int find_reached(const DLTensor *t, const struct lend__extent_bits *measured, struct reached *ret,
                        const char *operation, struct lend_error *error) {
    *ret = (struct reached){0};
    if (measured->numel == 0) return 0;
    if (!t->data) return lend__fail(error, -EINVAL, operation, "data is NULL, but there are elements");
    uint64_t address = (uintptr_t)t->data, end;
    uint64_t below = measured->below_bits / 8 + (measured->below_bits % 8 != 0);
    uint64_t above = measured->end_bits / 8 + (measured->end_bits % 8 != 0);
    if (measured->end_bits == UINT64_MAX || lend__add_overflows(address, t->byte_offset, &address) || below > address ||
        lend__add_overflows(address, above, &end) || end > UINTPTR_MAX)
        return lend__fail(error, -EOVERFLOW, operation,
                          "data %p, byte_offset %llu, shape and strides lead out of the address space", t->data,
                          (unsigned long long)t->byte_offset);
    /* Derived from data by arithmetic on the pointer, so that it keeps its origin. */
    ret->lowest = (uint8_t *)t->data + (ptrdiff_t)(t->byte_offset - below);
    ret->bytes = below + above;
    ret->offset_bits = below * 8;
    return 0;
}

/* Finds the storage around the elements, or makes a private one that gives the producer's struct back at its end. */
static int find_storage(const struct producer *producer, struct reached *reached, struct lend__storage **ret,
                        struct lend_error *error) {
    struct lend__storage *found = reached->lowest ? lend__region_find(reached->lowest, reached->bytes) : NULL;
    uint64_t off = found ? (uint64_t)(reached->lowest - found->data) : 0;
    /* A storage is found by its block, whose last bytes may lie behind it. */
    if (found && lend__range_fits(off, reached->bytes, found->bytes)) {
        reached->offset_bits += off * 8;
        *ret = found;
        return 0;
    }
    if (found) lend__storage_unref(found);
    const struct lend__private_memory memory = {.data = reached->lowest,
                                                .bytes = reached->bytes,
                                                .device = producer->tensor->device,
                                                .is_read_only = producer->is_read_only,
                                                .release = producer->give_back,
                                                .ctx = producer->managed};
    return lend__storage_new_private(&memory, ret, error);
}

static int take_in(const struct producer *producer, struct lend_tensor **ret, const char *operation,
                   struct lend_error *error) {
    const DLTensor *t = producer->tensor;
    if ((int)t->device.device_type == LEND_DEVICE_META)
        return lend__fail(error, -ENODEV, operation,
                          "DLPack has no meta device: %d is a number of lend's own; lend_tensor_new_meta makes such "
                          "tensors",
                          LEND_DEVICE_META);
    if (!lend__device_get((int32_t)t->device.device_type))
        return lend__fail(error, -ENODEV, operation, "there is no back end for device type %d in this build",
                          (int)t->device.device_type);
    if (!lend_dtype_is_valid(t->dtype))
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "dtype (code %u, bits %u, lanes %u) is not one that lend carries", t->dtype.code,
                          t->dtype.bits, t->dtype.lanes);
    if (t->ndim > 0 && !t->shape) return lend__fail(error, -EINVAL, operation, "shape is NULL");
    struct lend__geometry geometry = {
        .dtype = t->dtype,
        .is_padded = producer->is_padded,
        .ndim = t->ndim,
        .shape = t->shape,
        .strides = t->strides,
    };
    struct lend__extent_bits checked;
    int r = lend__geometry_measure(&geometry, &checked, operation, error);
    if (r < 0) return r;
    struct reached reached;
    r = find_reached(t, &checked, &reached, operation, error);
    if (r < 0) return r;
    struct lend__storage *storage;
    r = find_storage(producer, &reached, &storage, error);
    if (r < 0) return r;
    bool is_found = storage->kind != LEND__STORAGE_PRIVATE; /* only allocations are found by address */
    geometry.offset_bits = reached.offset_bits;
    r = lend__geometry_check(&geometry, storage->bytes, &checked, operation, error);
    if (r == 0) {
        r = lend__tensor_make(&geometry, &checked, storage, producer->is_read_only, ret);
        if (r < 0) lend__fail(error, r, operation, "no memory for a tensor object of %d dimensions", t->ndim);
    }
    if (r < 0) {
        if (!is_found) storage->private_release = NULL; /* on error the caller still owns its struct */
        lend__storage_unref(storage);
        return r;
    }
    if (is_found) producer->give_back(producer->managed);
    return 0;
}

int lend_tensor_from_dlpack(struct DLManagedTensorVersioned *managed, struct lend_tensor **ret_tensor,
                            struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
    if (!managed || !ret_tensor) return lend__fail(error, -EINVAL, __func__, "managed and ret_tensor must not be NULL");
    if (managed->version.major != LEND_DLPACK_MAJOR)
        return lend__fail(error, -EPROTONOSUPPORT, __func__, "the producer speaks DLPack %u.%u, lend speaks %d.%d",
                          managed->version.major, managed->version.minor, LEND_DLPACK_MAJOR, LEND_DLPACK_MINOR);
    struct producer producer = {
        .tensor = &managed->dl_tensor,
        .is_read_only = managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY,
        .is_padded = managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
        .give_back = give_back_versioned,
        .managed = managed,
    };
    return take_in(&producer, ret_tensor, __func__, error);
}

int lend_tensor_from_dlpack_legacy(struct DLManagedTensor *managed, struct lend_tensor **ret_tensor,
                                   struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
    if (!managed || !ret_tensor) return lend__fail(error, -EINVAL, __func__, "managed and ret_tensor must not be NULL");
    struct producer producer = {
        .tensor = &managed->dl_tensor,
        .give_back = give_back_legacy,
        .managed = managed,
    };
    return take_in(&producer, ret_tensor, __func__, error);
}

/* What a consumer gets: its struct comes first, so that the deleter finds the rest. */
struct export_versioned {
    DLManagedTensorVersioned managed;
    struct lend__storage *storage;
    int64_t dims[]; /* shape, then strides */
};

struct export_legacy {
    DLManagedTensor managed;
    struct lend__storage *storage;
    int64_t dims[];
};

static void delete_versioned(struct DLManagedTensorVersioned *managed) {
    if (!managed) return;
    lend__storage_unref(((struct export_versioned *)managed)->storage);
    free(managed);
}

static void delete_legacy(struct DLManagedTensor *managed) {
    if (!managed) return;
    lend__storage_unref(((struct export_legacy *)managed)->storage);
    free(managed);
}

/* The storage, if DLPack can say what the tensor is and where it begins. Its attributes are no part of DLPack and stay
 * behind; those that change the values must not. */
static int begin_export(struct lend_tensor *tensor, const void *ret_managed, struct lend__storage **ret,
                        const char *operation, struct lend_error *error) {
    int r = lend__tensor_storage(tensor, ret, operation, error);
    if (r < 0) return r;
    if (!ret_managed) return lend__fail(error, -EINVAL, operation, "ret_managed is NULL");
    if (tensor->attrs & LEND__ATTRS_OF_VALUES)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "DLPack cannot say that the values are %s: lend_tensor_resolve the tensor first",
                          tensor->attrs & LEND_ATTR_CONJ ? "conjugated" : "negated");
    if ((*ret)->kind == LEND__STORAGE_ZERO)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "a zero tensor has no memory to give out: lend_tensor_resolve gives it some");
    if ((*ret)->kind == LEND__STORAGE_META)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "a meta tensor has no memory to give out, and DLPack has no meta device: make a tensor of "
                          "its shape with lend_tensor_new");
    if (tensor->numel && tensor->offset_bits % 8)
        return lend__fail(error, -EOPNOTSUPP, operation,
                          "the first element begins at bit %u of a byte, which DLPack cannot say; copy the tensor",
                          (unsigned)(tensor->offset_bits % 8));
    return 0;
}

static void *new_export(size_t struct_bytes, int32_t ndim, const char *operation, struct lend_error *error) {
    void *memory = NULL;
    size_t bytes = struct_bytes + 2 * (size_t)ndim * sizeof(int64_t);
    if (lend__sys.realloc(NULL, bytes, &memory) < 0)
        lend__fail_bytes(error, -ENOMEM, operation, bytes, 0, "no memory for the %zu bytes of a DLPack struct", bytes);
    return memory;
}

static void fill_export(const struct lend_tensor *tensor, const struct lend__storage *storage, int64_t *dims,
                        DLTensor *ret) {
    memcpy(dims, tensor->dims, 2 * (size_t)tensor->ndim * sizeof *dims);
    *ret = (DLTensor){
        .data = tensor->numel ? storage->data + tensor->offset_bits / 8 : NULL,
        .device = storage->device,
        .ndim = tensor->ndim,
        .dtype = tensor->dtype,
        .shape = tensor->ndim ? dims : NULL,
        .strides = tensor->ndim ? dims + tensor->ndim : NULL,
    };
}

int lend_tensor_to_dlpack(struct lend_tensor *tensor, struct DLManagedTensorVersioned **ret_managed,
                          struct lend_error *error) {
    struct lend__storage *storage;
    int r = begin_export(tensor, ret_managed, &storage, __func__, error);
    if (r < 0) return r;
    struct export_versioned *export = new_export(sizeof *export, tensor->ndim, __func__, error);
    if (!export) return -ENOMEM;
    export->storage = lend__storage_ref(storage);
    export->managed = (DLManagedTensorVersioned){
        .version = {LEND_DLPACK_MAJOR, LEND_DLPACK_MINOR},
        .deleter = delete_versioned,
        .flags = (tensor->is_read_only || storage->is_read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0) |
                 (tensor->is_padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0),
    };
    fill_export(tensor, storage, export->dims, &export->managed.dl_tensor);
    *ret_managed = &export->managed;
    return 0;
}

int lend_tensor_to_dlpack_legacy(struct lend_tensor *tensor, struct DLManagedTensor **ret_managed,
                                 struct lend_error *error) {
    struct lend__storage *storage;
    int r = begin_export(tensor, ret_managed, &storage, __func__, error);
    if (r < 0) return r;
    if (tensor->is_read_only || storage->is_read_only)
        return lend__fail(error, -EACCES, __func__, "DLPack before 1.0 cannot say that this tensor is read-only");
    if (tensor->dtype.code > LEND_BOOL || tensor->dtype.bits < 8) {
        char name[32];
        lend_dtype_format(tensor->dtype, name, sizeof name);
        return lend__fail(error, -EOPNOTSUPP, __func__, "consumers of DLPack before 1.0 do not know %s", name);
    }
    struct export_legacy *export = new_export(sizeof *export, tensor->ndim, __func__, error);
    if (!export) return -ENOMEM;
    export->storage = lend__storage_ref(storage);
    export->managed = (DLManagedTensor){.deleter = delete_legacy};
    fill_export(tensor, storage, export->dims, &export->managed.dl_tensor);
    *ret_managed = &export->managed;
    return 0;
}
