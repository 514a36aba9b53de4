/* SPDX-License-Identifier: MIT */
/* Shards: small stacks of ready blocks in front of the heap, one set per group of threads, so that the usual take and
 * give touch neither the pool's lock nor a line that another thread writes. */
#ifndef LEND_MEMORY_SHARD_H_
#define LEND_MEMORY_SHARD_H_

#include "base/atomic.h"
#include "memory/block.h"

#define LEND__N_SHARDS 16u
#define LEND__CLASS_NONE UINT32_MAX
/* Stacks of small blocks have fixed sizes, one for each class; a request is rounded up to its class. */
#define LEND__N_CLASSES 64u
#define LEND__SMALL_BYTES_MAX ((uint64_t)64 << 10)
/* Rounding up larger blocks would waste too much: their few stacks keep whatever exact size was given last. */
#define LEND__N_RECENT 8u
#define LEND__RECENT_BYTES_MAX ((uint64_t)2 << 20)
#define LEND__N_STACKS (LEND__N_CLASSES + LEND__N_RECENT)

struct lend__stack {
    struct lend__block *head; /* by free_next */
    uint64_t bytes;           /* of each block */
    uint32_t n, n_max;
};

/* Figures since they were last added to the pool's, so that a take or give writes one line only. */
struct lend__shard {
    uint32_t lock;    /* 1: taken. Never waited for in take and give */
    uint32_t is_open; /* 0: nothing is kept any more */
    int64_t allocated, allocated_peak, requested;
    uint64_t n_allocs, n_frees;
    struct lend__stack stacks[LEND__N_STACKS] __attribute__((aligned(64)));
} __attribute__((aligned(128)));

/* Sizes in quanta: each number up to 8, then 8 steps between powers of two; at most 1/8 is lost. */
static inline uint32_t lend__class_of(uint64_t units) {
    if (units <= 8) return (uint32_t)units - 1;
    uint32_t shift = 60 - (uint32_t)__builtin_clzll(units - 1);
    return (uint32_t)((units - 1) >> shift) + 8 * shift;
}

static inline uint64_t lend__class_units(uint32_t size_class) {
    if (size_class < 8) return size_class + 1;
    uint32_t shift = (size_class / 8 - 1) & 63; /* the mask changes nothing: classes end long before */
    return ((uint64_t)size_class % 8 + 9) << shift;
}

/* Where a request belongs: the stack, and the size of the block it gets. */
struct lend__fit {
    uint32_t size_class; /* LEND__CLASS_NONE: no shard keeps that size */
    uint64_t bytes;
};

static inline struct lend__fit lend__fit_of(uint32_t quantum_bits, uint64_t bytes) {
    uint64_t units = ((bytes - 1) >> quantum_bits) + 1;
    if (__builtin_expect(bytes <= LEND__SMALL_BYTES_MAX, 1)) {
        uint32_t size_class = lend__class_of(units);
        return (struct lend__fit){size_class, lend__class_units(size_class) << quantum_bits};
    }
    uint32_t slot = (uint32_t)(units * UINT64_C(0x9e3779b97f4a7c15) >> 61);
    bool is_kept = bytes <= LEND__RECENT_BYTES_MAX;
    return (struct lend__fit){is_kept ? LEND__N_CLASSES + slot : LEND__CLASS_NONE, units << quantum_bits};
}
_Static_assert(LEND__N_RECENT == 8, "the slot is three bits of a hash");

void lend__shards_init(struct lend_pool *pool);

/* Takes a block for `requested` bytes, whose fit has a class. NULL: none is kept and none was cheap to get. */
struct lend__block *lend__shards_take(struct lend_pool *pool, struct lend__fit fit, uint64_t requested);

/* Gives a block that has a class; false: not taken (busy, closed), the heap has to. */
bool lend__shards_give(struct lend_pool *pool, struct lend__block *block);

/* Takes every shard's lock and then the pool's; the only place where a shard's lock is waited for. */
void lend__shards_lock_all(struct lend_pool *pool);
void lend__shards_unlock_all(struct lend_pool *pool);

/* With all locks held: adds every shard's figures to the pool's. */
void lend__shards_fold(struct lend_pool *pool);
/* With all locks held: gives every kept block to the heap. */
void lend__shards_empty(struct lend_pool *pool);
/* The three together. */
void lend__shards_flush(struct lend_pool *pool);
/* With all locks held, for ever: frees go to the heap from now on. */
void lend__shards_close(struct lend_pool *pool);

/* With the pool's lock held: raises the peak if more is in use now. */
void lend__pool_note_peak(struct lend_pool *pool);

#endif
