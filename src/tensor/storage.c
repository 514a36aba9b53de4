/* SPDX-License-Identifier: MIT */
/* Storages: birth, counting, and the end of those that nobody else can find.
 *
 * A count above 1 is lowered here, by compare-and-swap. The step from 1 to 0 belongs to `last_unref`, which looks
 * again under the lock of the table where the storage can be found. The count is read with acquire order, so that
 * whoever sees 1 also sees the `last_unref` that another holder set before it let go.
 *
 * Locking: none here. Pool storages are found by address under their pool's lock, through block->owner; the finder
 * takes a reference only from a count that is not 0, and lend__pool_free clears the owner under the same lock before
 * the struct goes. */
#include "tensor/storage.h"

#include "base/error.h"
#include "base/process.h"
#include "base/sys.h"
#include "device/device.h"

#include <errno.h>
#include <lend/tensor.h>
#include <stdlib.h>

/* A pool may stay empty: a storage of 0 bytes takes no block and no memory. */
int lend__storage_new_pool(struct lend_pool *pool, uint64_t bytes, struct lend__storage **ret,
                           struct lend_error *error) {
    void *memory = NULL;
    if (lend__sys.realloc(NULL, sizeof(struct lend__storage), &memory) < 0)
        return lend__fail_bytes(error, -ENOMEM, "malloc", sizeof(struct lend__storage), 0,
                                "no memory for the %zu bytes of a storage object", sizeof(struct lend__storage));
    struct lend__block *block = NULL;
    int r = bytes ? lend__pool_alloc(pool, bytes, &block, error) : 0;
    if (r < 0) {
        free(memory);
        return r;
    }
    struct lend__storage *storage = memory;
    *storage = (struct lend__storage){
        .n_refs = 1,
        .kind = LEND__STORAGE_POOL,
        .data = block ? lend__block_data(block) : NULL,
        .bytes = bytes,
        .device = {.device_type = lend__pool_device(pool)->device_type},
        .last_unref = lend__storage_last_unref_private,
        .block = block,
    };
    /* From here on a DLPack import of an address in the block can find the storage. */
    if (block) lend__store_release(&block->owner, storage);
    *ret = storage;
    return 0;
}

int lend__storage_new_private(const struct lend__private_memory *memory, struct lend__storage **ret,
                              struct lend_error *error) {
    void *at = NULL;
    if (lend__sys.realloc(NULL, sizeof(struct lend__storage), &at) < 0)
        return lend__fail_bytes(error, -ENOMEM, "malloc", sizeof(struct lend__storage), 0,
                                "no memory for the %zu bytes of a storage object", sizeof(struct lend__storage));
    struct lend__storage *storage = at;
    *storage = (struct lend__storage){
        .n_refs = 1,
        .kind = LEND__STORAGE_PRIVATE,
        .is_read_only = memory->is_read_only,
        .data = memory->data,
        .bytes = memory->bytes,
        .device = memory->device,
        .last_unref = lend__storage_last_unref_private,
        .private_release = memory->release,
        .private_ctx = memory->ctx,
    };
    *ret = storage;
    return 0;
}

int lend__storage_new_empty(enum lend__storage_kind kind, uint64_t bytes, struct lend__storage **ret,
                            struct lend_error *error) {
    bool is_meta = kind == LEND__STORAGE_META;
    const struct lend__private_memory nothing = {
        .bytes = bytes,
        .device = {.device_type = is_meta ? (DLDeviceType)LEND_DEVICE_META : kDLCPU},
        .is_read_only = !is_meta, /* what is 0 for ever cannot be written */
    };
    int r = lend__storage_new_private(&nothing, ret, error);
    if (r == 0) (*ret)->kind = kind;
    return r;
}

bool lend__storage_ref_unless_zero(struct lend__storage *storage) {
    uint32_t n = lend__load_relaxed(&storage->n_refs);
    while (n & ~LEND__REFS_LENT)
        if (lend__cas_relaxed(&storage->n_refs, &n, n + 1)) return true;
    return false;
}

void lend__storage_unref(struct lend__storage *storage) {
    uint32_t n = lend__load_acquire(&storage->n_refs);
    for (;;) {
        if ((n & ~LEND__REFS_LENT) == 1) {
            /* In a raw clone the locks may be held for ever and the memory is the parent's: only our struct goes. */
            if (lend__is_raw_clone())
                free(storage);
            else
                lend__load_relaxed (&storage->last_unref)(
                    storage); /* a fork may just be lending it: each looks again */
            return;
        }
        if (lend__cas_acq_rel(&storage->n_refs, &n, n - 1)) return;
    }
}

void lend__storage_last_unref_private(struct lend__storage *storage) {
    uint32_t only_one = 1;
    if (!lend__cas_acq_rel(&storage->n_refs, &only_one, 0)) { /* referenced again, or lent: look again who ends it */
        lend__storage_unref(storage);
        return;
    }
    if (storage->block) lend__pool_free(storage->block);
    if (storage->private_release) storage->private_release(storage->private_ctx);
    free(storage);
}
