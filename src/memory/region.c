/* SPDX-License-Identifier: MIT */
/* The process-wide list of address ranges: an array of borrowed pointers, sorted by base. Ranges never overlap: each
 * is a mapping of its own.
 *
 * Locking: `lock` is the outermost of all lend locks but the context's. storage_at runs under it. */
#include "memory/region.h"

#include "base/checked.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lend__region **regions;
static size_t n_regions, n_room;

/* Index of the first region that begins above the address. */
static size_t upper_bound(const uint8_t *address) {
    size_t low = 0, high = n_regions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)regions[middle]->base <= (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int lend__region_add(struct lend__region *region) {
    pthread_mutex_lock(&lock);
    if (n_regions == n_room) {
        size_t room = n_room ? 2 * n_room : 16;
        void *p = NULL;
        if (lend__sys.realloc(regions, room * sizeof *regions, &p) < 0) {
            pthread_mutex_unlock(&lock);
            return -ENOMEM;
        }
        regions = p;
        n_room = room;
    }
    size_t at = upper_bound(region->base);
    memmove(regions + at + 1, regions + at, (n_regions - at) * sizeof *regions);
    regions[at] = region;
    n_regions++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static void remove_locked(const struct lend__region *region) {
    size_t at = upper_bound(region->base);
    if (at && regions[at - 1] == region) {
        n_regions--;
        memmove(regions + at - 1, regions + at, (n_regions + 1 - at) * sizeof *regions);
    }
    if (!n_regions) {
        free(regions);
        regions = NULL;
        n_room = 0;
    }
}

void lend__region_remove(struct lend__region *region) {
    pthread_mutex_lock(&lock);
    remove_locked(region);
    pthread_mutex_unlock(&lock);
}

void lend__region_fork_swap(struct lend__region *region, struct lend__region *fresh) {
    size_t at = upper_bound(region->base);
    if (fresh && at && regions[at - 1] == region)
        regions[at - 1] = fresh;
    else
        remove_locked(region);
}

static struct lend__storage *find_locked(const uint8_t *address, uint64_t bytes) {
    size_t at = upper_bound(address);
    if (!at) return NULL;
    struct lend__region *region = regions[at - 1];
    if (!lend__range_fits((uintptr_t)address - (uintptr_t)region->base, bytes, region->bytes)) return NULL;
    return region->storage_at(region, address, bytes);
}

struct lend__storage *lend__region_find(const void *address, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    struct lend__storage *storage = find_locked(address, bytes ? bytes : 1);
    pthread_mutex_unlock(&lock);
    return storage;
}

void lend__region_fork_prepare(void) {
    pthread_mutex_lock(&lock);
}

/* A child that is made while we hold the lock is its only thread: the lock is simply made new. */
void lend__region_fork_release(bool is_child) {
    if (is_child)
        pthread_mutex_init(&lock, NULL);
    else
        pthread_mutex_unlock(&lock);
}
