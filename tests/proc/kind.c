/* SPDX-License-Identifier: MIT */
/* See kind.h. */
#include "kind.h"

#include <stdio.h>
#include <stdlib.h>

static void count_warning(void *user, enum lend_log_level level, const char *text) {
    struct fixture *f = user;
    if (level != LEND_LOG_WARNING) return;
    f->n_warnings++;
    snprintf(f->warning, sizeof f->warning, "%s", text);
}

void begin_with(struct fixture *f, struct lend_opts *opts) {
    f->n_warnings = 0;
    f->warning[0] = '\0';
    opts->log = count_warning;
    opts->log_user = f;
    open_with(opts);
    f->pool = new_pool(NULL);
    actor_start(&f->peer, NULL, NULL);
}

void begin(struct fixture *f) {
    struct lend_opts opts = {.size = sizeof opts};
    begin_with(f, &opts);
}

void end(struct fixture *f) {
    role_end(&f->peer);
    CHECK_EVENTUALLY(2000, limbo_bytes(f->pool) == 0);
    close_all(f->pool);
}

/* --- tensors -------------------------------------------------------------------------------------------------------- */

static struct lend_tensor *new_tensor(struct lend_pool *pool, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_new(pool, dtype, ndim, shape, &tensor, &error), &error);
    return tensor;
}

struct lend_tensor *make(struct lend_pool *pool, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = new_tensor(pool, dtype, ndim, shape);
    struct lend_tensor_info info = info_of(tensor);
    uint32_t x = 12345;
    for (uint64_t i = 0; i < info.nbytes; i++)
        ((uint8_t *)info.data)[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    return tensor;
}

struct lend_tensor *new_floats(struct lend_pool *pool, int64_t n, float first) {
    struct lend_tensor *tensor = new_tensor(pool, float32, 1, &n);
    float *p = lend_tensor_data(tensor);
    for (int64_t i = 0; i < n; i++) p[i] = first + (float)i;
    return tensor;
}

struct lend_tensor *new_int64s(struct lend_pool *pool, int32_t ndim, const int64_t *shape, const int64_t *values) {
    struct lend_tensor *tensor = new_tensor(pool, int64, ndim, shape);
    struct lend_tensor_info info = info_of(tensor);
    if (info.nbytes) memcpy(info.data, values, info.nbytes);
    return tensor;
}

unsigned n_given_back;

static void give_back(struct DLManagedTensorVersioned *managed) {
    free(managed->manager_ctx);
    free(managed);
    n_given_back++;
}

static struct lend_tensor *from_dlpack(void *memory, int64_t n, uint64_t flags, void *owned) {
    struct DLManagedTensorVersioned *managed = calloc(1, sizeof *managed);
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    managed->version.major = LEND_DLPACK_MAJOR;
    managed->flags = flags;
    managed->manager_ctx = owned;
    managed->deleter = give_back;
    managed->dl_tensor =
        (DLTensor){.data = memory, .device = {.device_type = kDLCPU}, .ndim = 1, .dtype = uint8, .shape = &n};
    CHECK_OK(lend_tensor_from_dlpack(managed, &tensor, &error), &error);
    return tensor;
}

struct lend_tensor *take(void *memory, int64_t n, uint64_t flags) {
    return from_dlpack(memory, n, flags, NULL);
}

struct lend_tensor *new_private(int64_t n, int fill) {
    void *memory = calloc(1, (size_t)n);
    if (fill) memset(memory, fill, (size_t)n); /* zeros take no memory yet */
    return from_dlpack(memory, n, 0, memory);
}

struct lend_tensor *tagged(struct lend_tensor *tensor, uint32_t flags, uint32_t tag, const char *text) {
    struct lend_tensor_attrs attrs = {
        .size = sizeof attrs, .flags = flags, .user_tag = tag, .user = text, .user_bytes = text ? strlen(text) : 0};
    struct lend_tensor *with = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_with_attrs(tensor, &attrs, &with, &error), &error);
    lend_tensor_unref(tensor);
    return with;
}

struct lend_tensor *marked(struct lend_tensor *tensor, uint32_t flags) {
    return tagged(tensor, flags, 0, NULL);
}

/* --- layouts -------------------------------------------------------------------------------------------------------- */

struct lend_tensor *compose(struct lend_compound *compound) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    compound->size = sizeof *compound;
    CHECK_OK(lend_tensor_new_compound(compound, &tensor, &error), &error);
    for (uint32_t i = 0; i < compound->n_components; i++) lend_tensor_unref(compound->components[i]);
    return tensor;
}

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})
#define NDIM(...) ((int32_t)(sizeof SHAPE(__VA_ARGS__) / sizeof(int64_t)))
#define FLOATS(...) make(pool, float32, NDIM(__VA_ARGS__), SHAPE(__VA_ARGS__))

static struct lend_tensor *new_coo(struct lend_pool *pool) {
    struct lend_tensor *parts[] = {new_int64s(pool, 2, SHAPE(2, 3), SHAPE(0, 1, 3, 4, 0, 2)), FLOATS(3, 3)};
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_COO,
                                           .n_components = 2,
                                           .components = parts,
                                           .ndim = 3,
                                           .shape = SHAPE(4, 5, 3),
                                           .is_coalesced = 1});
}

/* Two batches of CSR and CSC; blocks of 2 x 3. */
static struct lend_tensor *new_compressed(struct lend_pool *pool, enum lend_layout layout) {
    bool is_block = layout == LEND_LAYOUT_BSR || layout == LEND_LAYOUT_BSC;
    bool is_rows = layout == LEND_LAYOUT_CSR || layout == LEND_LAYOUT_BSR;
    struct lend_tensor *parts[3];
    if (is_block) {
        parts[0] = new_int64s(pool, 1, SHAPE(3), SHAPE(0, 1, 3));
        parts[1] = new_int64s(pool, 1, SHAPE(3), SHAPE(1, 0, 1));
        parts[2] = is_rows ? FLOATS(3, 2, 3) : FLOATS(3, 3, 2);
    } else {
        parts[0] = new_int64s(pool, 2, SHAPE(2, 5), SHAPE(0, 2, 2, 3, 5, 0, 0, 1, 4, 5));
        parts[1] = new_int64s(pool, 2, SHAPE(2, 5), SHAPE(1, 4, 0, 2, 5, 3, 0, 1, 5, 2));
        parts[2] = FLOATS(2, 5);
    }
    const int64_t *shape = is_block ? (is_rows ? SHAPE(4, 6) : SHAPE(6, 4)) : is_rows ? SHAPE(2, 4, 6) : SHAPE(2, 6, 4);
    return compose(&(struct lend_compound){
        .layout = layout, .n_components = 3, .components = parts, .ndim = is_block ? 2 : 3, .shape = shape});
}

/* A 2 x 3 and a 4 x 2 behind it. */
static struct lend_tensor *new_nested(struct lend_pool *pool) {
    struct lend_tensor *parts[] = {FLOATS(14), new_int64s(pool, 2, SHAPE(2, 2), SHAPE(2, 3, 4, 2)),
                                   new_int64s(pool, 2, SHAPE(2, 2), SHAPE(3, 1, 2, 1)),
                                   new_int64s(pool, 1, SHAPE(2), SHAPE(0, 6))};
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_NESTED,
                                           .n_components = 4,
                                           .components = parts,
                                           .ndim = 3,
                                           .shape = SHAPE(2, LEND_RAGGED, LEND_RAGGED)});
}

static struct lend_tensor *new_jagged(struct lend_pool *pool) {
    struct lend_tensor *parts[] = {FLOATS(10, 4), new_int64s(pool, 1, SHAPE(4), SHAPE(0, 3, 5, 10)),
                                   new_int64s(pool, 1, SHAPE(3), SHAPE(3, 1, 4))};
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_JAGGED,
                                           .n_components = 3,
                                           .components = parts,
                                           .ndim = 3,
                                           .shape = SHAPE(3, LEND_RAGGED, 4),
                                           .dim = 1});
}

static struct lend_tensor *new_quantized(struct lend_pool *pool) {
    struct lend_tensor *parts[] = {make(pool, int8, 2, SHAPE(3, 4))};
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED,
                                           .n_components = 1,
                                           .components = parts,
                                           .ndim = 2,
                                           .shape = SHAPE(3, 4),
                                           .scale = 0.1,
                                           .zero_point = -7});
}

static struct lend_tensor *new_per_channel(struct lend_pool *pool) {
    static const double scales[] = {0.1, 1e-300, 0.25, 3e38};
    struct lend_tensor *parts[] = {make(pool, int8, 2, SHAPE(3, 4)), new_tensor(pool, float64, 1, SHAPE(4)),
                                   new_int64s(pool, 1, SHAPE(4), SHAPE(0, -128, 127, 1))};
    memcpy(lend_tensor_data(parts[1]), scales, sizeof scales);
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED_PER_CHANNEL,
                                           .n_components = 3,
                                           .components = parts,
                                           .ndim = 2,
                                           .shape = SHAPE(3, 4),
                                           .dim = 1});
}

static struct lend_tensor *new_wrapper(struct lend_pool *pool) {
    struct lend_tensor *parts[] = {new_of(pool, LEND_LAYOUT_CSR), FLOATS(5)};
    return compose(&(struct lend_compound){.layout = LEND_LAYOUT_WRAPPER,
                                           .n_components = 2,
                                           .components = parts,
                                           .ndim = 2,
                                           .shape = SHAPE(7, 9),
                                           .dtype = complex64});
}

struct lend_tensor *new_of(struct lend_pool *pool, enum lend_layout layout) {
    switch (layout) {
    case LEND_LAYOUT_COO: return new_coo(pool);
    case LEND_LAYOUT_CSR:
    case LEND_LAYOUT_CSC:
    case LEND_LAYOUT_BSR:
    case LEND_LAYOUT_BSC: return new_compressed(pool, layout);
    case LEND_LAYOUT_NESTED: return new_nested(pool);
    case LEND_LAYOUT_JAGGED: return new_jagged(pool);
    case LEND_LAYOUT_QUANTIZED: return new_quantized(pool);
    case LEND_LAYOUT_QUANTIZED_PER_CHANNEL: return new_per_channel(pool);
    case LEND_LAYOUT_WRAPPER: return new_wrapper(pool);
    default: FAIL("no tensors of layout %u are made here", layout);
    }
}

struct lend_tensor *component(const struct lend_tensor *tensor, uint32_t i) {
    struct lend_compound c = {.size = sizeof c};
    CHECK_OK(lend_tensor_components(tensor, &c), NULL);
    CHECK(i < c.n_components);
    return c.components[i];
}

/* --- to the other process and back ---------------------------------------------------------------------------------- */

void give(struct fixture *f, int slot, struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code) {
    actor_ok(&f->peer, "rebuild %d %s", slot, reduce_text(tensor, opts, code));
}

void expect_equal(struct role *actor, int slot, struct lend_tensor *tensor) {
    char *here = describe(tensor);
    CHECK_STR(actor_ok(actor, "describe %d", slot), here);
    free(here);
}

static void expect_same_storages(struct lend_tensor *a, struct lend_tensor *b) {
    struct lend_tensor_info info = info_of(a);
    if (info.layout == LEND_LAYOUT_STRIDED) {
        CHECK_UINT(info_of(b).storage_id, info.storage_id);
        return;
    }
    struct lend_compound c = {.size = sizeof c};
    CHECK_OK(lend_tensor_components(a, &c), NULL);
    for (uint32_t i = 0; i < c.n_components; i++) expect_same_storages(c.components[i], component(b, i));
}

void round_trip(struct fixture *f, struct lend_tensor *tensor) {
    struct lend_tensor *back = NULL;
    struct lend_error error = {0};
    char text[LEND_HANDLE_TEXT_MAX];
    give(f, 0, tensor, NULL, 0);
    expect_equal(&f->peer, 0, tensor);
    snprintf(text, sizeof text, "%s", actor_ok(&f->peer, "reduce 0"));
    CHECK_OK(rebuild_text(text, NULL, &back, &error), &error);
    char *here = describe(tensor), *again = describe(back);
    CHECK_STR(again, here);
    expect_same_storages(back, tensor);
    lend_tensor_unref(back);
    actor_ok(&f->peer, "drop 0");
    free(again);
    free(here);
}

void round_trip_and_drop(struct fixture *f, struct lend_tensor *tensor) {
    round_trip(f, tensor);
    lend_tensor_unref(tensor);
}

void expect_refused(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code, const char *words) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct lend_error error = {0};
    struct books before = books_now();
    CHECK_CODE(lend_reduce(tensor, opts, bytes, sizeof bytes, &n, &error), code);
    CHECK_CONTAINS(error.text, words);
    expect_books(before);
}

/* --- groups --------------------------------------------------------------------------------------------------------- */

struct lend_group *new_group(void) {
    struct lend_group *group = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_group_new(&group, &error), &error);
    return group;
}

void add(struct lend_group *group, const char *name, struct lend_tensor *tensor) {
    struct lend_error error = {0};
    CHECK_OK(lend_group_add(group, name, tensor, &error), &error);
}

void add_and_drop(struct lend_group *group, const char *name, struct lend_tensor *tensor) {
    add(group, name, tensor);
    lend_tensor_unref(tensor);
}

char *reduce_group(struct lend_group *group, const struct lend_reduce_opts *opts, int code) {
    void *bytes = NULL;
    size_t n = 0;
    struct lend_error error = {0};
    int r = lend_group_reduce(group, opts, &bytes, &n, &error);
    if (r != code) FAIL("lend_group_reduce: %d instead of %d: %s", r, code, error.text);
    char *path = handle_put(bytes, n);
    lend_free(bytes);
    return path;
}

void give_group(struct fixture *f, struct lend_group *group, const struct lend_reduce_opts *opts, int code) {
    char *path = reduce_group(group, opts, code);
    actor_ok(&f->peer, "grebuild %s", path);
    handle_drop(path);
    CHECK_INT(actor_int(&f->peer, "gcount"), (long long)lend_group_count(group));
    for (size_t i = 0; i < lend_group_count(group); i++) {
        const char *name = NULL;
        struct lend_tensor *tensor = lend_group_get(group, i, &name);
        CHECK_STR(actor_ok(&f->peer, "gget 63 %zu", i), name);
        expect_equal(&f->peer, 63, tensor);
    }
    actor_ok(&f->peer, "drop 63");
}

void expect_group_refused(struct lend_group *group, const struct lend_reduce_opts *opts, int code, const char *name,
                          const char *words) {
    void *bytes = NULL;
    size_t n = 0;
    struct lend_error error = {0};
    CHECK_CODE(lend_group_reduce(group, opts, &bytes, &n, &error), code);
    CHECK_PTR(bytes, NULL);
    CHECK_CONTAINS(error.text, name);
    CHECK_CONTAINS(error.text, words);
}

/* --- books ---------------------------------------------------------------------------------------------------------- */

struct books books_now(void) {
    struct lend_report *report = NULL;
    struct lend_error error = {0};
    struct books books = {0};
    CHECK_OK(lend_check(&error), &error);
    CHECK_OK(lend_report_get(NULL, 1, 0, &report, &error), &error);
    books.n_storages = report->totals.n_storages;
    books.n_limbo = report->totals.n_limbo;
    books.n_pins = report->totals.n_pins;
    books.pin_bytes = report->totals.pin_bytes;
    books.n_holds = report->n_holds;
    for (size_t i = 0; i < report->n_allocations; i++) books.used_bytes += report->allocations[i].used_bytes;
    lend_report_free(report);
    return books;
}

void expect_books(struct books expected) {
    uint64_t deadline = test_deadline_ms(2000);
    struct books now = books_now();
    for (; memcmp(&now, &expected, sizeof now) && test_now_ms() < deadline; now = books_now()) test_pause();
    CHECK_UINT(now.n_storages, expected.n_storages);
    CHECK_UINT(now.n_limbo, expected.n_limbo);
    CHECK_UINT(now.n_pins, expected.n_pins);
    CHECK_UINT(now.pin_bytes, expected.pin_bytes);
    CHECK_UINT(now.n_holds, expected.n_holds);
    CHECK_UINT(now.used_bytes, expected.used_bytes);
}
