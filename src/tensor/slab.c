/* SPDX-License-Identifier: MIT */
/* A slab counts the objects that are still to be given back. While it is filled the count is too high by UNFINISHED, so
 * that its maker need not touch it for each object; finishing takes away what was not used. */
#include "tensor/slab.h"

#include "base/atomic.h"
#include "base/sys.h"

#include <stdlib.h>

/* About eighty small tensors. */
#define SLAB_BYTES 8192
#define UNFINISHED (1u << 20)
#define ALIGNMENT 16

struct lend__slab {
    uint32_t n; /* atomic */
    uint32_t bytes;
    _Alignas(ALIGNMENT) uint8_t objects[];
};

void lend__slab_give(struct lend__slab *slab, uint32_t n) {
    if (lend__sub_acq_rel(&slab->n, n) == n) free(slab);
}

void lend__slab_finish(struct lend__slab_maker *maker) {
    if (maker->slab) lend__slab_give(maker->slab, UNFINISHED - maker->n);
    maker->n_expected -= maker->n < maker->n_expected ? maker->n : maker->n_expected;
    maker->slab = NULL;
    maker->used = maker->n = 0;
}

void *lend__slab_take(struct lend__slab_maker *maker, size_t bytes, struct lend__slab **ret_slab) {
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct lend__slab *slab = maker->slab;
    if (!slab || slab->bytes - maker->used < bytes) {
        void *at = NULL;
        lend__slab_finish(maker);
        size_t room =
            maker->n_expected && maker->n_expected < SLAB_BYTES / bytes ? maker->n_expected * bytes : SLAB_BYTES;
        if (room < bytes) room = bytes;
        if (lend__sys.realloc(NULL, sizeof *slab + room, &at) < 0) return NULL;
        slab = maker->slab = at;
        slab->n = UNFINISHED;
        slab->bytes = (uint32_t)room;
    }
    void *object = slab->objects + maker->used;
    maker->used += (uint32_t)bytes;
    maker->n++;
    *ret_slab = slab;
    return object;
}
