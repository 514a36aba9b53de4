/* SPDX-License-Identifier: MIT */
/* The table of what has been given out of a file. It doubles when it holds more blocks than buckets; without memory for
 * that it stays as it is, and its chains get longer. Under the pool's lock. */
#include "memory/places.h"

#include "base/checked.h"
#include "base/sys.h"
#include "memory/block.h"

#include <errno.h>
#include <stdlib.h>

#define BITS_MIN 4u

static uint64_t n_buckets(const struct lend__places *places) {
    return places->buckets ? (uint64_t)1 << places->bits : 0;
}

static struct lend__block **bucket_of(const struct lend__places *places, uint64_t off, uint64_t bytes) {
    uint64_t hash = (off * UINT64_C(0x9e3779b97f4a7c15) ^ bytes) * UINT64_C(0xd6e8feb86659fd93);
    return &places->buckets[hash >> (64 - places->bits)];
}

static void link_block(struct lend__places *places, struct lend__block *block) {
    struct lend__block **bucket = bucket_of(places, block->off, block->bytes);
    block->prev = NULL;
    block->next = *bucket;
    if (block->next) block->next->prev = block;
    *bucket = block;
}

static int grow(struct lend__places *places) {
    struct lend__places grown = {.bits = places->buckets ? places->bits + 1 : BITS_MIN, .n = places->n};
    grown.buckets = lend__zalloc(sizeof *grown.buckets << grown.bits);
    if (!grown.buckets) return -ENOMEM;
    for (struct lend__block *block = lend__places_next(places, NULL), *next; block; block = next) {
        next = lend__places_next(places, block);
        link_block(&grown, block);
    }
    free(places->buckets);
    *places = grown;
    return 0;
}

int lend__places_add(struct lend__places *places, struct lend__block *block) {
    if (places->n >= n_buckets(places) && grow(places) < 0 && !places->buckets) return -ENOMEM;
    link_block(places, block);
    places->n++;
    return 0;
}

void lend__places_remove(struct lend__places *places, struct lend__block *block) {
    if (block->next) block->next->prev = block->prev;
    if (block->prev)
        block->prev->next = block->next;
    else
        *bucket_of(places, block->off, block->bytes) = block->next;
    places->n--;
}

void lend__places_free(struct lend__places *places) {
    free(places->buckets);
    *places = (struct lend__places){0};
}

struct lend__block *lend__places_next(const struct lend__places *places, const struct lend__block *after) {
    if (after && after->next) return after->next;
    uint64_t i = after ? (uint64_t)(bucket_of(places, after->off, after->bytes) - places->buckets) + 1 : 0;
    while (i < n_buckets(places) && !places->buckets[i]) i++;
    return i < n_buckets(places) ? places->buckets[i] : NULL;
}

struct lend__block *lend__places_find(const struct lend__places *places, uint64_t off, uint64_t bytes,
                                      const struct lend__block *after) {
    struct lend__block *block = NULL;
    if (after)
        block = after->next;
    else if (places->buckets)
        block = *bucket_of(places, off, bytes);
    while (block && (block->off != off || block->bytes != bytes)) block = block->next;
    return block;
}

/* Smaller ones first; equal ones in the order of their records. */
static bool comes_before(const struct lend__block *a, const struct lend__block *b) {
    return a->bytes != b->bytes ? a->bytes < b->bytes : (uintptr_t)a < (uintptr_t)b;
}

struct lend__block *lend__places_around(const struct lend__places *places, uint64_t off, uint64_t bytes,
                                        const struct lend__block *after) {
    struct lend__block *best = NULL;
    for (struct lend__block *b = lend__places_next(places, NULL); b; b = lend__places_next(places, b)) {
        if (off < b->off || !lend__range_fits(off - b->off, bytes, b->bytes)) continue;
        if (after && !comes_before(after, b)) continue;
        if (!best || comes_before(b, best)) best = b;
    }
    return best;
}
