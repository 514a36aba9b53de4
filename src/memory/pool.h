/* SPDX-License-Identifier: MIT */
/* The inside of a pool.
 *
 * Locks, outermost first: the region lock (region.c), the list of pools (pools.c), the shards in the order of their
 * numbers, `lock`. Device calls and hooks run with none of them held. `is_growing` and `n_system` stand for work that
 * runs outside the lock: `changed` is signalled when they end. */
#ifndef LEND_MEMORY_POOL_H_
#define LEND_MEMORY_POOL_H_

#include "base/process.h"
#include "memory/heap.h"
#include "memory/shard.h"

#include <lend/pool.h>
#include <pthread.h>

struct lend_pool {
    /* Constant from birth. */
    uint32_t epoch; /* lend__fork_epoch at birth */
    uint32_t quantum_bits;
    const struct lend__device_ops *device;
    struct lend_pool_opts opts;
    bool is_isolated, is_adopted, is_file; /* a file is adopted, too */
    bool has_shards;                       /* not isolated, no file, and the alignment no coarser than their blocks */
    void *memory;                          /* what calloc gave: the struct is aligned inside */

    /* Atomic. */
    uint32_t n_refs;
    uint32_t is_internal;
    int64_t limbo_bytes;

    struct lend_pool *list_prev, *list_next; /* under the list lock */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_growing;    /* one thread grows, the others wait for what it brings */
    bool is_orphan;     /* no references left: the last block takes the pool along */
    uint32_t n_system;  /* threads in device calls; a fork waits for them */
    uint32_t n_leaving; /* threads that give allocations back; the pool waits for them */
    struct lend__heap heap;
    struct lend__allocation *allocations; /* newest first */
    uint64_t n_allocations, n_allocations_made, n_allocations_returned, n_failures;
    uint64_t reserved_bytes, reserved_bytes_peak; /* counts what is being made and given back, too */
    uint64_t changing_bytes;                      /* of these: not in `allocations` */
    int64_t allocated, requested;                 /* without what the shards have not yet added */
    uint64_t allocated_peak;
    uint64_t n_allocs, n_frees;

    struct lend__shard shards[LEND__N_SHARDS];
};

/* A pool of the parent process, or a process that nobody told about its birth. */
static inline bool lend__pool_is_foreign(const struct lend_pool *pool) {
    return __builtin_expect(pool->epoch != lend__fork_epoch, 0) || lend__is_raw_clone();
}
int lend__pool_fail_foreign(const char *operation, struct lend_error *error) __attribute__((cold));

/* With the lock held: counts a block in or out of use. */
void lend__pool_account_take(struct lend_pool *pool, struct lend__block *block, struct lend__fit fit,
                             uint64_t requested);
void lend__pool_account_give(struct lend_pool *pool, const struct lend__block *block);

/* growth.c: a block of exactly fit.bytes for a request: from the heap, or after growing. */
int lend__pool_take(struct lend_pool *pool, struct lend__fit fit, uint64_t requested, struct lend__block **ret,
                    struct lend_error *error);
/* Reserves `bytes` now (0 < bytes, whole pages); whole: as free memory. For initial_bytes. */
int lend__pool_reserve(struct lend_pool *pool, uint64_t bytes, struct lend_error *error);
/* Asks the device for one small piece, so that a seal or policy that this machine lacks is known at once. */
int lend__pool_probe(struct lend_pool *pool, struct lend_error *error);
int lend__pool_adopt(struct lend_pool *pool, struct lend_error *error);
/* What every allocation of the pool is a multiple of: the page size or the alignment, whichever is larger. */
uint64_t lend__pool_step(const struct lend_pool *pool);

/* trim.c: unlinks an allocation whose blocks are held and frees it. */
void lend__pool_drop(struct lend_pool *pool, struct lend__allocation *allocation, bool was_in_use);
/* Gives wholly free allocations back until at most keep_bytes are free. Returns the bytes. */
uint64_t lend__pool_give_back(struct lend_pool *pool, uint64_t keep_bytes);
/* Called with the lock held, which is released; nothing of the allocation is in use. Gives it back; the pool may be
 * gone afterwards. */
void lend__pool_retire_unlock(struct lend_pool *pool, struct lend__allocation *allocation);
/* Called with the lock held, which is released: ends an orphan that nothing needs any more. */
void lend__pool_end_unlock(struct lend_pool *pool);

/* file.c: the pool of a file. What lend__pool_alloc answers. */
int lend__pool_file_fail_alloc(uint64_t bytes, struct lend_error *error) __attribute__((cold));
/* Called with the lock held, which is released, for a block that has been counted out: takes it away. */
void lend__pool_unplace_unlock(struct lend_pool *pool, struct lend__block *block);
/* With the lock held: the smallest living storage around the range, with a new reference, or NULL. */
struct lend__storage *lend__pool_file_storage_at(const struct lend__allocation *allocation, uint64_t off,
                                                 uint64_t bytes);
int lend__pool_check_place(const struct lend__block *block, struct lend_error *error);

/* check.c, with all locks held. */
int lend__pool_check_locked(struct lend_pool *pool, struct lend_error *error);

/* pools.c */
void lend__pools_add(struct lend_pool *pool);
void lend__pools_remove(struct lend_pool *pool);

/* options.c: reads and checks the options; ret_opts has no zeros that mean a default. */
int lend__pool_opts_read(const struct lend_pool_opts *opts, struct lend_pool_opts *ret_opts,
                         const struct lend__device_ops **ret_device, struct lend_error *error);

#endif
