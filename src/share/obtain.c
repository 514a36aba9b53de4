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

#define FLAGS_KNOWN (LEND_REBUILD_READ_ONLY | LEND_REBUILD_WRITABLE | LEND_REBUILD_CHECK | LEND_REBUILD_FILE_IN_PLACE)

/* While a slot is closing, or all cells wait for the exporter: it answers within microseconds unless it is stopped. */
#define WAIT_NS 20000u
/* After this many waits (about 2 ms) it is worth a system call to ask whether it lives. */
#define WAITS_BEFORE_LIFE_TEST 100

int lend__obtain_check_opts(const struct lend_rebuild_opts *opts, struct lend_error *error) {
    if (opts->size != sizeof *opts)
        return lend__fail(error, -EINVAL, OPERATION,
                          "opts.size is %zu; set it to sizeof(struct lend_rebuild_opts) = %zu", opts->size,
                          sizeof *opts);
    if (opts->flags & ~(uint32_t)FLAGS_KNOWN || opts->reserved)
        return lend__fail(error, -EINVAL, OPERATION, "opts.flags 0x%x has unknown bits", opts->flags);
    return 0;
}

int lend__obtain_read_opts(const struct lend_rebuild_opts *opts, struct lend__obtain *job) {
    int r = opts ? lend__obtain_check_opts(opts, job->error) : 0;
    if (r < 0 || !opts) return r;
    job->wants_writable = opts->flags & LEND_REBUILD_WRITABLE;
    job->accepts_files = opts->flags & LEND_REBUILD_FILE_IN_PLACE;
    job->deadline_ns = opts->deadline_ns;
    return 0;
}

static uint64_t deadline_of(struct lend__obtain *job) {
    if (!job->deadline) job->deadline = lend__context_deadline(job->deadline_ns);
    return job->deadline;
}

static int stale(struct lend_error *error, const struct lend__wanted *wanted) {
    return lend__fail(
        error, -ESTALE, OPERATION,
        "the storage that the handle names (slot %u, generation %llu) is gone: its exporter dropped it and nothing "
        "held it; hold the tensor, or pin the handle, until it is rebuilt",
        wanted->slot, (unsigned long long)wanted->slot_gen);
}

static int forged(struct lend_error *error, const struct lend__wanted *wanted) {
    return lend__fail(error, -EBADMSG, OPERATION,
                      "the handle's range is not that of its storage (slot %u, %llu bytes at %llu)", wanted->slot,
                      (unsigned long long)wanted->bytes, (unsigned long long)wanted->off);
}

/* --- before anybody is asked for anything ----------------------------------------------------------------------------- */

/* Where the storages are. */
enum { HERE = 1, ELSEWHERE = 2 };

static int check_storage(const struct lend__obtain *job, const struct lend__row *row,
                         const struct lend__wanted *wanted) {
    uint64_t end;
    bool has_memory = row->allocation != LEND__CONTROL_NONE;
    if (row->device_type == LEND_DEVICE_META) return has_memory ? forged(job->error, wanted) : 0;
    if (row->device_type != kDLCPU)
        return lend__fail(job->error, -ENODEV, OPERATION,
                          "the tensor lies on a device of type %d, and this build has no back end for it",
                          row->device_type);
    if (has_memory ? __builtin_add_overflow(wanted->off, wanted->bytes, &end) : wanted->bytes != 0)
        return forged(job->error, wanted);
    return wanted->slot >= LEND_SHM_SLOTS_MAX ? forged(job->error, wanted) : 0;
}

static int check_exporters(struct lend__obtain *job, unsigned *where) {
    for (uint32_t i = 0; i < job->n_exporters; i++) {
        const struct lend__wire_exporter *exporter = &job->exporters[i];
        struct lend__source *source = &job->sources[i];
        if (!source->is_needed && !exporter->pin_token) continue;
        source->is_needed = true;
        source->is_own = !memcmp(exporter->identity.id, lend__context.identity.id, LEND__ID_BYTES) &&
                         !memcmp(exporter->identity.boot_id, lend__context.identity.boot_id, LEND__ID_BYTES);
        *where |= source->is_own ? HERE : ELSEWHERE;
        if (!exporter->socket_path && exporter->identity.uid != lend__context.identity.uid)
            return lend__fail(job->error, -EPERM, OPERATION,
                              "the handle names an exporter of user %u, and this process runs as %u",
                              exporter->identity.uid, lend__context.identity.uid);
    }
    return 0;
}

/* What the bytes say must be sound, and a hostile handle must not send us knocking at another user's door. */
static int check(struct lend__obtain *job, unsigned *where) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        const struct lend__wanted *wanted = &job->wanted[i];
        struct lend__row *row = &job->rows[wanted->row];
        if (wanted->is_skipped) continue;
        int r = check_storage(job, row, wanted);
        if (r < 0) return r;
        row->is_needed = true;
    }
    for (uint32_t i = 0; i < job->n_rows; i++) {
        const struct lend__row *row = &job->rows[i];
        if (!row->is_needed) continue;
        if (row->device_type == LEND_DEVICE_META)
            *where |= HERE;
        else
            job->sources[row->exporter].is_needed = true;
    }
    return check_exporters(job, where);
}

/* --- another process's: all under the import lock ------------------------------------------------------------------ */

/* Is what lives in the slot what the handle says? The entry is the exporter's word, the mapping the kernel's (I-5). */
static bool entry_matches(const struct lend__peer *peer, const struct lend__row *row,
                          const struct lend__wanted *wanted) {
    const struct lend_shm_slot *entry = &lend__shm_slots(peer->table)[wanted->slot];
    if (entry->allocation != row->allocation || entry->allocation_gen != row->allocation_gen ||
        entry->offset != wanted->off || entry->bytes != wanted->bytes)
        return false;
    if (row->allocation == LEND__CONTROL_NONE) return wanted->bytes == 0;
    uint64_t end;
    return !__builtin_add_overflow(wanted->off, wanted->bytes, &end) && end <= row->mapping->extent.bytes;
}

static struct lend__storage *new_storage(struct lend__peer *peer, struct lend__mapping *mapping,
                                         const struct lend__wanted *wanted) {
    struct lend__storage *storage = lend__storage_imported_alloc();
    if (!storage) return NULL;
    *storage = (struct lend__storage){
        .n_refs = 1,
        .kind = LEND__STORAGE_IMPORTED,
        .is_read_only = mapping && !mapping->extent.is_writable,
        .is_shared = true,
        .data = mapping ? mapping->extent.base + wanted->off : NULL,
        .bytes = wanted->bytes,
        .device = {kDLCPU, 0},
        .last_unref = lend__storage_last_unref_imported,
        .peer = peer,
        .mapping = mapping,
        .slot = wanted->slot,
        .slot_gen = wanted->slot_gen,
        .has_lease = peer->page != NULL,
    };
    return storage;
}

/* The lease is ours (or nobody can end it): the storage becomes known. */
static int adopt(struct lend__peer *peer, const struct lend__row *row, struct lend__wanted *wanted,
                 struct lend_error *error) {
    struct lend__mapping *mapping = row->mapping;
    int r = !entry_matches(peer, row, wanted) ? forged(error, wanted) : lend__peer_room_imported(peer, wanted->slot);
    struct lend__storage *storage = r < 0 ? NULL : new_storage(peer, mapping, wanted);
    if (!storage) {
        if (peer->page) lend__lease_give_back(peer, wanted->slot);
        return r < 0 ? (r == -ENOMEM ? lend__fail(error, r, OPERATION, "no memory for the table of storages") : r)
                     : lend__fail(error, -ENOMEM, OPERATION, "no memory for the storage object");
    }
    peer->imported[wanted->slot] = storage;
    peer->n_imported++;
    if (mapping) mapping->n_storages++;
    LEND_POINT("L2.adopted");
    wanted->got = storage;
    return 0;
}

/* Remembers which storage an error is about. */
static int about(struct lend__obtain *job, int code, uint32_t storage) {
    job->failed = storage + 1;
    return code;
}

static struct lend__storage *living(const struct lend__peer *peer, uint32_t slot) {
    return slot < peer->imported_room ? peer->imported[slot] : NULL;
}

/* Another handle, or another message, of a storage that lives here already: the same storage (I-2). */
static int join(struct lend__storage *storage, struct lend__wanted *wanted, struct lend_error *error) {
    if (storage->slot_gen != wanted->slot_gen) return stale(error, wanted);
    uint64_t offset = storage->mapping ? (uint64_t)(storage->data - storage->mapping->extent.base) : 0;
    if (storage->bytes != wanted->bytes || offset != wanted->off) return forged(error, wanted);
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
    struct lend__row *row = &job->rows[wanted->row];
    for (int n = 0;; n++) {
        wait_unlocked(job);
        struct lend__storage *storage = living(peer, wanted->slot);
        if (storage) {
            lend__lease_give_back(peer, wanted->slot);
            return join(storage, wanted, job->error);
        }
        /* Known dead: read once more, and closing counts as open (facts: flaw 8). */
        bool is_dead = n % WAITS_BEFORE_LIFE_TEST == WAITS_BEFORE_LIFE_TEST - 1 && lend__peer_is_dead(peer);
        enum lend__take take = lend__lease_look(peer, wanted->slot, wanted->slot_gen, is_dead);
        if (take == LEND__TAKE_STALE) return stale(job->error, wanted);
        if (take == LEND__TAKE_OK) {
            row->mapping = lend__peer_mapping(peer, row->allocation, row->allocation_gen);
            if (row->mapping || row->allocation == LEND__CONTROL_NONE) return adopt(peer, row, wanted, job->error);
            lend__lease_give_back(peer, wanted->slot); /* it was retired and swept while we waited */
            return stale(job->error, wanted);
        }
        if (lend__deadline_passed(deadline_of(job))) {
            lend__lease_give_back(peer, wanted->slot);
            return lend__fail(job->error, -EAGAIN, OPERATION,
                              "the exporter (pid %u) is just closing slot %u and has not gone on within the deadline "
                              "(is it stopped?)",
                              peer->table->pid, wanted->slot);
        }
    }
}

/* A dead exporter's tensor that came with a message, without a page of ours: its frozen word decides. */
static int take_frozen(struct lend__obtain *job, struct lend__peer *peer, struct lend__wanted *wanted) {
    uint64_t word = lend__load_seq_cst(&lend__shm_slots(peer->table)[wanted->slot].word);
    if (LEND_SHM_GEN(word) != wanted->slot_gen || LEND_SHM_STATE(word) == LEND_SHM_FREE)
        return stale(job->error, wanted);
    return adopt(peer, &job->rows[wanted->row], wanted, job->error);
}

static int take(struct lend__obtain *job, struct lend__peer *peer, struct lend__row *row, struct lend__wanted *wanted) {
    struct lend__storage *storage = living(peer, wanted->slot);
    if (storage) return join(storage, wanted, job->error);
#ifndef LEND_MUTANT_MAPPINGSTALE
    if (__builtin_expect(job->has_waited, 0) && row->allocation != LEND__CONTROL_NONE) {
        row->mapping = lend__peer_mapping(peer, row->allocation, row->allocation_gen);
        if (!row->mapping) return stale(job->error, wanted); /* retired and swept meanwhile */
    }
#endif
    /* Slots above n_slots were never used; reading them would give them memory. */
    if (wanted->slot >= lend__load_acquire(&peer->table->n_slots)) return stale(job->error, wanted);
    if (!peer->page) return take_frozen(job, peer, wanted);
    switch (lend__lease_take(peer, wanted->slot, wanted->slot_gen)) {
    case LEND__TAKE_OK: return adopt(peer, row, wanted, job->error);
    case LEND__TAKE_CLOSING: return take_closing(job, peer, wanted);
    default: return stale(job->error, wanted);
    }
}

/* Of a file's memory the size is yet to be looked at. */
static void note_file(struct lend__obtain *job, const struct lend__storage *storage) {
    const struct lend__extent *extent = lend__storage_extent(storage);
    if (__builtin_expect(!extent || !extent->is_file, 1)) return;
    job->has_files = true;
    job->is_final = false;
}

/* May the caller have this memory? */
static int check_access(const struct lend__obtain *job, const struct lend__storage *storage) {
    if (job->wants_writable && storage->is_read_only)
        return lend__fail(
            job->error, -EACCES, OPERATION,
            "the tensor is lent read-only; rebuild it without LEND_REBUILD_WRITABLE, or lend_tensor_copy it");
    if (!job->accepts_files && storage->mapping && storage->mapping->extent.is_file)
        return lend__refuse_file(OPERATION, job->error);
    return 0;
}

/* --- one storage, and nothing unusual about it ------------------------------------------------------------------------ */

void lend__obtain_fill(const struct lend__wire_storage *wire, struct lend__row *ret_row, struct lend__wanted *ret) {
    *ret_row = (struct lend__row){
        .device_type = wire->device_type, .allocation = wire->allocation, .allocation_gen = wire->allocation_gen};
    *ret =
        (struct lend__wanted){.slot = wire->slot, .slot_gen = wire->slot_gen, .off = wire->off, .bytes = wire->bytes};
}

/* The handle of a storage that lives here: a reference, or 1. */
static int join_warm(struct lend__storage *storage, const struct lend__wire_storage *wire, struct lend__storage **ret) {
    if (storage->slot_gen != wire->slot_gen || storage->bytes != wire->bytes ||
        (uint64_t)(storage->data - storage->mapping->extent.base) != wire->off)
        return 1;
    *ret = lend__storage_ref(storage);
    return 0;
}

static int take_warm(struct lend__peer *peer, struct lend__mapping *mapping, const struct lend__wire_storage *wire,
                     struct lend__storage **ret) {
    struct lend__row row;
    struct lend__wanted wanted;
    if (wire->slot >= lend__load_acquire(&peer->table->n_slots)) return 1;
    lend__obtain_fill(wire, &row, &wanted);
    row.mapping = mapping;
    enum lend__take take = lend__lease_take(peer, wire->slot, wire->slot_gen);
    if (take == LEND__TAKE_CLOSING) lend__lease_give_back(peer, wire->slot);
    if (take != LEND__TAKE_OK || adopt(peer, &row, &wanted, NULL) < 0) return 1;
    *ret = wanted.got;
    return 0;
}

int lend__obtain_warm(const struct lend__wire_exporter *exporter, const struct lend__wire_storage *wire,
                      bool wants_writable, struct lend__storage **ret) {
    int r = 1;
    if (exporter->pin_token || wire->device_type != kDLCPU || wire->slot >= LEND_SHM_SLOTS_MAX) return r;
    lend__import_lock();
    struct lend__peer *peer = lend__peer_find(exporter->identity.id);
    struct lend__mapping *mapping = NULL;
    if (peer && peer->page && peer->seen_retired == lend__load_relaxed(&peer->table->n_retired))
        mapping = lend__peer_mapping(peer, wire->allocation, wire->allocation_gen);
    if (mapping && !mapping->extent.is_file && (!wants_writable || mapping->extent.is_writable)) {
        struct lend__storage *storage = living(peer, wire->slot);
        if (storage && storage->mapping == mapping) r = join_warm(storage, wire, ret);
        if (!storage) r = take_warm(peer, mapping, wire, ret);
    }
    lend__import_unlock();
    return r;
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
        for (uint32_t i = from; i < job->n_rows; i++) {
            struct lend__row *row = &job->rows[i];
            struct lend__peer *peer = job->sources[row->exporter].peer;
            if (!row->is_needed || !peer || row->allocation == LEND__CONTROL_NONE) continue;
            row->mapping = lend__peer_mapping(peer, row->allocation, row->allocation_gen);
            if (row->mapping) continue;
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
#ifdef LEND_MUTANT_PINLOST
        is_good = true;
#endif
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
        struct lend__row *row = &job->rows[wanted->row];
        struct lend__peer *peer = job->sources[row->exporter].peer;
        if (wanted->is_skipped || !peer || row->device_type == LEND_DEVICE_META) continue;
        int r = take(job, peer, row, wanted);
        if (r >= 0) r = check_access(job, wanted->got);
        if (r < 0) return about(job, r, i);
        note_file(job, wanted->got);
    }
    return 0;
}

static void give_back(struct lend__obtain *job) {
#ifdef LEND_MUTANT_HALFGROUP
    return;
#endif
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        if (job->wanted[i].got && !job->wanted[i].is_taken) lend__storage_unref(job->wanted[i].got);
        job->wanted[i].got = NULL;
    }
}

/* One try under the lock. 1: exporter `ret_cold` must be contacted first, for the row at the cursor if its peer is known. */
static int try_warm(struct lend__obtain *job, uint32_t *ret_cold) {
    lend__import_lock();
    job->has_waited = job->waits_for_cell = false;
    int r = find_peers(job, ret_cold);
    if (!r && (r = find_mappings(job))) *ret_cold = job->rows[job->cursor].exporter;
    if (!r) r = begin_cells(job);
#ifdef LEND_MUTANT_CELLSEARLY
    if (!r) end_cells(job, true);
#endif
    if (!r) r = take_all(job);
    if (r < 0 || (!r && job->is_final)) end_cells(job, r >= 0);
    if (!r && !job->is_final) hold_peers(job, 1); /* until lend__obtain_end */
    lend__import_unlock();
    if (__builtin_expect(job->retired != NULL, 0)) lend__mapping_free_list(job->retired);
    job->retired = NULL;
    return r;
}

/* Is memory of this exporter wanted, or does it only have a pin that is to end? */
static bool wants_memory(const struct lend__obtain *job, uint32_t exporter) {
    for (uint32_t i = 0; i < job->n_rows; i++)
        if (job->rows[i].is_needed && job->rows[i].exporter == exporter) return true;
    return false;
}

/* An error about an allocation is one about the first storage that lies in it. */
static int about_row(struct lend__obtain *job, int code, uint32_t row) {
    for (uint32_t i = 0; i < job->n_wanted; i++)
        if (!job->wanted[i].is_skipped && job->wanted[i].row == row) return about(job, code, i);
    return code;
}

static int contact(struct lend__obtain *job, uint32_t cold) {
    const struct lend__wire_exporter *exporter = &job->exporters[cold];
    struct lend__contact_request request = {.exporter = exporter,
                                            .allocation = LEND__CONTROL_NONE, /* its pin alone may be wanted */
                                            .accepts_files = job->accepts_files,
                                            .deadline = deadline_of(job)};
    uint32_t at = job->cursor;
    while (at < job->n_rows && (!job->rows[at].is_needed || job->rows[at].exporter != cold)) at++;
    if (at < job->n_rows) {
        request.allocation = job->rows[at].allocation;
        request.allocation_gen = job->rows[at].allocation_gen;
    }
    lend__import_lock();
    struct lend__peer *peer = lend__peer_obtain(exporter);
    bool is_first = peer && !peer->table;
    lend__import_unlock();
    if (is_first) lend__peers_forget_dead();
    if (!peer) return lend__fail(job->error, -ENOMEM, OPERATION, "no memory for the record of an exporter");
    int r = lend__contact(peer, &request, job->error);
    lend__peer_release(peer);
    if (r == -EOWNERDEAD && !wants_memory(job, cold)) {
        job->sources[cold].is_needed = false; /* the pin ended with its exporter, and keeps nobody from the rest */
        return 0;
    }
    return r < 0 ? about_row(job, r, at) : r;
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
                              "the deadline passed before all allocations were there (are they many, or retired again "
                              "and again?); try again, or raise deadline_ns");
    }
}

/* --- this process's own, and meta ------------------------------------------------------------------------------------ */

static int obtain_here(struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        struct lend__wanted *wanted = &job->wanted[i];
        const struct lend__row *row = &job->rows[wanted->row];
        const struct lend__wire_storage wire = {.allocation = row->allocation,
                                                .allocation_gen = row->allocation_gen,
                                                .slot = wanted->slot,
                                                .slot_gen = wanted->slot_gen,
                                                .off = wanted->off,
                                                .bytes = wanted->bytes};
        int r = 0;
        if (wanted->is_skipped) continue;
        if (row->device_type == LEND_DEVICE_META)
            r = lend__meta_obtain(&job->exporters[row->exporter].identity, &wire, &wanted->got, job->error);
        else if (job->sources[row->exporter].is_own)
            r = lend__ledger_find(&wire, &wanted->got, job->error);
        if (r >= 0 && wanted->got) r = check_access(job, wanted->got);
        if (r < 0) return about(job, r, i);
        if (wanted->got) note_file(job, wanted->got);
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
static int check_files(struct lend__obtain *job) {
    for (uint32_t i = 0; i < job->n_wanted; i++) {
        const struct lend__storage *storage = job->wanted[i].got;
        int r = storage ? lend__storage_check_file(storage, OPERATION, job->error) : 0;
        if (r < 0) return about(job, r, i);
    }
    return 0;
}

int lend__obtain_begin(struct lend__obtain *job) {
    bool was_final = job->is_final;
    unsigned where = 0;
    int r = check(job, &where);
    if (r >= 0 && (where & HERE)) r = obtain_here(job);
    if (r >= 0 && (where & ELSEWHERE)) r = obtain_others(job);
    if (r < 0) {
        give_back(job);
        return r;
    }
    job->is_open = !job->is_final;
    r = __builtin_expect(job->has_files, 0) ? check_files(job) : 0;
    if (r < 0) { /* never after a final step: files make it not final */
        lend__obtain_end(job, false);
        return r;
    }
    if (!job->is_final && was_final) /* files have been looked at: nothing else can fail */
        lend__obtain_end(job, true);
    else if (job->is_final && (where & HERE))
        end_own_pins(job);
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
