/* SPDX-License-Identifier: MIT */
/* lend_rebuild: handle -> tensor. Warm, it is a decode, one hold of the import lock, a take, and two small objects; no
 * system call. Cold, the exporter is contacted first, without the lock, and the warm path is tried again.
 *
 * The order within the lock is part of the protocol: the pin's token in a cell (P2), the count (L1), the word (L2), the
 * tensor made, and only then the cell "used"; whatever fails undoes what came before, and the pin stays good. */
#include "share/rebuild.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/cell.h"
#include "share/context.h"
#include "share/lease.h"
#include "share/ledger.h"
#include "share/mapping.h"
#include "share/peer.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <lend/handle.h>
#include <stdlib.h>
#include <string.h>

#define OPERATION "lend_rebuild"

/* While a slot is closing, or all cells wait for the exporter: it answers within microseconds unless it is stopped. */
#define WAIT_NS 20000u
/* After this many waits (about 2 ms) it is worth a system call to ask whether it lives. */
#define WAITS_BEFORE_LIFE_TEST 100

/* What one rebuild carries through its steps. */
struct rebuild {
    const struct lend__wire *wire;
    const struct lend__geometry *geometry;
    const struct lend__extent_bits *checked;
    bool wants_read_only, wants_writable;
    int64_t deadline_ns;
    uint64_t deadline;             /* 0: the clock has not been asked yet (it never is on the warm path) */
    struct lend__mapping *retired; /* to be unmapped after the lock */
    struct lend__storage *orphan;  /* to be given back after the lock */
    bool waits_for_cell;
    struct lend_error *error;
};

static uint64_t deadline_of(struct rebuild *job) {
    if (!job->deadline) job->deadline = lend__context_deadline(job->deadline_ns);
    return job->deadline;
}

static int stale(struct rebuild *job) {
    return lend__fail(
        job->error, -ESTALE, OPERATION,
        "the storage that the handle names (slot %u, generation %llu) is gone: its exporter dropped it and nothing "
        "held it; hold the tensor, or pin the handle, until it is rebuilt",
        job->wire->slot, (unsigned long long)job->wire->slot_gen);
}

static int forged(struct rebuild *job) {
    return lend__fail(job->error, -EBADMSG, OPERATION,
                      "the handle's range is not that of its storage (slot %u, %llu bytes at %llu)", job->wire->slot,
                      (unsigned long long)job->wire->storage_bytes, (unsigned long long)job->wire->storage_off);
}

/* Makes the tensor over a storage whose reference it consumes on success, respecting read-only memory. */
static int finish(struct rebuild *job, struct lend__storage *storage, struct lend_tensor **ret) {
    bool is_read_only = storage->is_read_only || job->wire->is_read_only;
    if (is_read_only && job->wants_writable)
        return lend__fail(
            job->error, -EACCES, OPERATION,
            "the tensor is lent read-only; rebuild it without LEND_REBUILD_WRITABLE, or lend_tensor_copy it");
    int r = lend__tensor_make(job->geometry, job->checked, storage, is_read_only || job->wants_read_only, ret);
    return r < 0 ? lend__fail(job->error, r, OPERATION, "no memory for the tensor object") : 0;
}

/* --- the exporter itself -------------------------------------------------------------------------------------------- */

static int rebuild_own(struct rebuild *job, struct lend_tensor **ret) {
    struct lend__storage *storage = NULL;
    int r = lend__ledger_find(job->wire, &storage, job->error);
    if (r < 0) return r;
    r = finish(job, storage, ret);
    if (r < 0) {
        lend__storage_unref(storage);
        return r;
    }
    if (job->wire->pin_token) {
        lend__ledger_lock();
        lend__pin_consume(job->wire->pin_token);
        lend__ledger_unlock();
    }
    return 0;
}

/* --- another process's: all under the import lock ------------------------------------------------------------------ */

/* Is what lives in the slot what the handle says? The entry is the exporter's word, the mapping the kernel's (I-5). */
static bool entry_matches(const struct lend__peer *peer, const struct lend__wire *wire,
                          const struct lend__mapping *mapping) {
    const struct lend_shm_slot *entry = &lend__shm_slots(peer->table)[wire->slot];
    if (entry->allocation != wire->allocation || entry->allocation_gen != wire->allocation_gen ||
        entry->offset != wire->storage_off || entry->bytes != wire->storage_bytes)
        return false;
    if (wire->allocation == LEND__CONTROL_NONE) return wire->storage_bytes == 0;
    uint64_t end;
    return !__builtin_add_overflow(wire->storage_off, wire->storage_bytes, &end) && end <= mapping->extent.bytes;
}

static struct lend__storage *new_storage(struct lend__peer *peer, const struct lend__wire *wire,
                                         struct lend__mapping *mapping) {
    void *at = NULL;
    if (lend__sys.realloc(NULL, sizeof(struct lend__storage), &at) < 0) return NULL;
    struct lend__storage *storage = at;
    *storage = (struct lend__storage){
        .n_refs = 1,
        .kind = LEND__STORAGE_IMPORTED,
        .is_read_only = mapping && !mapping->extent.is_writable,
        .is_shared = true,
        .data = mapping ? mapping->extent.base + wire->storage_off : NULL,
        .bytes = wire->storage_bytes,
        .device = {kDLCPU, 0},
        .last_unref = lend__storage_last_unref_imported,
        .peer = peer,
        .mapping = mapping,
        .slot = wire->slot,
        .slot_gen = wire->slot_gen,
        .has_lease = peer->page != NULL,
    };
    return storage;
}

/* The lease is ours (or nobody can end it): the storage becomes known. */
static int adopt(struct rebuild *job, struct lend__peer *peer, struct lend__mapping *mapping,
                 struct lend__storage **ret) {
    const struct lend__wire *wire = job->wire;
    int r = !entry_matches(peer, wire, mapping) ? forged(job) : lend__peer_room_imported(peer, wire->slot);
    struct lend__storage *storage = r < 0 ? NULL : new_storage(peer, wire, mapping);
    if (!storage) {
        if (peer->page) lend__lease_give_back(peer, wire->slot);
        return r < 0 ? (r == -ENOMEM ? lend__fail(job->error, r, OPERATION, "no memory for the table of storages") : r)
                     : lend__fail(job->error, -ENOMEM, OPERATION, "no memory for the storage object");
    }
    peer->imported[wire->slot] = storage;
    peer->n_imported++;
    if (mapping) mapping->n_storages++;
    LEND_POINT("L2.adopted");
    *ret = storage;
    return 0;
}

static struct lend__storage *living(const struct lend__peer *peer, uint32_t slot) {
    return slot < peer->imported_room ? peer->imported[slot] : NULL;
}

/* Another handle, or another message, of a storage that lives here already: the same storage (I-2). */
static int join(struct rebuild *job, struct lend__storage *storage, struct lend__storage **ret) {
    const struct lend__wire *wire = job->wire;
    if (storage->slot_gen != wire->slot_gen) return stale(job);
    uint64_t offset = storage->mapping ? (uint64_t)(storage->data - storage->mapping->extent.base) : 0;
    if (storage->bytes != wire->storage_bytes || offset != wire->storage_off) return forged(job);
    *ret = lend__storage_ref(storage);
    return 0;
}

/* Waits a moment without the lock; what the peer is stays valid by its user count. */
static void wait_unlocked(struct lend__peer *peer) {
    peer->n_users++;
    lend__import_unlock();
    lend__sleep_ns(WAIT_NS);
    lend__import_lock();
    peer->n_users--;
}

/* The slot is closing and our count is up: the exporter reopens it (we count) or had found it free. Meanwhile another
 * thread may have brought the storage here. */
static int take_closing(struct rebuild *job, struct lend__peer *peer, struct lend__storage **ret) {
    const struct lend__wire *wire = job->wire;
    for (int n = 0;; n++) {
        wait_unlocked(peer);
        struct lend__storage *storage = living(peer, wire->slot);
        if (storage) {
            lend__lease_give_back(peer, wire->slot);
            return join(job, storage, ret);
        }
        /* Known dead: read once more, and closing counts as open (facts: flaw 8). */
        bool is_dead = n % WAITS_BEFORE_LIFE_TEST == WAITS_BEFORE_LIFE_TEST - 1 && lend__peer_is_dead(peer);
        enum lend__take take = lend__lease_look(peer, wire->slot, wire->slot_gen, is_dead);
        if (take == LEND__TAKE_STALE) return stale(job);
        if (take == LEND__TAKE_OK) {
            struct lend__mapping *mapping = lend__peer_mapping(peer, wire->allocation, wire->allocation_gen);
            if (mapping || wire->allocation == LEND__CONTROL_NONE) return adopt(job, peer, mapping, ret);
            lend__lease_give_back(peer, wire->slot); /* it was retired and swept while we waited */
            return stale(job);
        }
        if (lend__deadline_passed(deadline_of(job))) {
            lend__lease_give_back(peer, wire->slot);
            return lend__fail(job->error, -EAGAIN, OPERATION,
                              "the exporter (pid %u) is just closing slot %u and has not gone on within the deadline "
                              "(is it stopped?)",
                              peer->table->pid, wire->slot);
        }
    }
}

/* A dead exporter's tensor that came with a message, without a page of ours: its frozen word decides. */
static int take_frozen(struct rebuild *job, struct lend__peer *peer, struct lend__mapping *mapping,
                       struct lend__storage **ret) {
    uint64_t word = lend__load_seq_cst(&lend__shm_slots(peer->table)[job->wire->slot].word);
    if (LEND_SHM_GEN(word) != job->wire->slot_gen || LEND_SHM_STATE(word) == LEND_SHM_FREE) return stale(job);
    return adopt(job, peer, mapping, ret);
}

static int obtain_storage(struct rebuild *job, struct lend__peer *peer, struct lend__mapping *mapping,
                          struct lend__storage **ret) {
    const struct lend__wire *wire = job->wire;
    struct lend__storage *storage = living(peer, wire->slot);
    if (storage) return join(job, storage, ret);
    /* Slots above n_slots were never used; reading them would give them memory. */
    if (wire->slot >= lend__load_acquire(&peer->table->n_slots)) return stale(job);
    if (!peer->page) return take_frozen(job, peer, mapping, ret);
    switch (lend__lease_take(peer, wire->slot, wire->slot_gen)) {
    case LEND__TAKE_OK: return adopt(job, peer, mapping, ret);
    case LEND__TAKE_CLOSING: return take_closing(job, peer, ret);
    default: return stale(job);
    }
}

/* The import lock is held, the peer is in contact, the allocation is mapped. */
static int rebuild_warm(struct rebuild *job, struct lend__peer *peer, struct lend__mapping *mapping,
                        struct lend_tensor **ret) {
    if (__builtin_expect(peer->seen_retired != lend__load_relaxed(&peer->table->n_retired), 0))
        job->retired = lend__peer_sweep_retired(peer);
    if (mapping && mapping != lend__peer_mapping(peer, mapping->index, mapping->gen)) return stale(job);
    int cell = -1;
    if (job->wire->pin_token && peer->page && !lend__peer_known_dead(peer)) {
        cell = lend__cell_begin(peer, job->wire->pin_token);
        job->waits_for_cell = cell < 0;
        if (cell < 0) return cell;
    }
    struct lend__storage *storage = NULL;
    int r = obtain_storage(job, peer, mapping, &storage);
    if (r >= 0 && (r = finish(job, storage, ret)) < 0) job->orphan = storage;
    if (cell >= 0 && r < 0) lend__cell_clear(peer, cell);
    if (cell >= 0 && r >= 0) lend__cell_used(peer, cell, job->wire->pin_token);
    return r;
}

static int contact(struct rebuild *job) {
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(job->wire);
    lend__import_unlock();
    if (!peer) return lend__fail(job->error, -ENOMEM, OPERATION, "no memory for the record of an exporter");
    int r = lend__contact(peer, job->wire, deadline_of(job), job->error);
    lend__peer_release(peer);
    return r;
}

/* One try under the lock. Returns 1 when the exporter must be contacted first. */
static int try_warm(struct rebuild *job, struct lend_tensor **ret) {
    const struct lend__wire *wire = job->wire;
    int r = 1;
    lend__import_lock();
    struct lend__peer *peer = lend__peer_find(wire->exporter.id);
    if (peer && peer->table && (peer->page || lend__peer_known_dead(peer))) {
        struct lend__mapping *mapping = lend__peer_mapping(peer, wire->allocation, wire->allocation_gen);
        if (mapping || wire->allocation == LEND__CONTROL_NONE) r = rebuild_warm(job, peer, mapping, ret);
    }
    lend__import_unlock();
    if (__builtin_expect(job->retired != NULL, 0)) lend__mapping_free_list(job->retired);
    if (__builtin_expect(job->orphan != NULL, 0)) lend__storage_unref(job->orphan);
    job->retired = NULL;
    job->orphan = NULL;
    return r;
}

static int rebuild_other(struct rebuild *job, struct lend_tensor **ret) {
    for (;;) {
        int r = try_warm(job, ret);
        if (r == -EAGAIN && job->waits_for_cell) {
            if (lend__deadline_passed(deadline_of(job)))
                return lend__fail(
                    job->error, -EAGAIN, OPERATION,
                    "the exporter has not acknowledged %u earlier pins within the deadline (is it stopped?)",
                    LEND_SHM_CELLS);
            lend__sleep_ns(WAIT_NS);
            continue;
        }
        if (r <= 0) return r;
        r = contact(job);
        if (r < 0) return r;
        if (lend__deadline_passed(deadline_of(job))) /* a contact succeeded, and what it brought is gone again */
            return lend__fail(job->error, -EAGAIN, OPERATION,
                              "the exporter retires the allocation again and again; try again");
    }
}

static int check_opts(const struct lend_rebuild_opts *opts, struct rebuild *job) {
    if (!opts) return 0;
    if (opts->size != sizeof *opts)
        return lend__fail(job->error, -EINVAL, OPERATION,
                          "opts.size is %zu; set it to sizeof(struct lend_rebuild_opts) = %zu", opts->size,
                          sizeof *opts);
    if (opts->flags & ~(uint32_t)(LEND_REBUILD_READ_ONLY | LEND_REBUILD_WRITABLE) || opts->reserved)
        return lend__fail(job->error, -EINVAL, OPERATION, "opts.flags 0x%x has unknown bits", opts->flags);
    job->wants_read_only = opts->flags & LEND_REBUILD_READ_ONLY;
    job->wants_writable = opts->flags & LEND_REBUILD_WRITABLE;
    job->deadline_ns = opts->deadline_ns;
    return 0;
}

/* What the bytes say must be sound before anybody is asked for anything. */
static int check_wire(struct rebuild *job) {
    const struct lend__wire *wire = job->wire;
    uint64_t end;
    if (wire->device_type != kDLCPU)
        return lend__fail(job->error, -ENODEV, OPERATION,
                          "the tensor lies on a device of type %d, and this build has no back end for it",
                          wire->device_type);
    if (wire->allocation == LEND__CONTROL_NONE ? wire->storage_bytes != 0
                                               : __builtin_add_overflow(wire->storage_off, wire->storage_bytes, &end))
        return forged(job);
    if (wire->slot >= LEND_SHM_SLOTS_MAX) return forged(job);
    /* A hostile handle must not send us knocking at another user's door. */
    if (!wire->socket_path && wire->exporter.uid != lend__context.identity.uid)
        return lend__fail(job->error, -EPERM, OPERATION,
                          "the handle names an exporter of user %u, and this process runs as %u", wire->exporter.uid,
                          lend__context.identity.uid);
    return 0;
}

int lend__rebuild_wire(const struct lend__wire *wire, const struct lend_rebuild_opts *opts,
                       struct lend_tensor **ret_tensor, struct lend_error *error) {
    struct lend__geometry geometry = {
        .dtype = wire->dtype,
        .is_padded = wire->is_padded,
        .ndim = (int32_t)wire->ndim,
        .shape = wire->dims,
        .strides = wire->is_contiguous ? NULL : wire->dims + wire->ndim,
        .offset_bits = wire->offset_bits,
    };
    struct lend__extent_bits checked;
    struct rebuild job = {.wire = wire, .geometry = &geometry, .checked = &checked, .error = error};
    int r = check_opts(opts, &job);
    if (r < 0) return r;
    if (lend__geometry_check(&geometry, wire->storage_bytes, &checked, OPERATION, NULL) < 0)
        return lend__fail(error, -EBADMSG, OPERATION,
                          "the handle's dtype, shape, strides and offset do not fit its storage of %llu bytes",
                          (unsigned long long)wire->storage_bytes);
    r = check_wire(&job);
    if (r < 0) return r;
    if (!memcmp(wire->exporter.id, lend__context.identity.id, LEND__ID_BYTES) &&
        !memcmp(wire->exporter.boot_id, lend__context.identity.boot_id, LEND__ID_BYTES))
        return rebuild_own(&job, ret_tensor);
    return rebuild_other(&job, ret_tensor);
}

int lend_rebuild(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                 struct lend_tensor **ret_tensor, struct lend_error *error) {
    struct lend__wire wire;
    int r = lend__context_check(OPERATION, error);
    if (r >= 0) r = lend__wire_decode(handle, bytes, &wire, OPERATION, error);
    return r < 0 ? r : lend__rebuild_wire(&wire, opts, ret_tensor, error);
}
