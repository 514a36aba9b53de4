/* SPDX-License-Identifier: MIT */
/* One allocation of a pool: an extent of a device, carved into blocks. Fields are the pool's, under its lock, except
 * where they say otherwise. */
#ifndef LEND_MEMORY_ALLOCATION_H_
#define LEND_MEMORY_ALLOCATION_H_

#include "device/device.h"
#include "memory/places.h"
#include "memory/region.h"

struct lend_pool;
struct lend__block;

#define LEND__ALLOCATION_UNLENT UINT32_MAX

/* Which block lies around an offset? Per granule the first block that begins in it, and a bit that says whether there
 * is one, so that the middle of a large block finds its beginning 64 granules at a time. */
#define LEND__GRANULE_BITS 12
struct lend__starts {
    struct lend__block **first;
    uint64_t *bits;
};
int lend__starts_make(struct lend__starts *starts, uint64_t bytes);
void lend__starts_free(struct lend__starts *starts);
void lend__starts_add(struct lend__starts *starts, struct lend__block *block);
void lend__starts_remove(struct lend__starts *starts, struct lend__block *block);
/* The block around an offset below the allocation's size. Every byte belongs to one, so there is one. */
struct lend__block *lend__starts_find(const struct lend__starts *starts, uint64_t off);
/* Does the index say of all granules what the chain of blocks says? */
bool lend__starts_agree(const struct lend__starts *starts, const struct lend__block *first, uint64_t bytes);

struct lend__allocation {
    struct lend__extent extent;
    const struct lend__device_ops *device;
    struct lend_pool *pool;
    struct lend__region region;
    struct lend__allocation *prev, *next; /* of the pool */
    struct lend__block *first;            /* lowest address */
    struct lend__starts starts;
    struct lend__places places; /* of a file, which has neither of the two above: it is not carved, only looked at */
    bool is_leaving;            /* a file: on its way back to the system */
    /* Its name between processes, given by share/ when the first storage in it is lent. Written under the ledger lock.
     * index is LEND__ALLOCATION_UNLENT before. */
    uint32_t index, gen;
};

/* Makes the struct over an extent of the device; neither linked nor in the region list. On success the pool's record
 * owns the extent; on failure it is freed. Returns 0 or -ENOMEM. */
int lend__allocation_make(struct lend_pool *pool, const struct lend__device_ops *device,
                          const struct lend__extent *extent, struct lend__allocation **ret, struct lend_error *error);

/* Unmaps, closes and frees the struct. Its blocks are gone. */
void lend__allocation_free(struct lend__allocation *allocation);

#endif
