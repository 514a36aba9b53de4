/* SPDX-License-Identifier: MIT */
/* What the tests of docs/kinds.md share: a process with a pool and an actor beside it, tensors of every layout, the way
 * there and back, and the books of an exporter before and after. */
#ifndef LEND_TESTS_PROC_KIND_H_
#define LEND_TESTS_PROC_KIND_H_

#include "peer.h"

static const DLDataType float64 = {kDLFloat, 64, 1};
static const DLDataType complex64 = {kDLComplex, 64, 1};
static const DLDataType int32 = {kDLInt, 32, 1};
static const DLDataType int8 = {kDLInt, 8, 1};

struct fixture {
    struct lend_pool *pool;
    struct role peer; /* an actor */
    unsigned n_warnings;
    char warning[LEND_ERROR_TEXT_BYTES]; /* the last one */
};

void begin(struct fixture *f);
/* The same, with options of the context. `log` and `log_user` are set: warnings are counted. */
void begin_with(struct fixture *f, struct lend_opts *opts);
/* Ends the actor, expects all memory back, and closes. */
void end(struct fixture *f);

/* --- tensors -------------------------------------------------------------------------------------------------------- */

/* Bytes of a fixed pseudo-random sequence. */
struct lend_tensor *make(struct lend_pool *pool, DLDataType dtype, int32_t ndim, const int64_t *shape);
/* first, first + 1, ...; one-dimensional. */
struct lend_tensor *new_floats(struct lend_pool *pool, int64_t n, float first);
struct lend_tensor *new_int64s(struct lend_pool *pool, int32_t ndim, const int64_t *shape, const int64_t *values);
/* Memory of the caller, n bytes, as a producer of DLPack with those flags gives it. n_given_back counts its ends. */
struct lend_tensor *take(void *memory, int64_t n, uint64_t flags);
extern unsigned n_given_back;
/* The same, of memory that is freed with the last tensor. */
struct lend_tensor *new_private(int64_t n, int fill);

/* The same tensor with marks; consumes it. */
struct lend_tensor *marked(struct lend_tensor *tensor, uint32_t flags);
/* And with bytes of a binding. */
struct lend_tensor *tagged(struct lend_tensor *tensor, uint32_t flags, uint32_t tag, const char *text);

/* Makes the compound; consumes the components. */
struct lend_tensor *compose(struct lend_compound *compound);
/* A small valid tensor of that layout, other than strided and opaque; a wrapper wraps a CSR and a strided one. Index
 * components are int64. */
struct lend_tensor *new_of(struct lend_pool *pool, enum lend_layout layout);
/* Component i, borrowed. */
struct lend_tensor *component(const struct lend_tensor *tensor, uint32_t i);

/* --- to the other process and back ---------------------------------------------------------------------------------- */

/* Reduces, expects `code`, and rebuilds as the actor's tensor `slot`. */
void give(struct fixture *f, int slot, struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code);
/* Is the actor's tensor `slot` this one, in everything that describe tells? */
void expect_equal(struct role *actor, int slot, struct lend_tensor *tensor);
/* There, and back through a handle that the other made; every storage is the one that it was. */
void round_trip(struct fixture *f, struct lend_tensor *tensor);
void round_trip_and_drop(struct fixture *f, struct lend_tensor *tensor);
/* lend_reduce refuses with that code and these words, and nothing was lent or pinned. */
void expect_refused(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code, const char *words);

/* --- groups --------------------------------------------------------------------------------------------------------- */

struct lend_group *new_group(void);
void add(struct lend_group *group, const char *name, struct lend_tensor *tensor);
/* Appends and drops the tensor. */
void add_and_drop(struct lend_group *group, const char *name, struct lend_tensor *tensor);
/* Reduces and expects `code`, which is not negative. The path is for handle_drop. */
char *reduce_group(struct lend_group *group, const struct lend_reduce_opts *opts, int code);
/* The actor rebuilds it, and has the same tensors under the same names in the same order. */
void give_group(struct fixture *f, struct lend_group *group, const struct lend_reduce_opts *opts, int code);
/* lend_group_reduce refuses with that code; the sentence names `name` and says `words`. */
void expect_group_refused(struct lend_group *group, const struct lend_reduce_opts *opts, int code, const char *name,
                          const char *words);

/* --- books ---------------------------------------------------------------------------------------------------------- */

/* What this process has lent, and what its memory is used for. */
struct books {
    uint64_t n_storages, n_limbo, n_pins, pin_bytes, n_holds;
    uint64_t used_bytes; /* of all allocations, also of the context's own pool */
};

struct books books_now(void);
/* Waits for them: a pin's end is told by the other process. Checks everything else, too. */
void expect_books(struct books expected);

#endif
