/* SPDX-License-Identifier: MIT */
/* Which storage does an address lie in? One process-wide, sorted list of address ranges: own allocations and mapped
 * ones. Used when DLPack brings memory that is already ours.
 *
 * Locking: the region lock is the outermost of all lend locks but the context's. Regions are added and removed with no
 * other lend lock held; `storage_at` runs under it and may take the owner's lock. */
#ifndef LEND_MEMORY_REGION_H_
#define LEND_MEMORY_REGION_H_

#include <stdbool.h>
#include <stdint.h>

struct lend__storage;

struct lend__region {
    const uint8_t *base;
    uint64_t bytes;
    /* Finds the living storage around [address, address + bytes), which lies in the region and is not empty, and
     * returns it with a new reference, or NULL. Where several are around it, the smallest. */
    struct lend__storage *(*storage_at)(struct lend__region *region, const uint8_t *address, uint64_t bytes);
    void *owner;
};

/* Adds a range (borrowed until removed). Returns 0 or -ENOMEM. */
int lend__region_add(struct lend__region *region);
void lend__region_remove(struct lend__region *region);

/* The storage that contains [address, address + bytes), with a new reference, or NULL. */
struct lend__storage *lend__region_find(const void *address, uint64_t bytes);

/* Provided by tensor/storage.c: a call upwards, so it is declared here and not included. */
bool lend__storage_ref_unless_zero(struct lend__storage *storage);
void lend__storage_unref(struct lend__storage *storage);

/* In the child's fork handler, between prepare and release: puts `fresh` (NULL: nothing) in the place of a range that
 * changes hands. */
void lend__region_fork_swap(struct lend__region *region, struct lend__region *fresh);

/* Fork: the lock is taken in the prepare handler, before every lock but the context's, and released (or made new) after. */
void lend__region_fork_prepare(void);
void lend__region_fork_release(bool is_child);

#endif
