/* SPDX-License-Identifier: MIT */
/* Every dtype and every kind of view goes to another process and comes back exactly: all of what the tensor is, and a
 * checksum of its elements taken on both sides. */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct fixture {
    struct lend_pool *pool;
    struct role peer;
};

static void begin(struct fixture *f) {
    open_with(NULL);
    f->pool = new_pool(NULL);
    actor_start(&f->peer, NULL, NULL);
}

static void end(struct fixture *f) {
    role_end(&f->peer);
    CHECK_EVENTUALLY(2000, limbo_bytes(f->pool) == 0);
    close_all(f->pool);
}

static struct lend_tensor *make(struct fixture *f, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_new(f->pool, dtype, ndim, shape, &tensor, &error), &error);
    struct lend_tensor_info info = info_of(tensor);
    uint32_t x = 12345;
    for (uint64_t i = 0; i < info.nbytes; i++)
        ((uint8_t *)info.data)[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    return tensor;
}

/* There, and back through a handle that the other made. */
static void round_trip(struct fixture *f, struct lend_tensor *tensor) {
    char there[4096];
    actor_ok(&f->peer, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
    char *here = describe(tensor);
    snprintf(there, sizeof there, "%s", actor_ok(&f->peer, "describe 0"));
    CHECK_STR(there, here);
    struct lend_tensor *back = NULL;
    struct lend_error error = {0};
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", actor_ok(&f->peer, "reduce 0"));
    CHECK_OK(rebuild_text(text, NULL, &back, &error), &error);
    char *again = describe(back);
    CHECK_STR(again, here);
    CHECK_UINT(info_of(back).storage_id, info_of(tensor).storage_id);
    lend_tensor_unref(back);
    actor_ok(&f->peer, "drop 0");
    free(again);
    free(here);
}

static void round_trip_and_drop(struct fixture *f, struct lend_tensor *tensor) {
    round_trip(f, tensor);
    lend_tensor_unref(tensor);
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
            round_trip_and_drop(&f, make(&f, dtype, 3, shape));
            dtype.lanes = 4;
            if (lend_dtype_is_valid(dtype)) round_trip_and_drop(&f, make(&f, dtype, 3, shape));
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
        struct lend_tensor *base = make(&f, dtypes[i], 3, shape), *view = NULL, *second = NULL;
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
    static const DLDataType bfloat16 = {kDLBfloat, 16, 1}, fp8 = {kDLFloat8_e4m3fn, 8, 1}, boolean = {kDLBool, 8, 1},
                            complex64 = {kDLComplex, 64, 1};
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t empty[] = {0}, hollow[] = {3, 0, 5}, one[] = {1}, exact[] = {page}, more[] = {page + 1},
            big[] = {1 << 20, 3};
    int64_t ones[LEND_NDIM_MAX];
    struct fixture f;
    struct lend_pool_stats stats = {.size = sizeof stats};
    begin(&f);
    for (int i = 0; i < LEND_NDIM_MAX; i++) ones[i] = i % 16 == 3 ? 2 : 1;
    /* Nothing to hold: no memory is used, and the handle works all the same. */
    struct lend_tensor *a = make(&f, float32, 1, empty), *b = make(&f, complex64, 3, hollow);
    CHECK_OK(lend_pool_stats(f.pool, &stats), NULL);
    CHECK_UINT(stats.allocated_bytes, 0);
    CHECK_PTR(lend_tensor_data(a), NULL);
    round_trip_and_drop(&f, a);
    round_trip_and_drop(&f, b);
    round_trip_and_drop(&f, make(&f, float32, 0, NULL));
    round_trip_and_drop(&f, make(&f, uint8, 1, one));
    round_trip_and_drop(&f, make(&f, uint8, 1, exact));
    round_trip_and_drop(&f, make(&f, uint8, 1, more));
    round_trip_and_drop(&f, make(&f, bfloat16, 2, big));
    round_trip_and_drop(&f, make(&f, fp8, 1, more));
    round_trip_and_drop(&f, make(&f, boolean, 1, more));
    round_trip_and_drop(&f, make(&f, float32, LEND_NDIM_MAX, ones));
    end(&f);
}

static uint64_t n_lent(void) {
    struct lend_report *report = NULL;
    CHECK_OK(lend_report_get(NULL, 0, 0, &report, NULL), NULL);
    uint64_t n = report->totals.n_storages;
    lend_report_free(report);
    return n;
}

/* Empty tensors hold slots, not blocks: a late handle is stale like any other. */
LEND_TEST(a_late_handle_of_an_empty_tensor_is_stale) {
    int64_t empty[] = {2, 0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = make(&f, float32, 2, empty);
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", reduce_text(tensor, NULL, 0));
    actor_ok(&f.peer, "rebuild 0 %s", text);
    lend_tensor_unref(tensor);
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 0"), "shape,2,0 ");
    actor_ok(&f.peer, "drop 0");
    CHECK_EVENTUALLY(2000, n_lent() == 0);
    CHECK_INT(actor_code(&f.peer, "rebuild 0 %s", text), -ESTALE);
    end(&f);
}
