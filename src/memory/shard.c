/* SPDX-License-Identifier: MIT */
/* Shards. A thread has a number and with it a home shard; if that is busy it tries the next one, then goes to the
 * heap: the lock of a shard is never waited for on the way of a tensor. Under its lock a shard refills from, and
 * spills to, the heap in batches.
 *
 * Invariants: a stack holds CACHED blocks of exactly its size, at most n_max of them. Kept blocks do not merge;
 * growing and trimming empty all shards first, so they never cause a shortage.
 * Locking: shard before pool; all shards in the order of their numbers. */
#include "memory/shard.h"

#include "base/sys.h"
#include "memory/pool.h"

/* What one stack keeps: many of the small, a few of the largest. */
#define STACK_BYTES ((uint64_t)512 << 10)
#define RECENT_BYTES ((uint64_t)4 << 20)
#define STACK_BLOCKS_MAX 256u

/* Both 0 until first asked for. */
static __thread uint32_t thread_number;
static uint32_t n_threads;

static void set_size(struct lend__stack *stack, uint64_t bytes, uint64_t bytes_max) {
    uint64_t n = bytes_max / bytes;
    stack->bytes = bytes;
    stack->n_max = n < STACK_BLOCKS_MAX ? (uint32_t)n : STACK_BLOCKS_MAX;
}

void lend__shards_init(struct lend_pool *pool) {
    uint64_t n_classes = lend__class_of(LEND__SMALL_BYTES_MAX >> pool->quantum_bits) + 1;
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++) {
        struct lend__shard *shard = &pool->shards[i];
        shard->is_open = pool->has_shards;
        for (uint32_t c = 0; c < n_classes; c++)
            set_size(&shard->stacks[c], lend__class_units(c) << pool->quantum_bits, STACK_BYTES);
    }
}

static bool try_lock(struct lend__shard *shard) {
    return !lend__load_relaxed(&shard->lock) && !lend__exchange_acquire(&shard->lock, 1);
}

static void unlock(struct lend__shard *shard) {
    lend__store_release(&shard->lock, 0);
}

static struct lend__shard *lock_home(struct lend_pool *pool) {
    uint32_t number = thread_number;
    if (__builtin_expect(!number, 0)) number = thread_number = lend__add_relaxed(&n_threads, 1) + 1;
    struct lend__shard *shard = &pool->shards[number % LEND__N_SHARDS];
    if (__builtin_expect(try_lock(shard), 1)) return shard;
    shard = &pool->shards[(number + 1) % LEND__N_SHARDS];
    return try_lock(shard) ? shard : NULL;
}

/* With one thread at a time the peak is exact; with several it is off by at most what the shards keep. */
static void fold(struct lend_pool *pool, struct lend__shard *shard) {
    int64_t others = 0;
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++)
        if (&pool->shards[i] != shard) others += lend__load_relaxed(&pool->shards[i].allocated);
    int64_t peak = pool->allocated + shard->allocated_peak + others;
    if (peak > 0 && (uint64_t)peak > pool->allocated_peak) pool->allocated_peak = (uint64_t)peak;
    pool->allocated += shard->allocated;
    pool->requested += shard->requested;
    pool->n_allocs += shard->n_allocs;
    pool->n_frees += shard->n_frees;
    lend__store_relaxed(&shard->allocated, 0);
    shard->allocated_peak = shard->requested = 0;
    shard->n_allocs = shard->n_frees = 0;
}

void lend__pool_note_peak(struct lend_pool *pool) {
    /* What is out of the heap is in use or kept: below the peak there is nothing to add up (but
     * blocks of a file can overlap). */
    if (!pool->is_file && pool->reserved_bytes - pool->heap.free_bytes <= pool->allocated_peak) return;
    int64_t now = pool->allocated;
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++) now += lend__load_relaxed(&pool->shards[i].allocated);
    if (now > 0 && (uint64_t)now > pool->allocated_peak) pool->allocated_peak = (uint64_t)now;
}

static void __attribute__((noinline)) refill(struct lend_pool *pool, struct lend__shard *shard, uint32_t size_class) {
    struct lend__stack *stack = &shard->stacks[size_class];
    uint32_t n_wanted = (stack->n_max + 1) / 2, n;
    struct lend__block **tail = &stack->head;
    pthread_mutex_lock(&pool->lock);
    /* One piece that holds them all where there is one, else single pieces. */
    while (stack->n < n_wanted && (n = lend__heap_take(&pool->heap, stack->bytes, n_wanted - stack->n, tail)) > 0) {
        stack->n += n;
        for (; *tail; tail = &(*tail)->free_next) (*tail)->size_class = size_class;
    }
    fold(pool, shard);
    pthread_mutex_unlock(&pool->lock);
}

static void give_chain(struct lend_pool *pool, struct lend__block *chain) {
    while (chain) {
        struct lend__block *block = chain;
        chain = block->free_next;
        lend__heap_give(&pool->heap, block);
    }
}

/* Keeps the first n_kept: what was given last is still in this processor's cache. */
static void __attribute__((noinline))
spill(struct lend_pool *pool, struct lend__shard *shard, struct lend__stack *stack, uint32_t n_kept) {
    struct lend__block **cut = &stack->head;
    for (uint32_t i = 0; i < n_kept; i++) cut = &(*cut)->free_next;
    pthread_mutex_lock(&pool->lock);
    give_chain(pool, *cut);
    fold(pool, shard);
    pthread_mutex_unlock(&pool->lock);
    *cut = NULL;
    stack->n = n_kept;
}

struct lend__block *lend__shards_take(struct lend_pool *pool, struct lend__fit fit, uint64_t requested) {
    struct lend__shard *shard = lock_home(pool);
    if (__builtin_expect(!shard, 0)) return NULL;
    struct lend__stack *stack = &shard->stacks[fit.size_class];
    struct lend__block *block = NULL;
    if (__builtin_expect(!stack->n, 0) && fit.size_class < LEND__N_CLASSES && shard->is_open)
        refill(pool, shard, fit.size_class);
    if (__builtin_expect(stack->n && stack->bytes == fit.bytes, 1)) {
        block = stack->head;
        stack->head = block->free_next;
        stack->n--;
        lend__store_relaxed(&block->state, LEND__BLOCK_USED);
        block->owner = NULL;
        block->requested = requested;
        int64_t allocated = shard->allocated + (int64_t)fit.bytes;
        lend__store_relaxed(&shard->allocated, allocated);
        if (allocated > shard->allocated_peak) shard->allocated_peak = allocated;
        shard->requested += (int64_t)requested;
        shard->n_allocs++;
    }
    unlock(shard);
    return block;
}

/* Makes room in a stack for a block of that size. */
static void __attribute__((noinline))
make_room(struct lend_pool *pool, struct lend__shard *shard, struct lend__stack *stack, uint64_t bytes) {
    if (stack->bytes == bytes) {
        spill(pool, shard, stack, stack->n / 2);
        return;
    }
    if (stack->n) spill(pool, shard, stack, 0);
    set_size(stack, bytes, RECENT_BYTES);
}

bool lend__shards_give(struct lend_pool *pool, struct lend__block *block) {
    struct lend__shard *shard = lock_home(pool);
    if (__builtin_expect(!shard, 0)) return false;
    bool is_open = shard->is_open;
    if (__builtin_expect(is_open, 1)) {
        struct lend__stack *stack = &shard->stacks[block->size_class];
        if (__builtin_expect(stack->n == stack->n_max || stack->bytes != block->bytes, 0))
            make_room(pool, shard, stack, block->bytes);
        lend__store_relaxed(&shard->allocated, shard->allocated - (int64_t)block->bytes);
        shard->requested -= (int64_t)block->requested;
        shard->n_frees++;
        lend__store_relaxed(&block->state, LEND__BLOCK_CACHED);
        lend__store_relaxed(&block->owner, NULL);
        block->free_next = stack->head;
        stack->head = block;
        stack->n++;
    }
    unlock(shard);
    return is_open;
}

void lend__shards_lock_all(struct lend_pool *pool) {
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++)
        for (uint32_t n = 0; !try_lock(&pool->shards[i]); n++)
            /* The holder may have lost its processor, perhaps to us: sleeping lets it on. */
            if (n > 100) lend__sleep_ns(20000);
    pthread_mutex_lock(&pool->lock);
}

void lend__shards_unlock_all(struct lend_pool *pool) {
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++) unlock(&pool->shards[i]);
}

void lend__shards_fold(struct lend_pool *pool) {
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++) fold(pool, &pool->shards[i]);
}

void lend__shards_empty(struct lend_pool *pool) {
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++) {
        for (uint32_t c = 0; c < LEND__N_STACKS; c++) {
            struct lend__stack *stack = &pool->shards[i].stacks[c];
            give_chain(pool, stack->head);
            stack->head = NULL;
            stack->n = 0;
        }
    }
}

void lend__shards_flush(struct lend_pool *pool) {
    if (!pool->has_shards) return;
    lend__shards_lock_all(pool);
    lend__shards_fold(pool);
    lend__shards_empty(pool);
    lend__shards_unlock_all(pool);
}

void lend__shards_close(struct lend_pool *pool) {
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++) pool->shards[i].is_open = 0;
}
