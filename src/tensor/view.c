/* SPDX-License-Identifier: MIT */
/* Views: new shape, strides and offset over the same storage.
 *
 * Each call starts from a copy of the tensor's geometry, changes it, and lets lend__geometry_check judge the result, so
 * that a mistake here cannot reach outside the storage. An element that exists has a bit offset in [0, 2^64), so its
 * offset may be computed modulo 2^64. A view without elements keeps the offset of its tensor: the address of an element
 * that does not exist may lie anywhere.
 *
 * A view keeps the marks that say what its values are; the rest of what its tensor carries is the tensor's own.
 *
 * Locking: none; the storage lives because the caller's tensor does. */
#include "tensor/tensor.h"

#include "base/checked.h"
#include "base/error.h"

#include <errno.h>
#include <string.h>

struct view {
    const struct lend_tensor *tensor;
    struct lend__storage *storage;
    const char *operation;
    struct lend_error *error;
    uint32_t attrs;                 /* of the view */
    struct lend__geometry geometry; /* shape and strides point to the arrays below */
    int64_t shape[LEND_NDIM_MAX], strides[LEND_NDIM_MAX];
};

static int begin(struct view *view, const struct lend_tensor *tensor, struct lend_tensor **ret, const char *operation,
                 struct lend_error *error) {
    int r = lend__tensor_storage(tensor, &view->storage, operation, error);
    if (r < 0) return r;
    if (!ret) return lend__fail(error, -EINVAL, operation, "ret_tensor is NULL");
    view->tensor = tensor;
    view->operation = operation;
    view->error = error;
    view->attrs = tensor->attrs & LEND__ATTRS_OF_VALUES;
    view->geometry = (struct lend__geometry){
        .dtype = tensor->dtype,
        .is_padded = tensor->is_padded,
        .ndim = tensor->ndim,
        .shape = view->shape,
        .strides = view->strides,
        .offset_bits = tensor->offset_bits,
    };
    memcpy(view->shape, lend__tensor_shape(tensor), (size_t)tensor->ndim * sizeof *view->shape);
    memcpy(view->strides, lend__tensor_strides(tensor), (size_t)tensor->ndim * sizeof *view->strides);
    return 0;
}

static int finish(struct view *view, struct lend_tensor **ret) {
    struct lend__extent_bits checked;
    int r = lend__geometry_check(&view->geometry, view->storage->bytes, &checked, view->operation, view->error);
    if (r < 0) return r;
    lend__storage_ref(view->storage);
    struct lend_tensor *made;
    r = lend__tensor_make(&view->geometry, &checked, view->storage, view->tensor->is_read_only, &made);
    if (r < 0) {
        lend__storage_unref(view->storage);
        return lend__fail(view->error, r, view->operation, "no memory for a tensor object of %d dimensions",
                          view->geometry.ndim);
    }
    made->attrs = view->attrs;
    *ret = made;
    return 0;
}

/* Makes index `index` of dimension `dim` the first one; it exists, or the view has no elements. */
static void move_offset(struct view *view, int32_t dim, int64_t index) {
    view->geometry.offset_bits += (uint64_t)index * (uint64_t)view->strides[dim] * view->tensor->item_bits;
}

/* Counts a negative dimension from the end. */
static int find_dim(const struct view *view, int32_t dim, int32_t *ret) {
    int32_t ndim = view->tensor->ndim;
    if (dim < -ndim || dim >= ndim)
        return lend__fail(view->error, -ERANGE, view->operation, "there is no dimension %d in a tensor of %d", dim,
                          ndim);
    *ret = dim < 0 ? dim + ndim : dim;
    return 0;
}

/* The caller's shape replaces the tensor's. */
static int check_shape_argument(const struct view *view, int32_t ndim, const int64_t *shape) {
    if (ndim < 0 || ndim > LEND_NDIM_MAX)
        return lend__fail(view->error, -EINVAL, view->operation, "a tensor has 0 to %d dimensions, not %d",
                          LEND_NDIM_MAX, ndim);
    if (ndim > 0 && !shape) return lend__fail(view->error, -EINVAL, view->operation, "shape is NULL");
    return 0;
}

int lend_tensor_select(struct lend_tensor *tensor, int32_t dim, int64_t index, struct lend_tensor **ret_tensor,
                       struct lend_error *error) {
    struct view view;
    int r = begin(&view, tensor, ret_tensor, __func__, error);
    if (r < 0) return r;
    r = find_dim(&view, dim, &dim);
    if (r < 0) return r;
    int64_t size = view.shape[dim];
    if (index < -size || index >= size)
        return lend__fail(error, -ERANGE, __func__, "index %lld is out of range for dimension %d with size %lld",
                          (long long)index, dim, (long long)size);
    if (tensor->numel) move_offset(&view, dim, index < 0 ? index + size : index);
    size_t behind = (size_t)(tensor->ndim - 1 - dim);
    memmove(view.shape + dim, view.shape + dim + 1, behind * sizeof *view.shape);
    memmove(view.strides + dim, view.strides + dim + 1, behind * sizeof *view.strides);
    view.geometry.ndim--;
    return finish(&view, ret_tensor);
}

static int64_t clamp_index(int64_t index, int64_t size, int64_t low, int64_t high) {
    if (index < 0) index += size;
    return index < low ? low : index > high ? high : index;
}

int lend_tensor_slice(struct lend_tensor *tensor, int32_t dim, int64_t start, int64_t stop, int64_t step,
                      struct lend_tensor **ret_tensor, struct lend_error *error) {
    struct view view;
    int r = begin(&view, tensor, ret_tensor, __func__, error);
    if (r < 0) return r;
    r = find_dim(&view, dim, &dim);
    if (r < 0) return r;
    if (step == 0) return lend__fail(error, -EINVAL, __func__, "the step of a slice of dimension %d is 0", dim);
    int64_t size = view.shape[dim], low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
    start = clamp_index(start, size, low, high);
    stop = clamp_index(stop, size, low, high);
    uint64_t way = step < 0 ? (uint64_t)(start - stop) : (uint64_t)(stop - start);
    uint64_t pace = step < 0 ? -(uint64_t)step : (uint64_t)step;
    bool is_empty = step < 0 ? start <= stop : start >= stop;
    view.shape[dim] = is_empty ? 0 : (int64_t)((way - 1) / pace + 1);
    if (tensor->numel && !is_empty) move_offset(&view, dim, start);
    int64_t stride;
    if (!lend__mul_overflows(view.strides[dim], step, &stride))
        view.strides[dim] = stride;
    else if (view.shape[dim] > 1) /* with at most one index left the stride does not matter and stays as it is */
        return lend__fail(error, -EOVERFLOW, __func__, "stride %lld of dimension %d times step %lld does not fit",
                          (long long)view.strides[dim], dim, (long long)step);
    return finish(&view, ret_tensor);
}

int lend_tensor_transpose(struct lend_tensor *tensor, int32_t dim0, int32_t dim1, struct lend_tensor **ret_tensor,
                          struct lend_error *error) {
    struct view view;
    int r = begin(&view, tensor, ret_tensor, __func__, error);
    if (r < 0) return r;
    r = find_dim(&view, dim0, &dim0);
    if (r == 0) r = find_dim(&view, dim1, &dim1);
    if (r < 0) return r;
    const int64_t *shape = lend__tensor_shape(tensor), *strides = lend__tensor_strides(tensor);
    view.shape[dim0] = shape[dim1];
    view.shape[dim1] = shape[dim0];
    view.strides[dim0] = strides[dim1];
    view.strides[dim1] = strides[dim0];
    return finish(&view, ret_tensor);
}

int lend_tensor_expand(struct lend_tensor *tensor, int32_t ndim, const int64_t *shape, struct lend_tensor **ret_tensor,
                       struct lend_error *error) {
    struct view view;
    int r = begin(&view, tensor, ret_tensor, __func__, error);
    if (r == 0) r = check_shape_argument(&view, ndim, shape);
    if (r < 0) return r;
    int32_t n_new = ndim - tensor->ndim;
    if (n_new < 0)
        return lend__fail(error, -EINVAL, __func__, "%d sizes are fewer than the tensor's %d dimensions", ndim,
                          tensor->ndim);
    for (int32_t i = 0; i < ndim; i++) {
        int64_t old = i < n_new ? 1 : lend__tensor_shape(tensor)[i - n_new];
        bool is_kept = shape[i] == old || (shape[i] == -1 && i >= n_new);
        if (!is_kept && (old != 1 || shape[i] < 0))
            return lend__fail(error, -EINVAL, __func__, "size %lld of dimension %d cannot become %lld: only 1 expands",
                              (long long)old, i, (long long)shape[i]);
        view.shape[i] = is_kept ? old : shape[i];
        view.strides[i] = is_kept && i >= n_new ? lend__tensor_strides(tensor)[i - n_new] : 0;
    }
    view.geometry.ndim = ndim;
    return finish(&view, ret_tensor);
}

/* Fills view->shape with the wanted sizes, the one that is -1 computed. Their product is the tensor's numel. */
static int resolve_shape(struct view *view, int32_t ndim, const int64_t *shape) {
    int64_t product = 1, numel = view->tensor->numel;
    int32_t open = -1;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < -1 || (shape[i] == -1 && open >= 0))
            return lend__fail(view->error, -EINVAL, view->operation,
                              "size %lld of dimension %d: sizes are at least 0, and only one may be -1",
                              (long long)shape[i], i);
        view->shape[i] = shape[i];
        if (shape[i] == -1)
            open = i;
        else if (lend__mul_overflows(product, shape[i], &product))
            return lend__fail(view->error, -EOVERFLOW, view->operation,
                              "the number of elements does not fit 63 bits (dimension %d has size %lld)", i,
                              (long long)shape[i]);
    }
    if (open >= 0 && product > 0 && numel % product == 0) {
        view->shape[open] = numel / product;
    } else if (open >= 0 || product != numel) {
        return lend__fail(view->error, -EINVAL, view->operation,
                          "%lld elements do not make the wanted shape, whose sizes multiply to %lld%s",
                          (long long)numel, (long long)product, open >= 0 ? " and leave one to compute" : "");
    }
    return 0;
}

/* Strides that give view->shape the same elements in the same order, without moving any. The tensor's dimensions fall
 * into runs in which each stride is the next one times its size; only within such a run can sizes be regrouped.
 * Returns the tensor's dimension at which that fails, or -1. */
static int32_t regroup_strides(struct view *view, int32_t ndim) {
    const int64_t *shape = lend__tensor_shape(view->tensor), *strides = lend__tensor_strides(view->tensor);
    int32_t to = ndim - 1;
    int64_t base = strides[view->tensor->ndim - 1], n_old = 1, n_new = 1;
    for (int32_t from = view->tensor->ndim - 1; from >= 0; from--) {
        int64_t run_stride;
        n_old *= shape[from];
        bool goes_on = from > 0 && (shape[from - 1] == 1 || (!lend__mul_overflows(n_old, base, &run_stride) &&
                                                             strides[from - 1] == run_stride));
        if (goes_on) continue;
        while (to >= 0 && (n_new < n_old || view->shape[to] == 1)) {
            view->strides[to] = (int64_t)((uint64_t)n_new * (uint64_t)base); /* wraps only where the size is 1 */
            n_new *= view->shape[to--];
        }
        if (n_new != n_old) return from;
        if (from > 0) base = strides[from - 1];
        n_old = n_new = 1;
    }
    return -1;
}

int lend_tensor_reshape(struct lend_tensor *tensor, int32_t ndim, const int64_t *shape, struct lend_tensor **ret_tensor,
                        struct lend_error *error) {
    struct view view;
    int r = begin(&view, tensor, ret_tensor, __func__, error);
    if (r == 0) r = check_shape_argument(&view, ndim, shape);
    if (r == 0) r = resolve_shape(&view, ndim, shape);
    if (r < 0) return r;
    view.geometry.ndim = ndim;
    if (tensor->is_contiguous) {
        view.geometry.strides = NULL;
        return finish(&view, ret_tensor);
    }
    int32_t at = regroup_strides(&view, ndim);
    if (at >= 0)
        return lend__fail(error, -EINVAL, __func__,
                          "dimension %d (size %lld, stride %lld) has gaps that the wanted shape would cross; "
                          "lend_tensor_copy makes a contiguous tensor",
                          at, (long long)lend__tensor_shape(tensor)[at], (long long)lend__tensor_strides(tensor)[at]);
    return finish(&view, ret_tensor);
}

int lend_tensor_as_strided(struct lend_tensor *tensor, int32_t ndim, const int64_t *shape, const int64_t *strides,
                           int64_t offset, struct lend_tensor **ret_tensor, struct lend_error *error) {
    struct view view;
    int r = begin(&view, tensor, ret_tensor, __func__, error);
    if (r == 0) r = check_shape_argument(&view, ndim, shape);
    if (r < 0) return r;
    if (ndim > 0 && !strides) return lend__fail(error, -EINVAL, __func__, "strides is NULL");
    if (offset < 0 || lend__mul_overflows((uint64_t)offset, tensor->item_bits, &view.geometry.offset_bits))
        return lend__fail(error, -ERANGE, __func__, "offset %lld lies outside the storage of %llu bytes",
                          (long long)offset, (unsigned long long)view.storage->bytes);
    view.geometry.ndim = ndim;
    view.geometry.shape = shape;
    view.geometry.strides = strides;
    return finish(&view, ret_tensor);
}

int lend_tensor_as_bytes(struct lend_tensor *tensor, struct lend_tensor **ret_tensor, struct lend_error *error) {
    struct view view;
    int r = begin(&view, tensor, ret_tensor, __func__, error);
    if (r < 0) return r;
    const int64_t bytes = (int64_t)view.storage->bytes; /* the bits of a storage fit 64 bits */
    view.attrs = 0;
    view.geometry = (struct lend__geometry){.dtype = {LEND_UINT, 8, 1}, .ndim = 1, .shape = &bytes};
    return finish(&view, ret_tensor);
}
