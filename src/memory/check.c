/* SPDX-License-Identifier: MIT */
/* The whole truth about a pool, looked up again: blocks against allocations, lists and shards against blocks, sums
 * against both. Runs with all locks of the pool held; changes only where the shards' figures are kept. */
#include "base/error.h"
#include "memory/pool.h"

#include <errno.h>

/* What the blocks themselves add up to. */
struct sums {
    uint64_t n_allocations, bytes;
    uint64_t n_used, used_bytes, requested;
    uint64_t n_free, free_bytes;
    uint64_t n_cached;
};

#define BAD(...) lend__fail(error, -EBADMSG, "lend_pool_check", __VA_ARGS__)
#define ULL(v) ((unsigned long long)(v))

static int check_block(const struct lend_pool *pool, const struct lend__block *b, struct sums *sums,
                       struct lend_error *error) {
    uint64_t quantum = (uint64_t)1 << pool->quantum_bits;
    if (!b->bytes || b->bytes % quantum || b->off % quantum)
        return BAD("the block at %llu has %llu bytes: not in units of %llu", ULL(b->off), ULL(b->bytes), ULL(quantum));
    if (b->next && (b->next->prev != b || b->next->off != b->off + b->bytes))
        return BAD("the block at %llu and its neighbour do not meet", ULL(b->off));
    switch (b->state) {
    case LEND__BLOCK_FREE:
        if (b->next && b->next->state == LEND__BLOCK_FREE)
            return BAD("free blocks at %llu are not merged", ULL(b->off));
        sums->n_free++;
        sums->free_bytes += b->bytes;
        return 0;
    case LEND__BLOCK_USED:
        if (!b->requested || b->requested > b->bytes)
            return BAD("the block at %llu has %llu bytes for %llu asked", ULL(b->off), ULL(b->bytes),
                       ULL(b->requested));
        if (b->size_class < LEND__N_CLASSES && lend__class_units(b->size_class) << pool->quantum_bits != b->bytes)
            return BAD("the block at %llu has %llu bytes, not those of its class", ULL(b->off), ULL(b->bytes));
        sums->n_used++;
        sums->used_bytes += b->bytes;
        sums->requested += b->requested;
        return 0;
    case LEND__BLOCK_CACHED: sums->n_cached++; return 0;
    case LEND__BLOCK_HELD: return 0;
    default: return BAD("the block at %llu has the state %u", ULL(b->off), b->state);
    }
}

static int check_file(const struct lend__allocation *a, struct sums *sums, struct lend_error *error) {
    uint64_t n = 0;
    for (const struct lend__block *b = lend__places_next(&a->places, NULL); b; b = lend__places_next(&a->places, b)) {
        int r = b->allocation == a ? lend__pool_check_place(b, error) : BAD("a block is of another file");
        if (r < 0) return r;
        n++;
        sums->used_bytes += b->bytes;
        sums->requested += b->requested;
    }
    if (n != a->places.n || a->first) return BAD("a file has %llu blocks and counts %llu", ULL(n), ULL(a->places.n));
    sums->n_used += n;
    return 0;
}

static int check_carved(const struct lend_pool *pool, const struct lend__allocation *a, struct sums *sums,
                        struct lend_error *error) {
    const struct lend__block *last = NULL;
    if (!a->first || a->first->off != 0 || a->first->prev)
        return BAD("an allocation does not begin with its first block");
    for (const struct lend__block *b = a->first; b; last = b, b = b->next) {
        int r = b->allocation == a ? check_block(pool, b, sums, error) : BAD("a block is of another allocation");
        if (r < 0) return r;
    }
    if (last->off + last->bytes != a->extent.bytes)
        return BAD("the blocks cover %llu of %llu bytes", ULL(last->off + last->bytes), ULL(a->extent.bytes));
    if (!lend__starts_agree(&a->starts, a->first, a->extent.bytes))
        return BAD("a block of an allocation of %llu bytes is not found by its address", ULL(a->extent.bytes));
    return 0;
}

static int check_allocation(const struct lend_pool *pool, const struct lend__allocation *a, struct sums *sums,
                            struct lend_error *error) {
    int r = a->extent.is_file ? check_file(a, sums, error) : check_carved(pool, a, sums, error);
    if (r < 0) return r;
    if (a->next && a->next->prev != a) return BAD("the list of allocations is torn");
    sums->n_allocations++;
    sums->bytes += a->extent.bytes;
    return 0;
}

static int check_shards(const struct lend_pool *pool, uint64_t n_cached, struct lend_error *error) {
    uint64_t n_total = 0;
    for (uint32_t i = 0; i < LEND__N_SHARDS; i++) {
        for (uint32_t c = 0; c < LEND__N_STACKS; c++) {
            const struct lend__stack *stack = &pool->shards[i].stacks[c];
            uint32_t n = 0;
            for (const struct lend__block *b = stack->head; b; b = b->free_next, n++) {
                if (b->state != LEND__BLOCK_CACHED || b->size_class != c || b->bytes != stack->bytes || n >= stack->n)
                    return BAD("shard %u keeps a wrong block in class %u", i, c);
            }
            if (n != stack->n || n > stack->n_max) return BAD("shard %u counts class %u wrongly", i, c);
            n_total += n;
        }
    }
    if (n_total != n_cached) return BAD("%llu blocks are cached, the shards keep %llu", ULL(n_cached), ULL(n_total));
    return 0;
}

static int check_sums(struct lend_pool *pool, const struct sums *sums, struct lend_error *error) {
    const struct {
        const char *what;
        uint64_t kept, found;
    } pairs[] = {
        {"allocations", pool->n_allocations, sums->n_allocations},
        {"reserved bytes", pool->reserved_bytes, sums->bytes + pool->changing_bytes},
        {"blocks in use", pool->n_allocs - pool->n_frees, sums->n_used},
        {"bytes in use", (uint64_t)pool->allocated, sums->used_bytes},
        {"bytes asked for", (uint64_t)pool->requested, sums->requested},
        {"free bytes", pool->heap.free_bytes, sums->free_bytes},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (pairs[i].kept != pairs[i].found)
            return BAD("%s: the books say %llu, the blocks %llu", pairs[i].what, ULL(pairs[i].kept),
                       ULL(pairs[i].found));
    if (pool->opts.budget_bytes && pool->reserved_bytes > pool->opts.budget_bytes)
        return BAD("%llu bytes are reserved, over the budget of %llu", ULL(pool->reserved_bytes),
                   ULL(pool->opts.budget_bytes));
    if (pool->allocated > 0 && (uint64_t)pool->allocated > pool->allocated_peak)
        return BAD("the peak %llu is below the %lld bytes in use", ULL(pool->allocated_peak),
                   (long long)pool->allocated);
    return 0;
}

int lend__pool_check_locked(struct lend_pool *pool, struct lend_error *error) {
    struct sums sums = {0};
    uint64_t n_listed, listed_bytes;
    lend__shards_fold(pool);
    for (const struct lend__allocation *a = pool->allocations; a; a = a->next) {
        int r = check_allocation(pool, a, &sums, error);
        if (r < 0) return r;
    }
    if (!lend__heap_lists_agree(&pool->heap, &n_listed, &listed_bytes)) return BAD("a free list is damaged");
    if (n_listed != sums.n_free || listed_bytes != sums.free_bytes)
        return BAD("%llu blocks are free, the lists have %llu", ULL(sums.n_free), ULL(n_listed));
    int r = check_shards(pool, sums.n_cached, error);
    return r < 0 ? r : check_sums(pool, &sums, error);
}
