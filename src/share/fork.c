/* SPDX-License-Identifier: MIT */
/* fork() in a process that imports, exports, or both.
 *
 * A child shares the parent's mappings, so it must hold what it sees, on a page of its own that the exporter counts
 * already when the child begins to live; nothing may be asked of anybody in between (facts: flaw 3). So the prepare
 * handler (1) asks every exporter for a spare page, without locks and for at most 10 ms in all, (2) takes every lock, in
 * order, and (3) copies the live counts into the spare pages, each copy being a take: count, then word. Afterwards each
 * side unmaps the other's page, because a page lives as long as anybody maps it. Where no page can be had:
 *
 *   importer's child  the parent's page keeps the counts until both have ended ("family": safe, coarse)
 *   exporter's child  drops what it inherited: its tensors answer -ECHILD
 *
 * A forked exporter's child drops pools and ledger, takes a new identity, and holds what it inherited as an importer of
 * its parent (facts: flaw 15). All that the child needs is made in the prepare handler; the child only links, unmaps and
 * closes. The locks taken in prepare are released in the parent and made new in the child. */
#include "share/fork.h"

#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/lease.h"
#include "share/ledger.h"
#include "share/mapping.h"
#include "share/peer.h"
#include "share/service.h"
#include "share/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEDGER (&lend__ledger)
#define SPARE_NS 10000000ull /* fork() may take this much longer when exporters are slow or stopped */
#define CLOSING_NS 10000000ull

/* Outermost of all: the plan and the spare pages are one fork's. The C library may run the handlers of two threads at once. */
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;

/* What the exporter's side of the child will be; made in prepare, used by one of parent and child. */
static struct {
    bool is_active;                  /* locks are held */
    struct lend__page *page;         /* ours for the child; NULL: the child drops */
    struct lend__peer *as_peer;      /* this process, seen from the child */
    struct lend__mapping **mappings; /* by allocation index, for as_peer */
} plan;

/* --- prepare: spares -------------------------------------------------------------------------------------------------- */

struct peer_list {
    struct lend__peer **peers;
    unsigned n, room;
};

static void collect(struct lend__peer *peer, void *arg) {
    struct peer_list *list = arg;
    if (!peer->n_imported || !peer->page || lend__peer_known_dead(peer)) return;
    if (list->n < list->room) {
        list->peers[list->n] = peer;
        peer->n_users++;
    }
    list->n++;
}

static void get_spares(void) {
    struct peer_list list = {.n = 0};
    lend__import_lock();
    lend__peers_visit(collect, &list); /* counts */
    if (list.n) {
        list.room = list.n;
        list.n = 0;
        list.peers = lend__zalloc(list.room * sizeof *list.peers);
        if (list.peers) lend__peers_visit(collect, &list);
    }
    lend__import_unlock();
    uint64_t deadline = lend__now_ns() + SPARE_NS;
    for (unsigned i = 0; list.peers && i < list.n; i++) {
        lend__peer_get_spare(list.peers[i], deadline);
        lend__peer_release(list.peers[i]);
    }
    free(list.peers);
    LEND_POINT("F1.spares-got");
}

/* Copies the counts into the child's page; each copy is a take. False: a slot stayed closing for too long. */
static bool copy_counts(struct lend__peer *peer) {
    uint64_t deadline = lend__now_ns() + CLOSING_NS;
    for (uint32_t slot = 0; slot < peer->imported_room; slot++) {
        const struct lend__storage *storage = peer->imported[slot];
        if (!storage || !storage->has_lease) continue;
        lend__lease_mark_chunk(peer->spare.page, slot);
        lend__add_seq_cst(&lend__shm_held(peer->spare.page)[slot], 1u); /* F2: as L1 */
        LEND_POINT("F2.copied");
#ifndef LEND_MUTANT_NOCHECK
        uint64_t *word = &lend__shm_slots(peer->table)[slot].word; /* F3: as L2; we hold it, so it must reopen */
        while (lend__load_seq_cst(word) != LEND_SHM_WORD(storage->slot_gen, LEND_SHM_OPEN)) {
            if (lend__deadline_passed(deadline) && !lend__peer_is_dead(peer)) return false;
            if (lend__peer_known_dead(peer)) break;
            lend__sleep_ns(10000);
        }
#endif
    }
    return true;
}

/* No spare: the parent's page counts for both until both have ended. */
static void count_for_family(struct lend__peer *peer) {
    peer->is_family_fork = true;
    for (uint32_t slot = 0; slot < peer->imported_room; slot++)
        if (peer->imported[slot] && peer->imported[slot]->has_lease)
            lend__add_seq_cst(&lend__shm_held(peer->page)[slot], 1u);
    LEND_POINT("F4.family");
}

static void prepare_peer(struct lend__peer *peer, void *arg) {
    (void)arg;
    peer->is_family_fork = false;
    if (!peer->n_imported || !peer->page) return;
    if (!peer->spare.page || !copy_counts(peer)) count_for_family(peer);
}

/* --- prepare: our own storages ---------------------------------------------------------------------------------------- */

struct lending {
    int code;
    uint64_t n;
};

static void count_living(struct lend__block *block, void *arg) {
    if (block->owner && lend__storage_refs(block->owner)) ++*(uint64_t *)arg;
}

/* The ledger lock is held: what this ends goes back to its pool after the fork. */
static void lower_locked(struct lend__storage *storage) {
    if (!lend__storage_lower(storage)) return;
    if (storage->is_shared) {
        lend__ledger_try_reuse(storage->slot);
    } else {
        storage->private_ctx = LEDGER->freed;
        LEDGER->freed = storage;
    }
}

static void lend_block(struct lend__block *block, void *arg) {
    struct lending *lending = arg;
    struct lend__storage *storage = block->owner;
    /* With a reference of its own: another thread may just be dropping the last one (models/own.pml). */
    if (lending->code < 0 || !storage || !lend__storage_ref_unless_zero(storage)) return;
    lending->code = lend__ledger_lend_locked(storage, "fork", NULL);
    lending->n++;
    lower_locked(storage);
}

/* The child's page, with a count for every living storage. The ledger lock is held, so no slot is closing. */
static int count_for_child(struct lend_shm_page *page) {
    for (uint32_t slot = 0; slot < LEDGER->n_slots; slot++) {
        const struct lend__storage *storage = LEDGER->slots[slot].storage;
        if (!storage || !storage->block || !lend__storage_refs(storage)) continue;
        lend__lease_mark_chunk(page, slot);
        lend__add_seq_cst(&lend__shm_held(page)[slot], 1u);
    }
    for (uint32_t i = 0; i < LEDGER->n_allocations; i++) {
        int r = LEDGER->allocations[i] ? lend__page_give(plan.page, i) : 0;
        if (r < 0) return r;
    }
    LEND_POINT("F5.child-counted");
    return 0;
}

static void free_mappings(struct lend__mapping **mappings) {
    for (uint32_t i = 0; mappings && i < LEDGER->n_allocations; i++) free(mappings[i]);
    free(mappings);
}

static void drop_plan(void) {
    if (plan.as_peer) {
        if (plan.as_peer->table) lend__sys.munmap(plan.as_peer->table, LEND_SHM_TABLE_BYTES);
        if (plan.as_peer->page) lend__sys.munmap(plan.as_peer->page, LEND_SHM_PAGE_BYTES);
        free(plan.as_peer->imported);
        free(plan.as_peer);
    }
    free_mappings(plan.mappings);
    plan.as_peer = NULL;
    plan.mappings = NULL;
}

static int make_mappings(void) {
    plan.mappings = lend__zalloc((LEDGER->n_allocations + 1) * sizeof *plan.mappings);
    if (!plan.mappings) return -ENOMEM;
    for (uint32_t i = 0; i < LEDGER->n_allocations; i++)
        if (LEDGER->allocations[i] && !(plan.mappings[i] = lend__zalloc(sizeof *plan.mappings[i]))) return -ENOMEM;
    return 0;
}

/* This process as the child will know it: table mapped read-only, the child's page, room for its storages. */
static int make_as_peer(int lent_fd) {
    struct lend__peer *peer = plan.as_peer = lend__zalloc(sizeof *peer);
    if (!peer) return -ENOMEM;
    memcpy(peer->id, lend__context.identity.id, LEND__ID_BYTES);
    peer->table_fd = peer->connection_fd = peer->pidfd = -1;
    int length = lend__identity_address(lend__context.identity.uid, peer->id, lend__context.socket_dir, &peer->address);
    if (length < 0) return length;
    peer->address_bytes = (socklen_t)length;
    void *at = NULL;
    long r =
        lend__sys.mmap(NULL, LEND_SHM_TABLE_BYTES, PROT_READ, MAP_SHARED | MAP_NORESERVE, LEDGER->table_fd, 0, &at);
    if (r < 0) return (int)r;
    peer->table = at;
    r = lend__sys.mmap(NULL, LEND_SHM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, lent_fd, 0, &at);
    if (r < 0) return (int)r;
    peer->page = at;
    peer->page_index = plan.page->index;
    peer->page_nonce = plan.page->nonce;
    r = lend__peer_room_imported(peer, LEDGER->n_slots);
    return r < 0 ? (int)r : make_mappings();
}

static void prepare_own(void) {
    struct lending lending = {.code = 0};
    int lent_fd = -1;
    plan.page = NULL;
    if (lend__context.fork == LEND_FORK_DROP) return;
    uint64_t n_living = 0;
    lend__pools_fork_visit(count_living, &n_living);
    if (!n_living || lend__ledger_start(NULL) < 0) return;
    lend__pools_fork_visit(lend_block, &lending);
    if (lending.code < 0 || !lending.n || lend__page_new(0, &plan.page, &lent_fd) < 0) {
        plan.page = NULL;
        return;
    }
    int r = make_as_peer(lent_fd);
    lend__fd_close(&lent_fd); /* its mapping stands for the child now */
    if (r >= 0) r = count_for_child(plan.as_peer->page);
    if (r < 0) {
        drop_plan();
        lend__page_drop(plan.page);
        plan.page = NULL;
    }
}

static void prepare(void) {
    if (lend__is_raw_clone()) return; /* its copy of fork_lock may be held for ever */
    pthread_mutex_lock(&fork_lock);
    plan.is_active = false;
    if (!lend__load_relaxed(&lend__context.n_opens)) return;
    if (lend__context.fork == LEND_FORK_HOLD) get_spares();
    lend__context_fork_prepare(); /* lend_close unmaps under it, so it comes before the region lock */
    lend__region_fork_prepare();
    lend__service_fork_prepare();
    lend__import_lock();
    lend__ledger_lock();
    lend__pools_fork_prepare();
    lend__watch_fork_prepare();
    plan.is_active = true;
    if (lend__context.fork == LEND_FORK_HOLD) lend__peers_visit(prepare_peer, NULL);
    prepare_own();
    LEND_POINT("F6.prepared");
}

/* --- parent ----------------------------------------------------------------------------------------------------------- */

static void parent_peer(struct lend__peer *peer, void *arg) {
    (void)arg;
    if (peer->spare.page) lend__sys.munmap(peer->spare.page, LEND_SHM_PAGE_BYTES);
    peer->spare = (struct lend__spare){NULL, 0, 0};
}

static void parent(void) {
    if (lend__is_raw_clone()) return;
    if (!plan.is_active) {
        pthread_mutex_unlock(&fork_lock);
        return;
    }
    plan.is_active = false;
    bool has_child_page = plan.page != NULL;
    lend__peers_visit(parent_peer, NULL);
    drop_plan();
    plan.page = NULL;
    lend__watch_fork_release(false);
    lend__pools_fork_release(false);
    lend__ledger_unlock_only();
    lend__import_unlock();
    lend__service_fork_parent();
    lend__context_fork_parent();
    lend__region_fork_release(false);
    pthread_mutex_unlock(&fork_lock);
    LEND_POINT("F7.parent");
    lend__ledger_flush();
    if (!has_child_page) return;
    /* We export to the child now: it may ask, or pass on what it holds, and the tick looks after its page. */
    (void)lend__service_start(NULL);
    lend__service_wake();
}

/* --- child ------------------------------------------------------------------------------------------------------------ */

static void drop_storage(struct lend__storage *storage) {
    storage->kind = LEND__STORAGE_DROPPED;
    storage->is_shared = false;
    storage->data = NULL;
    storage->block = NULL;
    storage->peer = NULL;
    storage->mapping = NULL;
    storage->n_refs &= ~LEND__REFS_LENT;
    storage->last_unref = lend__storage_last_unref_private;
}

/* Our page becomes the spare one; the parent's is unmapped, so that it dies with the parent. */
static void child_page(struct lend__peer *peer) {
    struct lend_shm_page *parents = peer->page;
    bool has_spare = peer->spare.page && !peer->is_family_fork;
    if (peer->spare.page && !has_spare) lend__sys.munmap(peer->spare.page, LEND_SHM_PAGE_BYTES);
    peer->page = has_spare ? peer->spare.page : NULL;
    peer->page_index = peer->spare.index;
    peer->page_nonce = peer->spare.nonce;
    peer->spare = (struct lend__spare){NULL, 0, 0};
    peer->ring_head = 0;
    peer->next_cell = peer->n_cells_since_kick = 0;
    memset(peer->cells_busy, 0, sizeof peer->cells_busy);
    if (peer->page) peer->page->pid = (uint32_t)getpid();
    if (peer->is_family_fork) { /* never written here: mapped, it keeps the counts alive. A second one stays until exit */
        if (!peer->family_page) peer->family_page = parents;
    } else if (parents) {
        lend__sys.munmap(parents, LEND_SHM_PAGE_BYTES);
    }
    for (uint32_t i = 0; peer->is_family_fork && i < peer->imported_room; i++)
        if (peer->imported[i]) peer->imported[i]->has_lease = false;
    for (uint32_t i = 0; peer->is_family_fork && i < peer->mappings_room; i++)
        if (peer->mappings[i]) peer->mappings[i]->is_given = false; /* they were given to the parent's page */
    peer->is_family_fork = false;
}

static void child_drop_mappings(struct lend__peer *peer) {
    for (uint32_t i = 0; i < peer->imported_room; i++)
        if (peer->imported[i]) drop_storage(peer->imported[i]);
    free(peer->imported);
    peer->imported = NULL;
    peer->imported_room = 0;
    peer->n_imported = 0;
    for (uint32_t i = 0; i < peer->mappings_room; i++) {
        struct lend__mapping *m = peer->mappings[i];
        if (!m) continue;
        lend__region_fork_swap(&m->region, NULL);
        m->device->allocation_free(&m->extent);
        free(m);
        peer->mappings[i] = NULL;
    }
}

static void child_peer(struct lend__peer *peer, void *arg) {
    (void)arg;
    lend__fd_close(&peer->connection_fd);
    lend__fd_close(&peer->pidfd);
    peer->is_calling = false;
    peer->n_users = 0;
    if (peer->pending_page) lend__sys.munmap(peer->pending_page, LEND_SHM_PAGE_BYTES);
    peer->pending_page = NULL;
    if (lend__context.fork == LEND_FORK_DROP) child_drop_mappings(peer);
    child_page(peer);
}

/* The allocation changes hands: from the parent's pool to the child's mapping of a peer's memory. */
static void take_over_allocation(struct lend__allocation *allocation, void *arg) {
    (void)arg;
    struct lend__mapping *m =
        plan.page && allocation->index < LEDGER->n_allocations ? plan.mappings[allocation->index] : NULL;
    if (!m) {
        lend__region_fork_swap(&allocation->region, NULL);
        allocation->device->allocation_free(&allocation->extent);
        return;
    }
    m->extent = allocation->extent;
    m->device = allocation->device;
    m->peer = plan.as_peer;
    m->index = allocation->index;
    m->gen = allocation->gen;
    m->is_given = true;
    if (m->extent.is_peers_read_only && lend__sys.mprotect(m->extent.base, m->extent.bytes, PROT_READ) >= 0)
        m->extent.is_writable = false;
    lend__mapping_set_region(m);
    lend__region_fork_swap(&allocation->region, &m->region);
    allocation->extent.fd = -1; /* its fields stay for who looks, its resources are the mapping's */
}

static void take_over_storage(struct lend__storage *storage, uint32_t slot) {
    struct lend__block *block = storage->block;
    if (!block) { /* no bytes, nothing to hold */
        storage->is_shared = false;
        storage->n_refs &= ~LEND__REFS_LENT;
        storage->last_unref = lend__storage_last_unref_private;
        return;
    }
    if (!plan.page) {
        drop_storage(storage);
        return;
    }
    struct lend__mapping *m = plan.mappings[block->allocation->index];
    storage->kind = LEND__STORAGE_IMPORTED;
    storage->is_read_only |= !m->extent.is_writable;
    storage->block = NULL;
    storage->peer = plan.as_peer;
    storage->mapping = m;
    storage->has_lease = true;
    storage->last_unref = lend__storage_last_unref_imported;
    plan.as_peer->imported[slot] = storage;
    plan.as_peer->n_imported++;
    m->n_storages++;
}

/* Storages that were never lent are not in the ledger; under LEND_FORK_DROP, or without a page, they go too. */
static void drop_block(struct lend__block *block, void *arg) {
    (void)arg;
    if (!plan.page && block->owner && !block->owner->is_shared) drop_storage(block->owner);
}

static void child_ledger(void) {
    lend__pools_fork_visit(drop_block, NULL);
    lend__pools_fork_visit_allocations(take_over_allocation, NULL);
    for (uint32_t slot = 0; slot < LEDGER->n_slots; slot++) {
        struct lend__storage *storage = LEDGER->slots[slot].storage;
        if (!storage) continue;
        if (lend__storage_refs(storage))
            take_over_storage(storage, slot);
        else
            free(storage); /* the parent's limbo */
    }
    int table_fd = LEND__TAKE_FD(LEDGER->table_fd);
    if (plan.page) {
        struct lend__peer *peer = plan.as_peer;
        peer->table_fd = table_fd;
        peer->mappings = plan.mappings;
        peer->mappings_room = LEDGER->n_allocations;
        peer->seen_retired = peer->table->n_retired;
        peer->page->pid = (uint32_t)getpid();
        lend__peer_insert(peer);
    } else {
        lend__fd_close(&table_fd);
        free_mappings(plan.mappings);
    }
    plan.page = NULL;
    plan.as_peer = NULL;
    plan.mappings = NULL;
    lend__ledger_fork_child();
}

static void child(void) {
    pthread_mutex_init(&fork_lock, NULL);
    if (!plan.is_active) return;
    plan.is_active = false;
    lend__fork_epoch++;
    lend__process_init();
    lend__service_fork_child();
    lend__peers_visit(child_peer, NULL);
    child_ledger();
    struct lend__identity fresh;
    if (lend__identity_draw(&fresh) >= 0)
        lend__context.identity = fresh;
    else
        lend__store_relaxed(&lend__context.n_opens, 0u); /* without an identity nothing can be lent or taken */
    lend__watch_fork_release(true);
    lend__pools_fork_release(true);
    lend__import_fork_child();
    lend__context_fork_child();
    lend__region_fork_release(true);
    LEND_POINT("F8.child");
}

int lend__fork_register(void) {
    static bool is_registered;
    if (is_registered) return 0;
    int r = pthread_atfork(prepare, parent, child);
    if (!r) is_registered = true;
    return -r;
}
