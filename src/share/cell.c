/* SPDX-License-Identifier: MIT */
/* Pin cells. Every store to a cell is ours alone; the exporter answers in its own table. */
#include "share/cell.h"

#include "base/atomic.h"
#include "base/point.h"
#include "share/lease.h"

#include <errno.h>

/* Half of the cells: the exporter wakes once for this many pinned rebuilds, and the other half covers the wait. */
#define KICK_EVERY (LEND_SHM_CELLS / 2)

static bool is_usable(const struct lend__peer *peer, uint32_t i) {
    uint64_t state = lend__load_relaxed(&peer->page->cells[i].state);
    if (state == LEND_SHM_CELL_FREE) return true;
    /* P4: pairs with consume_cell in page.c. */
    return state == LEND_SHM_CELL_USED &&
           lend__load_acquire(&lend__shm_acks(peer->table, peer->page_index)[i]) == peer->cell_token[i];
}

int lend__cell_begin(struct lend__peer *peer, uint64_t token) {
    for (uint32_t n = 0; n < LEND_SHM_CELLS; n++) {
        uint32_t i = peer->next_cell++ % LEND_SHM_CELLS;
        if (!is_usable(peer, i)) continue;
        struct lend_shm_cell *cell = &peer->page->cells[i];
        peer->cell_token[i] = token;
#ifndef LEND_MUTANT_NOINTENT
        lend__store_relaxed(&cell->token, token);
        lend__store_release(&cell->state, (uint64_t)LEND_SHM_CELL_INTENT); /* P2 */
#endif
        LEND_POINT("P2.intent");
        return (int)i;
    }
    lend__peer_kick(peer);
    return -EAGAIN;
}

void lend__cell_used(struct lend__peer *peer, int cell) {
    struct lend_shm_cell *shm = &peer->page->cells[cell];
    lend__store_relaxed(&shm->token, peer->cell_token[cell]);
    lend__store_release(&shm->state, (uint64_t)LEND_SHM_CELL_USED); /* pairs with P3 */
    LEND_POINT("P2.used");
    lend__lease_announce(peer, LEND_SHM_RING_CELL | (uint32_t)cell);
    if (++peer->n_cells_since_kick < KICK_EVERY) return;
    peer->n_cells_since_kick = 0;
    lend__peer_kick(peer);
}

void lend__cell_clear(struct lend__peer *peer, int cell) {
    lend__store_release(&peer->page->cells[cell].state, (uint64_t)LEND_SHM_CELL_FREE);
    LEND_POINT("P2.cleared");
}
