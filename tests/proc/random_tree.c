/* SPDX-License-Identifier: MIT */
/* Layouts of random tensors, with elements that go together, and trees of them. */
#include "random_tree.h"

#include "peer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Known to the forest from here on: views of it may be drawn. */
static struct lend_tensor *known(struct forest *forest, struct lend_tensor *tensor) {
    if (forest->n_made < FOREST_TENSORS_MAX) forest->made[forest->n_made++] = tensor;
    return tensor;
}

/* --- layouts --------------------------------------------------------------------------------------------------------- */

struct parts {
    struct lend_compound compound;
    struct lend_tensor *components[LEND_COMPONENTS_MAX];
    int64_t shape[LEND_NDIM_MAX];
};

static void add_sizes(struct parts *parts, int32_t n, const int64_t *sizes) {
    for (int32_t i = 0; i < n; i++) parts->shape[parts->compound.ndim++] = sizes[i];
}

static void add_part(struct parts *parts, struct lend_tensor *component) {
    parts->components[parts->compound.n_components++] = component;
}

static void make_coo(struct forest *forest, struct parts *parts) {
    int64_t sizes[3], values[512] = {0}, dims[4], n = 0, cells = 1;
    int32_t n_sparse = 1 + (int32_t)draw(forest, 3), n_dense = (int32_t)draw(forest, 3);
    bool is_coalesced = chance(forest, 2);
    for (int32_t i = 0; i < n_sparse; i++) cells *= sizes[i] = 1 + draw(forest, 5);
    int64_t columns[128];
    for (int64_t cell = 0; is_coalesced && cell < cells; cell++)
        if (chance(forest, 4)) columns[n++] = cell; /* they rise and differ */
    for (uint32_t left = is_coalesced ? 0 : draw(forest, 9); left; left--) columns[n++] = draw(forest, (uint32_t)cells);
    for (int64_t k = 0; k < n; k++) {
        int64_t cell = columns[k];
        for (int32_t d = n_sparse - 1; d >= 0; cell /= sizes[d--]) values[d * n + k] = cell % sizes[d];
    }
    add_part(parts, integers(forest, true, 2, (const int64_t[]){n_sparse, n}, values));
    dims[0] = n;
    for (int32_t i = 1; i <= n_dense; i++) dims[i] = draw(forest, 4);
    add_part(parts, random_items(forest, draw_dtype(forest), 1 + n_dense, dims));
    add_sizes(parts, n_sparse, sizes);
    add_sizes(parts, n_dense, dims + 1);
    parts->compound.is_coalesced = is_coalesced;
}

/* Rows and columns of one batch: n of the cells, in order. */
static void fill_batch(struct forest *forest, int64_t n_rows, int64_t n_columns, int64_t n, int64_t *pointers,
                       int64_t *indices) {
    int64_t left = n_rows * n_columns, wanted = n;
    pointers[0] = 0;
    for (int64_t row = 0; row < n_rows; row++) {
        for (int64_t column = 0; column < n_columns; column++, left--)
            if (wanted && draw(forest, (uint32_t)left) < wanted) indices[n - wanted--] = column;
        pointers[row + 1] = n - wanted;
    }
}

/* CSR, CSC, BSR and BSC. */
static void make_compressed(struct forest *forest, struct parts *parts) {
    uint32_t layout = parts->compound.layout;
    bool is_blocked = layout == LEND_LAYOUT_BSR || layout == LEND_LAYOUT_BSC, is_wide = chance(forest, 2);
    bool is_by_columns = layout == LEND_LAYOUT_CSC || layout == LEND_LAYOUT_BSC;
    int64_t batch[1] = {1 + draw(forest, 3)}, n_rows = draw(forest, 5), n_columns = draw(forest, 6);
    int64_t n = n_rows && n_columns ? draw(forest, (uint32_t)(n_rows * n_columns + 1)) : 0;
    int64_t block[2], pointers[32], indices[128], dims[8];
    for (int i = 0; i < 2; i++) block[i] = 1 + draw(forest, 3);
    int32_t n_batch = (int32_t)draw(forest, 2), n_dense = (int32_t)draw(forest, 2), ndim = 0;
    int64_t n_batches = n_batch ? batch[0] : 1;
    for (int64_t i = 0; i < n_batches; i++)
        fill_batch(forest, n_rows, n_columns, n, pointers + i * (n_rows + 1), indices + i * n);
    for (; ndim < n_batch; ndim++) dims[ndim] = batch[ndim];
    dims[ndim] = n_rows + 1;
    add_part(parts, integers(forest, is_wide, ndim + 1, dims, pointers));
    dims[ndim++] = n;
    add_part(parts, integers(forest, is_wide, ndim, dims, indices));
    for (int i = 0; is_blocked && i < 2; i++) dims[ndim++] = block[i];
    const int64_t dense = draw(forest, 4);
    if (n_dense) dims[ndim++] = dense;
    add_part(parts, random_items(forest, draw_dtype(forest), ndim, dims));
    int64_t sizes[2] = {is_by_columns ? n_columns : n_rows, is_by_columns ? n_rows : n_columns};
    for (int i = 0; is_blocked && i < 2; i++) sizes[i] *= block[i];
    add_sizes(parts, n_batch, batch);
    add_sizes(parts, 2, sizes);
    add_sizes(parts, n_dense, &dense);
}

static void make_nested(struct forest *forest, struct parts *parts) {
    int64_t n = draw(forest, 4), n_dims = 1 + draw(forest, 3), sizes[16], strides[16], offsets[4], total = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t count = 1;
        for (int64_t d = n_dims - 1; d >= 0; d--) {
            sizes[i * n_dims + d] = draw(forest, 4);
            strides[i * n_dims + d] = count;
            count *= sizes[i * n_dims + d];
        }
        offsets[i] = total;
        total += count;
    }
    add_part(parts, random_items(forest, draw_dtype(forest), 1, &total));
    add_part(parts, integers(forest, true, 2, (const int64_t[]){n, n_dims}, sizes));
    add_part(parts, integers(forest, true, 2, (const int64_t[]){n, n_dims}, strides));
    add_part(parts, integers(forest, true, 1, &n, offsets));
    add_sizes(parts, 1, &n);
    const int64_t ragged = LEND_RAGGED;
    for (int64_t d = 0; d < n_dims; d++) add_sizes(parts, 1, &ragged);
}

static void make_jagged(struct forest *forest, struct parts *parts) {
    int64_t n = 1 + draw(forest, 4), offsets[6] = {0}, lengths[5], dims[4], ragged = LEND_RAGGED;
    int32_t ndim = 2 + (int32_t)draw(forest, 3), dim = 1 + (int32_t)draw(forest, (uint32_t)ndim - 1);
    bool is_wide = chance(forest, 2), has_lengths = chance(forest, 2);
    for (int64_t i = 0; i < n; i++) {
        offsets[i + 1] = offsets[i] + draw(forest, 4);
        lengths[i] = draw(forest, (uint32_t)(offsets[i + 1] - offsets[i]) + 1);
    }
    for (int32_t i = 1; i < ndim; i++) dims[i - 1] = i == dim ? offsets[n] : draw(forest, 4);
    add_part(parts, random_items(forest, draw_dtype(forest), ndim - 1, dims));
    const int64_t n_offsets = n + 1;
    add_part(parts, integers(forest, is_wide, 1, &n_offsets, offsets));
    if (has_lengths) add_part(parts, integers(forest, is_wide, 1, &n, lengths));
    add_sizes(parts, 1, &n);
    for (int32_t i = 1; i < ndim; i++) add_sizes(parts, 1, i == dim ? &ragged : &dims[i - 1]);
    parts->compound.dim = dim;
}

/* Per tensor and per channel. */
static void make_quantized(struct forest *forest, struct parts *parts) {
    static const DLDataType dtypes[] = {
        {LEND_INT, 8, 1}, {LEND_UINT, 8, 1}, {LEND_INT, 32, 1}, {LEND_UINT, 4, 1}, {LEND_UINT, 2, 1}};
    static const double scales[] = {0.5, -1e-3, 3e300, 5e-324, -0.0, INFINITY};
    bool is_per_channel = parts->compound.layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL, is_double = chance(forest, 2);
    int64_t dims[4], zeros[8];
    int32_t ndim = (is_per_channel ? 1 : 0) + (int32_t)draw(forest, 3);
    for (int32_t i = 0; i < ndim; i++) dims[i] = draw(forest, 6);
    add_part(parts, random_items(forest, dtypes[draw(forest, 5)], ndim, dims));
    add_sizes(parts, ndim, dims);
    if (!is_per_channel) {
        parts->compound.scale = scales[draw(forest, 6)];
        parts->compound.zero_point = (int64_t)draw(forest, 512) - 256;
        return;
    }
    int32_t axis = parts->compound.dim = (int32_t)draw(forest, (uint32_t)ndim);
    double wide[8];
    float narrow[8];
    for (int i = 0; i < 8; i++) {
        wide[i] = narrow[i] = (float)draw(forest, 1000) / 7;
        zeros[i] = (int64_t)draw(forest, 100) - 50;
    }
    const DLDataType dtype = {LEND_FLOAT, is_double ? 64 : 32, 1};
    struct lend_tensor *tensor = new_inside(forest, dtype, 1, &dims[axis], true);
    write_items(tensor, is_double ? (const void *)wide : narrow, is_double ? 8 : 4);
    add_part(parts, tensor);
    add_part(parts, integers(forest, chance(forest, 2), 1, &dims[axis], zeros));
}

/* --- trees ----------------------------------------------------------------------------------------------------------- */

static struct lend_tensor *any_tensor(struct forest *forest, uint32_t depth_max, bool is_deep);

static void make_wrapper(struct forest *forest, struct parts *parts, uint32_t depth_max, bool is_deep) {
    uint32_t n = is_deep ? 1 + draw(forest, 2) : chance(forest, 12) ? LEND_COMPONENTS_MAX : draw(forest, 4);
    for (uint32_t i = 0; i < n; i++) add_part(parts, any_tensor(forest, depth_max - 1, is_deep && i == 0));
    parts->compound.ndim = draw_shape(forest, 3, parts->shape);
    parts->compound.dtype = draw_dtype(forest);
}

static struct lend_tensor *new_compound(struct forest *forest, uint32_t layout, uint32_t depth_max, bool is_deep) {
    struct parts parts = {.compound = {.size = sizeof parts.compound, .layout = layout}};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    switch (layout) {
    case LEND_LAYOUT_COO: make_coo(forest, &parts); break;
    case LEND_LAYOUT_NESTED: make_nested(forest, &parts); break;
    case LEND_LAYOUT_JAGGED: make_jagged(forest, &parts); break;
    case LEND_LAYOUT_QUANTIZED:
    case LEND_LAYOUT_QUANTIZED_PER_CHANNEL: make_quantized(forest, &parts); break;
    case LEND_LAYOUT_WRAPPER: make_wrapper(forest, &parts, depth_max, is_deep); break;
    default: make_compressed(forest, &parts);
    }
    parts.compound.components = parts.components;
    parts.compound.shape = parts.shape;
    CHECK_OK(lend_tensor_new_compound(&parts.compound, &tensor, &error), &error);
    for (uint32_t i = 0; i < parts.compound.n_components; i++) lend_tensor_unref(parts.components[i]);
    return tensor;
}

/* Another object over the same: what is moved away may not be the forest's own. */
static struct lend_tensor *another(struct lend_tensor *tensor) {
    struct lend_tensor *made = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_with_attrs(tensor, NULL, &made, &error), &error);
    return made;
}

/* A tensor that is there already, or a view of it; private memory, shown once more; or another process's. */
static struct lend_tensor *old_tensor(struct forest *forest, uint32_t depth_max) {
    if (chance(forest, 3)) return viewed(forest, another(forest->borrowed[draw(forest, 2)]));
    if (forest->n_arenas && chance(forest, 2)) {
        struct arena *arena = forest->arenas[draw(forest, forest->n_arenas)];
        return viewed(forest, show_arena(forest, arena, chance(forest, 2)));
    }
    if (!forest->n_made) return NULL;
    struct lend_tensor *tensor = forest->made[draw(forest, forest->n_made)];
    if (info_of(tensor).layout == LEND_LAYOUT_STRIDED) return viewed(forest, another(tensor));
    return depth_max == LEND_DEPTH_MAX ? another(tensor) : NULL; /* it may be as deep as that */
}

/* `is_deep`: as deep as allowed. */
static struct lend_tensor *any_tensor(struct forest *forest, uint32_t depth_max, bool is_deep) {
    struct lend_tensor *tensor = !is_deep && chance(forest, 4) ? old_tensor(forest, depth_max) : NULL;
    int64_t shape[LEND_NDIM_MAX];
    bool is_full = forest->n_made > 100;
    if (!tensor && depth_max > 1 && (is_deep || (!is_full && chance(forest, 2)))) {
        uint32_t layout = is_deep && depth_max > 2 ? LEND_LAYOUT_WRAPPER : 1 + draw(forest, LEND_LAYOUT_WRAPPER);
        tensor = new_compound(forest, layout, depth_max, is_deep);
    } else if (!tensor) {
        DLDataType dtype = draw_dtype(forest);
        int32_t ndim = draw_shape(forest, 4, shape);
        tensor = viewed(forest, new_base(forest, dtype, ndim, shape, false));
    }
    if (chance(forest, 2)) tensor = with_attributes(forest, tensor, depth_max < LEND_DEPTH_MAX);
    return known(forest, tensor);
}

/* Empty, long, UTF-8, control characters, anything; and always another one. */
static char *draw_name(struct forest *forest, unsigned index) {
    char *name = calloc(1, LEND_GROUP_NAME_MAX + 1);
    CHECK(name);
    switch (draw(forest, 6)) {
    case 0: return name;
    case 1: memset(name, 'a' + (int)index, LEND_GROUP_NAME_MAX); break;
    case 2: snprintf(name, 64, "gr\xc3\xb6\xc3\x9f\x65.%u\xf0\x9f\xa6\x86", index); break;
    case 3: snprintf(name, 64, "\x1b[31m\t\n\r\x7f%u", index); break;
    case 4:
        for (unsigned i = 0, n = 1 + draw(forest, 300); i < n; i++) name[i] = (char)(1 + draw(forest, 255));
        break;
    default: snprintf(name, 64, "layers.%u.weight", index);
    }
    return name;
}

static bool is_taken(const struct tree *tree, const char *name) {
    for (unsigned i = 0; i < tree->n; i++)
        if (!strcmp(tree->names[i], name)) return true;
    return false;
}

void tree_make(struct forest *forest, struct tree *ret) {
    *ret = (struct tree){.is_group = !chance(forest, 3)};
    forest->n_made = 0;
    forest->n_read_only_ids = 0;
    unsigned n = !ret->is_group ? 1 : chance(forest, 10) ? TREE_ENTRIES_MAX : draw(forest, 7);
    while (ret->n < n) {
        char *name = draw_name(forest, ret->n);
        if (is_taken(ret, name)) {
            free(name);
            continue;
        }
        ret->tensors[ret->n] = any_tensor(forest, LEND_DEPTH_MAX, chance(forest, 12));
        ret->names[ret->n++] = name;
    }
}

void tree_drop(struct forest *forest, struct tree *tree) {
    for (unsigned i = 0; i < tree->n; i++) {
        lend_tensor_unref(tree->tensors[i]);
        free(tree->names[i]);
    }
    while (forest->n_arenas) arena_unref(forest->arenas[--forest->n_arenas]);
    forest->n_made = tree->n = 0;
}

void forest_begin(struct forest *forest) {
    static const uint32_t flags[FOREST_POOLS] = {0, LEND_POOL_PEERS_READ_ONLY, LEND_POOL_ISOLATE};
    *forest = (struct forest){.state = 1};
    for (int i = 0; i < FOREST_POOLS; i++)
        forest->pools[i] = new_pool(&(struct lend_pool_opts){.size = sizeof(struct lend_pool_opts), .flags = flags[i]});
}

void forest_end(struct forest *forest) {
    for (int i = 0; i < 2; i++) lend_tensor_unref(forest->borrowed[i]);
    for (int i = 0; i < FOREST_POOLS; i++) lend_pool_unref(forest->pools[i]);
}
