/* SPDX-License-Identifier: MIT */
/* lend_check: are the books of this process in order? For tests, after every random operation, and for doubts. */
#include "base/error.h"
#include "memory/block.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/peer.h"

#include <errno.h>
#include <lend/inspect.h>

#define LEDGER (&lend__ledger)

static int bad(struct lend_error *error, const char *what, uint64_t where) {
    return lend__fail(error, -EBADMSG, "lend_check", "%s (%llu)", what, (unsigned long long)where);
}

static int check_slot(uint32_t slot, uint64_t *n_lent, uint64_t *n_limbo, uint64_t *bytes, uint64_t *limbo_bytes,
                      struct lend_error *error) {
    const struct lend__slot *mine = &LEDGER->slots[slot];
    const struct lend_shm_slot *shm = &lend__shm_slots(LEDGER->table)[slot];
    uint64_t word = lend__load_seq_cst(&shm->word);
    if (!mine->storage) {
        bool is_unused = word == 0 && mine->gen == 1;
        return is_unused || word == LEND_SHM_WORD(mine->gen, LEND_SHM_FREE)
                   ? 0
                   : bad(error, "a free slot's word does not say so", slot);
    }
    const struct lend__storage *storage = mine->storage;
    if (word != LEND_SHM_WORD(mine->gen, LEND_SHM_OPEN)) return bad(error, "a lent slot's word is not open", slot);
    if (storage->slot != slot || storage->slot_gen != mine->gen || !storage->is_shared)
        return bad(error, "storage and slot disagree", slot);
    if (shm->bytes != storage->bytes || (storage->block && shm->offset != storage->block->off))
        return bad(error, "a slot's entry is wrong", slot);
    if (storage->block && (shm->allocation != storage->block->allocation->index ||
                           shm->allocation_gen != storage->block->allocation->gen))
        return bad(error, "a slot's entry names another allocation", slot);
    if (mine->is_limbo && lend__storage_refs(storage)) return bad(error, "a storage with references is in limbo", slot);
    ++*n_lent;
    *bytes += storage->bytes;
    *n_limbo += mine->is_limbo;
    *limbo_bytes += mine->is_limbo ? storage->bytes : 0;
    return 0;
}

static int check_pins(struct lend_error *error) {
    uint64_t n = 0, bytes = 0, named = 0, in_slots = 0;
    for (const struct lend__pin *pin = LEDGER->oldest_pin; pin; pin = pin->newer, n++) {
        for (uint32_t i = 0; i < pin->n_slots; i++)
            if (pin->slots[i] >= LEDGER->n_slots || !LEDGER->slots[pin->slots[i]].storage)
                return bad(error, "a pin names a free slot", pin->slots[i]);
        bytes += pin->bytes;
        named += pin->n_slots;
    }
    for (uint32_t slot = 0; slot < LEDGER->n_slots; slot++)
        if (LEDGER->slots[slot].storage) in_slots += LEDGER->slots[slot].n_pins;
    if (n != LEDGER->n_pins || bytes != LEDGER->pin_bytes || in_slots != named)
        return bad(error, "the sums of the pins are wrong", n);
    return 0;
}

static int check_ledger(struct lend_error *error) {
    if (!LEDGER->table) return 0;
    uint64_t n_lent = 0, n_limbo = 0, bytes = 0, limbo_bytes = 0, listed = 0, n_free = 0;
    for (uint32_t slot = 0; slot < LEDGER->n_slots; slot++) {
        int r = check_slot(slot, &n_lent, &n_limbo, &bytes, &limbo_bytes, error);
        if (r < 0) return r;
    }
    for (uint32_t slot = LEDGER->limbo_first; slot != LEND__SLOT_NONE; slot = LEDGER->slots[slot].next)
        if (++listed > n_limbo) return bad(error, "limbo's list is longer than limbo", listed);
    for (uint32_t slot = LEDGER->free_slot; slot != LEND__SLOT_NONE; slot = LEDGER->slots[slot].next)
        if (++n_free > LEDGER->n_slots || LEDGER->slots[slot].storage)
            return bad(error, "the list of free slots is damaged", slot);
    if (n_lent != LEDGER->n_lent || bytes != LEDGER->lent_bytes)
        return bad(error, "the sums of the lent storages are wrong", n_lent);
    if (n_limbo != LEDGER->n_limbo || limbo_bytes != LEDGER->limbo_bytes || listed != n_limbo)
        return bad(error, "the sums of limbo are wrong", n_limbo);
    if (n_free + n_lent != LEDGER->n_slots)
        return bad(error, "slots are neither free nor lent", LEDGER->n_slots - n_free - n_lent);
    uint32_t n_unconnected = 0;
    for (uint32_t i = 0; i < LEDGER->n_pages; i++) n_unconnected += !LEDGER->pages[i]->has_connection;
    if (n_unconnected != LEDGER->n_unconnected)
        return bad(error, "the count of pages without a connection is wrong", n_unconnected);
    return check_pins(error);
}

struct peers_check {
    int code;
    struct lend_error *error;
};

static void check_peer(struct lend__peer *peer, void *arg) {
    struct peers_check *check = arg;
    uint64_t n = 0, on_mappings = 0;
    for (uint32_t slot = 0; slot < peer->imported_room && check->code >= 0; slot++) {
        const struct lend__storage *storage = peer->imported[slot];
        if (!storage) continue;
        n++;
        if (storage->kind != LEND__STORAGE_IMPORTED || storage->slot != slot || storage->peer != peer ||
            !lend__storage_refs(storage))
            check->code = bad(check->error, "an imported storage is not what its slot says", slot);
        else if (storage->has_lease && (!peer->page || !lend__load_relaxed(&lend__shm_held(peer->page)[slot])))
            check->code = bad(check->error, "an imported storage has no lease", slot);
        else
            on_mappings += storage->mapping != NULL;
    }
    for (uint32_t i = 0; i < peer->mappings_room; i++)
        if (peer->mappings[i]) on_mappings -= peer->mappings[i]->n_storages;
    if (check->code >= 0 && (n != peer->n_imported || on_mappings))
        check->code = bad(check->error, "the sums of imported storages are wrong", n);
}

int lend_check(struct lend_error *error) {
    int r = lend__context_check("lend_check", error);
    if (r < 0) return r;
    struct peers_check check = {0, error};
    lend__import_lock();
    lend__peers_visit(check_peer, &check);
    lend__import_unlock();
    if (check.code < 0) return check.code;
    lend__ledger_lock();
    r = check_ledger(error);
    lend__ledger_unlock();
    return r < 0 ? r : lend__pools_check(error);
}
