/* SPDX-License-Identifier: MIT */
/* The pool: birth, references, taking and giving blocks, statistics.
 *
 * Small blocks go through the shards (shard.c), the others straight to the heap under the pool's lock. References of
 * users are counted; blocks are not: the last reference closes the shards and makes the pool an orphan, and then each
 * free looks whether it was the last. So a tensor's way has no shared counter.
 * Locking: see pool.h. */
#include "memory/pool.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int lend__pool_fail_foreign(const char *operation, struct lend_error *error) {
    return lend__fail(error, -ECHILD, operation, "the pool belongs to the parent process; make one of your own");
}

static void init(struct lend_pool *pool, const struct lend_pool_opts *opts, const struct lend__device_ops *device) {
    pool->epoch = lend__fork_epoch;
    pool->opts = *opts;
    pool->device = device;
    pool->quantum_bits = (uint32_t)__builtin_ctz(opts->alignment);
    pool->is_isolated = opts->flags & LEND_POOL_ISOLATE;
    pool->is_adopted = opts->adopt_bytes > 0;
    pool->is_file = opts->flags & LEND_POOL_FILE_IN_PLACE;
    pool->has_shards = !pool->is_isolated && !pool->is_file && opts->alignment <= LEND__SMALL_BYTES_MAX;
    pool->n_refs = 1;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    lend__heap_init(&pool->heap, pool->quantum_bits);
    lend__shards_init(pool);
}

int lend_pool_new(const struct lend_pool_opts *opts, struct lend_pool **ret_pool, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, "lend_pool_new", "this process is a raw clone");
    int r = lend__memory_hooks.require_context ? lend__memory_hooks.require_context() : 0;
    if (r < 0) return lend__fail(error, r, "lend_pool_new", "%s", lend_strerror(r));
    struct lend_pool_opts known;
    const struct lend__device_ops *device;
    r = lend__pool_opts_read(opts, &known, &device, error);
    if (r < 0) return r;
    const size_t alignment = _Alignof(struct lend_pool);
    void *memory = lend__zalloc(sizeof(struct lend_pool) + alignment);
    if (!memory)
        return lend__fail_bytes(error, -ENOMEM, "calloc", sizeof(struct lend_pool), 0,
                                "no memory for the %zu bytes of a pool's records", sizeof(struct lend_pool));
    struct lend_pool *pool = (void *)(((uintptr_t)memory + alignment - 1) & ~(uintptr_t)(alignment - 1));
    pool->memory = memory;
    init(pool, &known, device);
    lend__pools_add(pool);
    if (pool->is_adopted)
        r = lend__pool_adopt(pool, error);
    else if (known.initial_bytes)
        r = lend__pool_reserve(pool, known.initial_bytes, error);
    else
        r = lend__pool_probe(pool, error);
    if (r < 0) {
        lend_pool_unref(pool);
        return r;
    }
    *ret_pool = pool;
    return 0;
}

struct lend_pool *lend_pool_ref(struct lend_pool *pool) {
    lend__add_relaxed(&pool->n_refs, 1);
    return pool;
}

void lend_pool_unref(struct lend_pool *pool) {
    if (!pool || lend__pool_is_foreign(pool)) return;
    if (lend__sub_acq_rel(&pool->n_refs, 1) != 1) return;
    lend__shards_lock_all(pool);
    lend__shards_fold(pool);
    lend__shards_empty(pool);
    lend__shards_close(pool);
    pool->is_orphan = true;
    pool->n_leaving++; /* keeps it until we are through */
    lend__shards_unlock_all(pool);
    lend__pool_give_back(pool, 0);
    pthread_mutex_lock(&pool->lock);
    pool->n_leaving--;
    lend__pool_end_unlock(pool);
}

void lend__pool_account_take(struct lend_pool *pool, struct lend__block *block, struct lend__fit fit,
                             uint64_t requested) {
    block->state = LEND__BLOCK_USED;
    block->owner = NULL;
    block->requested = requested;
    block->size_class = fit.size_class;
    pool->allocated += (int64_t)block->bytes;
    pool->requested += (int64_t)requested;
    pool->n_allocs++;
    lend__pool_note_peak(pool);
}

void lend__pool_account_give(struct lend_pool *pool, const struct lend__block *block) {
    pool->allocated -= (int64_t)block->bytes;
    pool->requested -= (int64_t)block->requested;
    pool->n_frees++;
}

int lend__pool_alloc(struct lend_pool *pool, uint64_t bytes, struct lend__block **ret, struct lend_error *error) {
    if (__builtin_expect(lend__pool_is_foreign(pool), 0)) return lend__pool_fail_foreign("lend_tensor_new", error);
    struct lend__fit fit = {.size_class = LEND__CLASS_NONE};
    if (!bytes) bytes = 1;
    if (__builtin_expect(pool->has_shards && bytes <= LEND__RECENT_BYTES_MAX, 1)) {
        fit = lend__fit_of(pool->quantum_bits, bytes);
        struct lend__block *block = lend__shards_take(pool, fit, bytes);
        if (__builtin_expect(block != NULL, 1)) {
            *ret = block;
            return 0;
        }
    } else {
        if (pool->is_file) return lend__pool_file_fail_alloc(bytes, error);
        uint64_t unit = pool->is_isolated ? lend__pool_step(pool) : (uint64_t)1 << pool->quantum_bits;
        if (lend__round_up_overflows(bytes, unit, &fit.bytes))
            return lend__fail_bytes(error, -ENOMEM, "lend_tensor_new", bytes, 0,
                                    "%llu bytes are more than any address space has", (unsigned long long)bytes);
    }
    return lend__pool_take(pool, fit, bytes, ret, error);
}

void lend__pool_free(struct lend__block *block) {
    struct lend_pool *pool = block->allocation->pool;
    if (__builtin_expect(lend__pool_is_foreign(pool), 0)) return;
    LEND_POINT("M8"); /* whoever could find the block has been told that it is gone */
    if (block->size_class != LEND__CLASS_NONE && lend__shards_give(pool, block)) return;
    pthread_mutex_lock(&pool->lock);
    lend__pool_account_give(pool, block);
    block->owner = NULL;
    if (pool->is_file) {
        lend__pool_unplace_unlock(pool, block);
        return;
    }
    block = lend__heap_give(&pool->heap, block);
    if ((pool->is_isolated || pool->is_orphan) && lend__block_is_whole(block)) {
        lend__pool_retire_unlock(pool, block->allocation);
        return;
    }
    pthread_mutex_unlock(&pool->lock);
}

void lend__pool_account_limbo(struct lend_pool *pool, int64_t bytes) {
    lend__add_relaxed(&pool->limbo_bytes, bytes);
}

const struct lend__device_ops *lend__pool_device(const struct lend_pool *pool) {
    return pool->device;
}

static void fill_stats(struct lend_pool *pool, struct lend_pool_stats *s) {
    int64_t limbo = lend__load_relaxed(&pool->limbo_bytes);
    *s = (struct lend_pool_stats){
        .n_allocations = pool->n_allocations,
        .n_allocations_made = pool->n_allocations_made,
        .n_allocations_returned = pool->n_allocations_returned,
        .reserved_bytes = pool->reserved_bytes,
        .reserved_bytes_peak = pool->reserved_bytes_peak,
        .allocated_bytes = (uint64_t)pool->allocated,
        .allocated_bytes_peak = pool->allocated_peak,
        .requested_bytes = (uint64_t)pool->requested,
        /* A file has nothing to give, and its blocks may overlap. */
        .cached_bytes = pool->is_file ? 0 : pool->reserved_bytes - pool->changing_bytes - (uint64_t)pool->allocated,
        .limbo_bytes = limbo > 0 ? (uint64_t)limbo : 0,
        .n_blocks = pool->n_allocs - pool->n_frees,
        .n_allocs = pool->n_allocs,
        .n_frees = pool->n_frees,
        .n_failures = pool->n_failures,
    };
    for (const struct lend__allocation *a = pool->allocations; a; a = a->next) {
        if (a->extent.huge_page_bytes) {
            s->hugetlb_bytes += a->extent.bytes;
            s->huge_page_bytes = a->extent.huge_page_bytes;
        }
        if (pool->opts.huge_pages == LEND_HUGE_THP && pool->device->thp_bytes)
            s->thp_bytes += pool->device->thp_bytes(&a->extent);
    }
    if (pool->allocations) {
        s->numa_mode = pool->allocations->extent.numa_mode;
        s->numa_nodes = pool->allocations->extent.numa_nodes;
    }
}

int lend_pool_stats(struct lend_pool *pool, struct lend_pool_stats *ret_stats) {
    if (lend__pool_is_foreign(pool)) return -ECHILD;
    size_t size = ret_stats->size;
    if (size < sizeof ret_stats->size) return -EINVAL;
    struct lend_pool_stats stats;
    lend__shards_lock_all(pool);
    lend__shards_fold(pool);
    fill_stats(pool, &stats);
    lend__shards_unlock_all(pool);
    stats.size = size;
    memcpy(ret_stats, &stats, size < sizeof stats ? size : sizeof stats);
    return 0;
}

int lend_pool_trim(struct lend_pool *pool, uint64_t keep_bytes, uint64_t *ret_bytes) {
    if (lend__pool_is_foreign(pool)) return -ECHILD;
    if (lend__memory_hooks.reclaim) (void)lend__memory_hooks.reclaim(); /* what peers have given back is free now */
    lend__shards_flush(pool);
    uint64_t bytes = lend__pool_give_back(pool, keep_bytes);
    if (ret_bytes) *ret_bytes = bytes;
    return 0;
}

int lend_pool_check(struct lend_pool *pool, struct lend_error *error) {
    if (lend__pool_is_foreign(pool)) return lend__pool_fail_foreign("lend_pool_check", error);
    lend__shards_lock_all(pool);
    int r = lend__pool_check_locked(pool, error);
    lend__shards_unlock_all(pool);
    return r;
}
