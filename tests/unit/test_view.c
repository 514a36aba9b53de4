/* SPDX-License-Identifier: MIT */
/* Views: fixed cases with their sentences, and random chains of views against a list of element addresses. */
#include "fault.h"
#include "naive.h"
#include "pools.h"
#include "test.h"

#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>

static const DLDataType float32 = {LEND_FLOAT, 32, 1};

static struct lend_pool *pool;

static struct lend_tensor *new_tensor(DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_error error;
    struct lend_tensor *tensor;
    if (!pool) pool = pool_without_context();
    CHECK_OK(lend_tensor_new(pool, dtype, ndim, shape, &tensor, &error), &error);
    return tensor;
}

static void end_pool(void) {
    pool_end(pool);
    pool = NULL;
}

/* Distance of a view's first element from its tensor's, in elements. */
static int64_t moved(const struct lend_tensor *view, const struct lend_tensor *tensor) {
    struct lend_tensor_info a = naive_info(view), b = naive_info(tensor);
    return ((int64_t)a.storage_offset_bits - (int64_t)b.storage_offset_bits) / (int64_t)naive_item_bits(&a);
}

LEND_TEST(view_select) {
    struct lend_error error;
    int64_t shape[] = {2, 3, 4};
    struct lend_tensor *tensor = new_tensor(float32, 3, shape), *view = NULL;
    CHECK_OK(lend_tensor_select(tensor, -2, -1, &view, &error), &error);
    struct lend_tensor_info info = naive_info(view);
    CHECK_INT(info.ndim, 2);
    CHECK_INT(info.shape[0], 2);
    CHECK_INT(info.shape[1], 4);
    CHECK_INT(info.strides[0], 12);
    CHECK_INT(info.strides[1], 1);
    CHECK_INT(moved(view, tensor), 8);
    CHECK_INT(info.is_contiguous, 0);
    CHECK_PTR(lend_tensor_data(view), (uint8_t *)lend_tensor_data(tensor) + 32);
    lend_tensor_unref(view);
    view = NULL;
    CHECK_CODE(lend_tensor_select(tensor, 1, 3, &view, &error), -ERANGE);
    CHECK_STR(error.text, "index 3 is out of range for dimension 1 with size 3");
    CHECK_CODE(lend_tensor_select(tensor, 1, -4, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_select(tensor, 1, INT64_MIN, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_select(tensor, 3, 0, &view, &error), -ERANGE);
    CHECK_STR(error.text, "there is no dimension 3 in a tensor of 3");
    CHECK_CODE(lend_tensor_select(tensor, INT32_MIN, 0, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_select(NULL, 0, 0, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_select(tensor, 0, 0, NULL, &error), -EINVAL);
    CHECK_PTR(view, NULL);
    lend_tensor_unref(tensor);
    end_pool();
}

/* What Python's range(10)[start:stop:step] gives; None is INT64_MIN or INT64_MAX at the proper end. */
LEND_TEST(view_slice_as_numpy) {
    static const struct {
        int64_t start, stop, step, n, first, stride;
    } rows[] = {
        {0, 10, 1, 10, 0, 1},
        {2, 8, 3, 2, 2, 3},
        {2, 9, 3, 3, 2, 3},
        {-3, INT64_MAX, 1, 3, 7, 1},
        {INT64_MIN, INT64_MAX, 1, 10, 0, 1},
        {0, -1, 1, 9, 0, 1},
        {5, 5, 1, 0, 0, 1},
        {7, 3, 1, 0, 0, 1},
        {100, 200, 1, 0, 0, 1},
        {INT64_MAX, INT64_MIN, -1, 10, 9, -1},
        {9, -11, -1, 10, 9, -1},
        {9, -1, -1, 0, 0, -1},
        {8, 2, -2, 3, 8, -2},
        {-1, -4, -1, 3, 9, -1},
        {INT64_MAX, INT64_MIN, -4, 3, 9, -4},
        {0, 10, 100, 1, 0, 100},
        {0, 10, INT64_MAX, 1, 0, INT64_MAX},
        {INT64_MAX, INT64_MIN, INT64_MIN, 1, 9, INT64_MIN},
        {3, 5, -1, 0, 0, -1},
    };
    int64_t size = 10;
    struct lend_tensor *tensor = new_tensor(float32, 1, &size), *view;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct lend_error error;
        CHECK_OK(lend_tensor_slice(tensor, 0, rows[i].start, rows[i].stop, rows[i].step, &view, &error), &error);
        struct lend_tensor_info info = naive_info(view);
        CHECK_INT(info.shape[0], rows[i].n);
        CHECK_INT(info.strides[0], rows[i].stride);
        CHECK_INT(moved(view, tensor), rows[i].first);
        lend_tensor_unref(view);
    }
    struct lend_error error;
    CHECK_CODE(lend_tensor_slice(tensor, 0, 0, 10, 0, &view, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "step of a slice of dimension 0 is 0");
    CHECK_CODE(lend_tensor_slice(tensor, 1, 0, 10, 1, &view, &error), -ERANGE);
    lend_tensor_unref(tensor);
    end_pool();
}

LEND_TEST(view_of_no_dimensions_has_none) {
    struct lend_error error;
    struct lend_tensor *tensor = new_tensor(float32, 0, NULL), *view;
    int64_t ones[] = {1, 1};
    CHECK_CODE(lend_tensor_select(tensor, 0, 0, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_select(tensor, -1, 0, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_transpose(tensor, 0, 0, &view, &error), -ERANGE);
    CHECK_OK(lend_tensor_reshape(tensor, 2, ones, &view, &error), &error);
    CHECK_INT(naive_info(view).ndim, 2);
    lend_tensor_unref(view);
    CHECK_OK(lend_tensor_reshape(tensor, 0, NULL, &view, &error), &error);
    lend_tensor_unref(view);
    CHECK_OK(lend_tensor_as_strided(tensor, 0, NULL, NULL, 0, &view, &error), &error);
    lend_tensor_unref(view);
    lend_tensor_unref(tensor);
    end_pool();
}

LEND_TEST(view_expand) {
    struct lend_error error;
    int64_t shape[] = {3, 1}, wide[] = {2, -1, 4}, fewer[] = {3}, other[] = {4, 1}, lead[] = {-1, 3, 1},
            less[] = {3, -2};
    int64_t none[] = {3, 0};
    struct lend_tensor *tensor = new_tensor(float32, 2, shape), *view;
    CHECK_OK(lend_tensor_expand(tensor, 3, wide, &view, &error), &error);
    struct lend_tensor_info info = naive_info(view);
    int64_t expanded[] = {2, 3, 4}, strides[] = {0, 1, 0};
    CHECK_MEM(info.shape, expanded, sizeof expanded);
    CHECK_MEM(info.strides, strides, sizeof strides);
    CHECK_INT(info.numel, 24);
    CHECK_UINT(info.nbytes, 96);
    CHECK_UINT(info.storage_bytes, 12);
    lend_tensor_unref(view);
    CHECK_OK(lend_tensor_expand(tensor, 2, none, &view, &error), &error);
    CHECK_INT(naive_info(view).numel, 0);
    lend_tensor_unref(view);
    CHECK_CODE(lend_tensor_expand(tensor, 1, fewer, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_expand(tensor, 2, other, &view, &error), -EINVAL);
    CHECK_STR(error.text, "size 3 of dimension 0 cannot become 4: only 1 expands");
    CHECK_CODE(lend_tensor_expand(tensor, 3, lead, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_expand(tensor, 2, less, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_expand(tensor, 65, wide, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_expand(tensor, 2, NULL, &view, &error), -EINVAL);
    int64_t huge[] = {INT64_MAX, 3, INT64_MAX};
    CHECK_CODE(lend_tensor_expand(tensor, 3, huge, &view, &error), -EOVERFLOW);
    lend_tensor_unref(tensor);
    end_pool();
}

LEND_TEST(view_reshape) {
    struct lend_error error;
    int64_t shape[] = {4, 6}, open[] = {3, -1, 2}, two[] = {-1, -1}, wrong[] = {5, 5}, five[] = {5, -1},
            zero[] = {0, -1};
    struct lend_tensor *tensor = new_tensor(float32, 2, shape), *view, *part;
    CHECK_OK(lend_tensor_reshape(tensor, 3, open, &view, &error), &error);
    int64_t expected[] = {3, 4, 2};
    CHECK_MEM(naive_info(view).shape, expected, sizeof expected);
    lend_tensor_unref(view);
    CHECK_CODE(lend_tensor_reshape(tensor, 2, two, &view, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "only one may be -1");
    CHECK_CODE(lend_tensor_reshape(tensor, 2, wrong, &view, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "24 elements do not make the wanted shape, whose sizes multiply to 25");
    CHECK_CODE(lend_tensor_reshape(tensor, 2, five, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_reshape(tensor, 2, zero, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_reshape(tensor, 2, NULL, &view, &error), -EINVAL);
    int64_t huge[] = {INT64_MAX, 3, INT64_MAX};
    CHECK_CODE(lend_tensor_reshape(tensor, 3, huge, &view, &error), -EOVERFLOW);

    CHECK_OK(lend_tensor_slice(tensor, 1, 0, 4, 1, &part, &error), &error); /* 4 rows of 4, 6 apart */
    int64_t flat = 16, grouped[] = {2, 2, 2, 2};
    CHECK_CODE(lend_tensor_reshape(part, 1, &flat, &view, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "dimension 1 (size 4, stride 1) has gaps");
    CHECK_CONTAINS(error.text, "lend_tensor_copy");
    CHECK_OK(lend_tensor_reshape(part, 4, grouped, &view, &error), &error);
    int64_t strides[] = {12, 6, 2, 1};
    CHECK_MEM(naive_info(view).strides, strides, sizeof strides);
    lend_tensor_unref(view);
    lend_tensor_unref(part);
    lend_tensor_unref(tensor);
    end_pool();
}

LEND_TEST(view_as_strided) {
    struct lend_error error;
    int64_t size = 12, shape[] = {2, 2}, strides[] = {-4, 3}, wild[] = {INT64_MIN, INT64_MAX};
    struct lend_tensor *tensor = new_tensor(float32, 1, &size), *part, *view;
    CHECK_OK(lend_tensor_slice(tensor, 0, 6, 8, 1, &part, &error), &error);
    CHECK_OK(lend_tensor_as_strided(part, 2, shape, strides, 8, &view, &error), &error); /* may leave the part */
    CHECK_INT(moved(view, tensor), 8);
    lend_tensor_unref(view);
    CHECK_CODE(lend_tensor_as_strided(part, 2, shape, strides, 9, &view, &error), -ERANGE);
    CHECK_CONTAINS(error.text, "outside the storage of 384 bits");
    CHECK_CODE(lend_tensor_as_strided(part, 2, shape, strides, 3, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_as_strided(part, 2, shape, wild, 8, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_as_strided(part, 2, shape, strides, -1, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_as_strided(part, 2, shape, strides, INT64_MAX, &view, &error), -ERANGE);
    CHECK_CODE(lend_tensor_as_strided(part, 2, shape, NULL, 0, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_as_strided(part, 2, NULL, strides, 0, &view, &error), -EINVAL);
    CHECK_CODE(lend_tensor_as_strided(part, 65, shape, strides, 0, &view, &error), -EINVAL);
    lend_tensor_unref(part);
    lend_tensor_unref(tensor);
    end_pool();
}

LEND_TEST(view_keeps_read_only_and_padded) {
    static uint8_t memory[6];
    struct lend_error error;
    int64_t shape[] = {2, 3}, flat = 6;
    DLManagedTensorVersioned managed = {
        .version = {1, 1},
        .flags = DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
        .dl_tensor = {.data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {LEND_INT, 4, 1}, .shape = shape},
    };
    struct lend_tensor *tensor, *views[6];
    CHECK_OK(lend_tensor_from_dlpack(&managed, &tensor, &error), &error);
    CHECK_OK(lend_tensor_select(tensor, 0, 1, &views[0], &error), &error);
    CHECK_OK(lend_tensor_slice(tensor, 1, 1, 3, 1, &views[1], &error), &error);
    CHECK_OK(lend_tensor_transpose(tensor, 0, 1, &views[2], &error), &error);
    CHECK_OK(lend_tensor_expand(tensor, 2, shape, &views[3], &error), &error);
    CHECK_OK(lend_tensor_reshape(tensor, 1, &flat, &views[4], &error), &error);
    CHECK_OK(lend_tensor_as_strided(tensor, 1, &flat, &(int64_t){1}, 0, &views[5], &error), &error);
    CHECK_PTR(lend_tensor_data(views[0]), memory + 3);
    for (int i = 0; i < 6; i++) {
        CHECK_INT(naive_info(views[i]).is_read_only, 1);
        CHECK_INT(naive_info(views[i]).is_padded, 1);
        CHECK_INT(naive_info(views[i]).is_private, 1);
        lend_tensor_unref(views[i]);
    }
    lend_tensor_unref(tensor);
}

/* The whole storage, wherever in it the tensor lies. */
LEND_TEST(view_as_bytes) {
    struct lend_error error;
    int64_t shape[] = {3, 5};
    static const DLDataType dtypes[] = {{LEND_FLOAT, 32, 1}, {LEND_INT, 4, 1}, {LEND_FLOAT6_E2M3FN, 6, 3}};
    static const int64_t bytes[] = {60, 8, 34};
    for (int i = 0; i < 3; i++) {
        struct lend_tensor *tensor = new_tensor(dtypes[i], 2, shape), *part, *view;
        CHECK_OK(lend_tensor_select(tensor, 1, 4, &part, &error), &error);
        part->is_read_only = true;
        CHECK_OK(lend_tensor_as_bytes(part, &view, &error), &error);
        struct lend_tensor_info info = naive_info(view);
        CHECK_INT(info.ndim, 1);
        CHECK_INT(info.shape[0], bytes[i]);
        CHECK_INT(info.strides[0], 1);
        CHECK_INT(info.is_contiguous, 1);
        CHECK_INT(info.is_read_only, 1); /* no way around the mark */
        CHECK_MEM(&info.dtype, &((DLDataType){LEND_UINT, 8, 1}), sizeof info.dtype);
        CHECK_PTR(info.data, lend_tensor_data(tensor));
        CHECK_UINT(info.storage_id, naive_info(tensor).storage_id);
        lend_tensor_unref(tensor);
        lend_tensor_unref(part);
        ((uint8_t *)info.data)[info.numel - 1] = 1; /* it is still there */
        lend_tensor_unref(view);
    }
    int64_t none[] = {0, 5};
    struct lend_tensor *tensor = new_tensor(float32, 2, none), *view = NULL;
    CHECK_CODE(lend_tensor_as_bytes(tensor, NULL, &error), -EINVAL);
    fault_arm(0);
    CHECK_CODE(lend_tensor_as_bytes(tensor, &view, &error), -ENOMEM);
    CHECK(fault_disarm() != NULL);
    CHECK_PTR(view, NULL);
    CHECK_OK(lend_tensor_as_bytes(tensor, &view, &error), &error);
    CHECK_INT(naive_info(view).numel, 0);
    lend_tensor_unref(view);
    lend_tensor_unref(tensor);
    end_pool();
}

LEND_TEST(view_when_memory_is_short) {
    int64_t size = 4;
    struct lend_tensor *tensor = new_tensor(float32, 1, &size), *view = NULL;
    struct lend_error error;
    fault_arm(0);
    CHECK_CODE(lend_tensor_select(tensor, 0, 0, &view, &error), -ENOMEM);
    CHECK(fault_disarm() != NULL);
    CHECK_INT(error.code, -ENOMEM);
    CHECK_PTR(view, NULL);
    CHECK_UINT(tensor->storage->n_refs, 1);
    lend_tensor_unref(tensor);
    end_pool();
}

/* A tensor as a list: the first bit of every element, in C order. */
#define LIST_MAX 4096
struct list {
    int32_t ndim;
    int64_t shape[8], n, bit[LIST_MAX];
};

static void list_count(struct list *list) {
    list->n = 1;
    for (int32_t i = 0; i < list->ndim; i++) list->n *= list->shape[i];
}

/* Where index `index` stands in the list. */
static int64_t list_at(const struct list *list, const int64_t *index) {
    int64_t at = 0;
    for (int32_t i = 0; i < list->ndim; i++) at = at * list->shape[i] + index[i];
    return at;
}

static void list_check(const struct list *list, const struct lend_tensor *tensor) {
    struct lend_tensor_info info = naive_info(tensor);
    CHECK_INT(info.ndim, list->ndim);
    CHECK_MEM(info.shape, list->shape, (size_t)list->ndim * sizeof(int64_t));
    CHECK_INT(info.numel, list->n);
    bool is_contiguous = true;
    int64_t index[8] = {0};
    for (int64_t i = 0; i < list->n; i++) {
        CHECK_INT(naive_bit(&info, index), list->bit[i]);
        is_contiguous &= list->bit[i] == list->bit[0] + i * (int64_t)naive_item_bits(&info);
        naive_next(info.ndim, info.shape, index);
    }
    CHECK_INT(info.is_contiguous, is_contiguous);
    if (!list->n) return;
    CHECK_PTR(info.data, (uint8_t *)info.storage_data + list->bit[0] / 8);
    CHECK_UINT(info.data_bit, (uint64_t)list->bit[0] % 8);
}

/* Are there strides with which `shape` gives this list? Then a reshape must succeed, else it must not. */
static bool list_has_strides(const struct list *list) {
    int64_t index[8] = {0}, stride[8] = {0};
    if (list->n == 0) return true;
    for (int32_t i = 0; i < list->ndim; i++) {
        int64_t one[8] = {0};
        one[i] = 1;
        if (list->shape[i] > 1) stride[i] = list->bit[list_at(list, one)] - list->bit[0];
    }
    for (int64_t k = 0; k < list->n; k++) {
        int64_t bit = list->bit[0];
        for (int32_t i = 0; i < list->ndim; i++) bit += index[i] * stride[i];
        if (bit != list->bit[k]) return false;
        naive_next(list->ndim, list->shape, index);
    }
    return true;
}

/* Takes the elements of `from` whose index along `dim` is picks[0..n); with is_select the dimension goes. */
static void list_pick(struct list *list, const struct list *from, int32_t dim, const int64_t *picks, int64_t n,
                      bool is_select) {
    int64_t index[8] = {0}, shape[8];
    memcpy(shape, from->shape, sizeof shape);
    shape[dim] = n;
    list->ndim = from->ndim - is_select;
    for (int32_t i = 0, j = 0; i < from->ndim; i++)
        if (!is_select || i != dim) list->shape[j++] = shape[i];
    list_count(list);
    for (int64_t k = 0; k < list->n; k++) {
        int64_t source[8];
        memcpy(source, index, sizeof source);
        source[dim] = picks[index[dim]];
        list->bit[k] = from->bit[list_at(from, source)];
        naive_next(from->ndim, shape, index);
    }
}

static int random_select(uint64_t *seed, struct lend_tensor *tensor, const struct list *from, struct list *to,
                         struct lend_tensor **ret) {
    int32_t dim = (int32_t)naive_between(seed, 0, from->ndim - 1);
    int64_t size = from->shape[dim], index = naive_between(seed, -size - 1, size);
    int r = lend_tensor_select(tensor, dim, index, ret, NULL);
    if (index < -size || index >= size) {
        CHECK_INT(r, -ERANGE);
        return r;
    }
    index += index < 0 ? size : 0;
    list_pick(to, from, dim, &index, 1, true);
    return r;
}

/* Python's rule for start and stop. */
static int64_t slice_bound(int64_t bound, int64_t size, int64_t step) {
    if (bound < 0) bound += size;
    if (bound < 0) return step < 0 ? -1 : 0;
    if (bound >= size) return step < 0 ? size - 1 : size;
    return bound;
}

static int random_slice(uint64_t *seed, struct lend_tensor *tensor, const struct list *from, struct list *to,
                        struct lend_tensor **ret) {
    int32_t dim = (int32_t)naive_between(seed, 0, from->ndim - 1);
    int64_t size = from->shape[dim], picks[LIST_MAX], n = 0;
    int64_t start = naive_between(seed, -size - 2, size + 2), stop = naive_between(seed, -size - 2, size + 2);
    int64_t step = naive_between(seed, 0, 3) ? naive_between(seed, 1, 3) : -naive_between(seed, 1, 3);
    if (step < 0 && naive_between(seed, 0, 1)) stop = INT64_MIN, start = size;
    int64_t first = slice_bound(start, size, step), end = slice_bound(stop, size, step);
    for (int64_t i = first; step < 0 ? i > end : i < end; i += step) picks[n++] = i;
    list_pick(to, from, dim, picks, n, false);
    return lend_tensor_slice(tensor, naive_between(seed, 0, 1) ? dim : dim - from->ndim, start, stop, step, ret, NULL);
}

static int random_transpose(uint64_t *seed, struct lend_tensor *tensor, const struct list *from, struct list *to,
                            struct lend_tensor **ret) {
    int32_t a = (int32_t)naive_between(seed, 0, from->ndim - 1), b = (int32_t)naive_between(seed, 0, from->ndim - 1);
    int64_t index[8] = {0};
    *to = *from;
    to->shape[a] = from->shape[b];
    to->shape[b] = from->shape[a];
    for (int64_t k = 0; k < to->n; k++) {
        int64_t source[8];
        memcpy(source, index, sizeof source);
        source[a] = index[b];
        source[b] = index[a];
        to->bit[k] = from->bit[list_at(from, source)];
        naive_next(to->ndim, to->shape, index);
    }
    return lend_tensor_transpose(tensor, a, b - from->ndim, ret, NULL);
}

static int random_expand(uint64_t *seed, struct lend_tensor *tensor, const struct list *from, struct list *to,
                         struct lend_tensor **ret) {
    int32_t n_new = from->ndim < 6 ? (int32_t)naive_between(seed, 0, 1) : 0;
    int64_t wanted[8], index[8] = {0};
    to->ndim = from->ndim + n_new;
    for (int32_t i = 0; i < to->ndim; i++) {
        int64_t old = i < n_new ? 1 : from->shape[i - n_new];
        to->shape[i] = old == 1 && from->n < 500 ? naive_between(seed, 1, 2) : old;
        wanted[i] = to->shape[i] == old && i >= n_new && naive_between(seed, 0, 1) ? -1 : to->shape[i];
    }
    list_count(to);
    for (int64_t k = 0; k < to->n; k++) {
        int64_t source[8];
        for (int32_t i = 0; i < from->ndim; i++) source[i] = from->shape[i] == 1 ? 0 : index[i + n_new];
        to->bit[k] = from->bit[list_at(from, source)];
        naive_next(to->ndim, to->shape, index);
    }
    return lend_tensor_expand(tensor, to->ndim, wanted, ret, NULL);
}

/* A random way to write n as a product of at most 6 sizes. */
static void random_factors(uint64_t *seed, int64_t n, struct list *to) {
    to->ndim = 0;
    while (n > 1 && to->ndim < 5) {
        int64_t divisor = naive_between(seed, 1, n < 12 ? n : 12);
        if (n % divisor) continue;
        to->shape[to->ndim++] = divisor;
        n /= divisor;
    }
    if (n != 1 || to->ndim == 0) to->shape[to->ndim++] = n;
}

static int random_reshape(uint64_t *seed, struct lend_tensor *tensor, const struct list *from, struct list *to,
                          struct lend_tensor **ret) {
    *to = *from;
    int64_t wanted[8];
    random_factors(seed, from->n, to);
    memcpy(wanted, to->shape, sizeof wanted);
    if (from->n > 0 && naive_between(seed, 0, 1)) wanted[naive_between(seed, 0, to->ndim - 1)] = -1;
    int r = lend_tensor_reshape(tensor, to->ndim, wanted, ret, NULL);
    CHECK_INT(r, list_has_strides(to) ? 0 : -EINVAL);
    return r;
}

LEND_TEST_TIMED(view_random_chains, 240) {
    static struct list lists[2];
    static int (*const steps[])(uint64_t *, struct lend_tensor *, const struct list *, struct list *,
                                struct lend_tensor **) = {random_select, random_slice, random_transpose, random_expand,
                                                          random_reshape};
    static const DLDataType dtypes[] = {{LEND_FLOAT, 32, 1},        {LEND_INT, 4, 1},           {LEND_UINT, 2, 1},
                                        {LEND_FLOAT6_E2M3FN, 6, 1}, {LEND_FLOAT4_E2M1FN, 4, 2}, {LEND_COMPLEX, 128, 1}};
    uint64_t seed = 7, n_done[5] = {0};
    for (int round = 0; round < 8000; round++) {
        struct list *now = &lists[0], *then = &lists[1];
        DLDataType dtype = dtypes[round % 6];
        now->ndim = (int32_t)naive_between(&seed, 0, 4);
        for (int i = 0; i < now->ndim; i++) now->shape[i] = naive_between(&seed, 0, 5) ? naive_between(&seed, 1, 5) : 0;
        list_count(now);
        for (int64_t i = 0; i < now->n; i++) now->bit[i] = i * dtype.bits * dtype.lanes;
        struct lend_tensor *tensor = new_tensor(dtype, now->ndim, now->shape), *view = NULL;
        for (int depth = 0; depth < 6; depth++) {
            list_check(now, tensor);
            int step = (int)naive_between(&seed, now->ndim ? 0 : 3, 4);
            int r = steps[step](&seed, tensor, now, then, &view);
            if (r < 0) continue;
            n_done[step]++;
            lend_tensor_unref(tensor);
            tensor = view;
            struct list *other = now;
            now = then;
            then = other;
        }
        list_check(now, tensor);
        lend_tensor_unref(tensor);
    }
    for (int i = 0; i < 5; i++) CHECK(n_done[i] > 2000);
    end_pool();
}
