/* SPDX-License-Identifier: MIT */
/* Pages, seen from the exporter that makes them. An importer alone writes its page after it was sent, so everything
 * read here is input: it is copied out once and checked, and the worst that a peer can do is to delay or spoil its own
 * shares (L-4). Everything here runs under the ledger lock.
 *
 * A page dies when the kernel says that nobody has it open or mapped (L-3; liveness.h). */
#include "base/atomic.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/liveness.h"
#include "share/service.h"

#include <errno.h>
#include <fcntl.h>
#include <lend/watch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEDGER (&lend__ledger)

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif

static int free_index(uint32_t *ret) {
    for (uint32_t i = 0; i < LEND_SHM_PAGES_MAX; i++) {
        if (LEDGER->page_used[i / 8] & 1u << i % 8) continue;
        *ret = i;
        return 0;
    }
    return -ENOSPC;
}

/* Makes the memfd at its full, sparse length, seals it, and opens it twice more: for the importer and for the test. */
static int make_files(int *ret_lent, int *ret_mine) {
    LEND__CLEANUP_FD memfd = lend__memfd_new("lend-page", 0);
    if (memfd < 0) return memfd;
    long r = lend__sys.ftruncate(memfd, LEND_SHM_PAGE_BYTES);
    if (r < 0) return (int)r;
    r = lend__sys.add_seals(memfd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    if (r < 0) return (int)r;
    /* The header has memory behind it before anyone writes: shortage is an error here, not a signal there. */
    r = lend__sys.fallocate(memfd, 0, 0, sizeof(struct lend_shm_page));
    if (r < 0) return (int)r;
    return lend__life_lend(memfd, lend__context.has_open_file_locks, ret_lent, ret_mine);
}

static int list_room(void) {
    if (LEDGER->n_pages < LEDGER->pages_room) return 0;
    uint32_t room = LEDGER->pages_room ? LEDGER->pages_room * 2 : 16;
    void *grown = NULL;
    if (lend__sys.realloc(LEDGER->pages, room * sizeof *LEDGER->pages, &grown) < 0) return -ENOMEM;
    LEDGER->pages = grown;
    LEDGER->pages_room = room;
    return 0;
}

static void publish_header(struct lend__page *page) {
    struct lend_shm_page *shm = page->shm;
    shm->layout = lend__shm_layout();
    shm->nonce = page->nonce;
    shm->index = page->index;
    memcpy(shm->exporter_id, lend__context.identity.id, sizeof shm->exporter_id);
    shm->magic = LEND_SHM_PAGE_MAGIC;
}

static void free_page(struct lend__page *page) {
    lend__sys.munmap(page->shm, LEND_SHM_PAGE_BYTES);
    lend__fd_close(&page->lent_fd);
    lend__fd_close(&page->mine_fd);
    lend__fd_close(&page->pidfd);
    free(page->given);
    free(page);
}

/* A page with everything but an importer; its index is taken. */
static int make_page(struct lend__page **ret) {
    uint32_t index;
    int r = free_index(&index);
    if (r < 0) return r;
    struct lend__page *page = lend__zalloc(sizeof *page);
    if (!page) return -ENOMEM;
    LEND__CLEANUP_FD lent = -1;
    LEND__CLEANUP_FD mine = -1;
    void *at = NULL;
    long n = make_files(&lent, &mine);
    if (n >= 0) n = lend__sys.getrandom(&page->nonce, sizeof page->nonce);
    /* The row of acknowledgements, so that writing to it cannot fault later. */
    if (n >= 0)
        n = lend__sys.fallocate(LEDGER->table_fd, 0, LEND_SHM_ACKS_OFF + (uint64_t)index * LEND_SHM_CELLS * 8,
                                LEND_SHM_CELLS * 8);
    if (n >= 0)
        n = lend__sys.mmap(NULL, LEND_SHM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, mine, 0, &at);
    if (n < 0) {
        free(page);
        return (int)n;
    }
    page->shm = at;
    page->lent_fd = LEND__TAKE_FD(lent);
    page->mine_fd = LEND__TAKE_FD(mine);
    page->pidfd = -1;
    page->index = index;
    page->parent_index = LEND__PAGE_NONE;
    publish_header(page);
    memset(lend__shm_acks(LEDGER->table, index), 0, LEND_SHM_CELLS * 8);
    LEDGER->page_used[index / 8] |= (uint8_t)(1u << index % 8);
    *ret = page;
    return 0;
}

void lend__page_stock(void) {
    if (!LEDGER->ready_page && LEDGER->table) (void)make_page(&LEDGER->ready_page);
}

int lend__page_new(uint32_t pid, struct lend__page **ret, int *ret_lent_fd) {
    struct lend__page *page = LEDGER->ready_page;
    int r = list_room();
    if (r >= 0 && !page) r = make_page(&page);
    if (r < 0) return r;
    LEDGER->ready_page = NULL;
    page->pid = pid;
    page->since_ns = lend__boottime_ns();
    LEDGER->pages[LEDGER->n_pages++] = page;
    LEDGER->n_unconnected++;
    LEND_POINT("A1.page-made");
    *ret = page;
    *ret_lent_fd = LEND__TAKE_FD(page->lent_fd);
    return 0;
}

void lend__pages_free(void) {
    for (uint32_t i = 0; i < LEDGER->n_pages; i++) free_page(LEDGER->pages[i]);
    LEDGER->n_pages = 0;
    if (LEDGER->ready_page) free_page(LEDGER->ready_page);
    LEDGER->ready_page = NULL;
}

struct lend__page *lend__page_find(uint32_t index, uint64_t nonce) {
    for (uint32_t i = 0; i < LEDGER->n_pages; i++)
        if (LEDGER->pages[i]->index == index && LEDGER->pages[i]->nonce == nonce) return LEDGER->pages[i];
    return NULL;
}

static int give(struct lend__page *page, uint32_t allocation) {
    if (allocation >= page->given_bits) {
        uint32_t bits = (allocation | 63u) + 1;
        void *grown = NULL;
        if (lend__sys.realloc(page->given, bits / 8, &grown) < 0) return -ENOMEM;
        page->given = grown;
        memset(page->given + page->given_bits / 8, 0, (bits - page->given_bits) / 8);
        page->given_bits = bits;
    }
    page->given[allocation / 8] |= (uint8_t)(1u << allocation % 8);
    return 0;
}

int lend__page_give(struct lend__page *page, uint32_t allocation) {
    int r = give(page, allocation);
    for (uint32_t i = 0; r >= 0 && i < LEDGER->n_pages; i++) {
        struct lend__page *spare = LEDGER->pages[i];
        if (spare->parent_index == page->index && !spare->has_connection) r = give(spare, allocation);
    }
    return r;
}

bool lend__page_was_given(const struct lend__page *page, uint32_t allocation) {
    return allocation < page->given_bits && (page->given[allocation / 8] & 1u << allocation % 8);
}

/* L6: pairs with L1 and L2 of take (lease.c). The chunk's bit is set before the first count of its chunk is raised, so
 * together they are one count: a bit not yet seen is a count of 0, and its owner has yet to read the word. */
uint32_t lend__page_held(const struct lend__page *page, uint32_t slot) {
    uint32_t chunk = slot / LEND_SHM_CHUNK_SLOTS;
    uint64_t bits = lend__load_seq_cst(&page->shm->chunks[chunk / 64]);
    if (!(bits >> chunk % 64 & 1)) return 0;
    return lend__load_seq_cst(&lend__shm_held(page->shm)[slot]);
}

/* P3: a used cell's token is consumed once; the acknowledgement lets the importer use the cell again. */
static void consume_cell(struct lend__page *page, uint32_t cell, bool intents_too) {
    struct lend_shm_cell *shm = &page->shm->cells[cell];
    uint64_t *ack = &lend__shm_acks(LEDGER->table, page->index)[cell];
    uint64_t used = lend__load_acquire(&shm->used), intent = lend__load_acquire(&shm->intent);
    if (used && used != lend__load_relaxed(ack)) {
        LEND_POINT("P3.consume");
        lend__pin_consume(used);
        lend__store_release(ack, used); /* P4: pairs with is_usable in cell.c */
        LEND_POINT("P4.acknowledged");
    }
    if (intents_too) lend__pin_consume(intent); /* 0, or the one that was used: nothing is left of it */
}

static void consume_all_cells(struct lend__page *page, bool intents_too) {
    for (uint32_t i = 0; i < LEND_SHM_CELLS; i++) consume_cell(page, i, intents_too);
}

static void handle_entry(struct lend__page *page, uint32_t entry) {
    if (entry & LEND_SHM_RING_CELL) {
        uint32_t cell = entry & ~LEND_SHM_RING_CELL;
        if (cell < LEND_SHM_CELLS) consume_cell(page, cell, false);
    } else if (entry < LEDGER->n_slots && LEDGER->slots[entry].is_limbo) {
        lend__ledger_try_reuse(entry);
    }
}

/* The ring is overwritten, never waited for. L9, pairs with L4 of announce (lease.h): the
 * entry is copied (acquire), then the head read again: with head - tail at or above the size (not only above) the
 * entry may have been overwritten already (models/ring.pml). At most one ring's length at a time: a peer that
 * announces without end must not keep the ledger. */
void lend__page_drain(struct lend__page *page) {
    uint64_t head = lend__load_acquire(&page->shm->ring_head);
    for (uint32_t n = 0; page->tail != head && n < LEND_SHM_RING; n++) {
        uint32_t entry = lend__load_acquire(&page->shm->ring[page->tail % LEND_SHM_RING]);
        LEND_POINT("L9.entry-copied");
        head = lend__load_acquire(&page->shm->ring_head);
#ifdef LEND_MUTANT_OVERRUNLATE
        if (head - page->tail > LEND_SHM_RING) {
#else
        if (head - page->tail >= LEND_SHM_RING) {
#endif
            page->tail = head;
            consume_all_cells(page, false);
            lend__ledger_try_all_limbo();
            return;
        }
        page->tail++;
        handle_entry(page, entry);
    }
}

uint32_t lend__page_pid(const struct lend__page *page) {
    return page->pid ? page->pid : lend__load_relaxed(&page->shm->pid);
}

bool lend__page_is_dead(const struct lend__page *page) {
    if (lend__context.has_open_file_locks) return lend__life_is_over(page->mine_fd);
    return page->pidfd >= 0 && lend__life_pidfd_is_over(page->pidfd);
}

/* What the page's leases held, for the event. The counts are the dead peer's own words, bounded by what it was given. */
static uint64_t held_bytes(const struct lend__page *page) {
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < LEDGER->n_slots; slot++) {
        uint32_t chunk = slot / LEND_SHM_CHUNK_SLOTS;
        if (!(lend__load_relaxed(&page->shm->chunks[chunk / 64]) >> chunk % 64 & 1)) {
            slot |= LEND_SHM_CHUNK_SLOTS - 1; /* on to the next chunk */
            continue;
        }
        const struct lend__storage *storage = LEDGER->slots[slot].storage;
        if (storage && lend__page_held(page, slot)) bytes += storage->bytes;
    }
    return bytes;
}

void lend__page_drop(struct lend__page *page) {
    LEND_POINT("D1.page-dead");
    uint64_t bytes = held_bytes(page);
    if (bytes) lend__ledger_note(LEND_WATCH_PEER_DIED, lend__page_pid(page), bytes);
#ifndef LEND_MUTANT_NOCELLS
    consume_all_cells(page, true);
#endif
    LEND_POINT("D2.cells-consumed");
    lend__pins_orphan(page->index);
    LEND_POINT("D3.pins-orphaned");
    for (uint32_t i = 0; i < LEDGER->n_pages; i++) {
        if (LEDGER->pages[i] != page) continue;
        LEDGER->pages[i] = LEDGER->pages[--LEDGER->n_pages];
        break;
    }
    LEDGER->page_used[page->index / 8] &= (uint8_t) ~(1u << page->index % 8);
    if (page->has_connection)
        lend__service_forget_page(page);
    else
        LEDGER->n_unconnected--;
    free_page(page);
    LEND_POINT("D4.page-dropped");
}

void lend__pages_test(bool all) {
    bool any = false;
    for (uint32_t i = LEDGER->n_pages; i-- > 0;) {
        struct lend__page *page = LEDGER->pages[i];
        if ((page->has_connection && !all) || !lend__page_is_dead(page)) continue;
        lend__page_drain(page);
        lend__page_drop(page);
        any = true;
    }
#ifdef LEND_MUTANT_NODEATHRETRY
    any = false;
#endif
    if (any) lend__ledger_try_all_limbo();
}
