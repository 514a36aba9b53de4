/* SPDX-License-Identifier: MIT */
/* Where a pool gets more: from its own heap, from limbo, from the shards, at last from the system.
 *
 * One thread grows at a time, the others wait for what it brings. Growth is all or nothing: bytes are booked against
 * the budget first, the device is asked with no lock held, and every failure unbooks. Allocations get larger with the
 * pool (half of what it has, 2 MiB to 1 GiB), so that 200,000 small tensors need a dozen; when budget or memory do
 * not suffice for that, exactly what is needed is tried.
 *
 * Points of a crash (the kernel frees everything; nothing has a name): M1 booked, nothing made; M2 made, known to
 * nobody; M3 linked, its blocks held; M4 its address known to look-ups. */
#include "base/checked.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "memory/pool.h"

#include <errno.h>
#include <lend/watch.h>

#define GROWTH_MIN ((uint64_t)2 << 20)
#define GROWTH_MAX ((uint64_t)1 << 30)

uint64_t lend__pool_step(const struct lend_pool *pool) {
    uint64_t page = lend__page_bytes(), alignment = pool->opts.alignment;
    return alignment > page ? alignment : page;
}

/* Which storage lies around the range? All locks of the pool are held, so owner and its count are stable. */
static struct lend__storage *storage_at(struct lend__region *region, const uint8_t *address, uint64_t bytes) {
    struct lend__allocation *allocation = region->owner;
    struct lend_pool *pool = allocation->pool;
    uint64_t off = (uint64_t)(address - region->base);
    struct lend__storage *storage = NULL;
    if (lend__pool_is_foreign(pool)) return NULL;
    lend__shards_lock_all(pool);
    if (pool->is_file) {
        storage = lend__pool_file_storage_at(allocation, off, bytes);
        lend__shards_unlock_all(pool);
        return storage;
    }
    struct lend__block *block = allocation->first ? lend__starts_find(&allocation->starts, off) : NULL;
    if (block && block->state == LEND__BLOCK_USED && lend__range_fits(off - block->off, bytes, block->requested))
        storage = lend__load_acquire(&block->owner);
    if (storage && !lend__storage_ref_unless_zero(storage)) storage = NULL;
    lend__shards_unlock_all(pool);
    return storage;
}

/* Counts `bytes` as reserved before they are. */
static int book(struct lend_pool *pool, uint64_t bytes, struct lend_error *error) {
    uint64_t budget = pool->opts.budget_bytes, after;
    int r = 0;
    pthread_mutex_lock(&pool->lock);
    uint64_t left = budget > pool->reserved_bytes ? budget - pool->reserved_bytes : 0;
    if (lend__add_overflows(pool->reserved_bytes, bytes, &after))
        r = lend__fail_bytes(error, -ENOMEM, "lend_tensor_new", bytes, 0, "%llu bytes are more than there can be",
                             (unsigned long long)bytes);
    else if (budget && bytes > left)
        r = -ENOSPC; /* the sentence is written when nothing else helps */
    if (r == 0) {
        pool->reserved_bytes = after;
        pool->changing_bytes += bytes;
        pool->n_system++;
    }
    pthread_mutex_unlock(&pool->lock);
    return r;
}

/* Ends what book() began, with the lock held. */
static void unbook(struct lend_pool *pool, uint64_t bytes, bool is_kept) {
    pool->changing_bytes -= bytes;
    if (!is_kept) pool->reserved_bytes -= bytes;
    if (pool->reserved_bytes > pool->reserved_bytes_peak) pool->reserved_bytes_peak = pool->reserved_bytes;
    pool->n_system--;
    pthread_cond_broadcast(&pool->changed);
}

/* Links an extent, all of whose bytes are booked; its blocks are held, and a file has none. The extent is consumed. */
static int link_extent(struct lend_pool *pool, const struct lend__extent *extent, uint64_t first_bytes,
                       struct lend__allocation **ret, struct lend_error *error) {
    uint64_t bytes = extent->bytes;
    struct lend__allocation *allocation = NULL;
    int r = lend__allocation_make(pool, pool->device, extent, &allocation, error);
    pthread_mutex_lock(&pool->lock);
    if (r == 0 && !pool->is_file) r = lend__heap_cover(&pool->heap, allocation, first_bytes);
    if (r < 0) {
        pthread_mutex_unlock(&pool->lock);
        if (allocation) {
            lend__fail_bytes(error, r, "calloc", bytes, 0, "no memory for a block's record");
            lend__allocation_free(allocation);
        }
        pthread_mutex_lock(&pool->lock);
    } else {
        allocation->next = pool->allocations;
        if (allocation->next) allocation->next->prev = allocation;
        pool->allocations = allocation;
        pool->n_allocations++;
        *ret = allocation;
    }
    unbook(pool, bytes, r == 0);
    pthread_mutex_unlock(&pool->lock);
    return r;
}

/* Makes an extent the pool's: with ret_block, its first fit.bytes are in use for `requested`. */
static int attach(struct lend_pool *pool, const struct lend__extent *extent, struct lend__fit fit, uint64_t requested,
                  struct lend__block **ret_block, struct lend_error *error) {
    struct lend__allocation *allocation = NULL;
    int r = link_extent(pool, extent, fit.bytes, &allocation, error);
    if (r < 0) return r;
    LEND_POINT("M3");
    allocation->region = (struct lend__region){
        .base = allocation->extent.base,
        .bytes = allocation->extent.bytes,
        .storage_at = storage_at,
        .owner = allocation,
    };
    r = lend__region_add(&allocation->region);
    if (r < 0) {
        lend__pool_drop(pool, allocation, false);
        return lend__fail_bytes(error, r, "realloc", extent->bytes, 0, "no memory for the list of address ranges");
    }
    LEND_POINT("M4");
    pthread_mutex_lock(&pool->lock);
    pool->n_allocations_made++;
    struct lend__block *first = allocation->first; /* NULL: a file */
    if (first && first->next) lend__heap_give(&pool->heap, first->next);
    if (first && ret_block) {
        lend__pool_account_take(pool, first, fit, requested);
        *ret_block = first;
    } else if (first) {
        lend__heap_give(&pool->heap, first);
    }
    pthread_mutex_unlock(&pool->lock);
    if (lend__memory_hooks.event) lend__memory_hooks.event(LEND_WATCH_POOL_GREW, extent->bytes);
    return 0;
}

static int ask_device(const struct lend_pool *pool, uint64_t bytes, struct lend__extent *ret,
                      struct lend_error *error) {
    const struct lend__allocation_request request = {
        .bytes = bytes,
        .alignment = pool->opts.alignment,
        .is_peers_read_only = pool->opts.flags & LEND_POOL_PEERS_READ_ONLY,
        .is_pretouched = pool->opts.flags & LEND_POOL_PRETOUCH,
        .huge_pages = pool->opts.huge_pages,
        .numa_mode = pool->opts.numa_mode,
        .numa_nodes = pool->opts.numa_nodes,
    };
    return pool->device->allocation_new(&request, ret, error);
}

static int extend(struct lend_pool *pool, uint64_t bytes, struct lend__fit fit, uint64_t requested,
                  struct lend__block **ret_block, struct lend_error *error) {
    struct lend__extent extent;
    int r = book(pool, bytes, error);
    if (r < 0) return r;
    LEND_POINT("M1");
    r = ask_device(pool, bytes, &extent, error);
    if (r < 0) {
        pthread_mutex_lock(&pool->lock);
        unbook(pool, bytes, false);
        pthread_mutex_unlock(&pool->lock);
        return r;
    }
    LEND_POINT("M2");
    return attach(pool, &extent, fit, requested, ret_block, error);
}

/* The sizes to try, best first; 0 ends them. */
static void growth_sizes(struct lend_pool *pool, uint64_t bytes, uint64_t ret_sizes[4]) {
    uint64_t step = lend__pool_step(pool), unit = step > GROWTH_MIN ? step : GROWTH_MIN, exact, rounded, large;
    ret_sizes[0] = 0;
    if (lend__round_up_overflows(bytes, step, &exact) || lend__round_up_overflows(bytes, unit, &rounded)) return;
    pthread_mutex_lock(&pool->lock);
    large = pool->reserved_bytes / 2;
    pthread_mutex_unlock(&pool->lock);
    if (large > GROWTH_MAX) large = GROWTH_MAX;
    large = (large + unit - 1) & ~(unit - 1);
    size_t n = 0;
    if (!pool->is_isolated && large > rounded) ret_sizes[n++] = large;
    if (!pool->is_isolated && rounded > exact) ret_sizes[n++] = rounded;
    ret_sizes[n++] = exact;
    ret_sizes[n] = 0;
}

static bool is_shortage(int code) {
    return code == -ENOMEM || code == -ENOSPC;
}

static int try_sizes(struct lend_pool *pool, struct lend__fit fit, uint64_t requested, struct lend__block **ret,
                     struct lend_error *error) {
    uint64_t sizes[4];
    int r = -ENOMEM;
    growth_sizes(pool, fit.bytes, sizes);
    for (size_t i = 0; sizes[i] && is_shortage(r); i++) {
        r = extend(pool, sizes[i], fit, requested, ret, error);
        if (r == 0) return 0;
    }
    return r;
}

static bool take_free(struct lend_pool *pool, struct lend__fit fit, uint64_t requested, struct lend__block **ret) {
    if (pool->is_isolated || !lend__heap_take(&pool->heap, fit.bytes, 1, ret)) return false;
    lend__pool_account_take(pool, *ret, fit, requested);
    return true;
}

/* What is free already, in limbo or in the shards. */
static bool take_collected(struct lend_pool *pool, struct lend__fit fit, uint64_t requested, struct lend__block **ret) {
    if (lend__memory_hooks.reclaim) (void)lend__memory_hooks.reclaim();
    lend__shards_flush(pool);
    pthread_mutex_lock(&pool->lock);
    bool is_taken = take_free(pool, fit, requested, ret);
    pthread_mutex_unlock(&pool->lock);
    return is_taken;
}

/* "available" is what a request would get now. */
static int fail_budget(struct lend_pool *pool, uint64_t asked, struct lend_error *error) {
    pthread_mutex_lock(&pool->lock);
    uint64_t budget = pool->is_adopted ? pool->reserved_bytes : pool->opts.budget_bytes;
    uint64_t available = budget > pool->reserved_bytes ? budget - pool->reserved_bytes : 0;
    uint64_t largest = lend__heap_largest(&pool->heap);
    pthread_mutex_unlock(&pool->lock);
    available &= ~(lend__pool_step(pool) - 1);
    if (available < largest) available = largest;
    return lend__fail_bytes(error, -ENOSPC, "lend_tensor_new", asked, available,
                            "%llu bytes asked, %llu available within the pool's %llu: drop tensors, or give the pool "
                            "a larger %s",
                            (unsigned long long)asked, (unsigned long long)available, (unsigned long long)budget,
                            pool->is_adopted ? "range" : "budget_bytes");
}

/* Called by one thread at a time, except for isolated pools, whose blocks do not come from one another. */
static int grow(struct lend_pool *pool, struct lend__fit fit, uint64_t requested, struct lend__block **ret,
                struct lend_error *error) {
    struct lend_error why; /* the caller's is written only when everything has failed */
    lend__fail_bytes(&why, -ENOMEM, "lend_tensor_new", requested, 0, "%llu bytes are more than there can be",
                     (unsigned long long)requested);
    if (take_collected(pool, fit, requested, ret)) return 0;
    int r = pool->is_adopted ? -ENOSPC : try_sizes(pool, fit, requested, ret, &why);
    /* Allocations that are empty but too small for this request make room for one that is not. */
    if (is_shortage(r) && !pool->is_adopted && lend__pool_give_back(pool, 0))
        r = try_sizes(pool, fit, requested, ret, &why);
    if (r == -ENOSPC) return fail_budget(pool, requested, error);
    if (r < 0 && error) *error = why;
    return r;
}

int lend__pool_take(struct lend_pool *pool, struct lend__fit fit, uint64_t requested, struct lend__block **ret,
                    struct lend_error *error) {
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        if (take_free(pool, fit, requested, ret)) {
            pthread_mutex_unlock(&pool->lock);
            return 0;
        }
        if (!pool->is_growing || pool->is_isolated) break;
        pthread_cond_wait(&pool->changed, &pool->lock);
    }
    pool->is_growing = true;
    pthread_mutex_unlock(&pool->lock);
    int r = grow(pool, fit, requested, ret, error);
    pthread_mutex_lock(&pool->lock);
    pool->is_growing = false;
    if (r < 0) pool->n_failures++;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    return r;
}

int lend__pool_reserve(struct lend_pool *pool, uint64_t bytes, struct lend_error *error) {
    uint64_t rounded;
    if (lend__round_up_overflows(bytes, lend__pool_step(pool), &rounded))
        return lend__fail(error, -EINVAL, "lend_pool_new", "initial_bytes is too large");
    if (pool->is_isolated)
        return lend__fail(error, -EINVAL, "lend_pool_new", "an isolated pool reserves nothing ahead");
    int r = extend(pool, rounded, (struct lend__fit){.bytes = rounded}, 0, NULL, error);
    return r == -ENOSPC ? fail_budget(pool, rounded, error) : r;
}

int lend__pool_probe(struct lend_pool *pool, struct lend_error *error) {
    struct lend__extent extent;
    if (!(pool->opts.flags & LEND_POOL_PEERS_READ_ONLY) && pool->opts.numa_mode == LEND_NUMA_DEFAULT) return 0;
    int r = ask_device(pool, lend__pool_step(pool), &extent, error);
    if (r == 0) pool->device->allocation_free(&extent);
    return r;
}

int lend__pool_adopt(struct lend_pool *pool, struct lend_error *error) {
    const struct lend_pool_opts *opts = &pool->opts;
    struct lend__extent extent;
    int r = book(pool, opts->adopt_bytes, error);
    if (r < 0) return r;
    if (pool->is_file)
        r = pool->device->file_adopt(opts->adopt_fd, opts->adopt_offset, opts->adopt_bytes, &extent, error);
    else
        r = pool->device->allocation_adopt(opts->adopt_fd, opts->adopt_offset, opts->adopt_bytes, &extent, error);
    if (r == 0 && !pool->is_file && (uintptr_t)extent.base & (opts->alignment - 1)) {
        pool->device->allocation_free(&extent);
        r = lend__fail(error, -EINVAL, "lend_pool_new", "the adopted range cannot be mapped at the alignment %u",
                       opts->alignment);
    }
    if (r < 0) {
        pthread_mutex_lock(&pool->lock);
        unbook(pool, opts->adopt_bytes, false);
        pthread_mutex_unlock(&pool->lock);
        return r;
    }
    return attach(pool, &extent, (struct lend__fit){.bytes = opts->adopt_bytes}, 0, NULL, error);
}
