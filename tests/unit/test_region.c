/* SPDX-License-Identifier: MIT */
/* From an address to the storage around it. */
#include "memory/region.h"

#include "base/checked.h"
#include "pool_fixture.h"
#include "tensor/storage.h"

static struct lend__storage storages[3];
static unsigned n_calls;

static struct lend__storage *storage_at(struct lend__region *region, const uint8_t *address, uint64_t bytes) {
    n_calls++;
    /* The first half of each range is a storage. */
    if (!lend__range_fits((uint64_t)(address - region->base), bytes, region->bytes / 2)) return NULL;
    return lend__storage_ref(region->owner);
}

static uint8_t memory[3000];

LEND_TEST(an_address_finds_the_range_it_lies_in) {
    static const unsigned order[] = {1, 2, 0};
    struct lend__region regions[3];
    CHECK_PTR(lend__region_find(memory, 1), NULL);
    for (unsigned i = 0; i < 3; i++) {
        unsigned k = order[i];
        storages[k].n_refs = 1;
        regions[k] = (struct lend__region){
            .base = memory + k * 1000, .bytes = 500, .storage_at = storage_at, .owner = &storages[k]};
        CHECK_CODE(lend__region_add(&regions[k]), 0);
    }
    for (unsigned k = 0; k < 3; k++) {
        const uint8_t *base = memory + k * 1000;
        CHECK_PTR(lend__region_find(base, 1), &storages[k]);
        CHECK_PTR(lend__region_find(base + 249, 1), &storages[k]);
        CHECK_PTR(lend__region_find(base + 100, 0), &storages[k]);
        CHECK_PTR(lend__region_find(base, 250), &storages[k]);
        CHECK_UINT(storages[k].n_refs, 5);
        CHECK_PTR(lend__region_find(base, 251), NULL);
        CHECK_PTR(lend__region_find(base + 250, 1), NULL);
        CHECK_PTR(lend__region_find(base + 100, 900), NULL);
        CHECK_PTR(lend__region_find(base + 100, 901), NULL);
        CHECK_PTR(lend__region_find(base + 1, UINT64_MAX), NULL);
        unsigned before = n_calls;
        CHECK_PTR(lend__region_find(base + 500, 1), NULL);
        CHECK_UINT(n_calls, before);
        /* Whatever was refused has given its references back. */
        CHECK_UINT(storages[k].n_refs, 5);
    }
    lend__region_remove(&regions[1]);
    CHECK_PTR(lend__region_find(memory + 1000, 1), NULL);
    CHECK_PTR(lend__region_find(memory, 1), &storages[0]);
    CHECK_PTR(lend__region_find(memory + 2000, 1), &storages[2]);
    lend__region_remove(&regions[1]); /* nothing happens */
    lend__region_remove(&regions[0]);
    lend__region_remove(&regions[2]);
    CHECK_PTR(lend__region_find(memory, 1), NULL);
}

LEND_TEST(many_ranges) {
    enum { N = 1000 };
    static struct lend__region regions[N];
    storages[0].n_refs = 1;
    for (unsigned i = 0; i < N; i++) {
        unsigned k = i * 7 % N; /* in no order */
        regions[k] = (struct lend__region){.base = (const uint8_t *)(uintptr_t)(0x10000 + 64 * k),
                                           .bytes = 64,
                                           .storage_at = storage_at,
                                           .owner = &storages[0]};
        CHECK_CODE(lend__region_add(&regions[k]), 0);
    }
    for (unsigned k = 0; k < N; k++) {
        CHECK(lend__region_find((void *)(uintptr_t)(0x10000 + 64 * k + 31), 1) != NULL);
        CHECK(lend__region_find((void *)(uintptr_t)(0x10000 + 64 * k + 32), 1) == NULL);
    }
    CHECK_UINT(storages[0].n_refs, N + 1);
    for (unsigned k = 0; k < N; k++) lend__region_remove(&regions[k]);
}
