/* SPDX-License-Identifier: MIT */
/* Tensors of components: birth, what they say about themselves, and their end.
 *
 * Such a tensor has no storage; it holds a reference of each component and is as constant as they are. What can be
 * summed up at birth is: depth, elements, and bytes, so that later sums cannot overflow. Whether the components are still
 * here is asked again by every call, since lend_reduce(LEND_MODE_MOVE) may take the storage out of one.
 *
 * Locking: none. */
#include "tensor/compound.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"
#include "base/sys.h"

#include <errno.h>
#include <lend/group.h>
#include <stdlib.h>
#include <string.h>

static uint32_t depth_of(const struct lend_tensor *tensor) {
    return tensor->layout == LEND_LAYOUT_STRIDED ? 1 : tensor->extra->depth;
}

/* False: the sum does not fit. */
static bool add_bytes(const struct lend_tensor *tensor, uint64_t *sum) {
    if (tensor->layout == LEND_LAYOUT_STRIDED) {
        uint64_t bits = (uint64_t)tensor->numel * tensor->item_bits;
        return !lend__add_overflows(*sum, bits / 8 + (bits % 8 != 0), sum);
    }
    for (uint32_t i = 0; i < tensor->extra->n_components; i++)
        if (!add_bytes(tensor->extra->components[i], sum)) return false;
    return true;
}

/* The product of the sizes; where one is ragged, the elements of the values. */
static int count_elements(const struct lend_compound *compound, int64_t *ret, const char *operation,
                          struct lend_error *error) {
    bool is_ragged = compound->layout == LEND_LAYOUT_NESTED || compound->layout == LEND_LAYOUT_JAGGED;
    if (is_ragged) {
        *ret = compound->components[lend__layout_values(compound->layout)]->numel;
        return 0;
    }
    int64_t product = 1;
    bool is_empty = false;
    for (int32_t i = 0; i < compound->ndim; i++) {
        int64_t size = compound->shape[i];
        is_empty |= size == 0;
        if (size > 0 && lend__mul_overflows(product, size, &product))
            return lend__fail(error, -EOVERFLOW, operation,
                              "the number of elements does not fit 63 bits (dimension %d has size %lld)", i,
                              (long long)size);
    }
    *ret = is_empty ? 0 : product;
    return 0;
}

/* What the whole has of its parts. */
struct sum {
    uint32_t depth, n_tensors;
};

static int add_up(const struct lend_compound *compound, struct lend_tensor *ret, struct sum *ret_sum,
                  const char *operation, struct lend_error *error) {
    uint32_t values = lend__layout_values(compound->layout), depth = 0;
    uint64_t bytes = 0, n_tensors = 1;
    for (uint32_t i = 0; i < compound->n_components; i++) {
        const struct lend_tensor *component = compound->components[i];
        if (depth_of(component) > depth) depth = depth_of(component);
        n_tensors += lend__tensor_count(component);
        if (!add_bytes(component, &bytes))
            return lend__fail(error, -EOVERFLOW, operation, "the bytes of the %u components do not fit 64 bits",
                              compound->n_components);
    }
    if (depth >= LEND_DEPTH_MAX)
        return lend__fail(error, -EINVAL, operation,
                          "a component is a tensor of tensors %u deep, and LEND_DEPTH_MAX = %d with the whole", depth,
                          LEND_DEPTH_MAX);
    if (n_tensors > LEND_GROUP_TENSORS_MAX) /* one tensor may be a component many times over */
        return lend__fail(error, -EINVAL, operation,
                          "the tensor is made of %llu tensors, and LEND_GROUP_TENSORS_MAX = %u",
                          (unsigned long long)n_tensors, LEND_GROUP_TENSORS_MAX);
    *ret_sum = (struct sum){depth + 1, (uint32_t)n_tensors};
    ret->dtype = values < compound->n_components ? compound->components[values]->dtype : compound->dtype;
    ret->is_padded = values < compound->n_components && compound->components[values]->is_padded;
    ret->item_bits =
        values < compound->n_components ? compound->components[values]->item_bits : lend_dtype_bits(compound->dtype);
    return count_elements(compound, &ret->numel, operation, error);
}

static void fill_extra(const struct lend_compound *compound, struct lend__extra *extra) {
    extra->n_components = compound->n_components;
    extra->is_coalesced = compound->layout == LEND_LAYOUT_COO && compound->is_coalesced;
    if (compound->layout == LEND_LAYOUT_JAGGED || compound->layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL)
        extra->dim = compound->dim;
    if (compound->layout == LEND_LAYOUT_QUANTIZED) {
        extra->scale = compound->scale;
        extra->zero_point = compound->zero_point;
    }
    for (uint32_t i = 0; i < compound->n_components; i++) extra->components[i] = compound->components[i];
}

int lend__tensor_make_compound(const struct lend_compound *compound, struct lend_tensor **ret, const char *operation,
                               struct lend_error *error) {
    if (compound->size != sizeof *compound)
        return lend__fail(error, -EINVAL, operation,
                          "compound.size is %zu; set it to sizeof(struct lend_compound) = %zu", compound->size,
                          sizeof *compound);
    struct lend_tensor whole = {.n_refs = 1, .ndim = compound->ndim, .layout = (uint8_t)compound->layout};
    struct sum sum = {0, 0};
    int r = lend__layout_check(compound, operation, error);
    if (r == 0) r = add_up(compound, &whole, &sum, operation, error);
    if (r < 0) return r;
    size_t dims_bytes = (size_t)compound->ndim * sizeof(int64_t);
    struct lend_tensor *tensor = lend__zalloc(sizeof *tensor + 2 * dims_bytes);
    whole.extra = tensor ? lend__zalloc(sizeof *whole.extra) : NULL;
    if (!whole.extra) {
        free(tensor);
        return lend__fail(error, -ENOMEM, operation, "no memory for a tensor object of %u components",
                          compound->n_components);
    }
    fill_extra(compound, whole.extra);
    whole.extra->depth = sum.depth;
    whole.extra->n_tensors = sum.n_tensors;
    memcpy(tensor, &whole, sizeof whole);
    if (dims_bytes) memcpy(tensor->dims, compound->shape, dims_bytes);
    *ret = tensor;
    return 0;
}

void lend__extra_free(struct lend__extra *extra) {
    for (uint32_t i = 0; i < extra->n_components; i++) lend_tensor_unref(extra->components[i]);
    free(extra);
}

int lend_tensor_new_compound(const struct lend_compound *compound, struct lend_tensor **ret_tensor,
                             struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
    if (!compound || !ret_tensor)
        return lend__fail(error, -EINVAL, __func__, "compound and ret_tensor must not be NULL");
    int r = lend__tensor_make_compound(compound, ret_tensor, __func__, error);
    if (r < 0) return r;
    /* The references that were just consumed: ours only now, but the caller's have kept the components. */
    for (uint32_t i = 0; i < compound->n_components; i++) lend_tensor_ref(compound->components[i]);
    return 0;
}

int lend_tensor_components(const struct lend_tensor *tensor, struct lend_compound *ret_compound) {
    if (lend__is_raw_clone()) return -ECHILD;
    if (!tensor || tensor->layout == LEND_LAYOUT_STRIDED) return -EINVAL;
    if (!ret_compound || ret_compound->size < offsetof(struct lend_compound, layout)) return -EINVAL;
    const struct lend__extra *extra = tensor->extra;
    const struct lend_compound compound = {
        .size = ret_compound->size,
        .layout = tensor->layout,
        .n_components = extra->n_components,
        .components = extra->components,
        .ndim = tensor->ndim,
        .shape = lend__tensor_shape(tensor),
        .dtype = tensor->dtype,
        .is_coalesced = extra->is_coalesced,
        .dim = extra->dim,
        .scale = extra->scale,
        .zero_point = extra->zero_point,
    };
    memcpy(ret_compound, &compound, compound.size < sizeof compound ? compound.size : sizeof compound);
    return 0;
}

int lend__compound_info(const struct lend_tensor *tensor, struct lend_tensor_info *ret_info) {
    if (lend__is_raw_clone()) return -ECHILD;
    const struct lend__extra *extra = tensor->extra;
    bool has_any = extra->n_components > 0;
    struct lend_tensor_info info = {
        .dtype = tensor->dtype,
        .device = {.device_type = kDLCPU},
        .ndim = tensor->ndim,
        .is_read_only = tensor->is_read_only,
        .is_shared = has_any,
        .is_zero = has_any,
        .is_padded = tensor->is_padded,
        .layout = tensor->layout,
        .attrs = tensor->attrs,
        .shape = lend__tensor_shape(tensor),
        .numel = tensor->numel,
    };
    for (uint32_t i = 0; i < extra->n_components; i++) {
        struct lend_tensor_info part = {.size = sizeof part};
        int r = lend_tensor_info(extra->components[i], &part);
        if (r < 0) return r;
        /* What restricts the whole, any part does; what is said of all of it, all parts say. */
        info.is_read_only |= part.is_read_only;
        info.is_imported |= part.is_imported;
        info.is_private |= part.is_private;
        info.is_file |= part.is_file;
        info.is_shared &= part.is_shared;
        info.is_zero &= part.is_zero;
        info.nbytes += part.nbytes;
        if (i == lend__layout_values(tensor->layout) || (i == 0 && tensor->layout == LEND_LAYOUT_WRAPPER))
            info.device = part.device;
    }
    *ret_info = info;
    return 0;
}
