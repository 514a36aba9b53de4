/* SPDX-License-Identifier: MIT */
/* A pool that maps a file: one allocation, out of which any ranges are given at their own places. There is no heap, no
 * shard and nothing free: what nobody has taken is the file's. The books grow with what is given out, never with the
 * file.
 *
 * Two tensors of the same range share a storage while it lives, as two views do; so a block is first taken, and then
 * owned by the storage that was found there or else by the new one, in one hold of the lock.
 * Locking: the pool's lock. */
#include "base/checked.h"
#include "base/error.h"
#include "memory/pool.h"

#include <errno.h>

#define BAD(...) lend__fail(error, -EBADMSG, "lend_pool_check", __VA_ARGS__)
#define ULL(v) ((unsigned long long)(v))

int lend__pool_file(struct lend_pool *pool, const struct lend__extent **ret, const char *operation,
                    struct lend_error *error) {
    if (lend__pool_is_foreign(pool)) return lend__pool_fail_foreign(operation, error);
    if (!pool->is_file)
        return lend__fail(error, -EINVAL, operation,
                          "the pool maps no file: make one with LEND_POOL_FILE_IN_PLACE, or use lend_tensor_new");
    *ret = &pool->allocations->extent; /* from the pool's birth to its end */
    return 0;
}

int lend__pool_file_fail_alloc(uint64_t bytes, struct lend_error *error) {
    return lend__fail_bytes(error, -EOPNOTSUPP, "lend_tensor_new", bytes, 0,
                            "the pool maps a file and has no memory to give: lend_tensor_new_at shows what the file "
                            "holds, and new tensors need a pool of their own");
}

int lend__pool_place(struct lend_pool *pool, uint64_t off, uint64_t bytes, struct lend__block **ret,
                     struct lend_error *error) {
    pthread_mutex_lock(&pool->lock);
    struct lend__allocation *allocation = pool->allocations;
    struct lend__block *block = lend__heap_record_new(&pool->heap);
    int r = block ? 0 : -ENOMEM;
    if (block) {
        *block = (struct lend__block){.allocation = allocation, .off = off, .bytes = bytes};
        r = lend__places_add(&allocation->places, block);
        if (r < 0)
            lend__heap_record_drop(&pool->heap, block);
        else
            lend__pool_account_take(pool, block, (struct lend__fit){LEND__CLASS_NONE, bytes}, bytes);
    }
    if (r < 0) pool->n_failures++;
    pthread_mutex_unlock(&pool->lock);
    if (r < 0) return lend__fail_bytes(error, r, "calloc", bytes, 0, "no memory for a block's record");
    *ret = block;
    return 0;
}

/* With the lock held. */
static struct lend__storage *living(const struct lend__block *block) {
    struct lend__storage *storage = lend__load_acquire(&block->owner);
    return storage && lend__storage_ref_unless_zero(storage) ? storage : NULL;
}

struct lend__storage *lend__pool_place_own(struct lend__block *block, struct lend__storage *storage) {
    struct lend_pool *pool = block->allocation->pool;
    const struct lend__places *places = &block->allocation->places;
    struct lend__storage *found = NULL;
    pthread_mutex_lock(&pool->lock);
    struct lend__block *other = lend__places_find(places, block->off, block->bytes, NULL);
    while (other && !(found = living(other))) other = lend__places_find(places, block->off, block->bytes, other);
    if (!found) lend__store_release(&block->owner, storage);
    pthread_mutex_unlock(&pool->lock);
    return found ? found : storage;
}

void lend__pool_unplace_unlock(struct lend_pool *pool, struct lend__block *block) {
    struct lend__allocation *allocation = block->allocation;
    lend__places_remove(&allocation->places, block);
    lend__heap_record_drop(&pool->heap, block);
    if (pool->is_orphan && !allocation->places.n && !allocation->is_leaving)
        lend__pool_retire_unlock(pool, allocation);
    else
        pthread_mutex_unlock(&pool->lock);
}

struct lend__storage *lend__pool_file_storage_at(const struct lend__allocation *allocation, uint64_t off,
                                                 uint64_t bytes) {
    struct lend__storage *found = NULL;
    struct lend__block *block = lend__places_around(&allocation->places, off, bytes, NULL);
    while (block && !(found = living(block))) block = lend__places_around(&allocation->places, off, bytes, block);
    return found;
}

int lend__pool_check_place(const struct lend__block *block, struct lend_error *error) {
    const struct lend__allocation *allocation = block->allocation;
    if (block->state != LEND__BLOCK_USED || !block->bytes || block->requested != block->bytes)
        return BAD("the block at %llu of a file has %llu bytes for %llu asked, and the state %u", ULL(block->off),
                   ULL(block->bytes), ULL(block->requested), block->state);
    if (!lend__range_fits(block->off, block->bytes, allocation->extent.bytes))
        return BAD("the block at %llu of a file has %llu bytes and leaves the mapped %llu", ULL(block->off),
                   ULL(block->bytes), ULL(allocation->extent.bytes));
    const struct lend__block *found = NULL;
    do found = lend__places_find(&allocation->places, block->off, block->bytes, found);
    while (found && found != block);
    return found ? 0 : BAD("the block at %llu of a file is not found by its range", ULL(block->off));
}
