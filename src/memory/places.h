/* SPDX-License-Identifier: MIT */
/* What has been given out of a file: blocks over any ranges, which may overlap. A hash table by range, so that whoever
 * asks for a range again finds what lies there; the blocks of a bucket are chained by prev and next. */
#ifndef LEND_MEMORY_PLACES_H_
#define LEND_MEMORY_PLACES_H_

#include <stdint.h>

struct lend__block;

struct lend__places {
    struct lend__block **buckets; /* NULL before the first block */
    uint32_t bits;                /* of their number */
    uint64_t n;                   /* blocks */
};

/* Returns 0, or -ENOMEM when there is no table yet and none can be had. */
int lend__places_add(struct lend__places *places, struct lend__block *block);
void lend__places_remove(struct lend__places *places, struct lend__block *block);
void lend__places_free(struct lend__places *places);

/* Each gives one block after another: NULL as `after` for the first, NULL when there are no more. */
/* All, in no order. */
struct lend__block *lend__places_next(const struct lend__places *places, const struct lend__block *after);
/* Those over exactly that range. */
struct lend__block *lend__places_find(const struct lend__places *places, uint64_t off, uint64_t bytes,
                                      const struct lend__block *after);
/* Those that contain the range, the smallest first. Cold: each call looks at all. */
struct lend__block *lend__places_around(const struct lend__places *places, uint64_t off, uint64_t bytes,
                                        const struct lend__block *after);

#endif
