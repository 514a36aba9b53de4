/* SPDX-License-Identifier: MIT */
/* The pools of this process: counted for lend_close, checked together, and locked together for a fork.
 *
 * Fork: prepare takes the list and every lock of every pool, and waits until no thread is inside a device call, so
 * that the child inherits no mapping that no list knows. In the child the pools are the parent's: their epoch says so,
 * they stay in the list only so that their records can be found, and nothing touches them again.
 * Locking: `lock` is taken after the region lock and before any pool's. */
#include "memory/pool.h"

#include <errno.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lend_pool *pools;
static uint32_t epoch_at_fork;

/* Until lend_open has set the hooks. */
static int no_context(void) {
    return -ENOTCONN;
}
struct lend__memory_hooks lend__memory_hooks = {.require_context = no_context};

void lend__pools_add(struct lend_pool *pool) {
    pthread_mutex_lock(&lock);
    pool->list_next = pools;
    if (pools) pools->list_prev = pool;
    pools = pool;
    pthread_mutex_unlock(&lock);
}

void lend__pools_remove(struct lend_pool *pool) {
    pthread_mutex_lock(&lock);
    if (pool->list_next) pool->list_next->list_prev = pool->list_prev;
    if (pool->list_prev)
        pool->list_prev->list_next = pool->list_next;
    else
        pools = pool->list_next;
    pthread_mutex_unlock(&lock);
}

void lend__pool_set_internal(struct lend_pool *pool) {
    lend__store_relaxed(&pool->is_internal, 1);
}

void lend__pools_count(uint64_t *ret_pools, uint64_t *ret_blocks) {
    uint64_t n_pools = 0, n_blocks = 0;
    pthread_mutex_lock(&lock);
    for (struct lend_pool *pool = pools; pool; pool = pool->list_next) {
        if (pool->epoch != lend__fork_epoch) continue;
        lend__shards_lock_all(pool);
        lend__shards_fold(pool);
        n_blocks += pool->n_allocs - pool->n_frees;
        /* An orphan counts by its blocks: nobody can give a reference of it back. */
        if (!pool->is_orphan && !lend__load_relaxed(&pool->is_internal)) n_pools++;
        lend__shards_unlock_all(pool);
    }
    pthread_mutex_unlock(&lock);
    *ret_pools = n_pools;
    *ret_blocks = n_blocks;
}

int lend__pools_check(struct lend_error *error) {
    int r = 0;
    pthread_mutex_lock(&lock);
    for (struct lend_pool *pool = pools; pool && r == 0; pool = pool->list_next) {
        if (pool->epoch != lend__fork_epoch) continue;
        lend__shards_lock_all(pool);
        r = lend__pool_check_locked(pool, error);
        lend__shards_unlock_all(pool);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

void lend__pools_fork_prepare(void) {
    pthread_mutex_lock(&lock);
    epoch_at_fork = lend__fork_epoch;
    for (struct lend_pool *pool = pools; pool; pool = pool->list_next) {
        if (pool->epoch != epoch_at_fork) continue;
        lend__shards_lock_all(pool);
        while (pool->n_system) pthread_cond_wait(&pool->changed, &pool->lock);
    }
}

void lend__pools_fork_visit_allocations(void (*fn)(struct lend__allocation *allocation, void *arg), void *arg) {
    for (struct lend_pool *pool = pools; pool; pool = pool->list_next) {
        if (pool->epoch != epoch_at_fork) continue;
        for (struct lend__allocation *a = pool->allocations, *next; a; a = next) {
            next = a->next;
            fn(a, arg);
        }
    }
}

struct block_visit {
    void (*fn)(struct lend__block *block, void *arg);
    void *arg;
};

static void visit_blocks(struct lend__allocation *allocation, void *arg) {
    const struct block_visit *visit = arg;
    for (struct lend__block *block = lend__allocation_next_block(allocation, NULL); block;
         block = lend__allocation_next_block(allocation, block))
        if (block->state == LEND__BLOCK_USED && lend__load_acquire(&block->owner)) visit->fn(block, visit->arg);
}

void lend__pools_fork_visit(void (*fn)(struct lend__block *block, void *arg), void *arg) {
    struct block_visit visit = {fn, arg};
    lend__pools_fork_visit_allocations(visit_blocks, &visit);
}

void lend__pools_fork_release(bool is_child) {
    for (struct lend_pool *pool = pools; pool; pool = pool->list_next) {
        if (pool->epoch != epoch_at_fork) continue;
        if (!is_child) {
            lend__shards_unlock_all(pool);
            continue;
        }
        for (uint32_t i = 0; i < LEND__N_SHARDS; i++) lend__store_relaxed(&pool->shards[i].lock, 0);
        pthread_mutex_init(&pool->lock, NULL);
        pthread_cond_init(&pool->changed, NULL);
    }
    if (is_child)
        pthread_mutex_init(&lock, NULL);
    else
        pthread_mutex_unlock(&lock);
}
