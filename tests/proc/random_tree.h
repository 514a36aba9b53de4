/* SPDX-License-Identifier: MIT */
/* Random tensors and trees of every kind, from a seed: the same ones on any machine. Elements that mean something
 * (indices, pointers, sizes, scales) are right, so LEND_REBUILD_CHECK accepts them; all others are random. */
#ifndef LEND_TESTS_PROC_RANDOM_TREE_H_
#define LEND_TESTS_PROC_RANDOM_TREE_H_

#include <lend/lend.h>
#include <stdbool.h>
#include <stdint.h>

enum { TREE_ENTRIES_MAX = 24, FOREST_TENSORS_MAX = 512, FOREST_POOLS = 3 };

/* What is drawn from, and what the tree in making consists of so far. */
struct forest {
    uint64_t state;
    struct lend_pool *pools[FOREST_POOLS];        /* plain; peers read only; one allocation for each tensor */
    struct lend_tensor *borrowed[2];              /* of two other processes */
    struct lend_tensor *made[FOREST_TENSORS_MAX]; /* borrowed from the tree: what later parts may view again */
    unsigned n_made;
    uint64_t read_only_ids[FOREST_TENSORS_MAX]; /* storages of the pool that peers only read */
    unsigned n_read_only_ids;
    struct arena *arenas[16]; /* private memory, with a reference each */
    unsigned n_arenas;
};

/* One tensor, or the named ones of a group. */
struct tree {
    bool is_group;
    unsigned n;
    struct lend_tensor *tensors[TREE_ENTRIES_MAX]; /* with a reference each */
    char *names[TREE_ENTRIES_MAX];
};

/* Opens the pools. */
void forest_begin(struct forest *forest);
void forest_end(struct forest *forest);

/* From now on what this seed gives. */
void forest_seed(struct forest *forest, uint64_t seed);
uint32_t draw(struct forest *forest, uint32_t below);
/* One of n times. */
bool chance(struct forest *forest, uint32_t n);

/* Some of it is zero, some is private. Nothing of it is what lend_reduce refuses. */
void tree_make(struct forest *forest, struct tree *ret);
void tree_drop(struct forest *forest, struct tree *tree);

/* --- random_tensor.c ------------------------------------------------------------------------------------------------- */

DLDataType draw_dtype(struct forest *forest);
/* Up to ndim_max dimensions; now and then as many as there can be. Returns how many. */
int32_t draw_shape(struct forest *forest, int32_t ndim_max, int64_t *shape);

/* The private memory once more, as a tensor that knows nothing of the others; `is_shorter`: not all of it. */
struct lend_tensor *show_arena(struct forest *forest, struct arena *arena, bool is_shorter);
void arena_unref(struct arena *arena);

/* A tensor over a storage of its own, of whatever kind; `has_memory`: of a kind that can be written. */
struct lend_tensor *new_base(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape,
                             bool has_memory);
/* A tensor of this shape that lies somehow in its storage. */
struct lend_tensor *new_inside(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape,
                               bool has_memory);
/* Writes elements of whole bytes, in C order, wherever they lie. */
void write_items(struct lend_tensor *tensor, const void *items, size_t item_bytes);
struct lend_tensor *random_items(struct forest *forest, DLDataType dtype, int32_t ndim, const int64_t *shape);
/* int64 or int32 */
struct lend_tensor *integers(struct forest *forest, bool is_wide, int32_t ndim, const int64_t *shape,
                             const int64_t *values);

/* Each takes the tensor over, and gives a view of it, or one with attributes: with marks that only components may have,
 * if it is to be one. */
struct lend_tensor *viewed(struct forest *forest, struct lend_tensor *tensor);
struct lend_tensor *with_attributes(struct forest *forest, struct lend_tensor *tensor, bool is_component);

#endif
