/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, all kinds together: random tensors, views, marks, bytes of a binding, and trees of every layout go to
 * another process under one handle, one by one, and in parts, and are compared in everything. */
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_SEEDS = 100, N_TENSORS = 24, N_KNOWN = 16 };

/* What is made from a seed. */
struct garden {
    struct lend_pool *pool;
    uint64_t state;
    struct lend_tensor *known[N_KNOWN]; /* strided ones, of which further views are taken */
    uint32_t n_known;
    uint32_t layouts, devices; /* seen: a bit for each layout, and for CPU and meta */
};

/* In [0, n). */
static uint32_t any(struct garden *g, uint32_t n) {
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g->state >> 33) % n;
}

static DLDataType any_dtype(struct garden *g) {
    DLDataType dtype = {.lanes = 1};
    do {
        dtype.code = (uint8_t)any(g, 18);
        dtype.bits = (uint8_t)(any(g, 4) ? 1u << (1 + any(g, 7)) : 1 + any(g, 128));
    } while (!lend_dtype_is_valid(dtype));
    return dtype;
}

/* --- strided -------------------------------------------------------------------------------------------------------- */

/* A view of the tensor, or NULL where the step is not for its shape. */
static struct lend_tensor *any_view(struct garden *g, struct lend_tensor *tensor) {
    struct lend_tensor_info info = info_of(tensor);
    struct lend_tensor *view = NULL;
    int64_t wide[LEND_NDIM_MAX];
    if (!info.ndim) return NULL;
    int32_t dim = (int32_t)any(g, (uint32_t)info.ndim);
    int64_t size = info.shape[dim];
    switch (any(g, 5)) {
    case 0: lend_tensor_transpose(tensor, dim, (int32_t)any(g, (uint32_t)info.ndim), &view, NULL); break;
    case 1: lend_tensor_slice(tensor, dim, any(g, 3), size - any(g, 2), 1 + any(g, 3), &view, NULL); break;
    case 2: lend_tensor_slice(tensor, dim, INT64_MAX, any(g, 2), -1 - (int64_t)any(g, 2), &view, NULL); break;
    case 3:
        if (size) lend_tensor_select(tensor, dim, any(g, (uint32_t)size), &view, NULL);
        break;
    default:
        for (int32_t i = 0; i < info.ndim; i++) wide[i] = info.shape[i] == 1 ? 7 : -1;
        lend_tensor_expand(tensor, info.ndim, wide, &view, NULL);
    }
    return view;
}

static struct lend_tensor *any_strided(struct garden *g) {
    int64_t shape[5];
    struct lend_tensor *tensor = NULL;
    if (g->n_known == N_KNOWN || (g->n_known && !any(g, 3))) {
        tensor = lend_tensor_ref(g->known[any(g, g->n_known)]);
    } else {
        int32_t ndim = (int32_t)any(g, 6);
        for (int32_t i = 0; i < ndim; i++) shape[i] = any(g, 12) ? 1 + any(g, 5) : 0;
        if (any(g, 8))
            tensor = make(g->pool, any_dtype(g), ndim, shape);
        else
            CHECK_OK(lend_tensor_new_meta(any_dtype(g), ndim, shape, &tensor, NULL), NULL);
        g->known[g->n_known++] = lend_tensor_ref(tensor);
    }
    for (uint32_t i = any(g, 4); i; i--) {
        struct lend_tensor *view = any_view(g, tensor);
        if (!view) continue;
        lend_tensor_unref(tensor);
        tensor = view;
    }
    return tensor;
}

/* --- layouts, with elements that hold --------------------------------------------------------------------------------- */

static struct lend_tensor *any_floats(struct garden *g, int32_t ndim, const int64_t *shape) {
    static const DLDataType dtypes[] = {{kDLFloat, 32, 1}, {kDLComplex, 64, 1}, {kDLBfloat, 16, 1}, {kDLInt, 8, 1}};
    return make(g->pool, dtypes[any(g, 4)], ndim, shape);
}

static struct lend_tensor *any_coo(struct garden *g) {
    int64_t rows = any(g, 5), columns = 1 + any(g, 5), dense = 1 + any(g, 3), indices[50], n = 0;
    bool is_dense = any(g, 2);
    for (int64_t i = 0; i < rows * columns; i++) /* in order, some left out */
        if (any(g, 2)) indices[n++] = i;
    for (int64_t i = n - 1; i >= 0; i--) {
        indices[n + i] = indices[i] % columns;
        indices[i] /= columns;
    }
    struct lend_tensor *parts[] = {new_int64s(g->pool, 2, (int64_t[]){2, n}, indices),
                                   any_floats(g, 1 + is_dense, (int64_t[]){n, dense})};
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_COO,
                                           .n_components = 2,
                                           .components = parts,
                                           .ndim = 2 + is_dense,
                                           .shape = (int64_t[]){rows, columns, dense},
                                           .is_coalesced = any(g, 2)});
}

static struct lend_tensor *any_compressed(struct garden *g, enum lend_layout layout) {
    bool is_block = layout == LEND_LAYOUT_BSR || layout == LEND_LAYOUT_BSC;
    bool is_rows = layout == LEND_LAYOUT_CSR || layout == LEND_LAYOUT_BSR;
    int64_t compressed = any(g, 5), plain = 1 + any(g, 5), block[2] = {1 + any(g, 3), 1 + any(g, 3)};
    int64_t pointers[6] = {0}, indices[25], n = 0;
    for (int64_t i = 0; i < compressed; i++) {
        for (int64_t k = 0; k < plain; k++)
            if (any(g, 2)) indices[n++] = k;
        pointers[i + 1] = n;
    }
    struct lend_tensor *parts[] = {new_int64s(g->pool, 1, (int64_t[]){compressed + 1}, pointers),
                                   new_int64s(g->pool, 1, &n, indices),
                                   any_floats(g, is_block ? 3 : 1, (int64_t[]){n, block[0], block[1]})};
    int64_t shape[] = {is_rows ? compressed : plain, is_rows ? plain : compressed};
    for (int i = 0; i < 2 && is_block; i++) shape[i] *= block[i];
    return compose(
        &(struct lend_compound){.layout = layout, .n_components = 3, .components = parts, .ndim = 2, .shape = shape});
}

/* One offset after the other, as jagged tensors have them; nested ones with a second size. */
static struct lend_tensor *any_nested(struct garden *g, enum lend_layout layout) {
    int64_t n = any(g, 5), width = 1 + any(g, 3), sizes[10], strides[10], offsets[6] = {0};
    for (int64_t i = 0; i < n; i++) {
        sizes[2 * i] = any(g, 4);
        sizes[2 * i + 1] = strides[2 * i] = width;
        strides[2 * i + 1] = 1;
        offsets[i + 1] = offsets[i] + sizes[2 * i];
    }
    if (layout == LEND_LAYOUT_JAGGED) {
        struct lend_tensor *parts[] = {any_floats(g, 2, (int64_t[]){offsets[n], width}),
                                       new_int64s(g->pool, 1, (int64_t[]){n + 1}, offsets)};
        return compose(&(struct lend_compound){.layout = layout,
                                               .n_components = 2,
                                               .components = parts,
                                               .ndim = 3,
                                               .shape = (int64_t[]){n, LEND_RAGGED, width},
                                               .dim = 1});
    }
    struct lend_tensor *values = any_floats(g, 1, (int64_t[]){offsets[n] * width});
    for (int64_t i = 0; i < n; i++) offsets[i] *= width;
    struct lend_tensor *parts[] = {values, new_int64s(g->pool, 2, (int64_t[]){n, 2}, sizes),
                                   new_int64s(g->pool, 2, (int64_t[]){n, 2}, strides),
                                   new_int64s(g->pool, 1, &n, offsets)};
    return compose(&(struct lend_compound){.layout = layout,
                                           .n_components = 4,
                                           .components = parts,
                                           .ndim = 3,
                                           .shape = (int64_t[]){n, LEND_RAGGED, width}});
}

static struct lend_tensor *any_quantized(struct garden *g) {
    struct lend_tensor *values = make(g->pool, int8, 2, (int64_t[]){any(g, 5), any(g, 5)});
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED,
                                           .n_components = 1,
                                           .components = &values,
                                           .ndim = 2,
                                           .shape = info_of(values).shape,
                                           .scale = any(g, 1000) / 7.0,
                                           .zero_point = (int64_t)any(g, 256) - 128});
}

static struct lend_tensor *any_marked(struct garden *g, struct lend_tensor *tensor);

static struct lend_tensor *any_tree(struct garden *g, int depth) {
    struct lend_tensor *parts[4];
    uint32_t n = any(g, 4);
    int64_t shape[] = {any(g, 9), any(g, 9)};
    switch (any(g, depth < LEND_DEPTH_MAX - 1 ? 12 : 8)) {
    case 0: return any_marked(g, any_coo(g));
    case 1: return any_marked(g, any_compressed(g, LEND_LAYOUT_CSR + any(g, 4)));
    case 2: return any_marked(g, any_nested(g, LEND_LAYOUT_NESTED + any(g, 2)));
    case 3: return any_marked(g, any_quantized(g));
    case 4: return any_marked(g, new_of(g->pool, LEND_LAYOUT_COO + any(g, 9)));
    case 5:
    case 6:
    case 7: return any_marked(g, any_strided(g));
    default: break;
    }
    for (uint32_t i = 0; i <= n; i++) parts[i] = any_tree(g, depth + 1);
    return any_marked(g, compose(&(struct lend_compound){.layout = LEND_LAYOUT_WRAPPER,
                                                         .n_components = n + 1,
                                                         .components = parts,
                                                         .ndim = 2,
                                                         .shape = shape,
                                                         .dtype = any_dtype(g)}));
}

/* Marks and bytes; those that do not go with the tensor are refused, and it stays as it was. */
static struct lend_tensor *any_marked(struct garden *g, struct lend_tensor *tensor) {
    static const uint32_t marks[] = {0,
                                     LEND_ATTR_REQUIRES_GRAD,
                                     LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_PARAMETER,
                                     LEND_ATTR_BUFFER,
                                     LEND_ATTR_CONJ,
                                     LEND_ATTR_NEG,
                                     LEND_ATTR_CONJ | LEND_ATTR_NEG | LEND_ATTR_PARAMETER,
                                     LEND_ATTR_INFERENCE};
    uint8_t bytes[LEND_USER_BYTES_MAX];
    struct lend_tensor *with = NULL;
    struct lend_error error = {0};
    struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = marks[any(g, 8)], .user = bytes};
    attrs.user_bytes = any(g, 3) ? 0 : any(g, any(g, 4) ? 20 : LEND_USER_BYTES_MAX + 1);
    attrs.user_tag = attrs.user_bytes ? any(g, 1u << 31) : 0;
    for (size_t i = 0; i < attrs.user_bytes; i++) bytes[i] = (uint8_t)any(g, 256);
    int r = lend_tensor_with_attrs(tensor, &attrs, &with, &error);
    if (r == -EINVAL) return tensor;
    CHECK_OK(r, &error);
    lend_tensor_unref(tensor);
    return with;
}

static void look(struct garden *g, struct lend_tensor *tensor) {
    struct lend_tensor_info info = info_of(tensor);
    struct lend_compound c = {.size = sizeof c};
    g->layouts |= 1u << info.layout;
    g->devices |= info.device.device_type == LEND_DEVICE_META ? 2 : 1;
    if (lend_tensor_components(tensor, &c) < 0) return;
    for (uint32_t i = 0; i < c.n_components; i++) look(g, c.components[i]);
}

/* --- the tests ------------------------------------------------------------------------------------------------------ */

static struct lend_group *any_group(struct garden *g, uint64_t seed) {
    struct lend_group *group = new_group();
    g->state = seed * 7919;
    g->n_known = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "seed%llu.%d", (unsigned long long)seed, i);
        struct lend_tensor *tensor = any_tree(g, 1);
        look(g, tensor);
        add_and_drop(group, name, tensor);
    }
    while (g->n_known) lend_tensor_unref(g->known[--g->n_known]);
    return group;
}

/* Alone, where it fits a line. */
static void one_by_one(struct fixture *f, struct lend_group *group) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    for (size_t i = 0; i < N_TENSORS; i++) {
        struct lend_tensor *tensor = lend_group_get(group, i, NULL);
        struct lend_error error = {0};
        size_t n = 0;
        int r = lend_reduce(tensor, NULL, bytes, sizeof bytes, &n, &error);
        if (r == -ERANGE)
            CHECK(info_of(tensor).layout == LEND_LAYOUT_WRAPPER && n > LEND_HANDLE_BYTES_MAX);
        else
            round_trip(f, tensor);
    }
}

static void in_parts(struct fixture *f, struct garden *g, struct lend_group *group) {
    const char *names[3] = {NULL};
    char *path = reduce_group(group, NULL, 0);
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        lend_group_get(group, at + any(g, N_TENSORS / 3), &names[i]);
        at += N_TENSORS / 3;
    }
    actor_ok(&f->peer, "grebuild %s check name=%s name=%s name=%s", path, names[2], names[0], names[1]);
    handle_drop(path);
    for (int i = 0; i < 3; i++) {
        CHECK_STR(actor_ok(&f->peer, "gget 0 %d", i), names[i]);
        expect_equal(&f->peer, 0, lend_group_find(group, names[i]));
    }
    actor_ok(&f->peer, "drop 0");
}

LEND_TEST_TIMED(random_trees, 300) {
    struct lend_reduce_opts move = {.size = sizeof move, .mode = LEND_MODE_MOVE};
    struct fixture f;
    begin(&f);
    struct garden g = {.pool = f.pool};
    struct books before = books_now();
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        printf("seed %llu\n", (unsigned long long)seed);
        struct lend_group *group = any_group(&g, seed);
        give_group(&f, group, NULL, 0);
        one_by_one(&f, group);
        in_parts(&f, &g, group);
        /* The receiver's are the last. */
        char *path = reduce_group(group, &move, 0);
        lend_group_unref(group);
        actor_ok(&f.peer, "grebuild %s check", path);
        handle_drop(path);
        CHECK_INT(actor_int(&f.peer, "gcount"), N_TENSORS);
        actor_ok(&f.peer, "gdrop");
        expect_books(before);
    }
    CHECK_UINT(g.layouts, (1u << (LEND_LAYOUT_WRAPPER + 1)) - 1);
    CHECK_UINT(g.devices, 3);
    end(&f);
}
