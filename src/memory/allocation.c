/* SPDX-License-Identifier: MIT */
/* The record of one allocation: made over an extent, freed with it. Whether it is linked, listed as a region or lent
 * is the business of pool, growth and trim. No locks: whoever makes or frees one is alone with it. */
#include "memory/allocation.h"

#include "base/error.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>

int lend__allocation_make(struct lend_pool *pool, const struct lend__device_ops *device,
                          const struct lend__extent *extent, struct lend__allocation **ret, struct lend_error *error) {
    struct lend__extent owned = *extent;
    struct lend__allocation *allocation = lend__zalloc(sizeof *allocation);
    /* Records for every granule of a file would cost more than all the tensors that it will ever have. */
    if (!allocation || (!extent->is_file && lend__starts_make(&allocation->starts, extent->bytes) < 0)) {
        free(allocation);
        device->allocation_free(&owned);
        return lend__fail_bytes(error, -ENOMEM, "calloc", extent->bytes, 0,
                                "no memory for the records of an allocation of %llu bytes",
                                (unsigned long long)extent->bytes);
    }
    allocation->extent = owned;
    allocation->device = device;
    allocation->pool = pool;
    allocation->index = LEND__ALLOCATION_UNLENT;
    *ret = allocation;
    return 0;
}

void lend__allocation_free(struct lend__allocation *allocation) {
    allocation->device->allocation_free(&allocation->extent);
    lend__starts_free(&allocation->starts);
    lend__places_free(&allocation->places);
    free(allocation);
}
