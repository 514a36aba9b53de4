/* SPDX-License-Identifier: MIT */
/* Pin cells. Every store to a cell is ours alone; the exporter answers in its own table. It may look at any cell at any
 * time (an overrun ring makes it look at all), so each word must be true by itself: "used" is stored only after the
 * lease was taken, and a cell gets its next token only when the last one was acknowledged (models/cell.pml). */
#include "share/cell.h"

#include "base/atomic.h"
#include "base/point.h"
#include "share/lease.h"

#include <errno.h>

/* Half of the cells: the exporter wakes once for this many pinned rebuilds, and the other half covers the wait. */
#define KICK_EVERY (LEND_SHM_CELLS / 2)

static bool is_usable(const struct lend__peer *peer, uint32_t i) {
    /* A pinned handle that is rebuilt again may meet its own token here, used and acknowledged. */
    if (peer->cells_busy[i / 64] >> i % 64 & 1) return false;
    const struct lend_shm_cell *cell = &peer->page->cells[i];
    uint64_t intent = lend__load_relaxed(&cell->intent), used = lend__load_relaxed(&cell->used);
    if (!intent) return true;
    /* P4: pairs with consume_cell in page.c. */
    return intent == used && lend__load_acquire(&lend__shm_acks(peer->table, peer->page_index)[i]) == used;
}

static void set_busy(struct lend__peer *peer, uint32_t i, bool is_busy) {
    uint64_t bit = 1ull << i % 64;
    peer->cells_busy[i / 64] = is_busy ? peer->cells_busy[i / 64] | bit : peer->cells_busy[i / 64] & ~bit;
}

int lend__cell_begin(struct lend__peer *peer, uint64_t token) {
    for (uint32_t n = 0; n < LEND_SHM_CELLS; n++) {
        uint32_t i = peer->next_cell++ % LEND_SHM_CELLS;
        if (!is_usable(peer, i)) continue;
        set_busy(peer, i, true);
#ifndef LEND_MUTANT_NOINTENT
        lend__store_release(&peer->page->cells[i].intent, token); /* P2 */
#endif
        LEND_POINT("P2.intent");
        return (int)i;
    }
    lend__peer_kick(peer);
    return -EAGAIN;
}

void lend__cell_used(struct lend__peer *peer, int cell, uint64_t token) {
    lend__store_release(&peer->page->cells[cell].used, token); /* pairs with P3 */
    set_busy(peer, (uint32_t)cell, false);
    LEND_POINT("P2.used");
    lend__lease_announce(peer, LEND_SHM_RING_CELL | (uint32_t)cell);
    if (++peer->n_cells_since_kick < KICK_EVERY) return;
    peer->n_cells_since_kick = 0;
    lend__peer_kick(peer);
}

void lend__cell_clear(struct lend__peer *peer, int cell) {
    lend__store_release(&peer->page->cells[cell].intent, 0u);
    set_busy(peer, (uint32_t)cell, false);
    LEND_POINT("P2.cleared");
}
