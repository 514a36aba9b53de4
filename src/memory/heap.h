/* SPDX-License-Identifier: MIT */
/* The heap of a pool: free blocks in two-level segregated lists (TLSF), so that finding one, splitting and merging
 * cost the same whatever is free. Knows allocations and blocks, no devices, budgets or threads. */
#ifndef LEND_MEMORY_HEAP_H_
#define LEND_MEMORY_HEAP_H_

#include "base/atomic.h"
#include "memory/block.h"

/* First level: powers of two; second: 16 steps between them. Sizes below 16 quanta have exact lists. */
#define LEND__HEAP_ROWS 60
#define LEND__HEAP_STEPS 16

struct lend__heap {
    uint32_t quantum_bits;
    uint64_t free_bytes; /* sum over the lists */
    uint64_t row_bits;
    uint16_t step_bits[LEND__HEAP_ROWS];
    struct lend__block *lists[LEND__HEAP_ROWS][LEND__HEAP_STEPS];
    struct lend__block *spare;        /* recycled records, by free_next */
    struct lend__block_chunk *chunks; /* where the records come from; they go with the heap */
};

void lend__heap_init(struct lend__heap *heap, uint32_t quantum_bits);
void lend__heap_fini(struct lend__heap *heap);

/* A block's record from the heap's store, and back to it. new gives NULL when there is no memory. */
struct lend__block *lend__heap_record_new(struct lend__heap *heap);
void lend__heap_record_drop(struct lend__heap *heap, struct lend__block *block);

/* Covers a fresh allocation by HELD blocks: the first of `bytes`, and the rest if there is any. Returns 0 or -ENOMEM
 * (nothing changed). */
int lend__heap_cover(struct lend__heap *heap, struct lend__allocation *allocation, uint64_t bytes);

/* Drops the records of an allocation's blocks, which are all HELD. */
void lend__heap_uncover(struct lend__heap *heap, struct lend__allocation *allocation);

/* Takes up to n blocks of exactly `bytes`, cut from one free block that holds as many as possible. Returns how many,
 * chained by free_next in the order of their addresses, state CACHED; 0: nothing fits, or no memory for records. */
uint32_t lend__heap_take(struct lend__heap *heap, uint64_t bytes, uint32_t n, struct lend__block **ret_chain);

/* Puts a block that is in no list back and merges it with free neighbours. Returns the merged block. */
struct lend__block *lend__heap_give(struct lend__heap *heap, struct lend__block *block);

/* Takes a free block out of the lists and holds it. */
void lend__heap_hold(struct lend__heap *heap, struct lend__block *block);

/* The largest block that a take would find now. */
uint64_t lend__heap_largest(const struct lend__heap *heap);

/* With the pool's lock held. A shard may just turn the block from cached to used or back; never to or from free. */
static inline bool lend__block_is_free(const struct lend__block *block) {
    return lend__load_relaxed(&block->state) == LEND__BLOCK_FREE;
}

static inline bool lend__block_is_whole(const struct lend__block *block) {
    return !block->prev && !block->next;
}

/* Do lists, bits and sizes agree? Counts blocks and bytes for lend_pool_check. */
bool lend__heap_lists_agree(const struct lend__heap *heap, uint64_t *ret_n, uint64_t *ret_bytes);

#endif
