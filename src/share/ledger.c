/* SPDX-License-Identifier: MIT */
/* The exporter's ledger: the slot table and the rule of reuse. Invariant L-1: a block is reused only after its word
 * was set to closing, every page was read and all were zero, and the word says free (design: "Reuse"). The steps carry
 * the labels L5 to L8 that models/lease.pml checks:
 *
 *   L5  word := closing        seq_cst; pairs with L1/L2 of take: an importer that raised its count before we read its
 *                              page is seen by L6, one that raised it after reads closing (or free) at L2
 *   L6  read every page        seq_cst loads (page.c)
 *   L7  word := next gen, free seq_cst; only then is the block touched
 *   L8  word := open           seq_cst; the storage waits in limbo
 *
 * Everything runs under the ledger lock; blocks go back to their pools after it (lend__ledger_unlock). */
#include "share/ledger.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/liveness.h"
#include "share/service.h"
#include "share/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <lend/watch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEDGER (&lend__ledger)

struct lend__ledger lend__ledger = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .table_fd = -1, .free_slot = LEND__SLOT_NONE, .limbo_first = LEND__SLOT_NONE};

static uint64_t n_freeing; /* atomic: storages between the ledger and their pools */

/* The slots part gets memory in steps of this many bytes: a fallocate per 2,048 slots. */
#define TABLE_STEP_BYTES (64u << 10)

void lend__ledger_lock(void) {
    pthread_mutex_lock(&LEDGER->lock);
}

bool lend__ledger_unlock(void) {
    struct lend__storage *freed = LEDGER->freed;
    struct lend__ledger_event events[16];
    uint32_t n_events = LEDGER->n_events;
    bool wants_tick = LEDGER->wants_tick;
    LEDGER->wants_tick = false;
    memcpy(events, LEDGER->events, n_events * sizeof *events);
    LEDGER->freed = NULL;
    LEDGER->n_events = 0;
    for (struct lend__storage *s = freed; s; s = s->private_ctx) lend__add_relaxed(&n_freeing, 1u);
    pthread_mutex_unlock(&LEDGER->lock);
    if (wants_tick) lend__service_want_tick();
    bool any = freed != NULL;
    while (freed) {
        struct lend__storage *next = freed->private_ctx;
        if (freed->block) lend__pool_free(freed->block); /* a storage of no bytes has none */
        free(freed);
        lend__sub_release(&n_freeing, 1u);
        freed = next;
    }
    for (uint32_t i = 0; i < n_events; i++) lend__watch_emit(events[i].kind, events[i].pid, events[i].bytes);
    return any;
}

uint64_t lend__ledger_leaving(void) {
    lend__ledger_lock();
    uint64_t n = LEDGER->n_limbo + lend__load_acquire(&n_freeing);
    lend__ledger_unlock();
    return n;
}

void lend__ledger_note(uint32_t kind, uint32_t pid, uint64_t bytes) {
    if (LEDGER->n_events == sizeof LEDGER->events / sizeof LEDGER->events[0]) {
        lend__watch_count_lost();
        return;
    }
    LEDGER->events[LEDGER->n_events++] = (struct lend__ledger_event){kind, pid, bytes};
}

/* --- the table -------------------------------------------------------------------------------------------------- */

static int table_files(int *ret_lock_fd, int *ret_table_fd) {
    LEND__CLEANUP_FD memfd = lend__memfd_new("lend-table", 0);
    if (memfd < 0) return memfd;
    long r = lend__sys.ftruncate(memfd, LEND_SHM_TABLE_BYTES);
    if (r < 0) return (int)r;
    r = lend__sys.fallocate(memfd, 0, 0, lend__page_bytes());
    if (r >= 0)
        r = lend__sys.fallocate(memfd, 0, LEND_SHM_ALLOCATIONS_OFF, LEND_SHM_SLOTS_OFF - LEND_SHM_ALLOCATIONS_OFF);
    if (r < 0) return (int)r;
    /* Importers test their open file (shared); ours holds the lock for as long as we have it mapped. */
    return lend__life_lend(memfd, lend__context.has_open_file_locks, ret_lock_fd, ret_table_fd);
}

static void publish_table(struct lend_shm_table *table) {
    const struct lend__identity *me = &lend__context.identity;
    table->layout = lend__shm_layout();
    memcpy(table->boot_id, me->boot_id, sizeof table->boot_id);
    memcpy(table->exporter_id, me->id, sizeof table->exporter_id);
    table->start_ns = me->start_ns;
    table->uid = me->uid;
    table->pid = me->pid;
    table->has_lock = lend__context.has_open_file_locks;
    table->magic = LEND_SHM_TABLE_MAGIC;
}

int lend__ledger_start(struct lend_error *error) {
    if (LEDGER->table) return 0;
    LEND__CLEANUP_FD lock_fd = -1;
    LEND__CLEANUP_FD table_fd = -1;
    int r = table_files(&lock_fd, &table_fd);
    if (r < 0)
        return lend__fail_sys(error, r, "lend_reduce", r == -EFBIG ? "ftruncate" : "memfd_create", "the slot table");
    void *at = NULL;
    long n =
        lend__sys.mmap(NULL, LEND_SHM_TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, lock_fd, 0, &at);
    if (n < 0) return lend__fail_sys(error, (int)n, "lend_reduce", "mmap", "the slot table");
    /* After our own mapping: nobody else can map it writable, whatever descriptor they get. FUTURE_WRITE is 5.1. */
    n = lend__sys.add_seals(table_fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    uint64_t key = 0;
    if (n >= 0) n = lend__sys.getrandom(&key, sizeof key);
    if (n < 0) {
        lend__sys.munmap(at, LEND_SHM_TABLE_BYTES);
        return lend__fail_sys(error, (int)n, "lend_reduce", "fcntl(F_ADD_SEALS)", "the slot table");
    }
    LEDGER->pin_key = key;
    LEDGER->table = at;
    LEDGER->table_fd = LEND__TAKE_FD(table_fd);
    LEDGER->table_reserved = 0;
    publish_table(LEDGER->table);
    LEND_POINT("A2.table-made");
    return 0;
}

/* Memory behind the slot before it is written: shortage is an error, not a signal. */
static int reserve_slot(uint32_t slot) {
    uint64_t need = ((uint64_t)slot + 1) * sizeof(struct lend_shm_slot);
    if (need <= LEDGER->table_reserved) return 0;
    long r = lend__sys.fallocate(LEDGER->table_fd, 0, LEND_SHM_SLOTS_OFF + LEDGER->table_reserved, TABLE_STEP_BYTES);
    if (r < 0) return (int)r;
    LEDGER->table_reserved += TABLE_STEP_BYTES;
    return 0;
}

static int new_slot(uint32_t *ret) {
    uint32_t slot = LEDGER->free_slot;
    if (slot != LEND__SLOT_NONE) {
        LEDGER->free_slot = LEDGER->slots[slot].next;
        *ret = slot;
        return 0;
    }
    slot = LEDGER->n_slots;
    if (slot == LEND_SHM_SLOTS_MAX) return -ENOSPC;
    int r = reserve_slot(slot);
    if (r < 0) return r;
    if (slot == LEDGER->slots_room) {
        uint32_t room = LEDGER->slots_room ? LEDGER->slots_room * 2 : 256;
        void *grown = NULL;
        if (lend__sys.realloc(LEDGER->slots, room * sizeof *LEDGER->slots, &grown) < 0) return -ENOMEM;
        LEDGER->slots = grown;
        LEDGER->slots_room = room;
    }
    LEDGER->slots[slot] = (struct lend__slot){.gen = 1}; /* generation 0 is never lent */
    LEDGER->n_slots = slot + 1;
    lend__store_release(&LEDGER->table->n_slots, (uint64_t)LEDGER->n_slots);
    *ret = slot;
    return 0;
}

/* Gives the allocation its name between processes: the lowest free index, and a generation that was never used with
 * it. */
static int name_allocation(struct lend__allocation *allocation) {
    if (allocation->index != LEND__ALLOCATION_UNLENT) return 0;
    uint32_t index = 0;
    while (index < LEDGER->n_allocations && LEDGER->allocations[index]) index++;
    if (index == LEND_SHM_ALLOCATIONS_MAX) return -ENOSPC;
    if (index == LEDGER->allocations_room) {
        uint32_t room = LEDGER->allocations_room ? LEDGER->allocations_room * 2 : 16;
        void *grown = NULL;
        if (lend__sys.realloc(LEDGER->allocations, room * sizeof *LEDGER->allocations, &grown) < 0) return -ENOMEM;
        LEDGER->allocations = grown;
        LEDGER->allocations_room = room;
    }
    struct lend_shm_allocation *shm = &lend__shm_allocations(LEDGER->table)[index];
    uint32_t gen = (uint32_t)(lend__load_relaxed(&shm->state) >> 1) + 1;
    LEDGER->allocations[index] = allocation;
    if (index == LEDGER->n_allocations) LEDGER->n_allocations++;
    allocation->index = index;
    allocation->gen = gen;
    shm->bytes = allocation->extent.bytes;
    shm->fd_offset = allocation->extent.fd_offset;
    shm->flags = (allocation->extent.is_peers_read_only ? LEND_SHM_ALLOCATION_READ_ONLY : 0u) |
                 (allocation->extent.is_file ? LEND_SHM_ALLOCATION_FILE : 0u);
    lend__store_release(&shm->state, (uint64_t)gen << 1);
    return 0;
}

void lend__ledger_retire(struct lend__allocation *allocation) {
    lend__ledger_lock();
    uint32_t index = allocation->index;
    if (LEDGER->table && index < LEDGER->n_allocations && LEDGER->allocations[index] == allocation) {
        LEDGER->allocations[index] = NULL;
        for (uint32_t i = 0; i < LEDGER->n_pages; i++) /* the index may name another allocation later */
            if (lend__page_was_given(LEDGER->pages[i], index))
                LEDGER->pages[i]->given[index / 8] &= (uint8_t) ~(1u << index % 8);
        struct lend_shm_allocation *shm = &lend__shm_allocations(LEDGER->table)[index];
        lend__store_release(&shm->state, (uint64_t)allocation->gen << 1 | 1);
#ifndef LEND_MUTANT_NORETIRE
        lend__store_release(&LEDGER->table->n_retired, LEDGER->table->n_retired + 1); /* R1: pairs with R2, peer.c */
#endif
        LEND_POINT("R1.retired");
    }
    lend__ledger_unlock();
}

/* --- lending ---------------------------------------------------------------------------------------------------- */

static uint64_t *word_of(uint32_t slot) {
    return &lend__shm_slots(LEDGER->table)[slot].word;
}

static void last_unref_lent(struct lend__storage *storage) {
    lend__ledger_lock();
    if (lend__storage_lower(storage)) lend__ledger_try_reuse(storage->slot);
    lend__ledger_unlock();
}

int lend__ledger_lend_locked(struct lend__storage *storage, const char *operation, struct lend_error *error) {
    if (storage->is_shared) return 0;
    struct lend__block *block = storage->block;
    uint32_t slot = LEND__SLOT_NONE;
    int r = block ? name_allocation(block->allocation) : 0;
    if (r >= 0) r = new_slot(&slot);
    if (r == -ENOSPC)
        return lend__fail_bytes(
            error, r, operation, (uint64_t)LEDGER->n_lent + 1, LEND_SHM_SLOTS_MAX,
            "this process lends %llu storages in %u allocations already, and can lend %u in %u; drop "
            "some tensors first",
            (unsigned long long)LEDGER->n_lent, LEDGER->n_allocations, LEND_SHM_SLOTS_MAX, LEND_SHM_ALLOCATIONS_MAX);
    if (r < 0) return lend__fail_sys(error, r, operation, "fallocate", "a slot");
    struct lend__slot *mine = &LEDGER->slots[slot];
    mine->storage = storage;
    mine->n_pins = 0;
    mine->is_limbo = false;
    struct lend_shm_slot *shm = &lend__shm_slots(LEDGER->table)[slot];
    shm->allocation = block ? block->allocation->index : LEND__ALLOCATION_UNLENT;
    shm->allocation_gen = block ? block->allocation->gen : 0;
    shm->offset = block ? block->off : 0;
    shm->bytes = storage->bytes;
    LEND_POINT("A3.slot-written");
    lend__store_seq_cst(&shm->word, LEND_SHM_WORD(mine->gen, LEND_SHM_OPEN)); /* A4: pairs with L2 */
    LEND_POINT("A4.slot-open");
    storage->slot = slot;
    storage->slot_gen = mine->gen;
    storage->is_shared = true;
    lend__store_relaxed(&storage->last_unref, last_unref_lent);
    lend__or_seq_cst(&storage->n_refs, LEND__REFS_LENT); /* pairs with lend__storage_last_unref_private */
    LEDGER->n_lent++;
    LEDGER->lent_bytes += storage->bytes;
    return 0;
}

int lend__ledger_lend(struct lend__storage *storage, const char *operation, struct lend_error *error) {
    lend__ledger_lock();
    int r = lend__ledger_lend_locked(storage, operation, error);
    lend__ledger_unlock();
    return r;
}

static void leave_limbo(uint32_t slot) {
    struct lend__slot *mine = &LEDGER->slots[slot];
    if (!mine->is_limbo) return;
    if (mine->prev == LEND__SLOT_NONE)
        LEDGER->limbo_first = mine->next;
    else
        LEDGER->slots[mine->prev].next = mine->next;
    if (mine->next != LEND__SLOT_NONE) LEDGER->slots[mine->next].prev = mine->prev;
    mine->is_limbo = false;
    LEDGER->n_limbo--;
    LEDGER->limbo_bytes -= mine->storage->bytes;
    if (mine->storage->block)
        lend__pool_account_limbo(mine->storage->block->allocation->pool, -(int64_t)mine->storage->block->bytes);
}

static void enter_limbo(uint32_t slot) {
    struct lend__slot *mine = &LEDGER->slots[slot];
    if (mine->is_limbo) return;
    mine->prev = LEND__SLOT_NONE;
    mine->next = LEDGER->limbo_first;
    if (mine->next != LEND__SLOT_NONE) LEDGER->slots[mine->next].prev = slot;
    LEDGER->limbo_first = slot;
    mine->is_limbo = true;
    LEDGER->wants_tick |= !LEDGER->n_limbo;
    LEDGER->n_limbo++;
    LEDGER->limbo_bytes += mine->storage->bytes;
    if (mine->storage->block)
        lend__pool_account_limbo(mine->storage->block->allocation->pool, (int64_t)mine->storage->block->bytes);
    LEND_POINT("L8.limbo");
}

/* L6. Counts only pages that were given the block's allocation: what a peer claims without it is its own affair. */
static bool is_held(uint32_t slot, const struct lend__storage *storage) {
    uint32_t allocation = storage->block ? storage->block->allocation->index : LEND__ALLOCATION_UNLENT;
    for (uint32_t i = 0; i < LEDGER->n_pages; i++) {
        const struct lend__page *page = LEDGER->pages[i];
#ifndef LEND_MUTANT_NOGIVEN
        if (storage->block && !lend__page_was_given(page, allocation)) continue;
#endif
        if (lend__page_held(page, slot)) return true;
        LEND_POINT("L6.page-read");
    }
    return false;
}

/* L7: the next generation, free; the struct and its block wait for the unlock. */
static void free_slot(uint32_t slot) {
    struct lend__slot *mine = &LEDGER->slots[slot];
    struct lend__storage *storage = mine->storage;
    leave_limbo(slot);
#ifdef LEND_MUTANT_REUSEFIRST
    lend__pool_free(storage->block);
    storage->block = NULL;
#endif
    lend__store_seq_cst(word_of(slot), LEND_SHM_WORD(mine->gen + 1, LEND_SHM_FREE));
    LEND_POINT("L7.free");
    mine->gen++;
    mine->storage = NULL;
    mine->next = LEDGER->free_slot;
    LEDGER->free_slot = slot;
    LEDGER->n_lent--;
    LEDGER->lent_bytes -= storage->bytes;
    storage->private_ctx = LEDGER->freed;
    LEDGER->freed = storage;
}

void lend__ledger_try_reuse(uint32_t slot) {
    struct lend__slot *mine = &LEDGER->slots[slot];
    if (!mine->storage || lend__storage_refs(mine->storage)) return;
    if (mine->n_pins) {
        enter_limbo(slot);
        return;
    }
    bool held;
#ifdef LEND_MUTANT_SCANFIRST
    held = is_held(slot, mine->storage);
    lend__store_seq_cst(word_of(slot), LEND_SHM_WORD(mine->gen, LEND_SHM_CLOSING));
#elif defined(LEND_MUTANT_NOSCAN)
    lend__store_seq_cst(word_of(slot), LEND_SHM_WORD(mine->gen, LEND_SHM_CLOSING));
    held = false;
#else
    lend__store_seq_cst(word_of(slot), LEND_SHM_WORD(mine->gen, LEND_SHM_CLOSING)); /* L5 */
    LEND_POINT("L5.closing");
    held = is_held(slot, mine->storage);
#endif
    if (!held) {
        free_slot(slot);
        return;
    }
    lend__store_seq_cst(word_of(slot), LEND_SHM_WORD(mine->gen, LEND_SHM_OPEN)); /* L8 */
    LEND_POINT("L8.reopened");
    enter_limbo(slot);
}

void lend__ledger_try_all_limbo(void) {
    for (uint32_t slot = LEDGER->limbo_first, next; slot != LEND__SLOT_NONE; slot = next) {
        next = LEDGER->slots[slot].next;
        if (!LEDGER->slots[slot].n_pins) lend__ledger_try_reuse(slot);
    }
}

bool lend__ledger_reclaim(void) {
    lend__ledger_lock();
    if (LEDGER->table) {
        for (uint32_t i = 0; i < LEDGER->n_pages; i++) lend__page_drain(LEDGER->pages[i]);
        lend__pages_test(true);
        lend__pins_expire();
    }
    return lend__ledger_unlock();
}

int lend__ledger_find(const struct lend__wire_storage *wire, struct lend__storage **ret, struct lend_error *error) {
    lend__ledger_lock();
    struct lend__slot *mine = wire->slot < LEDGER->n_slots ? &LEDGER->slots[wire->slot] : NULL;
    struct lend__storage *storage = mine && mine->gen == wire->slot_gen ? mine->storage : NULL;
    int r = 0;
    if (!storage) {
        r = lend__fail(error, -ESTALE, "lend_rebuild",
                       "this process has freed the storage that the handle names (slot %u, generation %llu)",
                       wire->slot, (unsigned long long)wire->slot_gen);
    } else if (wire->bytes != storage->bytes || wire->off != (storage->block ? storage->block->off : 0)) {
        r = lend__fail(error, -EBADMSG, "lend_rebuild", "the handle's range is not that of its storage (slot %u)",
                       wire->slot);
    } else {
        leave_limbo(wire->slot);
        *ret = lend__storage_ref(storage);
    }
    lend__ledger_unlock();
    return r;
}

/* --- the end ---------------------------------------------------------------------------------------------------------- */

/* Frees the books themselves and begins anew; the lock, which the caller holds, stays as it is. */
static void forget_everything(void) {
    struct lend__storage *freed = LEDGER->freed;
    lend__fd_close(&LEDGER->table_fd);
    free(LEDGER->slots);
    free(LEDGER->allocations);
    free(LEDGER->pages);
    memset((uint8_t *)LEDGER + sizeof LEDGER->lock, 0, sizeof *LEDGER - sizeof LEDGER->lock);
    LEDGER->table_fd = -1;
    LEDGER->free_slot = LEDGER->limbo_first = LEND__SLOT_NONE;
    LEDGER->freed = freed;
}

void lend__ledger_stop(void) {
    lend__ledger_lock();
    if (LEDGER->table) {
        while (LEDGER->n_pages) lend__page_drop(LEDGER->pages[0]);
        lend__pages_free();
        lend__pins_drop_all();
        /* The words stay as they are: an open word of a dead exporter keeps what its holders have valid. The blocks go
         * with our mapping; their allocations live on in the peers' mappings. */
        while (LEDGER->limbo_first != LEND__SLOT_NONE) {
            struct lend__storage *storage = LEDGER->slots[LEDGER->limbo_first].storage;
            leave_limbo(LEDGER->limbo_first);
            storage->private_ctx = LEDGER->freed;
            LEDGER->freed = storage;
        }
        /* Nor may their pages be punched out when the pools go: to memory/ they were never lent. */
        for (uint32_t i = 0; i < LEDGER->n_allocations; i++)
            if (LEDGER->allocations[i]) LEDGER->allocations[i]->index = LEND__ALLOCATION_UNLENT;
        lend__sys.munmap(LEDGER->table, LEND_SHM_TABLE_BYTES);
    }
    LEDGER->n_events = 0; /* the peers did not die: we go */
    forget_everything();
    lend__ledger_unlock();
}

void lend__ledger_unlock_only(void) {
    pthread_mutex_unlock(&LEDGER->lock);
}

void lend__ledger_flush(void) {
    lend__ledger_lock();
    lend__ledger_unlock();
}

/* The table's mapping that holds the parent's lock must go, or the parent would never seem dead; so must the parent's
 * views of its importers' pages. What was to be freed is the parent's to free. */
void lend__ledger_fork_child(void) {
    lend__pages_free();
    lend__pins_drop_all();
    if (LEDGER->table) lend__sys.munmap(LEDGER->table, LEND_SHM_TABLE_BYTES);
    LEDGER->freed = NULL;
    n_freeing = 0;
    forget_everything();
    pthread_mutex_init(&LEDGER->lock, NULL);
}
