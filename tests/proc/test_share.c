/* SPDX-License-Identifier: MIT */
/* The main job: one process holds tensors, others that are no relatives rebuild them from bytes. */
#include "peer.h"

#include <errno.h>
#include <stdlib.h>

LEND_TEST(one_tensor_to_an_unrelated_process_and_back) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 7);
    struct role r;
    actor_start(&r, &(struct role_opts){.is_detached = true}, NULL);
    actor_ok(&r, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
    char *here = describe(tensor);
    CHECK_STR(actor_ok(&r, "describe 0"), here);
    free(here);
    CHECK_INT(actor_int(&r, "filled 0"), 7);
    actor_ok(&r, "poke 0 0 9");
    CHECK_INT(((uint8_t *)lend_tensor_data(tensor))[0], 9);
    ((uint8_t *)lend_tensor_data(tensor))[999] = 11;
    CHECK_INT(actor_int(&r, "byte 0 999"), 11);
    actor_ok(&r, "rebuild 1 %s", reduce_text(tensor, NULL, 0));
    CHECK_INT(actor_int(&r, "same 0 1"), 1);
    /* Dropped here, held there: the block is in limbo until both are gone. */
    lend_tensor_unref(tensor);
    CHECK(limbo_bytes(pool) >= 1000);
    actor_ok(&r, "drop 0");
    test_pause();
    CHECK(limbo_bytes(pool) >= 1000);
    CHECK_INT(actor_int(&r, "byte 1 999"), 11);
    actor_ok(&r, "drop 1");
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    role_end(&r);
    close_all(pool);
}

/* Two pools: the first brings contact (table, page, connection), the second shows what an allocation costs. */
LEND_TEST(three_tensors_in_one_allocation_cost_one_mapping_and_one_descriptor) {
    enum { N = 3 };
    open_with(NULL);
    struct lend_pool *first = new_pool(NULL), *pool = new_pool(NULL);
    struct lend_tensor *opener = new_bytes(first, 64, 1), *tensors[N];
    struct role r;
    actor_start(&r, NULL, NULL);
    long long maps = actor_int(&r, "count lend_maps"), fds = actor_int(&r, "count fds");
    actor_ok(&r, "rebuild 60 %s", reduce_text(opener, NULL, 0));
    CHECK_INT(actor_int(&r, "count lend_maps"), maps + 3); /* table, page, allocation */
    CHECK(actor_int(&r, "count fds") <= fds + 3);          /* connection, table, allocation */
    maps = actor_int(&r, "count lend_maps");
    fds = actor_int(&r, "count fds");
    for (int i = 0; i < N; i++) {
        tensors[i] = new_bytes(pool, 1000 + i, 20 + i);
        CHECK_UINT(info_of(tensors[i]).allocation_inode, info_of(tensors[0]).allocation_inode);
        actor_ok(&r, "rebuild %d %s", i, reduce_text(tensors[i], NULL, 0));
        CHECK_INT(actor_int(&r, "filled %d", i), 20 + i);
    }
    CHECK_INT(actor_int(&r, "count lend_maps"), maps + 1);
    CHECK(actor_int(&r, "count fds") <= fds + 1);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) CHECK_INT(actor_int(&r, "same %d %d", i, j), i == j);
        actor_ok(&r, "fill %d %d", i, 40 + i);
        CHECK(is_filled(tensors[i], 40 + i));
        memset(lend_tensor_data(tensors[i]), 60 + i, (size_t)(1000 + i));
        CHECK_INT(actor_int(&r, "filled %d", i), 60 + i);
    }
    /* Another handle, made from a view: the same storage, and still the same mapping. */
    struct lend_tensor *view = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_slice(tensors[1], 0, 10, 500, 7, &view, &error), &error);
    actor_ok(&r, "rebuild 10 %s", reduce_text(view, NULL, 0));
    CHECK_INT(actor_int(&r, "same 10 1"), 1);
    CHECK_INT(actor_int(&r, "same 10 2"), 0);
    char *here = describe(view);
    CHECK_STR(actor_ok(&r, "describe 10"), here);
    free(here);
    CHECK_INT(actor_int(&r, "count lend_maps"), maps + 1);
    lend_tensor_unref(view);
    for (int i = 0; i < N; i++) lend_tensor_unref(tensors[i]);
    lend_tensor_unref(opener);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0 && limbo_bytes(first) == 0);
    lend_pool_unref(first);
    close_all(pool);
}

LEND_TEST(resize_is_refused_on_both_sides_with_a_sentence) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 100, 1);
    struct lend_error error = {0};
    struct role r;
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
    CHECK_CODE(lend_tensor_resize(tensor, 200, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "copy");
    CHECK_INT(actor_code(&r, "resize 0 200"), -EOPNOTSUPP);
    CHECK_CONTAINS(actor_sentence, "copy");
    CHECK_INT(actor_code(&r, "resize 0 10"), -EOPNOTSUPP);
    CHECK_INT(actor_int(&r, "filled 0"), 1);
    CHECK_UINT(info_of(tensor).storage_bytes, 100);
    lend_tensor_unref(tensor);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

LEND_TEST(a_handle_of_this_process_gives_the_original_storage) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 100, 5), *again = NULL;
    struct lend_error error = {0};
    struct handle handle;
    reduce_to(tensor, NULL, 0, &handle);
    CHECK_OK(lend_rebuild(handle.bytes, handle.n, NULL, &again, &error), &error);
    CHECK_UINT(info_of(again).storage_id, info_of(tensor).storage_id);
    CHECK_INT(info_of(again).is_imported, 0);
    CHECK_PTR(lend_tensor_data(again), lend_tensor_data(tensor));
    lend_tensor_unref(again);
    /* Also when only a peer holds it any more: out of limbo. */
    struct role r;
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", handle.text);
    uint64_t offset = info_of(tensor).allocation_offset;
    lend_tensor_unref(tensor);
    CHECK(limbo_bytes(pool) >= 100);
    CHECK_OK(lend_rebuild(handle.bytes, handle.n, NULL, &again, &error), &error);
    CHECK_UINT(limbo_bytes(pool), 0);
    CHECK_INT(info_of(again).is_imported, 0);
    CHECK_UINT(info_of(again).allocation_offset, offset);
    CHECK(is_filled(again, 5));
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(again);
    CHECK(limbo_bytes(pool) >= 100);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    CHECK_CODE(lend_rebuild(handle.bytes, handle.n, NULL, &again, &error), -ESTALE);
    close_all(pool);
}
