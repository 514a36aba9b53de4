/* SPDX-License-Identifier: MIT */
/* Obtaining storages. Warm, it is one hold of the import lock and a take for each; no system call. Cold, the exporter
 * is contacted first, without the lock, and the warm path is tried again.
 *
 * The order within the lock is part of the protocol: the pin's token in a cell (P2), the count (L1), the word (L2), and
 * only when nothing can fail any more the cell "used"; whatever fails undoes what came before, and the pin stays good.
 * With several storages that holds for all of them together. */
#include "share/obtain.h"

#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/cell.h"
#include "share/context.h"
#include "share/lease.h"
#include "share/ledger.h"
#include "share/meta.h"
#include "share/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OPERATION "lend_rebuild"

/* While a slot is closing, or all cells wait for the exporter: it answers within microseconds unless it is stopped. */
#define WAIT_NS 20000u
/* After this many waits (about 2 ms) it is worth a system call to ask whether it lives. */
#define WAITS_BEFORE_LIFE_TEST 100

static const struct lend__wire_storage no_storage = {.device_type = kDLCPU, .allocation = LEND__CONTROL_NONE};

static uint64_t deadline_of(struct lend__obtain *job) {
    if (!job->deadline) job->deadline = lend__context_deadline(job->deadline_ns);
    return job->deadline;
}

static int stale(const struct lend__obtain *job, const struct lend__wire_storage *wire) {
    return lend__fail(
        job->error, -ESTALE, OPERATION,
        "the storage that the handle names (slot %u, generation %llu) is gone: its exporter dropped it and nothing "
        "held it; hold the tensor, or pin the handle, until it is rebuilt",
        wire->slot, (unsigned long long)wire->slot_gen);
}

static int forged(const struct lend__obtain *job, const struct lend__wire_storage *wire) {
    return lend__fail(job->error, -EBADMSG, OPERATION,
                      "the handle's range is not that of its storage (slot %u, %llu bytes at %llu)", wire->slot,
                      (unsigned long long)wire->bytes, (unsigned long long)wire->off);
}

/* --- before anybody is asked for anything ----------------------------------------------------------------------------- */

static int check_storage(const struct lend__obtain *job, const struct lend__wire_storage *wire) {
    uint64_t end;
    if (wire->device_type == LEND_DEVICE_META) return wire->allocation == LEND__CONTROL_NONE ? 0 : forged(job, wire);
    if (wire->device_type != kDLCPU)
        return lend__fail(job->error, -ENODEV, OPERATION,
                          "the tensor lies on a device of type %d, and this build has no back end for it",
                          wire->device_type);
    if (wire->allocation == LEND__CONTROL_NONE ? wire->bytes != 0
                                               : __builtin_add_overflow(wire->off, wire->bytes, &end))
        return forged(job, wire);
    return wire->slot >= LEND_SHM_SLOTS_MAX ? forged(job, wire) : 0;
}

/* What the bytes say must be sound, and a hostile handle must not send us knocking at another user's door. */
static int check(struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        struct lend__wanted *wanted = &job->wanted[i];
        if (wanted->is_skipped) continue;
        int r = check_storage(job, &wanted->wire);
        if (r < 0) return r;
        if (wanted->wire.device_type != LEND_DEVICE_META) job->sources[wanted->exporter].is_needed = true;
    }
    for (uint32_t i = 0; i < job->n_exporters; i++) {
        const struct lend__wire_exporter *exporter = &job->exporters[i];
        struct lend__source *source = &job->sources[i];
        if (!source->is_needed && !exporter->pin_token) continue;
        source->is_needed = true;
        source->is_own = !memcmp(exporter->identity.id, lend__context.identity.id, LEND__ID_BYTES) &&
                         !memcmp(exporter->identity.boot_id, lend__context.identity.boot_id, LEND__ID_BYTES);
        job->has_foreign |= !source->is_own;
        if (!exporter->socket_path && exporter->identity.uid != lend__context.identity.uid)
            return lend__fail(job->error, -EPERM, OPERATION,
                              "the handle names an exporter of user %u, and this process runs as %u",
                              exporter->identity.uid, lend__context.identity.uid);
    }
    return 0;
}

/* --- another process's: all under the import lock ------------------------------------------------------------------ */

/* Is what lives in the slot what the handle says? The entry is the exporter's word, the mapping the kernel's (I-5). */
static bool entry_matches(const struct lend__peer *peer, const struct lend__wire_storage *wire,
                          const struct lend__mapping *mapping) {
    const struct lend_shm_slot *entry = &lend__shm_slots(peer->table)[wire->slot];
    if (entry->allocation != wire->allocation || entry->allocation_gen != wire->allocation_gen ||
        entry->offset != wire->off || entry->bytes != wire->bytes)
        return false;
    if (wire->allocation == LEND__CONTROL_NONE) return wire->bytes == 0;
    uint64_t end;
    return !__builtin_add_overflow(wire->off, wire->bytes, &end) && end <= mapping->extent.bytes;
}

static struct lend__storage *new_storage(struct lend__peer *peer, const struct lend__wire_storage *wire,
                                         struct lend__mapping *mapping) {
    void *at = NULL;
    if (lend__sys.realloc(NULL, sizeof(struct lend__storage), &at) < 0) return NULL;
    struct lend__storage *storage = at;
    *storage = (struct lend__storage){
        .n_refs = 1,
        .kind = LEND__STORAGE_IMPORTED,
        .is_read_only = mapping && !mapping->extent.is_writable,
        .is_shared = true,
        .data = mapping ? mapping->extent.base + wire->off : NULL,
        .bytes = wire->bytes,
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
static int adopt(struct lend__obtain *job, struct lend__peer *peer, struct lend__wanted *wanted) {
    const struct lend__wire_storage *wire = &wanted->wire;
    struct lend__mapping *mapping = wanted->mapping;
    int r = !entry_matches(peer, wire, mapping) ? forged(job, wire) : lend__peer_room_imported(peer, wire->slot);
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
    wanted->got = storage;
    return 0;
}

static struct lend__storage *living(const struct lend__peer *peer, uint32_t slot) {
    return slot < peer->imported_room ? peer->imported[slot] : NULL;
}

/* Another handle, or another message, of a storage that lives here already: the same storage (I-2). */
static int join(const struct lend__obtain *job, struct lend__storage *storage, struct lend__wanted *wanted) {
    const struct lend__wire_storage *wire = &wanted->wire;
    if (storage->slot_gen != wire->slot_gen) return stale(job, wire);
    uint64_t offset = storage->mapping ? (uint64_t)(storage->data - storage->mapping->extent.base) : 0;
    if (storage->bytes != wire->bytes || offset != wire->off) return forged(job, wire);
    wanted->got = lend__storage_ref(storage);
    return 0;
}

/* Keeps the sources' peers while the lock is not held. */
static void hold_peers(struct lend__obtain *job, int n) {
    for (uint32_t i = 0; i < job->n_exporters; i++)
        if (job->sources[i].peer) job->sources[i].peer->n_users += (uint32_t)n;
}

/* Waits a moment without the lock. Mappings from which nothing is held yet may go meanwhile. */
static void wait_unlocked(struct lend__obtain *job) {
    hold_peers(job, 1);
    lend__import_unlock();
    lend__sleep_ns(WAIT_NS);
    lend__import_lock();
    hold_peers(job, -1);
    job->has_waited = true;
}

/* The slot is closing and our count is up: the exporter reopens it (we count) or had found it free. Meanwhile another
 * thread may have brought the storage here. */
static int take_closing(struct lend__obtain *job, struct lend__peer *peer, struct lend__wanted *wanted) {
    const struct lend__wire_storage *wire = &wanted->wire;
    for (int n = 0;; n++) {
        wait_unlocked(job);
        struct lend__storage *storage = living(peer, wire->slot);
        if (storage) {
            lend__lease_give_back(peer, wire->slot);
            return join(job, storage, wanted);
        }
        /* Known dead: read once more, and closing counts as open (facts: flaw 8). */
        bool is_dead = n % WAITS_BEFORE_LIFE_TEST == WAITS_BEFORE_LIFE_TEST - 1 && lend__peer_is_dead(peer);
        enum lend__take take = lend__lease_look(peer, wire->slot, wire->slot_gen, is_dead);
        if (take == LEND__TAKE_STALE) return stale(job, wire);
        if (take == LEND__TAKE_OK) {
            wanted->mapping = lend__peer_mapping(peer, wire->allocation, wire->allocation_gen);
            if (wanted->mapping || wire->allocation == LEND__CONTROL_NONE) return adopt(job, peer, wanted);
            lend__lease_give_back(peer, wire->slot); /* it was retired and swept while we waited */
            return stale(job, wire);
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
static int take_frozen(struct lend__obtain *job, struct lend__peer *peer, struct lend__wanted *wanted) {
    uint64_t word = lend__load_seq_cst(&lend__shm_slots(peer->table)[wanted->wire.slot].word);
    if (LEND_SHM_GEN(word) != wanted->wire.slot_gen || LEND_SHM_STATE(word) == LEND_SHM_FREE)
        return stale(job, &wanted->wire);
    return adopt(job, peer, wanted);
}

static int take(struct lend__obtain *job, struct lend__peer *peer, struct lend__wanted *wanted) {
    const struct lend__wire_storage *wire = &wanted->wire;
    struct lend__storage *storage = living(peer, wire->slot);
    if (storage) return join(job, storage, wanted);
    if (__builtin_expect(job->has_waited, 0) && wire->allocation != LEND__CONTROL_NONE) {
        wanted->mapping = lend__peer_mapping(peer, wire->allocation, wire->allocation_gen);
        if (!wanted->mapping) return stale(job, wire); /* retired and swept meanwhile */
    }
    /* Slots above n_slots were never used; reading them would give them memory. */
    if (wire->slot >= lend__load_acquire(&peer->table->n_slots)) return stale(job, wire);
    if (!peer->page) return take_frozen(job, peer, wanted);
    switch (lend__lease_take(peer, wire->slot, wire->slot_gen)) {
    case LEND__TAKE_OK: return adopt(job, peer, wanted);
    case LEND__TAKE_CLOSING: return take_closing(job, peer, wanted);
    default: return stale(job, wire);
    }
}

static bool is_file(const struct lend__storage *storage) {
    const struct lend__extent *extent = lend__storage_extent(storage);
    return extent && extent->is_file;
}

/* May the caller have this memory? */
static int check_access(const struct lend__obtain *job, const struct lend__storage *storage) {
    if (job->wants_writable && storage->is_read_only)
        return lend__fail(
            job->error, -EACCES, OPERATION,
            "the tensor is lent read-only; rebuild it without LEND_REBUILD_WRITABLE, or lend_tensor_copy it");
    if (!job->accepts_files && storage->mapping && storage->mapping->extent.is_file)
        return lend__fail(job->error, -EACCES, OPERATION,
                          "the tensor's memory is a file, which can be cut short under its readers (SIGBUS); accept that "
                          "with LEND_REBUILD_FILE_IN_PLACE, or let the lender read it into a pool");
    return 0;
}

/* --- the steps under the lock ---------------------------------------------------------------------------------------- */

static struct lend__mapping *append(struct lend__mapping *list, struct lend__mapping *more) {
    struct lend__mapping **end = &more;
    while (*end) end = &(*end)->next;
    *end = list;
    return more;
}

/* The peers from which can be taken. 1: this exporter must be contacted first. */
static int find_peers(struct lend__obtain *job, uint32_t *ret_cold) {
    for (uint32_t i = 0; i < job->n_exporters; i++) {
        struct lend__source *source = &job->sources[i];
        if (!source->is_needed || source->is_own) continue;
        struct lend__peer *peer = lend__peer_find(job->exporters[i].identity.id);
        source->peer = NULL;
        *ret_cold = i;
        if (!peer || !peer->table || (!peer->page && !lend__peer_known_dead(peer))) return 1;
        if (__builtin_expect(peer->seen_retired != lend__load_relaxed(&peer->table->n_retired), 0))
            job->retired = append(job->retired, lend__peer_sweep_retired(peer));
        source->peer = peer;
    }
    return 0;
}

/* The mappings, from the cursor on; the last time from the first. 1: the allocation at the cursor must be fetched. */
static int find_mappings(struct lend__obtain *job) {
    for (;;) {
        uint32_t from = job->cursor;
        for (uint32_t i = from; i < job->n_wanted; i++) {
            struct lend__wanted *wanted = &job->wanted[i];
            struct lend__peer *peer = job->sources[wanted->exporter].peer;
            if (wanted->is_skipped || !peer || wanted->wire.allocation == LEND__CONTROL_NONE) continue;
            wanted->mapping = lend__peer_mapping(peer, wanted->wire.allocation, wanted->wire.allocation_gen);
            if (wanted->mapping) continue;
            job->cursor = i;
            return 1;
        }
        job->cursor = 0;
        if (!from) return 0;
    }
}

static int begin_cells(struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_exporters; i++) {
        struct lend__source *source = &job->sources[i];
        uint64_t token = job->exporters[i].pin_token;
        if (!token || !source->peer || !source->peer->page || lend__peer_known_dead(source->peer)) continue;
        int cell = lend__cell_begin(source->peer, token);
        job->waits_for_cell = cell < 0;
        if (cell < 0) return cell;
        source->cell = cell + 1;
    }
    return 0;
}

static void end_cells(struct lend__obtain *job, bool is_good) {
    for (uint32_t i = 0; i < job->n_exporters; i++) {
        struct lend__source *source = &job->sources[i];
        if (!source->cell) continue;
        if (is_good)
            lend__cell_used(source->peer, source->cell - 1, job->exporters[i].pin_token);
        else
            lend__cell_clear(source->peer, source->cell - 1);
        source->cell = 0;
    }
}

static int take_all(struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        struct lend__wanted *wanted = &job->wanted[i];
        struct lend__peer *peer = job->sources[wanted->exporter].peer;
        if (wanted->is_skipped || !peer || wanted->wire.device_type == LEND_DEVICE_META) continue;
        int r = take(job, peer, wanted);
        if (r >= 0) r = check_access(job, wanted->got);
        if (r < 0) return r;
        if (__builtin_expect(is_file(wanted->got), 0)) job->is_final = false; /* its size is yet to be looked at */
    }
    return 0;
}

static void give_back(struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        if (job->wanted[i].got && !job->wanted[i].is_taken) lend__storage_unref(job->wanted[i].got);
        job->wanted[i].got = NULL;
    }
}

/* One try under the lock. 1: exporter `ret_cold` must be contacted first, for the storage at the cursor if its peer is
 * known. */
static int try_warm(struct lend__obtain *job, uint32_t *ret_cold) {
    lend__import_lock();
    job->has_waited = job->waits_for_cell = false;
    int r = find_peers(job, ret_cold);
    if (!r && (r = find_mappings(job))) *ret_cold = job->wanted[job->cursor].exporter;
    if (!r) r = begin_cells(job);
    if (!r) r = take_all(job);
    if (r < 0 || (!r && job->is_final)) end_cells(job, r >= 0);
    if (!r && !job->is_final) hold_peers(job, 1); /* until lend__obtain_end */
    lend__import_unlock();
    if (__builtin_expect(job->retired != NULL, 0)) lend__mapping_free_list(job->retired);
    job->retired = NULL;
    return r;
}

static int contact(struct lend__obtain *job, uint32_t cold) {
    const struct lend__wire_exporter *exporter = &job->exporters[cold];
    const struct lend__wire_storage *storage = &no_storage; /* an exporter whose pin alone is wanted */
    for (uint32_t i = job->cursor; i < job->n_wanted && storage == &no_storage; i++)
        if (!job->wanted[i].is_skipped && job->wanted[i].exporter == cold) storage = &job->wanted[i].wire;
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(exporter);
    lend__import_unlock();
    if (!peer) return lend__fail(job->error, -ENOMEM, OPERATION, "no memory for the record of an exporter");
    int r = lend__contact(peer, exporter, storage, deadline_of(job), job->error);
    lend__peer_release(peer);
    return r;
}

static int obtain_others(struct lend__obtain *job) {
    for (;;) {
        uint32_t cold = 0;
        int r = try_warm(job, &cold);
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
        r = contact(job, cold);
        if (r < 0) return r;
        if (lend__deadline_passed(deadline_of(job))) /* a contact succeeded, and what it brought is gone again */
            return lend__fail(job->error, -EAGAIN, OPERATION,
                              "the exporter retires the allocation again and again; try again");
    }
}

/* --- this process's own, and meta ------------------------------------------------------------------------------------ */

static int obtain_here(struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        struct lend__wanted *wanted = &job->wanted[i];
        const struct lend__wire_exporter *exporter = &job->exporters[wanted->exporter];
        int r = 0;
        if (wanted->is_skipped) continue;
        if (wanted->wire.device_type == LEND_DEVICE_META)
            r = lend__meta_obtain(&exporter->identity, &wanted->wire, &wanted->got, job->error);
        else if (job->sources[wanted->exporter].is_own)
            r = lend__ledger_find(&wanted->wire, &wanted->got, job->error);
        if (r >= 0 && wanted->got) r = check_access(job, wanted->got);
        if (r < 0) return r;
        if (wanted->got && is_file(wanted->got)) job->is_final = false;
    }
    return 0;
}

static void end_own_pins(const struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_exporters; i++) {
        if (!job->sources[i].is_own || !job->exporters[i].pin_token) continue;
        lend__ledger_lock();
        lend__pin_consume(job->exporters[i].pin_token);
        lend__ledger_unlock();
    }
}

/* The size of a file is looked at every time, and without a lock: it may lie on a slow disk. */
static int check_files(const struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        const struct lend__storage *storage = job->wanted[i].got;
        const struct lend__extent *extent = storage ? lend__storage_extent(storage) : NULL;
        if (!extent || !extent->is_file) continue;
        int r = lend__extent_file_check(extent, (uint64_t)(storage->data - extent->base), storage->bytes, OPERATION,
                                        job->error);
        if (r < 0) return r;
    }
    return 0;
}

int lend__obtain_begin(struct lend__obtain *job) {
    bool was_final = job->is_final;
    int r = check(job);
    if (r >= 0) r = obtain_here(job);
    if (r >= 0 && job->has_foreign) r = obtain_others(job);
    if (r < 0) {
        give_back(job);
        return r;
    }
    job->is_open = !job->is_final;
    r = check_files(job);
    if (r < 0) { /* never after a final step: files make it not final */
        lend__obtain_end(job, false);
        return r;
    }
    if (job->is_final)
        end_own_pins(job);
    else if (was_final)
        lend__obtain_end(job, true);
    return 0;
}

void lend__obtain_end(struct lend__obtain *job, bool is_good) {
    if (!job->is_open) {
        if (!is_good) give_back(job);
        return;
    }
    job->is_open = false;
    bool has_peers = false;
    for (uint32_t i = 0; i < job->n_exporters; i++) has_peers |= job->sources[i].peer != NULL;
    if (has_peers) {
        lend__import_lock();
        end_cells(job, is_good);
        lend__import_unlock();
    }
    if (is_good) end_own_pins(job);
    if (!is_good) give_back(job);
    for (uint32_t i = 0; i < job->n_exporters; i++)
        if (job->sources[i].peer) lend__peer_release(job->sources[i].peer);
}
