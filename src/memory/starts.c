/* SPDX-License-Identifier: MIT */
/* From an offset to the block around it. Per granule of 4 KiB: the first block that begins there, and a bit. Kept up
 * by every split and merge; a look-up steps from the granule's first block forward, or, when none begins at or before
 * the offset, back over clear bits. Under the pool's lock. */
#include "base/sys.h"
#include "memory/block.h"

#include <errno.h>
#include <stdlib.h>

int lend__starts_make(struct lend__starts *starts, uint64_t bytes) {
    uint64_t n = (bytes >> LEND__GRANULE_BITS) + 1;
    void *first = NULL, *bits = NULL;
    if (lend__sys.calloc(n, sizeof *starts->first, &first) < 0) return -ENOMEM;
    if (lend__sys.calloc((n + 63) / 64, sizeof *starts->bits, &bits) < 0) {
        free(first);
        return -ENOMEM;
    }
    *starts = (struct lend__starts){.first = first, .bits = bits};
    return 0;
}

void lend__starts_free(struct lend__starts *starts) {
    free(starts->first);
    free(starts->bits);
    *starts = (struct lend__starts){0};
}

void lend__starts_add(struct lend__starts *starts, struct lend__block *block) {
    uint64_t granule = block->off >> LEND__GRANULE_BITS;
    struct lend__block *first = starts->first[granule];
    if (first && first->off < block->off) return;
    starts->first[granule] = block;
    starts->bits[granule / 64] |= (uint64_t)1 << granule % 64;
}

void lend__starts_remove(struct lend__starts *starts, struct lend__block *block) {
    uint64_t granule = block->off >> LEND__GRANULE_BITS;
    if (starts->first[granule] != block) return;
    struct lend__block *next = block->next;
    if (next && next->off >> LEND__GRANULE_BITS == granule) {
        starts->first[granule] = next;
        return;
    }
    starts->first[granule] = NULL;
    starts->bits[granule / 64] &= ~((uint64_t)1 << granule % 64);
}

struct lend__block *lend__starts_find(const struct lend__starts *starts, uint64_t off) {
    uint64_t granule = off >> LEND__GRANULE_BITS;
    struct lend__block *block = starts->first[granule];
    if (!block || block->off > off) {
        /* The block began in an earlier granule: the last set bit below this one (block 0 sets bit 0). */
        uint64_t word = granule / 64, bits = starts->bits[word] & (((uint64_t)1 << granule % 64) - 1);
        while (!bits) bits = starts->bits[--word];
        block = starts->first[word * 64 + 63 - (uint64_t)__builtin_clzll(bits)];
    }
    while (block->next && block->next->off <= off) block = block->next;
    return block;
}

bool lend__starts_agree(const struct lend__starts *starts, const struct lend__block *first, uint64_t bytes) {
    const struct lend__block *block = first;
    for (uint64_t granule = 0; granule <= bytes >> LEND__GRANULE_BITS; granule++) {
        bool has_start = block && block->off >> LEND__GRANULE_BITS == granule;
        if (starts->first[granule] != (has_start ? block : NULL)) return false;
        if ((starts->bits[granule / 64] >> granule % 64 & 1) != has_start) return false;
        while (block && block->off >> LEND__GRANULE_BITS == granule) block = block->next;
    }
    return !block;
}
