/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, tensors of components: each arrives whole, its components shared and the ones that they were. */
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { TAG = 0x746f7263 };

static void expect_layout(struct fixture *f, const char *part) {
    CHECK_CONTAINS(actor_ok(&f->peer, "describe 0"), part);
}

/* What the handle says before anybody is asked. */
static void expect_handle(const struct handle *handle, uint32_t layout, uint32_t n_storages, uint32_t attrs) {
    struct lend_handle_info info = {.size = sizeof info};
    struct lend_error error = {0};
    CHECK_OK(lend_handle_describe(handle->bytes, handle->n, &info, &error), &error);
    CHECK_UINT(info.kind, LEND_HANDLE_TENSOR);
    CHECK_UINT(info.n_tensors, 1);
    CHECK_UINT(info.layout, layout);
    CHECK_UINT(info.n_storages, n_storages);
    CHECK_UINT(info.n_exporters, 1);
    CHECK_UINT(info.attrs, attrs);
}

/* A valid tensor of that layout there and back; every component is the memory that it was, written from both sides. */
static void carries(struct fixture *f, struct lend_tensor *tensor, uint32_t n_components, uint32_t n_storages) {
    struct lend_tensor_info whole = info_of(tensor);
    struct lend_compound c = {.size = sizeof c};
    struct lend_error error = {0};
    struct handle handle;
    uint64_t nbytes = 0;
    CHECK_OK(lend_tensor_components(tensor, &c), NULL);
    CHECK_UINT(c.n_components, n_components);
    CHECK_OK(lend_tensor_check(tensor, &error), &error);
    round_trip(f, tensor);
    reduce_to(tensor, NULL, 0, &handle);
    expect_handle(&handle, whole.layout, n_storages, whole.attrs);
    actor_ok(&f->peer, "rebuild 0 %s check", handle.text);
    expect_equal(&f->peer, 0, tensor);
    for (uint32_t i = 0; i < n_components; i++) {
        struct lend_tensor_info part = info_of(c.components[i]);
        nbytes += part.nbytes;
        if (part.layout != LEND_LAYOUT_STRIDED) continue;
        uint8_t *p = part.data;
        actor_ok(&f->peer, "component 1 0 %u", i);
        CHECK_CONTAINS(actor_ok(&f->peer, "info 1"), "imported 1 ");
        uint8_t was = p[0];
        p[0] = (uint8_t)(was + 1);
        CHECK_INT(actor_int(&f->peer, "byte 1 0"), (uint8_t)(was + 1));
        actor_ok(&f->peer, "poke 1 0 %d", was);
        CHECK_INT(p[0], was);
        actor_ok(&f->peer, "drop 1");
    }
    CHECK_UINT(whole.nbytes, nbytes);
    actor_ok(&f->peer, "drop 0");
}

/* Also as a leaf that requires grad, whose values a framework shows as the result of an operation. */
static void carries_grad(struct fixture *f, enum lend_layout layout) {
    struct lend_tensor *plain = new_of(f->pool, layout), *parts[LEND_COMPONENTS_MAX], *leaf, *again;
    struct lend_compound c = {.size = sizeof c};
    uint32_t values = layout == LEND_LAYOUT_NESTED || layout == LEND_LAYOUT_JAGGED ? 0 : 1;
    char part[32];
    CHECK_OK(lend_tensor_components(plain, &c), NULL);
    if (layout != LEND_LAYOUT_COO && values) values = 2;
    for (uint32_t i = 0; i < c.n_components; i++) parts[i] = lend_tensor_ref(c.components[i]);
    parts[values] = marked(parts[values], LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF);
    c.components = parts;
    again = compose(&c);
    lend_tensor_unref(plain);
    leaf = marked(again, LEND_ATTR_REQUIRES_GRAD);
    round_trip(f, leaf);
    give(f, 0, leaf, NULL, 0);
    CHECK_CONTAINS(strstr(actor_ok(&f->peer, "describe 0"), "zero_point"), " attrs 1 ");
    actor_ok(&f->peer, "component 1 0 %u", values);
    snprintf(part, sizeof part, " attrs %x ", LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF);
    CHECK_CONTAINS(actor_ok(&f->peer, "describe 1"), part);
    actor_ok(&f->peer, "drop 0");
    actor_ok(&f->peer, "drop 1");
    lend_tensor_unref(leaf);
}

LEND_TEST(coo) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_of(f.pool, LEND_LAYOUT_COO);
    carries(&f, tensor, 2, 2);
    give(&f, 0, tensor, NULL, 0);
    expect_layout(&f, "shape,4,5,3 layout 1 coalesced 1 ");
    /* Not coalesced: the same index twice. */
    int64_t *indices = lend_tensor_data(component(tensor, 0));
    indices[1] = indices[0];
    indices[4] = indices[3];
    struct lend_compound c = {.size = sizeof c};
    CHECK_OK(lend_tensor_components(tensor, &c), NULL);
    struct lend_tensor *parts[] = {lend_tensor_ref(c.components[0]), lend_tensor_ref(c.components[1])};
    c.components = parts;
    c.is_coalesced = 0;
    struct lend_tensor *loose = compose(&c);
    carries(&f, loose, 2, 2);
    give(&f, 0, loose, NULL, 0);
    expect_layout(&f, "layout 1 coalesced 0 ");
    lend_tensor_unref(loose);
    lend_tensor_unref(tensor);
    carries_grad(&f, LEND_LAYOUT_COO);
    end(&f);
}

static void compressed(enum lend_layout layout, const char *part) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_of(f.pool, layout);
    carries(&f, tensor, 3, 3);
    give(&f, 0, tensor, NULL, 0);
    expect_layout(&f, part);
    lend_tensor_unref(tensor);
    carries_grad(&f, layout);
    end(&f);
}

LEND_TEST(csr) {
    compressed(LEND_LAYOUT_CSR, "shape,2,4,6 layout 2 ");
}

LEND_TEST(csc) {
    compressed(LEND_LAYOUT_CSC, "shape,2,6,4 layout 3 ");
}

/* The sizes of a block are those of the values. */
LEND_TEST(bsr) {
    compressed(LEND_LAYOUT_BSR, "shape,4,6 layout 4 ");
}

LEND_TEST(bsc) {
    compressed(LEND_LAYOUT_BSC, "shape,6,4 layout 5 ");
}

LEND_TEST(int32_indices) {
    static const int32_t rows[] = {0, 1, 3}, columns[] = {4, 0, 2};
    int64_t three = 3, shape[] = {2, 5};
    struct fixture f;
    begin(&f);
    struct lend_tensor *parts[] = {make(f.pool, int32, 1, &three), make(f.pool, int32, 1, &three),
                                   make(f.pool, complex64, 1, &three)};
    memcpy(lend_tensor_data(parts[0]), rows, sizeof rows);
    memcpy(lend_tensor_data(parts[1]), columns, sizeof columns);
    struct lend_tensor *tensor = compose(&(struct lend_compound){
        .layout = LEND_LAYOUT_CSR, .n_components = 3, .components = parts, .ndim = 2, .shape = shape});
    carries(&f, tensor, 3, 3);
    lend_tensor_unref(tensor);
    end(&f);
}

/* PyTorch copies it at the receiver. */
LEND_TEST(nested_strided) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_of(f.pool, LEND_LAYOUT_NESTED);
    carries(&f, tensor, 4, 4);
    give(&f, 0, tensor, NULL, 0);
    expect_layout(&f, "shape,2,-1,-1 layout 6 ");
    lend_tensor_unref(tensor);
    carries_grad(&f, LEND_LAYOUT_NESTED);
    end(&f);
}

/* With lengths and without; two tensors of one raggedness share their offsets, and the receiver can see that. */
LEND_TEST(nested_jagged) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_of(f.pool, LEND_LAYOUT_JAGGED);
    carries(&f, tensor, 3, 3);
    give(&f, 0, tensor, NULL, 0);
    expect_layout(&f, "shape,3,-1,4 layout 7 coalesced 0 dim 1 ");
    int64_t dense[] = {10, 2}, shape[] = {3, LEND_RAGGED, 2};
    struct lend_tensor *parts[] = {make(f.pool, float32, 2, dense), lend_tensor_ref(component(tensor, 1))};
    struct lend_tensor *other = compose(&(struct lend_compound){
        .layout = LEND_LAYOUT_JAGGED, .n_components = 2, .components = parts, .ndim = 3, .shape = shape, .dim = 1});
    carries(&f, other, 2, 2);
    give(&f, 0, tensor, NULL, 0);
    give(&f, 1, other, NULL, 0);
    actor_ok(&f.peer, "component 2 0 1");
    actor_ok(&f.peer, "component 3 1 1");
    CHECK_INT(actor_int(&f.peer, "same 2 3"), 1);
    lend_tensor_unref(other);
    lend_tensor_unref(tensor);
    carries_grad(&f, LEND_LAYOUT_JAGGED);
    end(&f);
}

/* Scale and zero point arrive bit by bit. */
LEND_TEST(quantized_per_tensor) {
    static const struct {
        DLDataType dtype;
        double scale;
        int64_t zero_point;
    } cases[] = {{{kDLInt, 8, 1}, 0.1, -7},
                 {{kDLUInt, 8, 1}, 4.9e-324, 255},
                 {{kDLInt, 32, 1}, 1.7e308, INT32_MIN},
                 {{kDLUInt, 4, 1}, 1.0 / 3, 15},
                 {{kDLUInt, 2, 1}, 65504, 0}};
    int64_t shape[] = {3, 4};
    struct fixture f;
    begin(&f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char part[128];
        struct lend_tensor *values = make(f.pool, cases[i].dtype, 2, shape);
        struct lend_tensor *tensor = compose(&(struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED,
                                                                     .n_components = 1,
                                                                     .components = &values,
                                                                     .ndim = 2,
                                                                     .shape = shape,
                                                                     .scale = cases[i].scale,
                                                                     .zero_point = cases[i].zero_point});
        carries(&f, tensor, 1, 1);
        give(&f, 0, tensor, NULL, 0);
        snprintf(part, sizeof part, "layout 8 coalesced 0 dim 0 scale %a zero_point %lld ", cases[i].scale,
                 (long long)cases[i].zero_point);
        expect_layout(&f, part);
        lend_tensor_unref(tensor);
    }
    end(&f);
}

LEND_TEST(quantized_per_channel) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_of(f.pool, LEND_LAYOUT_QUANTIZED_PER_CHANNEL);
    carries(&f, tensor, 3, 3);
    give(&f, 0, tensor, NULL, 0);
    expect_layout(&f, "dtype 0.8.1 device 1.0 shape,3,4 layout 9 coalesced 0 dim 1 ");
    lend_tensor_unref(tensor);
    end(&f);
}

/* Up to LEND_COMPONENTS_MAX tensors of any layout, and wrappers of wrappers. */
LEND_TEST(wrapper_subclass) {
    struct lend_tensor *parts[LEND_COMPONENTS_MAX + 1], *none = NULL;
    struct lend_error error = {0};
    int64_t shape[] = {7, 9};
    struct fixture f;
    begin(&f);
    struct lend_tensor *small = new_of(f.pool, LEND_LAYOUT_WRAPPER);
    carries(&f, small, 2, 4);
    lend_tensor_unref(small);
    for (uint32_t i = 0; i <= LEND_COMPONENTS_MAX; i++)
        parts[i] = i % 5 ? new_floats(f.pool, 3, (float)i) : new_of(f.pool, 1 + i % 10);
    struct lend_compound c = {.size = sizeof c,
                              .layout = LEND_LAYOUT_WRAPPER,
                              .n_components = LEND_COMPONENTS_MAX + 1,
                              .components = parts,
                              .ndim = 2,
                              .shape = shape,
                              .dtype = float32};
    CHECK_CODE(lend_tensor_new_compound(&c, &none, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "16");
    lend_tensor_unref(parts[LEND_COMPONENTS_MAX]);
    c.n_components = 4; /* with user bytes it still fits LEND_HANDLE_BYTES_MAX */
    for (uint32_t i = 4; i < LEND_COMPONENTS_MAX; i++) lend_tensor_unref(parts[i]);
    struct lend_tensor *tensor = tagged(compose(&c), LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_PARAMETER, TAG, "my.Wrapper");
    round_trip_and_drop(&f, tensor);
    end(&f);
}

/* Its handle is longer than the buffer that every other tensor's fits, and the error says how long. */
LEND_TEST(large_wrapper) {
    uint8_t small[LEND_HANDLE_BYTES_MAX];
    char text[LEND_USER_BYTES_MAX + 1];
    struct lend_tensor *parts[LEND_COMPONENTS_MAX];
    struct lend_error error = {0};
    int64_t shape[] = {1};
    size_t n = 0;
    struct fixture f;
    begin(&f);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (uint32_t i = 0; i < LEND_COMPONENTS_MAX; i++)
        parts[i] = tagged(new_of(f.pool, LEND_LAYOUT_QUANTIZED), 0, TAG + i, text);
    struct lend_tensor *tensor = compose(&(struct lend_compound){.layout = LEND_LAYOUT_WRAPPER,
                                                                 .n_components = LEND_COMPONENTS_MAX,
                                                                 .components = parts,
                                                                 .ndim = 1,
                                                                 .shape = shape,
                                                                 .dtype = float32});
    CHECK_CODE(lend_reduce(tensor, NULL, small, sizeof small, &n, &error), -ERANGE);
    CHECK(n > sizeof small);
    CHECK_UINT(error.asked, n);
    size_t room = n;
    void *bytes = malloc(room);
    char *line = malloc(LEND_HANDLE_TEXT_BYTES(room));
    CHECK_OK(lend_reduce(tensor, NULL, bytes, room, &n, &error), &error);
    CHECK_UINT(n, room);
    CHECK_OK(lend_handle_format(bytes, n, line, LEND_HANDLE_TEXT_BYTES(room)), NULL);
    actor_ok(&f.peer, "rebuild 0 %s", line);
    expect_equal(&f.peer, 0, tensor);
    free(line);
    free(bytes);
    lend_tensor_unref(tensor);
    end(&f);
}

LEND_TEST(wrappers_of_wrappers) {
    int64_t shape[] = {2};
    struct lend_error error = {0};
    struct lend_tensor *none = NULL;
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_floats(f.pool, 2, 1);
    struct lend_compound c = {.size = sizeof c,
                              .layout = LEND_LAYOUT_WRAPPER,
                              .n_components = 1,
                              .components = &tensor,
                              .ndim = 1,
                              .shape = shape,
                              .dtype = float32};
    for (int depth = 1; depth < LEND_DEPTH_MAX; depth++) {
        tensor = compose(&c);
        round_trip(&f, tensor);
    }
    CHECK_CODE(lend_tensor_new_compound(&c, &none, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "LEND_DEPTH_MAX");
    lend_tensor_unref(tensor);
    end(&f);
}

/* A functorch wrapper means nothing elsewhere: what it wraps does. */
LEND_TEST(functional_tensor) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_of(f.pool, LEND_LAYOUT_WRAPPER);
    give(&f, 0, tensor, NULL, 0);
    struct lend_tensor *inner = component(tensor, 1);
    give(&f, 1, inner, NULL, 0);
    expect_equal(&f.peer, 1, inner);
    actor_ok(&f.peer, "component 2 0 1");
    CHECK_INT(actor_int(&f.peer, "same 1 2"), 1);
    lend_tensor_unref(tensor);
    end(&f);
}

/* A component that other tensors view, too, is one storage everywhere. */
LEND_TEST(views_as_components) {
    int64_t shape[] = {2, 5}, three = 3;
    struct lend_tensor *rows = NULL, *columns = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *both = new_int64s(f.pool, 1, (int64_t[]){6}, (int64_t[]){0, 1, 3, 4, 0, 2});
    CHECK_OK(lend_tensor_slice(both, 0, 0, 3, 1, &rows, &error), &error);
    CHECK_OK(lend_tensor_slice(both, 0, 3, 6, 1, &columns, &error), &error);
    struct lend_tensor *parts[] = {rows, columns, make(f.pool, float32, 1, &three)};
    struct lend_tensor *tensor = compose(&(struct lend_compound){
        .layout = LEND_LAYOUT_CSR, .n_components = 3, .components = parts, .ndim = 2, .shape = shape});
    carries(&f, tensor, 3, 2);
    give(&f, 0, tensor, NULL, 0);
    give(&f, 1, both, NULL, 0);
    actor_ok(&f.peer, "component 2 0 0");
    actor_ok(&f.peer, "component 3 0 1");
    CHECK_INT(actor_int(&f.peer, "same 1 2"), 1);
    CHECK_INT(actor_int(&f.peer, "same 2 3"), 1);
    lend_tensor_unref(tensor);
    lend_tensor_unref(both);
    end(&f);
}
