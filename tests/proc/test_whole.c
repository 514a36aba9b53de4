/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, whole or not at all: when one of many tensors cannot be lent or rebuilt, no lease, pin or memory of the
 * others is left, and what could be done before can be done afterwards. */
#include "fault.h"
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { N = 100, BAD = 57, BYTES = 1000 };

static const struct lend_reduce_opts pin = {.size = sizeof pin, .flags = LEND_REDUCE_PIN};
static const struct lend_reduce_opts move = {.size = sizeof move, .mode = LEND_MODE_MOVE};
static const struct lend_reduce_opts snapshot = {.size = sizeof snapshot, .mode = LEND_MODE_SNAPSHOT};

/* tensor.0 to tensor.99, of which number 57 is `bad` (consumed) if it is not NULL. */
static struct lend_group *new_hundred(struct lend_pool *pool, struct lend_tensor *bad) {
    struct lend_group *group = new_group();
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%d", i);
        struct lend_tensor *tensor = i == BAD && bad ? bad : pool ? new_bytes(pool, BYTES, i) : new_private(BYTES, i);
        add_and_drop(group, name, tensor);
    }
    return group;
}

static uint64_t allocated_bytes(struct lend_pool *pool) {
    struct lend_pool_stats stats = {.size = sizeof stats};
    CHECK_OK(lend_pool_stats(pool, &stats), NULL);
    return stats.allocated_bytes;
}

/* Nothing has changed in the books or the pool, and every tensor is alive. */
static void expect_untouched(struct fixture *f, struct lend_group *group, struct books before, uint64_t bytes) {
    expect_books(before);
    CHECK_UINT(allocated_bytes(f->pool), bytes);
    for (size_t i = 0; i < N; i++)
        if (i != BAD) CHECK(is_filled(lend_group_get(group, i, NULL), (int)i));
}

static void give_copied(struct fixture *f, struct lend_group *group) {
    char *path = reduce_group(group, NULL, LEND_COPIED);
    actor_ok(&f->peer, "grebuild %s", path);
    handle_drop(path);
    for (int i = 0; i < N; i++) {
        actor_ok(&f->peer, "gget 0 %d", i);
        CHECK_INT(actor_int(&f->peer, "filled 0"), i);
    }
    CHECK_EVENTUALLY(2000, books_now().n_pins == 0);
}

static void refuse_hundred(struct fixture *f, struct lend_tensor *bad, const char *words) {
    struct lend_group *group = new_hundred(f->pool, bad);
    struct books before = books_now();
    uint64_t bytes = allocated_bytes(f->pool);
    CHECK_UINT(before.n_storages, 0); /* nothing was lent yet, and nothing will be */
    expect_group_refused(group, NULL, -EOPNOTSUPP, "tensor.57", words);
    expect_group_refused(group, &pin, -EOPNOTSUPP, "tensor.57", words);
    expect_group_refused(group, &snapshot, -EOPNOTSUPP, "tensor.57", words);
    expect_group_refused(group, &move, -EOPNOTSUPP, "tensor.57", words);
    expect_untouched(f, group, before, bytes);
    lend_group_unref(group);
}

LEND_TEST(the_57th_of_100_is_of_a_refused_kind) {
    int64_t shape = BYTES;
    struct lend_tensor *zero = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    refuse_hundred(&f, marked(new_floats(f.pool, 9, 1), LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF), "detach");
    refuse_hundred(&f, marked(new_floats(f.pool, 9, 1), LEND_ATTR_NAMED), "drop the names");
    refuse_hundred(&f, marked(new_floats(f.pool, 0, 1), LEND_ATTR_UNINITIALIZED), "it has neither shape nor memory");
    CHECK_OK(lend_tensor_new_zero(uint8, 1, &shape, &zero, &error), &error);
    refuse_hundred(&f, zero, "LEND_REDUCE_MATERIALIZE");
    /* With memory it is as good as any other. */
    CHECK_OK(lend_tensor_new_zero(uint8, 1, &shape, &zero, &error), &error);
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_MATERIALIZE};
    struct lend_group *group = new_hundred(f.pool, zero);
    char *path = reduce_group(group, &opts, LEND_COPIED);
    actor_ok(&f.peer, "grebuild %s", path);
    handle_drop(path);
    actor_ok(&f.peer, "gfind 0 tensor.57");
    CHECK_INT(actor_int(&f.peer, "filled 0"), 0);
    lend_group_unref(group);
    CHECK_EVENTUALLY(2000, books_now().n_pins == 0);
    end(&f);
}

LEND_TEST(a_pin_of_100_is_over_the_budget) {
    struct lend_opts opts = {.size = sizeof opts, .pin_bytes_max = BAD * BYTES + BYTES - 1};
    struct fixture f;
    begin_with(&f, &opts);
    struct lend_group *group = new_hundred(f.pool, NULL);
    give_group(&f, group, NULL, 0);
    actor_ok(&f.peer, "gdrop");
    struct books before = books_now();
    uint64_t bytes = allocated_bytes(f.pool);
    expect_group_refused(group, &pin, -ENOSPC, "100000 bytes", "pin budget");
    expect_group_refused(group, &move, -ENOSPC, "100000 bytes", "pin budget");
    expect_untouched(&f, group, before, bytes);
    give_group(&f, group, NULL, 0);
    lend_group_unref(group);
    end(&f);
}

/* Private tensors are copied; for one of them no memory can be had. */
LEND_TEST(no_memory_for_the_57th_copy) {
    struct rlimit old, limit;
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_hundred(NULL, new_private(64 << 20, 0)), *good = new_hundred(NULL, NULL);
    give(&f, 0, lend_group_get(group, 0, NULL), NULL, LEND_COPIED); /* the pool for copies has its first allocation */
    actor_ok(&f.peer, "drop 0");
    CHECK_EVENTUALLY(2000, books_now().n_storages == 0);
    struct books before = books_now();
    CHECK(!getrlimit(RLIMIT_FSIZE, &old));
    limit = (struct rlimit){.rlim_cur = 32 << 20, .rlim_max = old.rlim_max};
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    expect_group_refused(group, NULL, -ENOMEM, "tensor.57", "RLIMIT_FSIZE");
    expect_group_refused(group, &snapshot, -ENOMEM, "tensor.57", "RLIMIT_FSIZE");
    CHECK(!setrlimit(RLIMIT_FSIZE, &old));
    expect_books(before);
    lend_group_unref(group);
    give_copied(&f, good);
    lend_group_unref(good);
    end(&f);
}

/* Whatever call fails on the way, here at every seventh, of a group of which copies are made. */
LEND_TEST(any_call_fails_on_the_way) {
#ifdef __SANITIZE_THREAD__
    SKIP("the table of calls is replaced while the service reads it");
#endif
    struct lend_tensor *half = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_hundred(f.pool, new_of(f.pool, LEND_LAYOUT_WRAPPER));
    CHECK_OK(lend_tensor_slice(lend_group_get(group, 3, NULL), 0, 500, 1000, 1, &half, &error), &error);
    add_and_drop(group, "half", half);
    handle_drop(reduce_group(group, NULL, 0));
    struct books before = books_now();
    unsigned n = 0;
    for (const char *failed = ""; failed; n += 7) {
        void *handle = NULL;
        size_t handle_bytes = 0;
        fault_arm_thread(n);
        int r = lend_group_reduce(group, &snapshot, &handle, &handle_bytes, &error);
        failed = fault_disarm();
        if (r < 0 && (!failed || error.code != r)) FAIL("%d (%s) after a failed %s", r, error.text, failed);
        CHECK_INT(handle != NULL, r >= 0);
        if (r >= 0) CHECK_OK(lend_pin_cancel(handle, handle_bytes, 0, &error), &error);
        lend_free(handle);
        expect_books(before);
    }
    CHECK(n > N);
    lend_group_unref(group);
    end(&f);
}

static uint32_t slot_of(struct lend_tensor *tensor) {
    struct lend_handle_info info = {.size = sizeof info};
    struct handle handle;
    reduce_to(tensor, NULL, 0, &handle);
    CHECK_OK(lend_handle_describe(handle.bytes, handle.n, &info, NULL), NULL);
    return info.slot;
}

LEND_TEST(the_57th_storage_is_gone) {
    struct lend_tensor *kept[N];
    struct fixture f;
    begin(&f);
    struct lend_group *group = new_hundred(f.pool, NULL);
    for (size_t i = 0; i < N; i++) kept[i] = i == BAD ? NULL : lend_tensor_ref(lend_group_get(group, i, NULL));
    char *path = reduce_group(group, NULL, 0);
    uint32_t slot = slot_of(lend_group_get(group, BAD, NULL));
    lend_group_unref(group);
    struct books before = books_now();
    CHECK_UINT(before.n_storages, N - 1);
    for (int i = 0; i < 3; i++) { /* at first contact, and when it is known */
        CHECK_INT(actor_code(&f.peer, "grebuild %s", path), -ESTALE);
        CHECK_CONTAINS(actor_sentence, "tensor.57");
        expect_books(before);
    }
    CHECK_INT(actor_code(&f.peer, "grebuild %s name=tensor.56 name=tensor.57", path), -ESTALE);
    expect_books(before);
    actor_ok(&f.peer, "grebuild %s name=tensor.56 name=tensor.58", path);
    CHECK_INT(actor_int(&f.peer, "gcount"), 2);
    CHECK_UINT(books_now().n_holds, 2);
    actor_ok(&f.peer, "gdrop");
    expect_books(before);
    /* Another tensor has its slot and its place by now, and the other process holds that one. */
    kept[BAD] = new_bytes(f.pool, BYTES, 99);
    CHECK_UINT(slot_of(kept[BAD]), slot);
    give(&f, 0, kept[BAD], NULL, 0);
    CHECK_INT(actor_code(&f.peer, "grebuild %s", path), -ESTALE);
    CHECK_UINT(books_now().n_holds, 1);
    actor_ok(&f.peer, "drop 0");
    handle_drop(path);
    for (size_t i = 0; i < N; i++) lend_tensor_unref(kept[i]);
    end(&f);
}

LEND_TEST(one_component_is_gone) {
    struct fixture f;
    begin(&f);
    for (uint32_t gone = 0; gone < 3; gone++) {
        struct lend_tensor *tensor = new_of(f.pool, LEND_LAYOUT_BSR), *kept[3];
        struct handle handle;
        for (uint32_t i = 0; i < 3; i++) kept[i] = i == gone ? NULL : lend_tensor_ref(component(tensor, i));
        reduce_to(tensor, NULL, 0, &handle);
        lend_tensor_unref(tensor);
        struct books before = books_now();
        CHECK_UINT(before.n_storages, 2);
        CHECK_INT(actor_code(&f.peer, "rebuild 0 %s", handle.text), -ESTALE);
        expect_books(before);
        CHECK_UINT(books_now().n_holds, 0);
        for (uint32_t i = 0; i < 3; i++) lend_tensor_unref(kept[i]);
    }
    end(&f);
}

/* An error after the leases were taken gives them back and leaves the pins, however often. */
LEND_TEST(a_failed_rebuild_leaves_the_pins) {
    struct lend_pool_opts opts = {.size = sizeof opts, .flags = LEND_POOL_PEERS_READ_ONLY};
    struct fixture f;
    begin(&f);
    struct lend_pool *pool = new_pool(&opts);
    struct lend_tensor *sparse = new_of(pool, LEND_LAYOUT_CSR);
    struct lend_group *group = new_hundred(pool, NULL);
    struct handle handle;
    reduce_to(sparse, &pin, 0, &handle);
    char *path = reduce_group(group, &pin, 0);
    lend_tensor_unref(sparse);
    lend_group_unref(group);
    struct books before = books_now();
    for (int i = 0; i < 300; i++) { /* more often than there are cells */
        CHECK_INT(actor_code(&f.peer, "rebuild 0 %s writable", handle.text), -EACCES);
        CHECK_INT(actor_code(&f.peer, "grebuild %s writable", path), -EACCES);
    }
    expect_books(before);
    actor_ok(&f.peer, "rebuild 0 %s check", handle.text);
    actor_ok(&f.peer, "grebuild %s", path);
    handle_drop(path);
    actor_ok(&f.peer, "gfind 1 tensor.99");
    CHECK_INT(actor_int(&f.peer, "filled 1"), 99);
    CHECK_CONTAINS(actor_ok(&f.peer, "info 1"), "read_only 1 ");
    CHECK_EVENTUALLY(2000, books_now().n_pins == 0);
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "drop 1");
    actor_ok(&f.peer, "gdrop");
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    lend_pool_unref(pool);
    end(&f);
}

/* Nor does a check that fails use a pin up: who looks can still have it unchecked. */
LEND_TEST(a_failed_check_leaves_the_pins) {
    struct handle handle;
    struct fixture f;
    begin(&f);
    struct lend_tensor *sparse = new_of(f.pool, LEND_LAYOUT_BSC);
    struct lend_group *group = new_hundred(f.pool, lend_tensor_ref(sparse));
    ((int64_t *)lend_tensor_data(component(sparse, 1)))[0] = 7;
    reduce_to(sparse, &pin, 0, &handle);
    char *path = reduce_group(group, &pin, 0);
    lend_tensor_unref(sparse);
    lend_group_unref(group);
    struct books before = books_now();
    for (int i = 0; i < 300; i++) { /* more often than there are cells */
        CHECK_INT(actor_code(&f.peer, "rebuild 0 %s check", handle.text), -EBADMSG);
        CHECK_INT(actor_code(&f.peer, "grebuild %s check", path), -EBADMSG);
    }
    CHECK_CONTAINS(actor_sentence, "tensor.57");
    expect_books(before);
    actor_ok(&f.peer, "rebuild 0 %s", handle.text);
    actor_ok(&f.peer, "grebuild %s", path);
    handle_drop(path);
    actor_ok(&f.peer, "gfind 1 tensor.58");
    CHECK_INT(actor_int(&f.peer, "filled 1"), 58);
    CHECK_EVENTUALLY(2000, books_now().n_pins == 0);
    end(&f);
}

LEND_TEST(a_handle_that_does_not_fit_leaves_nothing) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct lend_error error = {0};
    struct handle handle;
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_of(f.pool, LEND_LAYOUT_CSR);
    reduce_to(tensor, NULL, 0, &handle);
    struct books before = books_now();
    CHECK_CODE(lend_reduce(tensor, &pin, bytes, handle.n - 1, &n, &error), -ERANGE);
    CHECK(n >= handle.n);
    CHECK_CODE(lend_reduce(tensor, &move, bytes, 10, &n, &error), -ERANGE);
    CHECK_CODE(lend_reduce(tensor, &snapshot, bytes, 10, &n, &error), -ERANGE);
    expect_books(before);
    CHECK(lend_tensor_data(component(tensor, 2)) != NULL);
    round_trip_and_drop(&f, tensor);
    end(&f);
}

/* LEND_REBUILD_CHECK: what a peer wrote into the components after they were lent. */
LEND_TEST(bad_elements_that_a_peer_wrote) {
    static const struct {
        enum lend_layout layout;
        int component, index;
        int64_t value;
        const char *words;
    } cases[] = {
        {LEND_LAYOUT_COO, 0, 5, 5, "indices[1][2] is 5: outside dimension 1, whose size is 5"},
        {LEND_LAYOUT_COO, 0, 0, 1, "must rise"},
        {LEND_LAYOUT_CSR, 0, 1, 9, "crow_indices[1] of batch (0) is 9"},
        {LEND_LAYOUT_CSR, 1, 0, 6, "col_indices[0] of batch (0) is 6: not in [0, 6)"},
        {LEND_LAYOUT_CSR, 1, 8, 1, "must rise"},
        {LEND_LAYOUT_CSC, 1, 9, -1, "row_indices[4] of batch (1) is -1"},
        {LEND_LAYOUT_BSR, 0, 0, 1, "crow_indices[0] is 1 and must be 0"},
        {LEND_LAYOUT_BSC, 0, 2, 2, "ccol_indices[2] is 2 and must be 3"},
        {LEND_LAYOUT_NESTED, 1, 0, -1, "sizes[0][0] is -1"},
        {LEND_LAYOUT_NESTED, 3, 1, 7, "leaves the 14 values"},
        {LEND_LAYOUT_JAGGED, 1, 1, 6, "offsets[2] is 5, after 6"},
        {LEND_LAYOUT_JAGGED, 2, 0, 11, "lengths[0] is 11"},
        {LEND_LAYOUT_QUANTIZED_PER_CHANNEL, 1, 0, 0x7ff8000000000000, "scales[0] is not a number"},
        {LEND_LAYOUT_WRAPPER, 1, 0, INT64_MIN, "col_indices[0]"},
    };
    struct lend_rebuild_opts check = {.size = sizeof check, .flags = LEND_REBUILD_CHECK};
    struct fixture f;
    begin(&f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lend_tensor *tensor = new_of(f.pool, cases[i].layout), *again = NULL;
        struct lend_error error = {0};
        struct handle handle;
        bool is_inside = cases[i].layout == LEND_LAYOUT_WRAPPER;
        reduce_to(tensor, NULL, 0, &handle);
        actor_ok(&f.peer, "rebuild 0 %s check", handle.text);
        if (is_inside) actor_ok(&f.peer, "component 0 0 0");
        actor_ok(&f.peer, "component 1 0 %d", cases[i].component);
        actor_ok(&f.peer, "poke64 1 %d %lld", cases[i].index, (long long)cases[i].value);
        actor_ok(&f.peer, "drop 0");
        actor_ok(&f.peer, "drop 1");
        CHECK_CODE(rebuild_text(handle.text, &check, &again, &error), -EBADMSG);
        CHECK_CONTAINS(error.text, cases[i].words);
        CHECK_PTR(again, NULL);
        CHECK_INT(actor_code(&f.peer, "rebuild 0 %s check", handle.text), -EBADMSG);
        CHECK_CONTAINS(actor_sentence, cases[i].words);
        CHECK_UINT(books_now().n_holds, 0);
        actor_ok(&f.peer, "rebuild 0 %s", handle.text); /* who does not ask gets it */
        CHECK_INT(actor_code(&f.peer, "check 0"), -EBADMSG);
        struct lend_group *group = new_group();
        add_and_drop(group, "good", new_floats(f.pool, 3, 1));
        add(group, "bad", tensor);
        char *path = reduce_group(group, NULL, 0);
        actor_ok(&f.peer, "drop 0");
        CHECK_INT(actor_code(&f.peer, "grebuild %s check", path), -EBADMSG);
        CHECK_CONTAINS(actor_sentence, "bad");
        actor_ok(&f.peer, "grebuild %s check name=good", path);
        actor_ok(&f.peer, "gdrop");
        CHECK_UINT(books_now().n_holds, 0);
        handle_drop(path);
        lend_group_unref(group);
        lend_tensor_unref(tensor);
    }
    end(&f);
}
