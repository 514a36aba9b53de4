/* SPDX-License-Identifier: MIT */
/* A storage: a byte range that tensors view; counted in the process, never resized once shared or imported.
 *
 * The last reference is special: whoever holds a table in which a storage can be found (the ledger by slot, the
 * importer's table by slot) must not meet one that is about to go. So the step from 1 to 0 is made by `last_unref`,
 * under that table's lock, after looking at the count again. */
#ifndef LEND_TENSOR_STORAGE_H_
#define LEND_TENSOR_STORAGE_H_

#include "base/atomic.h"
#include "memory/block.h"

#include <lend/dlpack.h>
#include <stdbool.h>
#include <stdint.h>

struct lend__peer;
struct lend__mapping;

enum lend__storage_kind {
    LEND__STORAGE_POOL = 1,     /* a block of a pool of this process */
    LEND__STORAGE_IMPORTED = 2, /* a range of a peer's allocation, held by a lease */
    LEND__STORAGE_PRIVATE = 3,  /* memory of this process alone: DLPack, or a private copy */
    LEND__STORAGE_DROPPED = 4,  /* a forked child under LEND_FORK_DROP: the memory is gone */
    LEND__STORAGE_META = 5,     /* no memory at all: a size and an identity (data NULL, device meta) */
    LEND__STORAGE_ZERO = 6      /* no memory: every byte is 0 (data NULL) */
};

/* Set in n_refs for good when a storage gets its slot. Who has read "one reference, not lent" ends the storage without
 * a lock, and can so tell that it has been lent in between (by a fork of another thread; models/own.pml). */
#define LEND__REFS_LENT 0x80000000u

struct lend__storage {
    uint32_t n_refs; /* atomic: references, and LEND__REFS_LENT */
    uint8_t kind;    /* enum lend__storage_kind; changes only in a fork handler */
    bool is_read_only;
    bool is_shared; /* has a slot: reduced here, or imported */
    uint8_t *data;
    uint64_t bytes;
    DLDevice device;
    /* Called by lend__storage_unref when it saw a count of 1: takes the table's lock, lowers the count by one, and if
     * it is 0 then undoes everything and frees the struct. */
    void (*last_unref)(struct lend__storage *storage);
    struct lend__block *block;     /* POOL */
    struct lend__peer *peer;       /* IMPORTED */
    struct lend__mapping *mapping; /* IMPORTED */
    uint32_t slot;                 /* is_shared */
    uint64_t slot_gen;
    bool has_lease; /* IMPORTED: our page counts it (not for a dead exporter's, nor in a child without a page) */
    void (*private_release)(void *ctx); /* PRIVATE: gives the memory back; META: takes it out of share/meta.c's table.
                                         * Runs without a lock */
    void *private_ctx;
};

/* A storage with one reference over a fresh block of the pool. */
int lend__storage_new_pool(struct lend_pool *pool, uint64_t bytes, struct lend__storage **ret,
                           struct lend_error *error);

/* Memory of this process alone; release(ctx) is called with the last reference (NULL allowed). */
struct lend__private_memory {
    void *data;
    uint64_t bytes;
    DLDevice device;
    bool is_read_only;
    void (*release)(void *ctx);
    void *ctx;
};

/* A storage over it. On error the memory is still the caller's. */
int lend__storage_new_private(const struct lend__private_memory *memory, struct lend__storage **ret,
                              struct lend_error *error);

/* A storage without memory, of kind META or ZERO. */
int lend__storage_new_empty(enum lend__storage_kind kind, uint64_t bytes, struct lend__storage **ret,
                            struct lend_error *error);

static inline struct lend__storage *lend__storage_ref(struct lend__storage *storage) {
    lend__add_relaxed(&storage->n_refs, 1);
    return storage;
}

/* The extent in which a storage lies, own or mapped; NULL: private memory, or none. (It is a mapping's first member.) */
static inline const struct lend__extent *lend__storage_extent(const struct lend__storage *storage) {
    if (storage->block) return &storage->block->allocation->extent;
    return (const struct lend__extent *)storage->mapping;
}

/* Of a file's memory: is the file still long enough to be read? Asked before the library itself reads. 0 or -ESTALE. */
static inline int lend__storage_check_file(const struct lend__storage *storage, const char *operation,
                                           struct lend_error *error) {
    const struct lend__extent *extent = lend__storage_extent(storage);
    if (__builtin_expect(!extent || !extent->is_file, 1)) return 0;
    return lend__extent_file_check(extent, (uint64_t)(storage->data - extent->base), storage->bytes, operation, error);
}

/* Takes a reference unless the count is 0. For look-ups by address, under the pool's lock. */
bool lend__storage_ref_unless_zero(struct lend__storage *storage);

void lend__storage_unref(struct lend__storage *storage);

/* Lowers the count; true when it became 0. For last_unref functions, under their table's lock. */
static inline bool lend__storage_lower(struct lend__storage *storage) {
    return (lend__sub_acq_rel(&storage->n_refs, 1) & ~LEND__REFS_LENT) == 1;
}

static inline uint32_t lend__storage_refs(const struct lend__storage *storage) {
    return lend__load_acquire(&storage->n_refs) & ~LEND__REFS_LENT;
}

/* The last_unref of a pool storage that was never shared, and of private memory. */
void lend__storage_last_unref_private(struct lend__storage *storage);

#endif
