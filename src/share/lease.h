/* SPDX-License-Identifier: MIT */
/* The importer's side of a lease: take, give back, undo. Hot: memory only, no system call.
 *
 *   take       L1  held[slot]++   seq_cst RMW        pairs with L6 (the exporter reads the pages)
 *              L2  read the word  seq_cst            pairs with L5 (closing), L7 (free), A4 (open)
 *   give back  L3  held[slot]--   release            pairs with L6: what we read or wrote comes before
 *              L4  announce       release            pairs with L9 (the exporter drains the ring)
 *
 * With both orders sequentially consistent, either the exporter sees our count, or we see its "closing" (Dekker; the
 * Spin model is models/lease.pml). Everything here runs under the import lock, so each page has one writer at a time;
 * counts are RMW all the same, for the exporter's and the sanitizer's eyes. */
#ifndef LEND_SHARE_LEASE_H_
#define LEND_SHARE_LEASE_H_

#include "base/atomic.h"
#include "base/point.h"
#include "share/peer.h"

enum lend__take {
    LEND__TAKE_OK = 0,
    LEND__TAKE_STALE = 1,  /* undone */
    LEND__TAKE_CLOSING = 2 /* the count is kept: look again with lend__lease_look */
};

/* L4. The head is private (ring_head); the entry goes first, then the head. */
static inline void lend__lease_announce(struct lend__peer *peer, uint32_t entry) {
    struct lend_shm_page *page = peer->page;
    lend__store_release(&page->ring[peer->ring_head % LEND_SHM_RING], entry);
    LEND_POINT("L4.entry-written");
    lend__store_release(&page->ring_head, ++peer->ring_head);
    LEND_POINT("L4.announced");
}

/* L3 and L4. */
static inline void lend__lease_give_back(struct lend__peer *peer, uint32_t slot) {
    lend__sub_release(&lend__shm_held(peer->page)[slot], 1u);
    LEND_POINT("L3.given-back");
    lend__lease_announce(peer, slot);
}

/* Marks the chunk before its first count: until then the exporter does not read it (page.c, L6). */
static inline void lend__lease_mark_chunk(struct lend_shm_page *page, uint32_t slot) {
    uint32_t chunk = slot / LEND_SHM_CHUNK_SLOTS;
    uint64_t bit = 1ull << chunk % 64, *word = &page->chunks[chunk / 64];
    if (lend__load_relaxed(word) & bit) return;
    lend__or_seq_cst(word, bit);
    LEND_POINT("L1.chunk-marked");
}

/* L2: what the word says about a count that is already raised. `is_exporter_dead`: nobody will reopen it, so closing
 * is open. */
static inline enum lend__take lend__lease_look(struct lend__peer *peer, uint32_t slot, uint64_t gen,
                                               bool is_exporter_dead) {
    uint64_t word = lend__load_seq_cst(&lend__shm_slots(peer->table)[slot].word);
    LEND_POINT("L2.word-read");
    if (word == LEND_SHM_WORD(gen, LEND_SHM_OPEN)) return LEND__TAKE_OK;
#ifndef LEND_MUTANT_CLOSINGSTALE
    if (word == LEND_SHM_WORD(gen, LEND_SHM_CLOSING)) return is_exporter_dead ? LEND__TAKE_OK : LEND__TAKE_CLOSING;
#endif
#ifdef LEND_MUTANT_SILENTUNDO
    lend__sub_release(&lend__shm_held(peer->page)[slot], 1u);
#else
    lend__lease_give_back(peer, slot); /* an undo is announced too: our count may have kept the block in limbo */
#endif
    return LEND__TAKE_STALE;
}

/* L1 and L2. */
static inline enum lend__take lend__lease_take(struct lend__peer *peer, uint32_t slot, uint64_t gen) {
#ifndef LEND_MUTANT_CHUNKLATE
    lend__lease_mark_chunk(peer->page, slot);
#endif
    LEND_POINT("L1.before-count");
    lend__add_seq_cst(&lend__shm_held(peer->page)[slot], 1u);
    LEND_POINT("L1.counted");
    enum lend__take take = lend__lease_look(peer, slot, gen, false);
#ifdef LEND_MUTANT_CHUNKLATE
    lend__lease_mark_chunk(peer->page, slot);
#endif
    return take;
}

#endif
