/* SPDX-License-Identifier: MIT */
/* A block: a range of an allocation, in use by one storage, cached, or free. The structs lie outside the shared
 * bytes, so a peer's writes can never reach them. */
#ifndef LEND_MEMORY_BLOCK_H_
#define LEND_MEMORY_BLOCK_H_

#include "memory/allocation.h"

#include <lend/error.h>
#include <stdint.h>

struct lend__storage;

enum lend__block_state {
    LEND__BLOCK_FREE = 1,   /* in the heap's lists; its neighbours are not free */
    LEND__BLOCK_CACHED = 2, /* in a shard, or on its way there */
    LEND__BLOCK_USED = 3,
    LEND__BLOCK_HELD = 4 /* covers a whole allocation that is being added or given back */
};

/* One cache line, so that 10^6 small tensors cost little and two threads never share one. */
struct lend__block {
    struct lend__allocation *allocation;
    uint64_t off, bytes;             /* in the allocation; multiples of the pool's alignment, unless it is a file */
    struct lend__block *prev, *next; /* neighbours by address; of a file: in its bucket (places.h) */
    union {
        struct lend__storage *owner;   /* USED: set (release) by tensor/ when a storage lies here; NULL before */
        struct lend__block *free_prev; /* FREE */
    };
    union {
        uint64_t requested;            /* USED: as asked for */
        struct lend__block *free_next; /* FREE and CACHED */
    };
    uint32_t state; /* enum lend__block_state: to and from FREE and HELD under the pool's lock, between CACHED and USED
                     * under a shard's alone (relaxed) */
    uint32_t size_class; /* shard.h; LEND__CLASS_NONE: too large for the shards */
};
_Static_assert(sizeof(struct lend__block) == 64, "a block's record is one cache line");

static inline uint8_t *lend__block_data(const struct lend__block *block) {
    return block->allocation->extent.base + block->off;
}

/* The blocks of an allocation: by address, those of a file in no order. NULL as `after` for the first. */
static inline struct lend__block *lend__allocation_next_block(const struct lend__allocation *allocation,
                                                              const struct lend__block *after) {
    if (allocation->extent.is_file) return lend__places_next(&allocation->places, after);
    return after ? after->next : allocation->first;
}

/* Takes a block of at least `bytes` (at least 1) from the pool: cached, carved, or from a new allocation. The memory
 * is not cleared. The block keeps pool and allocation alive. Called with no lend lock held: growing calls the hooks.
 * Returns 0; -ENOMEM, -ENOSPC with asked and available bytes; -EMFILE; -EOPNOTSUPP (the pool maps a file); -ECHILD
 * (pool of the parent process). */
int lend__pool_alloc(struct lend_pool *pool, uint64_t bytes, struct lend__block **ret, struct lend_error *error);

/* Gives a block back. Its `owner` is cleared first, under a lock that look-ups by address hold. Cannot fail. In a
 * forked child (pool of the parent): does nothing. With the last block of a pool that has no references left, the
 * pool goes too. Called with no region lock held, and with no lock that the hooks take: isolated memory goes back at
 * once. */
void lend__pool_free(struct lend__block *block);

/* The range that a pool with LEND_POOL_FILE_IN_PLACE maps; constant as long as the pool has a reference or a block.
 * Returns 0; -EINVAL (another pool); -ECHILD. */
int lend__pool_file(struct lend_pool *pool, const struct lend__extent **ret, const char *operation,
                    struct lend_error *error);

/* Makes a block over [off, off + bytes) of such a pool, which lies in its extent and is not empty; others may overlap
 * it. It has no owner yet. Returns 0 or -ENOMEM. */
int lend__pool_place(struct lend_pool *pool, uint64_t off, uint64_t bytes, struct lend__block **ret,
                     struct lend_error *error);

/* Gives the living storage over exactly the block's range, with a new reference; if there is none, `storage` becomes
 * the block's owner and is returned. Otherwise the caller ends it, and the block with it. */
struct lend__storage *lend__pool_place_own(struct lend__block *block, struct lend__storage *storage);

/* Adds to (or takes from) the bytes that the statistics report as limbo. Any thread. */
void lend__pool_account_limbo(struct lend_pool *pool, int64_t bytes);

const struct lend__device_ops *lend__pool_device(const struct lend_pool *pool);

/* What share/ wants to hear from memory/. Called without any lend lock held (except the region lock never).
 *   require_context    lend_pool_new asks first: 0, or -ENOTCONN. NULL in tests of
 *                      memory/ alone.
 *   reclaim            a pool is about to grow: try limbo again; returns whether anything came back.
 *   allocation_retire  an allocation that has been lent (index is not UNLENT) goes back to the system: called before
 *                      it is unmapped.
 *   event              LEND_WATCH_POOL_GREW / LEND_WATCH_POOL_TRIMMED with bytes. */
struct lend__memory_hooks {
    int (*require_context)(void);
    bool (*reclaim)(void);
    void (*allocation_retire)(struct lend__allocation *allocation);
    void (*event)(uint32_t kind, uint64_t bytes);
};
extern struct lend__memory_hooks lend__memory_hooks; /* until lend_open sets them: no pools (-ENOTCONN) */

/* Pools that exist in this process, and blocks in use in them (for lend_close; pools of the parent process do not
 * count). A pool of the context itself (lend__pool_set_internal) counts only through its blocks. */
void lend__pools_count(uint64_t *ret_pools, uint64_t *ret_blocks);
void lend__pool_set_internal(struct lend_pool *pool);

/* Runs lend_pool_check on every pool of this process. */
int lend__pools_check(struct lend_error *error);

/* Fork. prepare takes the list lock, then every lock of every pool; visit calls fn for every block that has an owner
 * (only between prepare and release); release unlocks in the parent, and in the child makes the locks new and marks
 * the pools as the parent's (lend__fork_epoch has been raised by then). */
void lend__pools_fork_prepare(void);
void lend__pools_fork_visit(void (*fn)(struct lend__block *block, void *arg), void *arg);
void lend__pools_fork_visit_allocations(void (*fn)(struct lend__allocation *allocation, void *arg), void *arg);
void lend__pools_fork_release(bool is_child);

#endif
