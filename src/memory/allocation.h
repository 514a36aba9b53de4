/* SPDX-License-Identifier: MIT */
/* One allocation of a pool: an extent of a device, carved into blocks. */
#ifndef LEND_MEMORY_ALLOCATION_H_
#define LEND_MEMORY_ALLOCATION_H_

#include "device/device.h"
#include "memory/region.h"

struct lend_pool;
struct lend__block;

#define LEND__ALLOCATION_UNLENT UINT32_MAX

struct lend__allocation {
    struct lend__extent extent;
    const struct lend__device_ops *device;
    struct lend_pool *pool;
    struct lend__region region;
    struct lend__allocation *prev, *next; /* of the pool */
    struct lend__block *first;            /* lowest address */
    /* Its name between processes, given by share/ when the first storage in it is lent. Written under the ledger lock.
     * index is LEND__ALLOCATION_UNLENT before. */
    uint32_t index, gen;
};

#endif
