/* SPDX-License-Identifier: MIT */
/* The way back: wholly free allocations return to the system, and the pool itself with its last block.
 *
 * An allocation leaves in this order: its block is held, so that nobody carves it (a file is marked instead); its
 * address leaves the region list; whoever lent it hears so; it is unlinked, its pages discarded where peers may still
 * map them, unmapped and closed. n_leaving keeps the pool while a thread is on that way.
 *
 * Points of a crash: M5 held; M6 unlinked, its pages still there; M7 gone, its bytes still booked. */
#include "base/point.h"
#include "memory/pool.h"

#include <lend/watch.h>
#include <stdlib.h>

/* Unlinks an allocation whose blocks are held and gives its memory back. */
void lend__pool_drop(struct lend_pool *pool, struct lend__allocation *allocation, bool was_in_use) {
    uint64_t bytes = allocation->extent.bytes;
    pthread_mutex_lock(&pool->lock);
    if (allocation->next) allocation->next->prev = allocation->prev;
    if (allocation->prev)
        allocation->prev->next = allocation->next;
    else
        pool->allocations = allocation->next;
    pool->n_allocations--;
    lend__heap_uncover(&pool->heap, allocation);
    pool->changing_bytes += bytes;
    pool->n_system++;
    pthread_mutex_unlock(&pool->lock);
    LEND_POINT("M6");
    /* Peers that still map it would keep the pages. Memory that they hold for reading only cannot be punched, and
     * adopted memory is its owner's. */
    if (allocation->index != LEND__ALLOCATION_UNLENT && !allocation->extent.is_peers_read_only && !pool->is_adopted &&
        allocation->device->allocation_discard)
        (void)allocation->device->allocation_discard(&allocation->extent);
    lend__allocation_free(allocation);
    LEND_POINT("M7");
    pthread_mutex_lock(&pool->lock);
    pool->changing_bytes -= bytes;
    pool->reserved_bytes -= bytes;
    pool->n_system--;
    if (was_in_use) pool->n_allocations_returned++;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

/* No lock is held; the allocation's one block is. */
static void leave(struct lend_pool *pool, struct lend__allocation *allocation) {
    uint64_t bytes = allocation->extent.bytes;
    LEND_POINT("M5");
    lend__region_remove(&allocation->region);
    if (allocation->index != LEND__ALLOCATION_UNLENT && lend__memory_hooks.allocation_retire)
        lend__memory_hooks.allocation_retire(allocation);
    lend__pool_drop(pool, allocation, true);
    if (lend__memory_hooks.event) lend__memory_hooks.event(LEND_WATCH_POOL_TRIMMED, bytes);
}

static bool is_empty(const struct lend__allocation *allocation) {
    if (allocation->extent.is_file) return !allocation->places.n && !allocation->is_leaving;
    return lend__block_is_whole(allocation->first) && lend__block_is_free(allocation->first);
}

static struct lend__allocation *find_empty(const struct lend_pool *pool) {
    struct lend__allocation *a = pool->allocations;
    while (a && !is_empty(a)) a = a->next;
    return a;
}

/* From now on it is nobody else's to give back. */
static void hold(struct lend_pool *pool, struct lend__allocation *allocation) {
    if (allocation->extent.is_file)
        allocation->is_leaving = true;
    else
        lend__heap_hold(&pool->heap, allocation->first);
    pool->n_leaving++;
}

uint64_t lend__pool_give_back(struct lend_pool *pool, uint64_t keep_bytes) {
    uint64_t returned = 0;
    pthread_mutex_lock(&pool->lock);
    /* An adopted range is the pool's whole purpose: it goes with the pool only. */
    bool may_leave = !pool->is_adopted || pool->is_orphan;
    while (may_leave && (pool->is_file || pool->heap.free_bytes > keep_bytes)) {
        struct lend__allocation *empty = find_empty(pool);
        if (!empty) break;
        returned += empty->extent.bytes;
        hold(pool, empty);
        pthread_mutex_unlock(&pool->lock);
        leave(pool, empty);
        pthread_mutex_lock(&pool->lock);
        pool->n_leaving--;
    }
    pthread_mutex_unlock(&pool->lock);
    return returned;
}

void lend__pool_retire_unlock(struct lend_pool *pool, struct lend__allocation *allocation) {
    hold(pool, allocation);
    pthread_mutex_unlock(&pool->lock);
    leave(pool, allocation);
    pthread_mutex_lock(&pool->lock);
    pool->n_leaving--;
    lend__pool_end_unlock(pool);
}

void lend__pool_end_unlock(struct lend_pool *pool) {
    bool is_over = pool->is_orphan && pool->n_allocs == pool->n_frees && !pool->n_leaving && !pool->n_system;
    pthread_mutex_unlock(&pool->lock);
    if (!is_over) return;
    lend__pools_remove(pool);
    lend__heap_fini(&pool->heap);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool->memory);
}
