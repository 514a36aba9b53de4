/* SPDX-License-Identifier: MIT */
/* What the tests of pools over files share. */
#ifndef LEND_TESTS_UNIT_FILE_POOLS_H_
#define LEND_TESTS_UNIT_FILE_POOLS_H_

#include "file.h"
#include "pool_fixture.h"
#include "tensor/tensor.h"

static const DLDataType uint8 = {kDLUInt, 8, 1};
static const DLDataType float32 = {kDLFloat, 32, 1};

static inline struct lend_pool_opts file_opts(int fd, uint64_t offset, uint64_t bytes) {
    return POOL_OPTS(.flags = LEND_POOL_FILE_IN_PLACE, .adopt_fd = fd, .adopt_offset = offset, .adopt_bytes = bytes);
}

static inline struct lend_tensor *tensor_at(struct lend_pool *pool, uint64_t offset, int64_t bytes) {
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_tensor_new_at(pool, offset, uint8, 1, &bytes, &tensor, &error), &error);
    return tensor;
}

static inline struct lend_tensor_info info_of(const struct lend_tensor *tensor) {
    struct lend_tensor_info info = {.size = sizeof info};
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    return info;
}

#endif
