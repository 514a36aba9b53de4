/* SPDX-License-Identifier: MIT */
/* From the inside out: a base over some storage; views of it; attributes; a tensor of a given dtype and shape somewhere
 * in memory. Every step draws, so a seed decides everything. */
#include "random_tree.h"

#include "peer.h"

#include <stdlib.h>

/* --- drawing -------------------------------------------------------------------------------------------------------- */

/* xorshift64*: any platform, the same numbers. */
uint32_t draw(struct forest *forest, uint32_t below) {
    forest->state ^= forest->state >> 12;
    forest->state ^= forest->state << 25;
    forest->state ^= forest->state >> 27;
    return (uint32_t)((forest->state * 0x2545f4914f6cdd1dull >> 32) % below);
}

bool chance(struct forest *forest, uint32_t n) {
    return draw(forest, n) == 0;
}

/* Neighbouring seeds give unlike trees. */
void forest_seed(struct forest *forest, uint64_t seed) {
    seed += 0x9e3779b97f4a7c15ull;
    seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9ull;
    seed = (seed ^ seed >> 27) * 0x94d049bb133111ebull;
    forest->state = (seed ^ seed >> 31) | 1;
}

static void draw_bytes(struct forest *forest, void *to, size_t n) {
    for (size_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)draw(forest, 256);
}

DLDataType draw_dtype(struct forest *forest) {
    for (;;) {
        DLDataType dtype = {.lanes = 1};
        dtype.code = (uint8_t)draw(forest, 18);
        dtype.bits = (uint8_t)(1u << draw(forest, 8));
        if (chance(forest, 8)) dtype.bits = 6;
        if (chance(forest, 6)) dtype.lanes = (uint16_t)(1 + draw(forest, 5));
        if (lend_dtype_is_valid(dtype)) return dtype;
    }
}

int32_t draw_shape(struct forest *forest, int32_t ndim_max, int64_t *shape) {
    int32_t ndim = (int32_t)draw(forest, (uint32_t)ndim_max + 1);
    for (int32_t i = 0; i < ndim; i++) shape[i] = chance(forest, 16) ? 0 : 1 + draw(forest, 5);
    if (!chance(forest, 40)) return ndim;
    for (ndim = 0; ndim < LEND_NDIM_MAX; ndim++) shape[ndim] = ndim % 20 == 7 ? 2 : 1;
    return ndim;
}

/* --- private memory -------------------------------------------------------------------------------------------------- */

/* One piece of memory that several DLPack structs show: ties between tensors that know nothing of one another. */
struct arena {
    unsigned n_refs;
    DLDataType dtype;
    bool is_padded;
    int32_t ndim;
    int64_t shape[LEND_NDIM_MAX];
    uint8_t bytes[];
};

struct managed {
    DLManagedTensorVersioned dlpack;
    struct arena *arena;
    int64_t shape[LEND_NDIM_MAX];
};

void arena_unref(struct arena *arena) {
    if (!--arena->n_refs) free(arena);
}

static void delete_managed(DLManagedTensorVersioned *self) {
    struct managed *managed = (struct managed *)self;
    arena_unref(managed->arena);
    free(managed);
}

/* The whole arena, or one without the last index of its first dimension. */
struct lend_tensor *show_arena(struct forest *forest, struct arena *arena, bool is_shorter) {
    struct managed *managed = calloc(1, sizeof *managed);
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK(managed);
    memcpy(managed->shape, arena->shape, sizeof managed->shape);
    if (is_shorter && arena->ndim && arena->shape[0] > 1) managed->shape[0]--;
    managed->arena = arena;
    arena->n_refs++;
    managed->dlpack = (DLManagedTensorVersioned){
        .version = {1, 1},
        .deleter = delete_managed,
        .flags = (arena->is_padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0) |
                 (chance(forest, 4) ? DLPACK_FLAG_BITMASK_READ_ONLY : 0),
        .dl_tensor = {.data = arena->bytes,
                      .device = {kDLCPU, 0},
                      .ndim = arena->ndim,
                      .dtype = arena->dtype,
                      .shape = managed->shape},
    };
    CHECK_OK(lend_tensor_from_dlpack(&managed->dlpack, &tensor, &error), &error);
    return tensor;
}

static struct lend_tensor *new_private(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    bool is_padded = dtype.bits < 8 && chance(forest, 2);
    uint64_t items = 1, item_bits = is_padded ? 8u * dtype.lanes : lend_dtype_bits(dtype);
    for (int32_t i = 0; i < ndim; i++) items *= (uint64_t)shape[i];
    size_t n = (size_t)((items * item_bits + 7) / 8);
    struct arena *arena = calloc(1, sizeof *arena + n + 1);
    CHECK(arena);
    *arena = (struct arena){.n_refs = 1, .dtype = dtype, .is_padded = is_padded, .ndim = ndim};
    if (ndim) memcpy(arena->shape, shape, (size_t)ndim * sizeof *shape);
    draw_bytes(forest, arena->bytes, n);
    struct lend_tensor *tensor = show_arena(forest, arena, false);
    if (forest->n_arenas < sizeof forest->arenas / sizeof forest->arenas[0])
        forest->arenas[forest->n_arenas++] = arena;
    else
        arena_unref(arena);
    return tensor;
}

/* --- bases and views ------------------------------------------------------------------------------------------------- */

static struct lend_tensor *new_in_pool(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    unsigned pool = draw(forest, 8);
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    pool = pool < 2 ? pool + 1 : 0;
    CHECK_OK(lend_tensor_new(forest->pools[pool], dtype, ndim, shape, &tensor, &error), &error);
    struct lend_tensor_info info = info_of(tensor);
    draw_bytes(forest, info.storage_data, info.storage_bytes);
    if (pool == 1 && info.storage_bytes && forest->n_read_only_ids < FOREST_TENSORS_MAX)
        forest->read_only_ids[forest->n_read_only_ids++] = info.storage_id;
    return tensor;
}

/* Over a storage of its own, of whatever kind; `has_memory`: of a kind that can be written. */
struct lend_tensor *new_base(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape,
                             bool has_memory) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    switch (draw(forest, has_memory ? 7 : 10)) {
    case 7: CHECK_OK(lend_tensor_new_zero(dtype, ndim, shape, &tensor, &error), &error); return tensor;
    case 8: CHECK_OK(lend_tensor_new_meta(dtype, ndim, shape, &tensor, &error), &error); return tensor;
    case 5:
    case 6: return new_private(forest, dtype, ndim, shape);
    default: return new_in_pool(forest, dtype, ndim, shape);
    }
}

static int draw_view(struct forest *forest, struct lend_tensor *from, struct lend_tensor **ret) {
    struct lend_tensor_info info = info_of(from);
    int32_t dim = info.ndim ? (int32_t)draw(forest, (uint32_t)info.ndim) : 0;
    int64_t size = info.ndim ? info.shape[dim] : 0, shape[LEND_NDIM_MAX + 2];
    int64_t start = (int64_t)draw(forest, 6) - 1, stop = draw(forest, 8), step = 1 + draw(forest, 3);
    static const int64_t ones[2] = {1, 1};
    switch (draw(forest, 8)) {
    case 0: return size ? lend_tensor_select(from, dim, (int64_t)draw(forest, (uint32_t)size), ret, NULL) : -1;
    case 1: return lend_tensor_slice(from, dim, start, stop, step, ret, NULL);
    case 2: return lend_tensor_slice(from, dim, INT64_MAX, INT64_MIN, -step, ret, NULL);
    case 3: return lend_tensor_transpose(from, dim, -1, ret, NULL);
    case 4: /* sizes of 1, also new ones in front, become more; of some that makes too many */
        if (info.ndim > 6) return -1;
        shape[0] = 1 + draw(forest, 3);
        for (int32_t i = 0; i < info.ndim; i++) shape[i + 1] = info.shape[i] == 1 ? (int64_t)draw(forest, 3) + 1 : -1;
        return lend_tensor_expand(from, info.ndim + 1, shape, ret, NULL);
    case 5: shape[0] = -1; return lend_tensor_reshape(from, 1, shape, ret, NULL);
    case 6: /* elements that overlap */
        return lend_tensor_as_strided(from, 2, (const int64_t[]){2, 2}, ones, (int64_t)draw(forest, 3), ret, NULL);
    default: return lend_tensor_as_bytes(from, ret, NULL);
    }
}

/* Takes the tensor over and gives a view of it. */
struct lend_tensor *viewed(struct forest *forest, struct lend_tensor *tensor) {
    for (unsigned n = draw(forest, 4); n; n--) {
        struct lend_tensor *view = NULL;
        if (draw_view(forest, tensor, &view) < 0) continue; /* not of this one */
        lend_tensor_unref(tensor);
        tensor = view;
    }
    return tensor;
}

/* --- attributes ------------------------------------------------------------------------------------------------------ */

static uint32_t draw_marks(struct forest *forest, const struct lend_tensor_info *info, bool is_component) {
    static const uint32_t kinds[] = {0, LEND_ATTR_PARAMETER, LEND_ATTR_BUFFER,
                                     LEND_ATTR_PARAMETER | LEND_ATTR_INFERENCE};
    uint8_t code = info->dtype.code;
    bool is_integer = code == LEND_INT || code == LEND_UINT || code == LEND_BOOL;
    bool is_quantized = info->layout == LEND_LAYOUT_QUANTIZED || info->layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL;
    uint32_t marks = kinds[draw(forest, 4)];
    if ((!is_integer || info->layout == LEND_LAYOUT_WRAPPER) && !is_quantized && chance(forest, 2))
        marks |= LEND_ATTR_REQUIRES_GRAD;
    if ((marks & LEND_ATTR_REQUIRES_GRAD) && is_component && chance(forest, 2)) marks |= LEND_ATTR_NON_LEAF;
    if (chance(forest, 5)) marks |= LEND_ATTR_HOOKS | LEND_ATTR_HOOKS_MARKED;
    if (info->layout != LEND_LAYOUT_STRIDED) return marks;
    if (code == LEND_COMPLEX && chance(forest, 2)) marks |= LEND_ATTR_CONJ;
    if (code != LEND_BOOL && code != LEND_FLOAT8_E8M0FNU && chance(forest, 3)) marks |= LEND_ATTR_NEG;
    return marks;
}

/* Takes the tensor over and gives one with attributes. */
struct lend_tensor *with_attributes(struct forest *forest, struct lend_tensor *tensor, bool is_component) {
    static const uint32_t lengths[] = {0, 0, 1, 7, 8, 100, LEND_USER_BYTES_MAX};
    uint8_t user[LEND_USER_BYTES_MAX];
    struct lend_tensor_info info = info_of(tensor);
    struct lend_tensor_attrs attrs = {.size = sizeof attrs, .user = user};
    struct lend_tensor *made = NULL;
    struct lend_error error = {0};
    attrs.flags = draw_marks(forest, &info, is_component);
    attrs.user_bytes = lengths[draw(forest, 7)];
    attrs.user_tag = attrs.user_bytes ? draw(forest, 3) * 0x10203040u : 0;
    draw_bytes(forest, user, attrs.user_bytes);
    CHECK_OK(lend_tensor_with_attrs(tensor, &attrs, &made, &error), &error);
    lend_tensor_unref(tensor);
    return made;
}

/* --- tensors of a given dtype and shape ------------------------------------------------------------------------------- */

/* A larger base and the view of it that has the shape. */
struct lend_tensor *new_inside(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape,
                               bool has_memory) {
    int64_t larger[LEND_NDIM_MAX + 1];
    struct lend_tensor *base, *view = NULL;
    struct lend_error error = {0};
    int32_t dim = ndim ? (int32_t)draw(forest, (uint32_t)ndim) : 0,
            other = ndim ? (int32_t)draw(forest, (uint32_t)ndim) : 0;
    if (ndim) memcpy(larger, shape, (size_t)ndim * sizeof *shape);
    unsigned way = ndim ? draw(forest, 4) : 0;
    if (way == 0) return new_base(forest, dtype, ndim, shape, has_memory);
    if (way == 3) {
        larger[dim] = shape[other];
        larger[other] = shape[dim];
        base = new_base(forest, dtype, ndim, larger, has_memory);
        CHECK_OK(lend_tensor_transpose(base, dim, other, &view, &error), &error);
    } else {
        larger[dim] = 2 * shape[dim] + 1;
        base = new_base(forest, dtype, ndim, larger, has_memory);
        if (way == 1)
            CHECK_OK(lend_tensor_slice(base, dim, 1, INT64_MAX, 2, &view, &error), &error);
        else
            CHECK_OK(lend_tensor_slice(base, dim, -2, INT64_MIN, -2, &view, &error), &error);
    }
    lend_tensor_unref(base);
    return view;
}

/* Writes elements of whole bytes, in C order, wherever they lie. */
void write_items(struct lend_tensor *tensor, const void *items, size_t item_bytes) {
    struct lend_tensor_info info = info_of(tensor);
    int64_t index[LEND_NDIM_MAX] = {0};
    for (int64_t i = 0; i < info.numel; i++) {
        int64_t at = 0;
        for (int32_t d = 0; d < info.ndim; d++) at += index[d] * info.strides[d];
        memcpy((uint8_t *)info.data + at * (int64_t)item_bytes, (const uint8_t *)items + (size_t)i * item_bytes,
               item_bytes);
        for (int32_t d = info.ndim - 1; d >= 0 && ++index[d] == info.shape[d]; d--) index[d] = 0;
    }
}

struct lend_tensor *random_items(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = new_inside(forest, dtype, ndim, shape, false);
    return chance(forest, 3) ? with_attributes(forest, tensor, true) : tensor;
}

struct lend_tensor *integers(struct forest *forest, bool is_wide, int32_t ndim, const int64_t *shape,
                             const int64_t *values) {
    const DLDataType dtype = {LEND_INT, is_wide ? 64 : 32, 1};
    struct lend_tensor *tensor = new_inside(forest, dtype, ndim, shape, true);
    int64_t n = info_of(tensor).numel;
    int32_t narrow[512];
    CHECK(n <= 512);
    for (int64_t i = 0; i < n; i++) narrow[i] = (int32_t)values[i];
    write_items(tensor, is_wide ? (const void *)values : narrow, is_wide ? 8 : 4);
    return tensor;
}
