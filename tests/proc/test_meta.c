/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, meta tensors: dtype, shape, strides and the identity of a storage that has a size and no memory. They
 * travel by value, so nothing is lent: a handle works when its maker is gone. */
#include "kind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { TAG = 0x66616b65 };

static struct lend_tensor *new_meta(int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_new_meta(float32, ndim, shape, &tensor, &error), &error);
    struct lend_tensor_info info = info_of(tensor);
    CHECK_INT(info.device.device_type, LEND_DEVICE_META);
    CHECK_PTR(info.data, NULL);
    CHECK_UINT(info.allocation_inode, 0);
    return tensor;
}

static struct lend_tensor *slice(struct lend_tensor *tensor, int64_t start, int64_t stop, int64_t step) {
    struct lend_tensor *view = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_slice(tensor, 0, start, stop, step, &view, &error), &error);
    return view;
}

/* More bytes than any machine has, and none of them used. */
LEND_TEST(meta) {
    int64_t shape[] = {1 << 20, 1 << 20, 1 << 10}, small[] = {6, 4};
    struct fixture f;
    begin(&f);
    struct books before = books_now();
    struct lend_tensor *large = new_meta(3, shape), *base = new_meta(2, small), *turned = NULL;
    struct lend_error error = {0};
    round_trip_and_drop(&f, large);
    CHECK_OK(lend_tensor_transpose(base, 0, 1, &turned, &error), &error);
    round_trip(&f, turned);
    give(&f, 0, turned, NULL, 0);
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 0"), "dtype 2.32.1 device 1024.0 shape,4,6 strides,1,4 ");
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 0"), "storage 96 ");
    lend_tensor_unref(turned);
    struct lend_tensor *marks = marked(slice(base, 4, 0, -3), LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_PARAMETER);
    round_trip_and_drop(&f, marks);
    lend_tensor_unref(base);
    expect_books(before); /* while the other still has one */
    end(&f);
}

/* Across messages, across processes between, and within one. */
LEND_TEST(meta_views_alias) {
    int64_t shape[] = {8};
    char text[LEND_HANDLE_TEXT_MAX];
    struct fixture f;
    struct role c;
    begin(&f);
    actor_start(&c, NULL, NULL);
    struct lend_tensor *base = new_meta(1, shape), *other = new_meta(1, shape);
    struct lend_tensor *left = slice(base, 0, 5, 1), *right = slice(base, 3, 8, 2);
    give(&f, 0, left, NULL, 0);
    give(&f, 1, right, NULL, 0);
    give(&f, 2, other, NULL, 0);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    CHECK_INT(actor_int(&f.peer, "same 0 2"), 0);
    snprintf(text, sizeof text, "%s", actor_ok(&f.peer, "reduce 1"));
    actor_ok(&c, "rebuild 0 %s", reduce_text(left, NULL, 0));
    actor_ok(&c, "rebuild 1 %s", text);
    expect_equal(&c, 1, right);
    CHECK_INT(actor_int(&c, "same 0 1"), 1);
    struct lend_group *group = new_group();
    add(group, "left", left);
    add(group, "right", right);
    add(group, "other", other);
    give_group(&f, group, NULL, 0);
    actor_ok(&f.peer, "gget 10 0");
    actor_ok(&f.peer, "gget 11 1");
    actor_ok(&f.peer, "gget 12 2");
    CHECK_INT(actor_int(&f.peer, "same 10 11"), 1);
    CHECK_INT(actor_int(&f.peer, "same 10 12"), 0);
    CHECK_INT(actor_int(&f.peer, "same 10 0"), 1); /* and with what came before */
    lend_group_unref(group);
    lend_tensor_unref(right);
    lend_tensor_unref(left);
    lend_tensor_unref(other);
    lend_tensor_unref(base);
    role_end(&c);
    end(&f);
}

LEND_TEST(meta_received_by_the_process_that_sent_it) {
    int64_t shape[] = {8};
    char text[LEND_HANDLE_TEXT_MAX];
    struct lend_tensor *again = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *base = new_meta(1, shape), *view = slice(base, 2, 4, 1);
    CHECK_OK(rebuild_text(reduce_text(view, NULL, 0), NULL, &again, &error), &error);
    CHECK_UINT(info_of(again).storage_id, info_of(base).storage_id);
    lend_tensor_unref(again);
    give(&f, 0, view, NULL, 0);
    snprintf(text, sizeof text, "%s", actor_ok(&f.peer, "reduce 0"));
    CHECK_OK(rebuild_text(text, NULL, &again, &error), &error);
    CHECK_UINT(info_of(again).storage_id, info_of(base).storage_id);
    CHECK_INT(info_of(again).is_imported, 0);
    lend_tensor_unref(again);
    lend_tensor_unref(view);
    lend_tensor_unref(base);
    end(&f);
}

LEND_TEST(a_meta_handle_outlives_its_maker) {
    char first[LEND_HANDLE_TEXT_MAX], second[LEND_HANDLE_TEXT_MAX];
    struct lend_tensor *a = NULL, *b = NULL;
    struct lend_error error = {0};
    struct role maker;
    open_with(NULL);
    actor_start(&maker, NULL, NULL);
    actor_ok(&maker, "meta 0 10");
    actor_ok(&maker, "slice 1 0 2 5");
    snprintf(first, sizeof first, "%s", actor_ok(&maker, "reduce 0"));
    snprintf(second, sizeof second, "%s", actor_ok(&maker, "reduce 1"));
    role_end(&maker);
    CHECK_OK(rebuild_text(first, NULL, &a, &error), &error);
    CHECK_OK(rebuild_text(second, NULL, &b, &error), &error);
    CHECK_INT(info_of(a).numel, 10);
    CHECK_INT(info_of(b).numel, 3);
    CHECK_UINT(info_of(b).storage_offset_bits, 64);
    CHECK_UINT(info_of(a).storage_id, info_of(b).storage_id);
    lend_tensor_unref(a);
    lend_tensor_unref(b);
    close_all(NULL);
}

/* PyTorch's share_memory_() has nothing to share: lending needs no call before it, and leaves nothing to end. */
LEND_TEST(meta_share_memory) {
    struct lend_reduce_opts pin = {.size = sizeof pin, .flags = LEND_REDUCE_PIN};
    struct lend_reduce_opts snapshot = {.size = sizeof snapshot, .mode = LEND_MODE_SNAPSHOT};
    struct lend_reduce_opts no_copy = {.size = sizeof no_copy, .flags = LEND_REDUCE_NO_COPY};
    int64_t shape[] = {8};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_meta(1, shape);
    struct books before = books_now();
    give(&f, 0, tensor, NULL, 0);
    give(&f, 1, tensor, &pin, 0);
    give(&f, 2, tensor, &snapshot, 0);
    give(&f, 3, tensor, &no_copy, 0);
    expect_books(before);
    for (int slot = 0; slot < 4; slot++)
        CHECK_CONTAINS(actor_ok(&f.peer, "describe %d", slot), "device 1024.0 shape,8 strides,1 ");
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    lend_tensor_unref(tensor);
    end(&f);
}

LEND_TEST(meta_storage_alone) {
    int64_t shape[] = {8};
    struct lend_tensor *bytes = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_meta(1, shape);
    CHECK_OK(lend_tensor_as_bytes(tensor, &bytes, &error), &error);
    CHECK_INT(info_of(bytes).numel, 32);
    round_trip(&f, bytes);
    give(&f, 0, bytes, NULL, 0);
    give(&f, 1, tensor, NULL, 0);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    lend_tensor_unref(bytes);
    lend_tensor_unref(tensor);
    end(&f);
}

/* A FakeTensor is a meta tensor and the device that it stands for, which is the binding's word. */
LEND_TEST(fake_tensor) {
    int64_t shape[] = {3, 5};
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = tagged(new_meta(2, shape), LEND_ATTR_REQUIRES_GRAD, TAG, "cuda:0");
    round_trip(&f, tensor);
    give(&f, 0, tensor, NULL, 0);
    CHECK_CONTAINS(actor_ok(&f.peer, "describe 0"), " attrs 1 user 1717660517,6,");
    lend_tensor_unref(tensor);
    end(&f);
}

/* What has no elements cannot be copied, resolved or read; the sentence says so. */
LEND_TEST(meta_elements) {
    int64_t shape[] = {3, 5};
    struct lend_tensor *none = NULL;
    struct lend_error error = {0};
    open_with(NULL);
    struct lend_tensor *tensor = new_meta(2, shape);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
    CHECK_CODE(lend_tensor_copy(tensor, NULL, &none, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "meta");
    CHECK_PTR(none, NULL);
    lend_tensor_unref(tensor);
    close_all(NULL);
}
