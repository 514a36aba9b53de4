/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, groups: many named tensors under one handle; order, names and shared storages are kept, a subset takes
 * only what it needs, and pins, modes and forwarding act on all of them at once. */
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const struct lend_reduce_opts pin = {.size = sizeof pin, .flags = LEND_REDUCE_PIN};
static const struct lend_reduce_opts move = {.size = sizeof move, .mode = LEND_MODE_MOVE};
static const struct lend_reduce_opts snapshot = {.size = sizeof snapshot, .mode = LEND_MODE_SNAPSHOT};

/* layer.0.weight, layer.0.bias, layer.1.weight, ... with `n` tensors of 100 bytes that are filled with their number. */
static struct lend_group *new_state(struct fixture *f, int n) {
    struct lend_group *group = new_group();
    for (int i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "layer.%d.%s", i / 2, i % 2 ? "bias" : "weight");
        add_and_drop(group, name, new_bytes(f->pool, 100, i));
    }
    return group;
}

static uint64_t n_held(void) {
    return books_now().n_holds;
}

LEND_TEST(module_or_state_dict) {
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_group();
    add_and_drop(group, "weight", marked(new_floats(f.pool, 8, 1), LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD));
    add_and_drop(group, "running_mean", marked(new_floats(f.pool, 3, 2), LEND_ATTR_BUFFER));
    add_and_drop(group, "steps", new_int64s(f.pool, 0, NULL, (int64_t[]){12345}));
    add_and_drop(group, "", new_floats(f.pool, 0, 0)); /* a name may be empty, and so may a tensor */
    for (enum lend_layout layout = LEND_LAYOUT_COO; layout <= LEND_LAYOUT_WRAPPER; layout++) {
        char name[32];
        snprintf(name, sizeof name, "of_layout.%d", (int)layout);
        add_and_drop(group, name, new_of(f.pool, layout));
    }
    give_group(&f, group, NULL, 0);
    actor_ok(&f.peer, "gfind 0 steps");
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 0"), "dtype 0.64.1 device 1.0 shape strides ");
    actor_ok(&f.peer, "drop 0");
    lend_group_unref(group);
    end(&f);
}

LEND_TEST(order_names_and_look_up) {
    enum { N = 300 };
    const char *name = NULL, **names = NULL;
    size_t n = 0, bytes_n = 0;
    struct lend_error error = {0};
    struct lend_handle_info info = {.size = sizeof info};
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_state(&f, N);
    CHECK_UINT(lend_group_count(group), N);
    CHECK_PTR(lend_group_get(group, N, &name), NULL);
    CHECK_PTR(lend_group_find(group, "layer.150.weight"), NULL);
    CHECK_PTR(lend_group_find(group, "layer.149.bias"), lend_group_get(group, N - 1, &name));
    CHECK_STR(name, "layer.149.bias");
    give_group(&f, group, NULL, 0);
    CHECK_UINT(n_held(), N);
    actor_ok(&f.peer, "gfind 0 layer.70.bias");
    CHECK_INT(actor_int(&f.peer, "filled 0"), 141);
    CHECK_INT(actor_code(&f.peer, "gfind 0 layer.70"), -ENOENT);
    /* The names and the sizes can be read without asking anybody. */
    char *path = reduce_group(group, NULL, 0);
    void *bytes = handle_get(path, &bytes_n);
    CHECK_OK(lend_group_names(bytes, bytes_n, &names, &n, &error), &error);
    CHECK_UINT(n, N);
    for (size_t i = 0; i < n; i++) {
        lend_group_get(group, i, &name);
        CHECK_STR(names[i], name);
    }
    lend_free(names);
    CHECK_OK(lend_handle_describe(bytes, bytes_n, &info, &error), &error);
    CHECK_UINT(info.kind, LEND_HANDLE_GROUP);
    CHECK_UINT(info.n_tensors, N);
    CHECK_UINT(info.n_storages, N);
    CHECK_UINT(info.n_exporters, 1);
    free(bytes);
    handle_drop(path);
    lend_group_unref(group);
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "gdrop");
    end(&f);
}

LEND_TEST(names_that_are_refused) {
    char name[LEND_GROUP_NAME_MAX + 2];
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_group();
    struct lend_tensor *tensor = new_floats(f.pool, 8, 1);
    add(group, "weight", tensor);
    CHECK_CODE(lend_group_add(group, "weight", tensor, &error), -EEXIST);
    CHECK_CONTAINS(error.text, "weight");
    memset(name, 'n', sizeof name);
    name[LEND_GROUP_NAME_MAX + 1] = '\0';
    CHECK_CODE(lend_group_add(group, name, tensor, &error), -ERANGE);
    CHECK_UINT(lend_group_count(group), 1);
    name[LEND_GROUP_NAME_MAX] = '\0';
    add(group, name, tensor);
    give_group(&f, group, NULL, 0);
    lend_group_unref(group);
    lend_tensor_unref(tensor);
    actor_ok(&f.peer, "gdrop");
    end(&f);
}

LEND_TEST(a_subset_takes_only_its_storages) {
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_state(&f, 100);
    /* A sparse tensor has three storages. */
    add_and_drop(group, "sparse", new_of(f.pool, LEND_LAYOUT_CSR));
    char *path = reduce_group(group, NULL, 0);
    actor_ok(&f.peer, "grebuild %s name=layer.40.bias name=layer.3.weight name=sparse", path);
    CHECK_INT(actor_int(&f.peer, "gcount"), 3);
    CHECK_STR(actor_ok(&f.peer, "gget 0 0"), "layer.3.weight"); /* in the order of the handle */
    CHECK_INT(actor_int(&f.peer, "filled 0"), 6);
    CHECK_STR(actor_ok(&f.peer, "gget 0 1"), "layer.40.bias");
    CHECK_INT(actor_int(&f.peer, "filled 0"), 81);
    CHECK_STR(actor_ok(&f.peer, "gget 0 2"), "sparse");
    expect_equal(&f.peer, 0, lend_group_find(group, "sparse"));
    actor_ok(&f.peer, "drop 0");
    CHECK_UINT(n_held(), 5);
    actor_ok(&f.peer, "gdrop");
    CHECK_UINT(n_held(), 0);
    CHECK_INT(actor_code(&f.peer, "grebuild %s name=layer.1.bias name=layer.50.bias", path), -ENOENT);
    CHECK_CONTAINS(actor_sentence, "layer.50.bias");
    CHECK_UINT(n_held(), 0);
    /* None of them. */
    struct lend_group *none = NULL;
    size_t n = 0;
    void *bytes = handle_get(path, &n);
    const char *const names[] = {""};
    CHECK_OK(lend_group_rebuild(bytes, n, names, 0, NULL, &none, &error), &error);
    CHECK_UINT(lend_group_count(none), 0);
    lend_group_unref(none);
    free(bytes);
    handle_drop(path);
    lend_group_unref(group);
    end(&f);
}

/* One storage at the receiver: a component of two sparse tensors, and a view of it beside them. */
LEND_TEST(a_component_of_two_tensors_is_one_storage) {
    int64_t shape[] = {2, 4, 6};
    struct fixture f;
    begin(&f);
    struct lend_tensor *first = new_of(f.pool, LEND_LAYOUT_CSR);
    struct lend_tensor *parts[] = {lend_tensor_ref(component(first, 0)), lend_tensor_ref(component(first, 1)),
                                   make(f.pool, complex64, 2, (int64_t[]){2, 5})};
    struct lend_tensor *second = compose(&(struct lend_compound){
        .layout = LEND_LAYOUT_CSR, .n_components = 3, .components = parts, .ndim = 3, .shape = shape});
    struct lend_group *group = new_group();
    add(group, "first", first);
    add(group, "second", second);
    add(group, "indices", component(first, 1));
    add(group, "again", first);
    give_group(&f, group, NULL, 0);
    CHECK_UINT(n_held(), 4);
    actor_ok(&f.peer, "gfind 0 first");
    actor_ok(&f.peer, "gfind 1 second");
    actor_ok(&f.peer, "gfind 2 indices");
    actor_ok(&f.peer, "component 3 0 1");
    actor_ok(&f.peer, "component 4 1 1");
    actor_ok(&f.peer, "component 5 1 2");
    CHECK_INT(actor_int(&f.peer, "same 2 3"), 1);
    CHECK_INT(actor_int(&f.peer, "same 2 4"), 1);
    CHECK_INT(actor_int(&f.peer, "same 2 5"), 0);
    actor_ok(&f.peer, "poke64 3 9 5");
    CHECK_INT(((int64_t *)lend_tensor_data(component(second, 1)))[9], 5);
    lend_group_unref(group);
    lend_tensor_unref(first);
    lend_tensor_unref(second);
    end(&f);
}

/* Tied weights in memory that lend did not make: copied once, and tied there. */
LEND_TEST(tied_private_tensors_still_alias) {
    static uint8_t memory[500];
    struct lend_tensor *head = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct books before = books_now();
    struct lend_tensor *embedding = new_private(1000, 7), *alone = new_private(1000, 8);
    CHECK_OK(lend_tensor_slice(embedding, 0, 100, 900, 2, &head, &error), &error);
    struct lend_group *group = new_group();
    add(group, "head", head);
    add(group, "embedding", embedding);
    add(group, "alone", alone);
    /* Or taken in twice, by way of two arrays. */
    add_and_drop(group, "first", take(memory, sizeof memory, 0));
    add_and_drop(group, "second", take(memory, sizeof memory, 0));
    char *path = reduce_group(group, NULL, LEND_COPIED);
    CHECK_UINT(books_now().n_pins > 0, 1);
    actor_ok(&f.peer, "grebuild %s", path);
    handle_drop(path);
    actor_ok(&f.peer, "gfind 0 embedding");
    actor_ok(&f.peer, "gfind 1 head");
    actor_ok(&f.peer, "gfind 2 alone");
    actor_ok(&f.peer, "gfind 3 first");
    actor_ok(&f.peer, "gfind 4 second");
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    CHECK_INT(actor_int(&f.peer, "same 0 2"), 0);
    CHECK_INT(actor_int(&f.peer, "same 3 4"), 1);
    CHECK_INT(actor_int(&f.peer, "filled 0"), 7);
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 1"), "shape,400 strides,2 ");
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 1"), "storage 1000 ");
    actor_ok(&f.peer, "poke 0 102 55");
    CHECK_INT(actor_int(&f.peer, "byte 1 2"), 55);
    CHECK_INT(actor_int(&f.peer, "filled 2"), 8);
    CHECK(is_filled(embedding, 7));
    struct lend_reduce_opts no_copy = {.size = sizeof no_copy, .flags = LEND_REDUCE_NO_COPY};
    expect_group_refused(group, &no_copy, -EOPNOTSUPP, "head", "LEND_REDUCE_NO_COPY forbids a copy");
    lend_group_unref(group);
    lend_tensor_unref(embedding);
    lend_tensor_unref(head);
    lend_tensor_unref(alone);
    for (int slot = 0; slot < 5; slot++) actor_ok(&f.peer, "drop %d", slot);
    actor_ok(&f.peer, "gdrop");
    expect_books(before);
    end(&f);
}

/* The sender drops everything before anybody has rebuilt; one delivery, then memory returns. */
LEND_TEST(a_pin_holds_all_for_one_delivery) {
    struct fixture f;
    begin(&f);
    struct books before = books_now();
    struct lend_group *group = new_state(&f, 50);
    add_and_drop(group, "sparse", new_of(f.pool, LEND_LAYOUT_COO));
    char *path = reduce_group(group, &pin, 0);
    lend_group_unref(group);
    CHECK(limbo_bytes(f.pool) >= 5000);
    CHECK_UINT(books_now().n_limbo, 52);
    /* What fails is no delivery. */
    CHECK_INT(actor_code(&f.peer, "grebuild %s name=none", path), -ENOENT);
    actor_ok(&f.peer, "grebuild %s", path);
    CHECK_INT(actor_int(&f.peer, "gcount"), 51);
    actor_ok(&f.peer, "gget 0 49");
    CHECK_INT(actor_int(&f.peer, "filled 0"), 49);
    actor_ok(&f.peer, "gfind 0 sparse");
    actor_ok(&f.peer, "check 0");
    CHECK_EVENTUALLY(2000, books_now().n_pins == 0);
    CHECK_UINT(books_now().n_limbo, 52);
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "gdrop");
    expect_books(before);
    CHECK_INT(actor_code(&f.peer, "grebuild %s", path), -ESTALE);
    handle_drop(path);
    end(&f);
}

/* A part of it is a delivery, too: what was not taken goes back at once. */
LEND_TEST(a_subset_uses_the_pin_up) {
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_state(&f, 50);
    char *path = reduce_group(group, &pin, 0);
    lend_group_unref(group);
    actor_ok(&f.peer, "grebuild %s name=layer.7.bias", path);
    CHECK_EVENTUALLY(2000, books_now().n_limbo == 1);
    CHECK_UINT(books_now().n_pins, 0);
    actor_ok(&f.peer, "gget 0 0");
    CHECK_INT(actor_int(&f.peer, "filled 0"), 15);
    CHECK_INT(actor_code(&f.peer, "grebuild %s", path), -ESTALE);
    handle_drop(path);
    end(&f);
}

LEND_TEST(a_cancelled_pin_holds_nothing) {
    struct lend_error error = {0};
    size_t n = 0;
    struct fixture f;
    begin(&f);
    struct books before = books_now();
    struct lend_group *group = new_state(&f, 50);
    char *path = reduce_group(group, &pin, 0);
    lend_group_unref(group);
    void *bytes = handle_get(path, &n);
    CHECK_OK(lend_pin_cancel(bytes, n, 0, &error), &error);
    expect_books(before);
    CHECK_OK(lend_pin_cancel(bytes, n, 0, &error), &error); /* it had ended already */
    free(bytes);
    handle_drop(path);
    end(&f);
}

/* The sender's tensors are dead, those of a compound and of the group alike. */
LEND_TEST(move_takes_all) {
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_error error = {0};
    struct handle handle;
    struct fixture f;
    begin(&f);
    struct books before = books_now();
    struct lend_tensor *sparse = new_of(f.pool, LEND_LAYOUT_CSR);
    struct lend_tensor *values = lend_tensor_ref(component(sparse, 2));
    float third = ((float *)lend_tensor_data(values))[2];
    reduce_to(sparse, &move, 0, &handle);
    CHECK_CODE(lend_tensor_info(sparse, &info), -ESTALE);
    CHECK_CODE(lend_tensor_info(values, &info), -ESTALE);
    CHECK_PTR(lend_tensor_data(values), NULL);
    CHECK_CODE(lend_tensor_check(sparse, &error), -ESTALE);
    actor_ok(&f.peer, "rebuild 0 %s", handle.text);
    actor_ok(&f.peer, "check 0");
    actor_ok(&f.peer, "component 1 0 2");
    char text[64];
    snprintf(text, sizeof text, "%.9g", (double)third);
    CHECK_STR(actor_ok(&f.peer, "float 1 2"), text);
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "drop 1");
    lend_tensor_unref(sparse);
    lend_tensor_unref(values);
    expect_books(before);
    struct lend_group *group = new_state(&f, 20);
    char *path = reduce_group(group, &move, 0);
    for (size_t i = 0; i < 20; i++) CHECK_CODE(lend_tensor_info(lend_group_get(group, i, NULL), &info), -ESTALE);
    lend_group_unref(group);
    actor_ok(&f.peer, "grebuild %s", path);
    handle_drop(path);
    for (int i = 0; i < 20; i++) {
        actor_ok(&f.peer, "gget 0 %d", i);
        CHECK_INT(actor_int(&f.peer, "filled 0"), i);
    }
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "gdrop");
    expect_books(before);
    end(&f);
}

/* Later writes are not seen, and tensors of one storage are tensors of one copy. */
LEND_TEST(a_snapshot_of_all) {
    struct handle handle;
    struct lend_tensor *half = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *sparse = new_of(f.pool, LEND_LAYOUT_CSR);
    reduce_to(sparse, &snapshot, 0, &handle);
    ((int64_t *)lend_tensor_data(component(sparse, 1)))[0] = 99;
    actor_ok(&f.peer, "rebuild 0 %s check", handle.text);
    actor_ok(&f.peer, "component 1 0 1");
    CHECK_INT(actor_int(&f.peer, "byte 1 0"), 1);
    lend_tensor_unref(sparse);
    struct lend_tensor *whole = new_bytes(f.pool, 1000, 7);
    CHECK_OK(lend_tensor_slice(whole, 0, 500, 1000, 1, &half, &error), &error);
    struct lend_group *group = new_group();
    add_and_drop(group, "half", half);
    add_and_drop(group, "whole", whole);
    char *path = reduce_group(group, &snapshot, 0);
    memset(lend_tensor_data(lend_group_find(group, "whole")), 8, 1000);
    actor_ok(&f.peer, "grebuild %s", path);
    handle_drop(path);
    actor_ok(&f.peer, "gfind 2 whole");
    actor_ok(&f.peer, "gfind 3 half");
    CHECK_INT(actor_int(&f.peer, "filled 2"), 7);
    CHECK_INT(actor_int(&f.peer, "same 2 3"), 1);
    actor_ok(&f.peer, "poke 2 500 70");
    CHECK_INT(actor_int(&f.peer, "byte 3 0"), 70);
    CHECK(is_filled(lend_group_find(group, "whole"), 8));
    lend_group_unref(group);
    CHECK_EVENTUALLY(2000, books_now().n_pins == 0);
    end(&f);
}

/* A to B to C, pinned by B at A; B is gone when C rebuilds. */
LEND_TEST(forwarded) {
    char text[LEND_HANDLE_TEXT_MAX];
    struct role c;
    struct fixture f;
    begin(&f);
    actor_start(&c, NULL, NULL);
    struct lend_tensor *sparse = marked(new_of(f.pool, LEND_LAYOUT_WRAPPER), LEND_ATTR_REQUIRES_GRAD);
    give(&f, 0, sparse, NULL, 0);
    struct lend_group *group = new_state(&f, 30);
    add_and_drop(group, "sparse", sparse);
    give_group(&f, group, NULL, 0);
    snprintf(text, sizeof text, "%s", actor_ok(&f.peer, "reduce 0 pin"));
    char *path = strdup(actor_ok(&f.peer, "greduce pin"));
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "gdrop");
    actor_ok(&c, "rebuild 0 %s check", text);
    expect_equal(&c, 0, lend_group_get(group, 30, NULL));
    actor_ok(&c, "grebuild %s check", path);
    handle_drop(path);
    for (size_t i = 0; i <= 30; i++) {
        const char *name = NULL;
        struct lend_tensor *tensor = lend_group_get(group, i, &name);
        CHECK_STR(actor_ok(&c, "gget 1 %zu", i), name);
        expect_equal(&c, 1, tensor);
    }
    actor_ok(&c, "component 2 0 1");
    actor_ok(&c, "component 3 1 1");
    CHECK_INT(actor_int(&c, "same 2 3"), 1);
    CHECK_INT(actor_int(&c, "peers"), 0);
    lend_group_unref(group);
    CHECK_EVENTUALLY(2000, books_now().n_pins == 0);
    role_end(&c);
    end(&f);
}

/* Own tensors and another's under one handle: each is held at its owner. */
LEND_TEST(tensors_of_two_exporters) {
    struct lend_tensor *theirs = NULL;
    struct lend_error error = {0};
    struct lend_handle_info info = {.size = sizeof info};
    struct role c;
    size_t n = 0;
    struct fixture f;
    begin(&f);
    actor_start(&c, NULL, NULL);
    actor_ok(&f.peer, "new 0 1000 21");
    CHECK_OK(rebuild_text(actor_ok(&f.peer, "reduce 0"), NULL, &theirs, &error), &error);
    struct lend_group *group = new_group();
    add_and_drop(group, "ours", new_bytes(f.pool, 1000, 22));
    add_and_drop(group, "theirs", theirs);
    char *path = reduce_group(group, &pin, 0);
    void *bytes = handle_get(path, &n);
    CHECK_OK(lend_handle_describe(bytes, n, &info, &error), &error);
    CHECK_UINT(info.n_exporters, 2);
    CHECK_UINT(info.n_storages, 2);
    free(bytes);
    lend_group_unref(group);
    actor_ok(&f.peer, "drop 0");
    CHECK_INT(actor_int(&f.peer, "pins"), 1);
    actor_ok(&c, "grebuild %s", path);
    handle_drop(path);
    CHECK_STR(actor_ok(&c, "gget 0 0"), "ours");
    CHECK_INT(actor_int(&c, "filled 0"), 22);
    CHECK_STR(actor_ok(&c, "gget 1 1"), "theirs");
    CHECK_INT(actor_int(&c, "filled 1"), 21);
    CHECK_EVENTUALLY(2000, actor_int(&f.peer, "pins") == 0);
    CHECK(actor_int(&f.peer, "count limbo") >= 1000);
    role_end(&c);
    CHECK_EVENTUALLY(2000, actor_int(&f.peer, "count limbo") == 0);
    end(&f);
}

LEND_TEST(a_group_is_no_tensor) {
    struct lend_tensor *tensor = NULL;
    struct lend_group *none = NULL;
    struct lend_error error = {0};
    struct handle handle;
    size_t n = 0;
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_state(&f, 2);
    char *path = reduce_group(group, NULL, 0);
    void *bytes = handle_get(path, &n);
    CHECK_CODE(lend_rebuild(bytes, n, NULL, &tensor, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "lend_group_rebuild");
    reduce_to(lend_group_get(group, 0, NULL), NULL, 0, &handle);
    CHECK_CODE(lend_group_rebuild(handle.bytes, handle.n, NULL, 0, NULL, &none, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "lend_rebuild");
    free(bytes);
    handle_drop(path);
    lend_group_unref(group);
    end(&f);
}
