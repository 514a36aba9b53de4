/* SPDX-License-Identifier: MIT */
/* Pools for tests of tensors alone: without a context, so without its thread and sockets. */
#ifndef LEND_TESTS_UNIT_POOLS_H_
#define LEND_TESTS_UNIT_POOLS_H_

#include "test.h"

#include "memory/block.h"

#include <lend/pool.h>

static inline struct lend_pool *pool_without_context(void) {
    struct lend_error error;
    struct lend_pool *pool;
    lend__memory_hooks.require_context = NULL;
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    return pool;
}

static inline uint64_t pool_blocks_in_use(struct lend_pool *pool) {
    struct lend_pool_stats stats = {.size = sizeof stats};
    CHECK_CODE(lend_pool_stats(pool, &stats), 0);
    return stats.n_blocks;
}

/* Every block has come back, the books are right, and the pool goes. */
static inline void pool_end(struct lend_pool *pool) {
    struct lend_error error;
    CHECK_UINT(pool_blocks_in_use(pool), 0);
    CHECK_OK(lend_pool_check(pool, &error), &error);
    lend_pool_unref(pool);
}

#endif
