/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, strided tensors: every dtype and every kind of view goes to another process and comes back exactly:
 * all of what the tensor is, a checksum of its elements taken on both sides, and the storage that it was. */
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

LEND_TEST(plain_tensor) {
    int64_t shape[] = {3, 4};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = make(f.pool, float32, 2, shape);
    round_trip(&f, tensor);
    give(&f, 0, tensor, NULL, 0);
    CHECK_CONTAINS(actor_ok(&f.peer, "info 0"), "imported 1 ");
    float *p = lend_tensor_data(tensor);
    p[11] = -2.5f;
    CHECK_STR(actor_ok(&f.peer, "float 0 11"), "-2.5");
    actor_ok(&f.peer, "poke 0 0 77");
    CHECK_INT(((uint8_t *)p)[0], 77);
    CHECK_INT(info_of(tensor).is_shared, 1);
    lend_tensor_unref(tensor);
    end(&f);
}

LEND_TEST(every_dtype) {
    struct fixture f;
    int64_t shape[] = {3, 5, 7};
    unsigned n = 0;
    begin(&f);
    for (unsigned code = 0; code <= 17; code++)
        for (unsigned bits = 1; bits <= 128; bits++) {
            DLDataType dtype = {(uint8_t)code, (uint8_t)bits, 1};
            if (!lend_dtype_is_valid(dtype)) continue;
            round_trip_and_drop(&f, make(f.pool, dtype, 3, shape));
            dtype.lanes = 4;
            if (lend_dtype_is_valid(dtype)) round_trip_and_drop(&f, make(f.pool, dtype, 3, shape));
            n++;
        }
    CHECK_UINT(n, 31);
    end(&f);
}

LEND_TEST(views_of_every_kind) {
    static const DLDataType dtypes[] = {{kDLFloat, 32, 1}, {kDLUInt, 8, 1}, {kDLComplex, 128, 1},
                                        {kDLUInt, 4, 1},   {kDLInt, 2, 1},  {kDLFloat6_e2m3fn, 6, 1}};
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        int64_t shape[] = {4, 6, 10}, one[] = {1, 10}, wide[] = {8, 3, 10}, flat[] = {240};
        struct lend_tensor *base = make(f.pool, dtypes[i], 3, shape), *view = NULL, *second = NULL;
        round_trip(&f, base);
        CHECK_OK(lend_tensor_transpose(base, 0, 2, &view, &error), &error);
        round_trip(&f, view);
        CHECK_OK(lend_tensor_slice(view, 0, 8, 1, -2, &second, &error), &error); /* negative stride */
        CHECK(info_of(second).strides[0] < 0);
        round_trip_and_drop(&f, second);
        CHECK_OK(lend_tensor_slice(view, 1, INT64_MAX, INT64_MIN, -1, &second, &error), &error);
        round_trip_and_drop(&f, second);
        CHECK_OK(lend_tensor_slice(view, 0, 1, 9, 3, &second, &error), &error); /* strided */
        round_trip_and_drop(&f, second);
        CHECK_OK(lend_tensor_slice(view, 0, 5, 5, 1, &second, &error), &error); /* nothing of something */
        CHECK_INT(info_of(second).numel, 0);
        round_trip_and_drop(&f, second);
        lend_tensor_unref(view);
        CHECK_OK(lend_tensor_select(base, 1, 3, &view, &error), &error);
        round_trip(&f, view);
        CHECK_OK(lend_tensor_select(view, 0, -1, &second, &error), &error);
        round_trip(&f, second);
        lend_tensor_unref(view);
        CHECK_OK(lend_tensor_select(second, 0, 7, &view, &error), &error); /* 0-d */
        CHECK_INT(info_of(view).ndim, 0);
        round_trip_and_drop(&f, view);
        CHECK_OK(lend_tensor_reshape(second, 2, one, &view, &error), &error);
        lend_tensor_unref(second);
        CHECK_OK(lend_tensor_expand(view, 3, wide, &second, &error), &error); /* stride 0 */
        CHECK_INT(info_of(second).strides[0], 0);
        round_trip_and_drop(&f, second);
        lend_tensor_unref(view);
        CHECK_OK(lend_tensor_reshape(base, 1, flat, &view, &error), &error);
        round_trip_and_drop(&f, view);
        CHECK_OK(lend_tensor_slice(base, 2, 1, 10, 2, &view, &error), &error); /* begins inside a byte */
        round_trip_and_drop(&f, view);
        lend_tensor_unref(base);
    }
    end(&f);
}

LEND_TEST(edge_shapes) {
    static const DLDataType bfloat16 = {kDLBfloat, 16, 1}, fp8 = {kDLFloat8_e4m3fn, 8, 1}, boolean = {kDLBool, 8, 1};
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t empty[] = {0}, hollow[] = {3, 0, 5}, one[] = {1}, exact[] = {page}, more[] = {page + 1},
            big[] = {1 << 20, 3};
    int64_t ones[LEND_NDIM_MAX];
    struct fixture f;
    struct lend_pool_stats stats = {.size = sizeof stats};
    begin(&f);
    for (int i = 0; i < LEND_NDIM_MAX; i++) ones[i] = i % 16 == 3 ? 2 : 1;
    /* Nothing to hold: no memory is used, and the handle works all the same. */
    struct lend_tensor *a = make(f.pool, float32, 1, empty), *b = make(f.pool, complex64, 3, hollow);
    CHECK_OK(lend_pool_stats(f.pool, &stats), NULL);
    CHECK_UINT(stats.allocated_bytes, 0);
    CHECK_PTR(lend_tensor_data(a), NULL);
    round_trip_and_drop(&f, a);
    round_trip_and_drop(&f, b);
    round_trip_and_drop(&f, make(f.pool, float32, 0, NULL));
    round_trip_and_drop(&f, make(f.pool, uint8, 1, one));
    round_trip_and_drop(&f, make(f.pool, uint8, 1, exact));
    round_trip_and_drop(&f, make(f.pool, uint8, 1, more));
    round_trip_and_drop(&f, make(f.pool, bfloat16, 2, big));
    round_trip_and_drop(&f, make(f.pool, fp8, 1, more));
    round_trip_and_drop(&f, make(f.pool, boolean, 1, more));
    round_trip_and_drop(&f, make(f.pool, float32, LEND_NDIM_MAX, ones));
    end(&f);
}

/* One element holds the whole storage, here and there. */
LEND_TEST(view_or_slice) {
    int64_t n = 4 << 20;
    struct lend_tensor *view = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *base = make(f.pool, uint8, 1, &n);
    CHECK_OK(lend_tensor_slice(base, 0, n - 1, n, 1, &view, &error), &error);
    round_trip(&f, view);
    give(&f, 0, view, NULL, 0);
    give(&f, 1, base, NULL, 0);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    CHECK_INT(actor_int(&f.peer, "byte 0 0"), actor_int(&f.peer, "byte 1 %lld", (long long)n - 1));
    actor_ok(&f.peer, "drop 1");
    lend_tensor_unref(base);
    lend_tensor_unref(view);
    CHECK(limbo_bytes(f.pool) >= (uint64_t)n);
    end(&f);
}

LEND_TEST(expanded_or_overlapping) {
    int64_t one[] = {1, 3}, wide[] = {1000, 3}, square[] = {4, 4}, steps[] = {1, 1}, n = 7;
    struct lend_tensor *view = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *base = make(f.pool, float32, 2, one);
    CHECK_OK(lend_tensor_expand(base, 2, wide, &view, &error), &error);
    CHECK_INT(info_of(view).strides[0], 0);
    CHECK_UINT(info_of(view).storage_bytes, 12);
    round_trip_and_drop(&f, view);
    lend_tensor_unref(base);
    base = new_floats(f.pool, n, 1);
    CHECK_OK(lend_tensor_as_strided(base, 2, square, steps, 0, &view, &error), &error);
    round_trip(&f, view);
    /* One element of the memory is four of the tensor. */
    give(&f, 0, view, NULL, 0);
    ((float *)lend_tensor_data(base))[3] = 99;
    expect_equal(&f.peer, 0, view);
    CHECK_STR(actor_ok(&f.peer, "float 0 3"), "99");
    lend_tensor_unref(view);
    lend_tensor_unref(base);
    end(&f);
}

LEND_TEST(no_dimensions_or_no_elements) {
    int64_t shape[] = {3, 4};
    struct lend_tensor *row = NULL, *scalar = NULL, *none = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *base = make(f.pool, float32, 2, shape);
    CHECK_OK(lend_tensor_select(base, 0, 2, &row, &error), &error);
    CHECK_OK(lend_tensor_select(row, 0, 3, &scalar, &error), &error);
    CHECK_INT(info_of(scalar).ndim, 0);
    CHECK_INT(info_of(scalar).numel, 1);
    round_trip_and_drop(&f, scalar);
    CHECK_OK(lend_tensor_slice(row, 0, 2, 2, 1, &none, &error), &error);
    CHECK_INT(info_of(none).numel, 0);
    CHECK_UINT(info_of(none).storage_bytes, 48);
    round_trip_and_drop(&f, none);
    lend_tensor_unref(row);
    lend_tensor_unref(base);
    end(&f);
}

/* Empty tensors hold slots, not blocks: a late handle is stale like any other. */
LEND_TEST(empty_storage) {
    int64_t empty[] = {2, 0};
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = make(f.pool, float32, 2, empty);
    char text[LEND_HANDLE_TEXT_MAX];
    round_trip(&f, tensor);
    snprintf(text, sizeof text, "%s", reduce_text(tensor, NULL, 0));
    actor_ok(&f.peer, "rebuild 0 %s", text);
    actor_ok(&f.peer, "rebuild 1 %s", text);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    CHECK_CONTAINS(actor_ok(&f.peer, "info 0"), "imported 1 ");
    CHECK_CODE(lend_tensor_resize(tensor, 8, &error), -EOPNOTSUPP);
    lend_tensor_unref(tensor);
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 0"), "shape,2,0 ");
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "drop 1");
    CHECK_EVENTUALLY(2000, books_now().n_storages == 0);
    CHECK_INT(actor_code(&f.peer, "rebuild 0 %s", text), -ESTALE);
    end(&f);
}

/* PyTorch's UntypedStorage is the bytes of the storage, TypedStorage the elements from its start. */
LEND_TEST(untyped_and_typed_storage) {
    int64_t shape[] = {6};
    struct lend_tensor *view = NULL, *bytes = NULL, *typed = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_floats(f.pool, 6, 1);
    CHECK_OK(lend_tensor_slice(tensor, 0, 5, 2, -2, &view, &error), &error);
    CHECK_OK(lend_tensor_as_bytes(view, &bytes, &error), &error);
    CHECK_INT(info_of(bytes).numel, 24);
    round_trip(&f, bytes);
    give(&f, 0, bytes, NULL, 0);
    give(&f, 1, tensor, NULL, 0);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    actor_ok(&f.peer, "bytes 2 1");
    expect_equal(&f.peer, 2, bytes);
    CHECK_MEM(lend_tensor_data(bytes), lend_tensor_data(tensor), 24);
    CHECK_OK(lend_tensor_as_strided(view, 1, shape, (int64_t[]){1}, 0, &typed, &error), &error);
    round_trip_and_drop(&f, typed);
    lend_tensor_unref(bytes);
    lend_tensor_unref(view);
    lend_tensor_unref(tensor);
    end(&f);
}

/* Each handle names the first exporter, and the last process needs nothing of those between. */
LEND_TEST(received_and_sent_on) {
    struct fixture f;
    struct role c;
    char text[LEND_HANDLE_TEXT_MAX];
    begin(&f);
    actor_start(&c, NULL, NULL);
    struct lend_tensor *tensor = new_floats(f.pool, 100, 3);
    give(&f, 0, tensor, NULL, 0);
    snprintf(text, sizeof text, "%s", actor_ok(&f.peer, "reduce 0 pin"));
    actor_ok(&f.peer, "drop 0");
    actor_ok(&c, "rebuild 0 %s", text);
    expect_equal(&c, 0, tensor);
    CHECK_INT(actor_int(&f.peer, "peers"), 0);
    ((float *)lend_tensor_data(tensor))[99] = -1;
    CHECK_STR(actor_ok(&c, "float 0 99"), "-1");
    lend_tensor_unref(tensor);
    role_end(&c);
    end(&f);
}

LEND_TEST(received_by_the_process_that_sent_it) {
    struct fixture f;
    char text[LEND_HANDLE_TEXT_MAX];
    struct lend_tensor *again = NULL;
    struct lend_error error = {0};
    begin(&f);
    struct lend_tensor *tensor = new_floats(f.pool, 100, 3);
    give(&f, 0, tensor, NULL, 0);
    snprintf(text, sizeof text, "%s", actor_ok(&f.peer, "reduce 0"));
    CHECK_OK(rebuild_text(text, NULL, &again, &error), &error);
    CHECK_UINT(info_of(again).storage_id, info_of(tensor).storage_id);
    CHECK_PTR(lend_tensor_data(again), lend_tensor_data(tensor));
    CHECK_INT(info_of(again).is_imported, 0);
    lend_tensor_unref(again);
    lend_tensor_unref(tensor);
    end(&f);
}
