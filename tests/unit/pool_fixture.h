/* SPDX-License-Identifier: MIT */
/* What the tests of pools share: pools without a context, and a generator whose numbers are the same on every run. */
#ifndef LEND_TESTS_UNIT_POOL_FIXTURE_H_
#define LEND_TESTS_UNIT_POOL_FIXTURE_H_

#include "base/sys.h"
#include "memory/block.h"
#include "test.h"

#include <errno.h>
#include <lend/pool.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define POOL_OPTS(...) ((struct lend_pool_opts){.size = sizeof(struct lend_pool_opts), __VA_ARGS__})

static inline struct lend_pool *pool_make(struct lend_pool_opts opts) {
    struct lend_error error;
    struct lend_pool *pool = NULL;
    lend__memory_hooks.require_context = NULL;
    CHECK_OK(lend_pool_new(&opts, &pool, &error), &error);
    return pool;
}

static inline struct lend__block *block_make(struct lend_pool *pool, uint64_t bytes) {
    struct lend_error error;
    struct lend__block *block = NULL;
    CHECK_OK(lend__pool_alloc(pool, bytes, &block, &error), &error);
    return block;
}

static inline struct lend_pool_stats stats_of(struct lend_pool *pool) {
    struct lend_pool_stats stats = {.size = sizeof stats};
    CHECK_CODE(lend_pool_stats(pool, &stats), 0);
    return stats;
}

static inline void pool_check(struct lend_pool *pool) {
    struct lend_error error;
    CHECK_OK(lend_pool_check(pool, &error), &error);
}

static inline uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Small sizes often, large ones sometimes: a size of up to 2^n bytes, n even from 0 to bits_max. */
static inline uint64_t random_bytes(uint64_t *state, unsigned bits_max) {
    unsigned bits = (unsigned)(random_next(state) % (bits_max + 1));
    return 1 + random_next(state) % ((uint64_t)1 << bits);
}

#endif
