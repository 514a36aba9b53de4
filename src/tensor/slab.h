/* SPDX-License-Identifier: MIT */
/* Tensor objects that are made together, as those of a group: one piece of memory for many, freed with the last of
 * them. Pieces are small, so that one tensor that outlives its group keeps no more than its neighbours' objects. */
#ifndef LEND_TENSOR_SLAB_H_
#define LEND_TENSOR_SLAB_H_

#include <stddef.h>
#include <stdint.h>

struct lend__slab;

/* Who makes tensors from slabs, one after another. Begins zeroed but for n_expected. */
struct lend__slab_maker {
    uint32_t n_expected;     /* objects that are still to come: the last slab is no larger than it must; 0: many */
    struct lend__slab *slab; /* the one that is being filled */
    uint32_t used, n;        /* bytes and objects taken from it */
};

/* Memory for an object, aligned for a tensor, and the slab to which it is given back. NULL: no memory. */
void *lend__slab_take(struct lend__slab_maker *maker, size_t bytes, struct lend__slab **ret_slab);

/* Nothing more is taken. */
void lend__slab_finish(struct lend__slab_maker *maker);

/* n objects of the slab are gone. Any thread. */
void lend__slab_give(struct lend__slab *slab, uint32_t n);

#endif
