/* SPDX-License-Identifier: MIT */
/* Are the elements of index components right? They can be a peer's, who may write them while we look: each is read
 * once, into a local that the compiler cannot read again, and only what was read is judged.
 *
 * Any geometry must be answered in time that is linear in the memory. Along a dimension of stride 0 the elements are
 * the same, so one index stands for all (two, where neighbours must differ). With another stride, a dimension has no
 * more indices than its memory has elements; only batches, of several such dimensions, can be more, and are refused.
 *
 * Locking: none; the storages live because the caller's tensor does. */
#include "tensor/compound.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/process.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define OPERATION "lend_tensor_check"

/* One component, as it is read. */
struct reader {
    const struct lend_tensor *tensor;
    const char *name;
    const uint8_t *data;         /* of the storage; NULL: a zero tensor */
    uint64_t start, n_in_memory; /* byte of element (0,...,0), and elements in the storage */
    bool is_wide;                /* 64 bits, not 32 */
    int64_t step[LEND_NDIM_MAX]; /* bytes; 0 where it makes no difference */
};

static int reader_open(struct reader *reader, const struct lend_tensor *whole, uint32_t index,
                       struct lend_error *error) {
    const struct lend_tensor *t = whole->extra->components[index];
    struct lend__storage *storage;
    int r = lend__tensor_storage(t, &storage, OPERATION, error);
    if (r < 0) return r;
    *reader = (struct reader){
        .tensor = t,
        .name = lend__component_name(whole->layout, index),
        .data = storage->data,
        .start = t->offset_bits / 8,
        .n_in_memory = storage->bytes / (t->item_bits / 8),
        .is_wide = t->item_bits == 64,
    };
    if (storage->device.device_type != kDLCPU)
        return lend__fail(error, -EOPNOTSUPP, OPERATION, "%s: memory of device type %d cannot be read by the CPU",
                          reader->name, (int)storage->device.device_type);
    r = lend__storage_check_file(storage, OPERATION, error);
    if (r < 0) return r;
    for (int32_t i = 0; i < t->ndim; i++) {
        /* With index 0 and 1, and elements, the distance between them has been checked at birth. */
        bool matters = t->numel > 0 && lend__tensor_shape(t)[i] > 1 && storage->data;
        reader->step[i] = matters ? lend__tensor_strides(t)[i] * (int64_t)(t->item_bits / 8) : 0;
    }
    return 0;
}

static int64_t size_of(const struct reader *reader, int32_t dim) {
    return lend__tensor_shape(reader->tensor)[dim];
}

/* Bytes of element `index` of a dimension behind its element 0; modulo 2^64. */
static uint64_t step_by(const struct reader *reader, int32_t dim, int64_t index) {
    return (uint64_t)index * (uint64_t)reader->step[dim];
}

static uint64_t read_bits(const struct reader *reader, uint64_t at) {
    uint64_t wide = 0;
    uint32_t narrow = 0;
    if (!reader->data) return 0;
    if (reader->is_wide)
        memcpy(&wide, reader->data + at, sizeof wide);
    else
        memcpy(&narrow, reader->data + at, sizeof narrow);
    wide |= narrow;
    __asm__ volatile("" : "+r"(wide)); /* where it came from is forgotten: it cannot be read again */
    return wide;
}

static int64_t read_index(const struct reader *reader, uint64_t at) {
    uint64_t bits = read_bits(reader, at);
    return reader->is_wide ? (int64_t)bits : (int32_t)(uint32_t)bits;
}

/* Element (i) of one dimension, and (i, j) of two. */
static int64_t element(const struct reader *reader, int64_t i) {
    return read_index(reader, reader->start + step_by(reader, 0, i));
}

static int64_t element2(const struct reader *reader, int64_t i, int64_t j) {
    return read_index(reader, reader->start + step_by(reader, 0, i) + step_by(reader, 1, j));
}

#define BAD(error, ...) lend__fail((error), -EBADMSG, OPERATION, __VA_ARGS__)

/* --- COO ------------------------------------------------------------------------------------------------------------- */

static int check_coo(const struct lend_tensor *tensor, struct lend_error *error) {
    struct reader indices;
    int r = reader_open(&indices, tensor, 0, error);
    if (r < 0) return r;
    int64_t n_sparse = size_of(&indices, 0), n = size_of(&indices, 1), before[LEND_NDIM_MAX] = {0};
    const int64_t *shape = lend__tensor_shape(tensor);
    if (indices.step[1] == 0 && n > 2) n = 2;
    for (int64_t k = 0; k < n; k++) {
        bool is_behind = k == 0; /* behind the column before */
        for (int64_t d = 0; d < n_sparse; d++) {
            int64_t index = element2(&indices, d, k);
            if (index < 0 || index >= shape[d])
                return BAD(error, "indices[%lld][%lld] is %lld: outside dimension %lld, whose size is %lld",
                           (long long)d, (long long)k, (long long)index, (long long)d, (long long)shape[d]);
            if (!is_behind && tensor->extra->is_coalesced && index < before[d])
                return BAD(error,
                           "indices[%lld][%lld] is %lld, after %lld: the columns of a coalesced COO tensor must rise",
                           (long long)d, (long long)k, (long long)index, (long long)before[d]);
            is_behind |= index > before[d];
            before[d] = index;
        }
        if (!is_behind && tensor->extra->is_coalesced)
            return BAD(error, "columns %lld and %lld of indices are equal, in a coalesced COO tensor", (long long)k - 1,
                       (long long)k);
    }
    return 0;
}

/* --- CSR, CSC, BSR, BSC ---------------------------------------------------------------------------------------------- */

struct compressed {
    struct reader pointers, indices;
    int32_t n_batch;   /* dimensions */
    int64_t n_rows;    /* or columns, where those are compressed */
    int64_t n_columns; /* the other ones */
    int64_t n_stored;
    struct lend_error *error;
};

/* " of batch (1, 0)" */
static const char *batch_name(const struct compressed *c, const int64_t *batch, char *buf, size_t buf_bytes) {
    buf[0] = 0;
    if (c->n_batch) {
        char index[48];
        snprintf(buf, buf_bytes, " of batch %s", lend__shape_format(c->n_batch, batch, index, sizeof index));
    }
    return buf;
}

/* The indices of one row, which are stored from `first` to before `end`. */
static int check_row(const struct compressed *c, const int64_t *batch, uint64_t at, int64_t first, int64_t end) {
    char name[64];
    int64_t before = -1;
    for (int64_t k = first; k < end; k++) {
        int64_t index = read_index(&c->indices, at + step_by(&c->indices, c->n_batch, k));
        if (index < 0 || index >= c->n_columns)
            return BAD(c->error, "%s[%lld]%s is %lld: not in [0, %lld)", c->indices.name, (long long)k,
                       batch_name(c, batch, name, sizeof name), (long long)index, (long long)c->n_columns);
        if (index <= before)
            return BAD(c->error, "%s[%lld]%s is %lld, after %lld: within [%lld, %lld) they must rise", c->indices.name,
                       (long long)k, batch_name(c, batch, name, sizeof name), (long long)index, (long long)before,
                       (long long)first, (long long)end);
        before = index;
    }
    return 0;
}

static int check_batch(const struct compressed *c, const int64_t *batch) {
    char name[64];
    uint64_t pointers_at = c->pointers.start, indices_at = c->indices.start;
    for (int32_t i = 0; i < c->n_batch; i++) {
        pointers_at += step_by(&c->pointers, i, batch[i]);
        indices_at += step_by(&c->indices, i, batch[i]);
    }
    int64_t n = c->pointers.step[c->n_batch] ? c->n_rows : c->n_rows > 0, first = read_index(&c->pointers, pointers_at);
    if (first != 0)
        return BAD(c->error, "%s[0]%s is %lld and must be 0", c->pointers.name, batch_name(c, batch, name, sizeof name),
                   (long long)first);
    for (int64_t i = 1; i <= n; i++) {
        int64_t end = read_index(&c->pointers, pointers_at + step_by(&c->pointers, c->n_batch, i));
        if (end < first || end > c->n_stored || end - first > c->n_columns)
            return BAD(c->error, "%s[%lld]%s is %lld, after %lld: it must rise by 0 to %lld, to at most %lld",
                       c->pointers.name, (long long)i, batch_name(c, batch, name, sizeof name), (long long)end,
                       (long long)first, (long long)c->n_columns, (long long)c->n_stored);
        int r = check_row(c, batch, indices_at, first, end);
        if (r < 0) return r;
        first = end;
    }
    if (first == c->n_stored) return 0;
    return BAD(c->error, "%s[%lld]%s is %lld and must be %lld, the number of stored elements", c->pointers.name,
               (long long)c->n_rows, batch_name(c, batch, name, sizeof name), (long long)first, (long long)c->n_stored);
}

/* Sizes of the batches that differ from one another, and whether they are few enough. */
static int count_batches(const struct compressed *c, int64_t *ret_sizes) {
    uint64_t n = 1, each, all, room;
    bool is_too_many = lend__add_overflows((uint64_t)c->n_rows + 1, (uint64_t)c->n_stored, &each);
    for (int32_t i = 0; i < c->n_batch; i++) {
        int64_t size = size_of(&c->pointers, i);
        ret_sizes[i] = size > 1 && !c->pointers.step[i] && !c->indices.step[i] ? 1 : size;
        is_too_many |= lend__mul_overflows(n, (uint64_t)ret_sizes[i], &n);
    }
    is_too_many |= lend__mul_overflows(n, each, &all);
    is_too_many |= !lend__add_overflows(c->pointers.n_in_memory, c->indices.n_in_memory, &room) && all > room;
    if (n <= 1 || !is_too_many) return 0;
    return BAD(c->error, "the batches of %s and %s overlap in memory: lend_tensor_copy them first", c->pointers.name,
               c->indices.name);
}

static int check_compressed(const struct lend_tensor *tensor, struct lend_error *error) {
    enum { POINTERS, INDICES, VALUES };
    struct compressed c = {.error = error};
    int r = reader_open(&c.pointers, tensor, POINTERS, error);
    if (r >= 0) r = reader_open(&c.indices, tensor, INDICES, error);
    if (r < 0) return r;
    bool is_blocked = tensor->layout == LEND_LAYOUT_BSR || tensor->layout == LEND_LAYOUT_BSC;
    int32_t plain = tensor->layout == LEND_LAYOUT_CSC || tensor->layout == LEND_LAYOUT_BSC ? 0 : 1;
    c.n_batch = c.pointers.tensor->ndim - 1;
    c.n_rows = size_of(&c.pointers, c.n_batch) - 1;
    c.n_stored = size_of(&c.indices, c.n_batch);
    c.n_columns = lend__tensor_shape(tensor)[c.n_batch + plain];
    if (is_blocked) {
        int64_t block = lend__tensor_shape(tensor->extra->components[VALUES])[c.n_batch + 1 + plain];
        c.n_columns /= block > 1 ? block : 1;
    }
    int64_t sizes[LEND_NDIM_MAX] = {0}, batch[LEND_NDIM_MAX] = {0};
    r = count_batches(&c, sizes);
    for (int32_t i = 0; i < c.n_batch; i++)
        if (sizes[i] == 0) return r;
    int32_t dim = 0;
    while (r == 0 && dim >= 0) { /* batch by batch, like an odometer */
        r = check_batch(&c, batch);
        for (dim = c.n_batch - 1; dim >= 0; dim--) {
            if (++batch[dim] < sizes[dim]) break;
            batch[dim] = 0;
        }
    }
    return r;
}

/* --- nested ---------------------------------------------------------------------------------------------------------- */

/* Do the elements lie in [0, n)? */
static bool lies_inside(int64_t n_dims, const int64_t *sizes, const int64_t *strides, int64_t offset, int64_t n) {
    uint64_t below = 0, above = 0, reach;
    bool is_far = false;
    for (int64_t d = 0; d < n_dims; d++) {
        if (sizes[d] == 0) return offset >= 0 && offset <= n;
        uint64_t stride = strides[d] < 0 ? -(uint64_t)strides[d] : (uint64_t)strides[d];
        is_far |= lend__mul_overflows((uint64_t)sizes[d] - 1, stride, &reach);
        is_far |=
            strides[d] < 0 ? lend__add_overflows(below, reach, &below) : lend__add_overflows(above, reach, &above);
    }
    return !is_far && offset >= 0 && offset < n && below <= (uint64_t)offset && above < (uint64_t)(n - offset);
}

static int check_nested(const struct lend_tensor *tensor, struct lend_error *error) {
    enum { VALUES, SIZES, STRIDES, OFFSETS };
    struct reader sizes, strides, offsets;
    int r = reader_open(&sizes, tensor, SIZES, error);
    if (r >= 0) r = reader_open(&strides, tensor, STRIDES, error);
    if (r >= 0) r = reader_open(&offsets, tensor, OFFSETS, error);
    if (r < 0) return r;
    int64_t n = size_of(&sizes, 0), n_dims = size_of(&sizes, 1), n_values = tensor->extra->components[VALUES]->numel;
    if (!sizes.step[0] && !strides.step[0] && !offsets.step[0] && n > 1) n = 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t size[LEND_NDIM_MAX], stride[LEND_NDIM_MAX], offset = element(&offsets, i);
        for (int64_t d = 0; d < n_dims; d++) {
            int64_t outer = lend__tensor_shape(tensor)[1 + d];
            size[d] = element2(&sizes, i, d);
            stride[d] = element2(&strides, i, d);
            if (size[d] < 0 || (outer >= 0 && size[d] != outer))
                return BAD(error, "sizes[%lld][%lld] is %lld, and the size of dimension %lld is %s%lld", (long long)i,
                           (long long)d, (long long)size[d], (long long)d + 1, outer < 0 ? "ragged: " : "",
                           (long long)outer);
        }
        if (lies_inside(n_dims, size, stride, offset, n_values)) continue;
        char shape[64], steps[64];
        return BAD(error, "constituent %lld, of sizes %s, strides %s and offset %lld, leaves the %lld values",
                   (long long)i, lend__shape_format((int32_t)n_dims, size, shape, sizeof shape),
                   lend__shape_format((int32_t)n_dims, stride, steps, sizeof steps), (long long)offset,
                   (long long)n_values);
    }
    return 0;
}

static int check_jagged(const struct lend_tensor *tensor, struct lend_error *error) {
    enum { VALUES, OFFSETS, LENGTHS };
    struct reader offsets, lengths;
    bool has_lengths = tensor->extra->n_components > LENGTHS;
    int r = reader_open(&offsets, tensor, OFFSETS, error);
    if (r >= 0 && has_lengths) r = reader_open(&lengths, tensor, LENGTHS, error);
    if (r < 0) return r;
    int64_t n = size_of(&offsets, 0) - 1, before = element(&offsets, 0);
    int64_t n_values = lend__tensor_shape(tensor->extra->components[VALUES])[tensor->extra->dim - 1];
    if (!offsets.step[0] && !(has_lengths && lengths.step[0]) && n > 1) n = 1;
    /* Without lengths the constituents lie one behind the other, from the first value on. */
    if (before < 0 || before > n_values || (before > 0 && !has_lengths))
        return BAD(error, "offsets[0] is %lld and must be %s %lld", (long long)before,
                   has_lengths ? "in 0 to" : "0, of", (long long)n_values);
    for (int64_t i = 0; i < n; i++) {
        int64_t offset = element(&offsets, i + 1);
        if (offset < before || offset > n_values)
            return BAD(error, "offsets[%lld] is %lld, after %lld: they must rise, to at most %lld", (long long)i + 1,
                       (long long)offset, (long long)before, (long long)n_values);
        int64_t length = has_lengths ? element(&lengths, i) : 0;
        if (length < 0 || length > n_values - before)
            return BAD(error, "lengths[%lld] is %lld, from offset %lld on: not in the %lld values", (long long)i,
                       (long long)length, (long long)before, (long long)n_values);
        before = offset;
    }
    return 0;
}

/* --- quantized ------------------------------------------------------------------------------------------------------- */

static int check_scales(const struct lend_tensor *tensor, struct lend_error *error) {
    struct reader scales;
    int r = reader_open(&scales, tensor, 1, error);
    if (r < 0) return r;
    int64_t n = size_of(&scales, 0);
    if (!scales.step[0] && n > 1) n = 1;
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = read_bits(&scales, scales.start + step_by(&scales, 0, i));
        bool is_nan = scales.is_wide ? (bits & INT64_MAX) > 0x7ff0000000000000u : (bits & INT32_MAX) > 0x7f800000u;
        if (is_nan) return BAD(error, "scales[%lld] is not a number", (long long)i);
    }
    return 0;
}

/* Index components without elements: there is nothing to be right or wrong. */
static bool has_meta_indices(const struct lend_tensor *tensor) {
    uint32_t values = lend__layout_values(tensor->layout);
    for (uint32_t i = 0; i < tensor->extra->n_components; i++) {
        const struct lend_tensor *t = tensor->extra->components[i];
        const struct lend__storage *storage = lend__load_acquire(&t->storage);
        if (i != values && storage && storage->kind == LEND__STORAGE_META) return true;
    }
    return false;
}

int lend_tensor_check(struct lend_tensor *tensor, struct lend_error *error) {
    struct lend__storage *storage;
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, OPERATION, "this process was made by a raw clone");
    if (!tensor || tensor->layout == LEND_LAYOUT_STRIDED)
        return lend__tensor_storage(tensor, &storage, OPERATION, error);
    int r = 0; /* is everything still here, and of a wrapper, right? */
    for (uint32_t i = 0; r == 0 && i < tensor->extra->n_components; i++)
        r = lend_tensor_check(tensor->extra->components[i], error);
    if (r < 0 || tensor->layout == LEND_LAYOUT_WRAPPER || has_meta_indices(tensor)) return r;
    switch (tensor->layout) {
    case LEND_LAYOUT_COO: return check_coo(tensor, error);
    case LEND_LAYOUT_NESTED: return check_nested(tensor, error);
    case LEND_LAYOUT_JAGGED: return check_jagged(tensor, error);
    case LEND_LAYOUT_QUANTIZED_PER_CHANNEL: return check_scales(tensor, error);
    case LEND_LAYOUT_QUANTIZED: return 0;
    default: return check_compressed(tensor, error);
    }
}
