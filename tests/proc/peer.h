/* SPDX-License-Identifier: MIT */
/* What the proc tests share: handles as text, tensors filled with a pattern, and the books by pid. */
#ifndef LEND_TESTS_PROC_PEER_H_
#define LEND_TESTS_PROC_PEER_H_

#include "role.h"
#include "test.h"

#include <lend/lend.h>
#include <string.h>

static const DLDataType float32 = {kDLFloat, 32, 1};
static const DLDataType uint8 = {kDLUInt, 8, 1};

/* The handle's text; static, one at a time. */
static inline const char *reduce_text(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int expected) {
    static char text[LEND_HANDLE_TEXT_MAX];
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct lend_error error = {0};
    int r = lend_reduce(tensor, opts, handle, sizeof handle, &n, &error);
    if (r != expected) FAIL("lend_reduce: %d instead of %d: %s", r, expected, error.text);
    CHECK_OK(lend_handle_format(handle, n, text, sizeof text), NULL);
    return text;
}

static inline int rebuild_text(const char *text, const struct lend_rebuild_opts *opts, struct lend_tensor **ret, struct lend_error *error) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    int r = lend_handle_parse(text, handle, sizeof handle, &n);
    return r < 0 ? r : lend_rebuild(handle, n, opts, ret, error);
}

static inline struct lend_tensor_info info_of(const struct lend_tensor *tensor) {
    struct lend_tensor_info info = {.size = sizeof info};
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    return info;
}

static inline struct lend_tensor *new_bytes(struct lend_pool *pool, int64_t n, int fill) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_new(pool, uint8, 1, &n, &tensor, &error), &error);
    if (n) memset(lend_tensor_data(tensor), fill, (size_t)n);
    return tensor;
}

#endif
