/* SPDX-License-Identifier: MIT */
/* The fingerprint of the layout in shm.h: FNV-1a over every size, offset and constant that two processes must agree
 * on. A build that moves a member gets another fingerprint and is refused in hello instead of reading wrong bytes. */
#include "share/shm.h"

#include "base/atomic.h"

uint64_t lend__shm_layout(void) {
    static const uint64_t facts[] = {
        LEND_SHM_TABLE_MAGIC,
        LEND_SHM_PAGE_MAGIC,
        LEND_SHM_SLOTS_MAX,
        LEND_SHM_PAGES_MAX,
        LEND_SHM_ALLOCATIONS_MAX,
        LEND_SHM_CELLS,
        LEND_SHM_RING,
        LEND_SHM_CHUNK_SLOTS,
        LEND_SHM_OPEN,
        LEND_SHM_CLOSING,
        LEND_SHM_RING_CELL,
        LEND_SHM_ALLOCATION_READ_ONLY,
        LEND_SHM_ALLOCATION_FILE,
        LEND_SHM_ACKS_OFF,
        LEND_SHM_ALLOCATIONS_OFF,
        LEND_SHM_SLOTS_OFF,
        LEND_SHM_TABLE_BYTES,
        LEND_SHM_HELD_OFF,
        LEND_SHM_PAGE_BYTES,
        sizeof(struct lend_shm_slot),
        offsetof(struct lend_shm_slot, allocation),
        offsetof(struct lend_shm_slot, offset),
        offsetof(struct lend_shm_slot, bytes),
        sizeof(struct lend_shm_allocation),
        offsetof(struct lend_shm_allocation, flags),
        offsetof(struct lend_shm_table, n_slots),
        offsetof(struct lend_shm_table, n_retired),
        offsetof(struct lend_shm_page, ring_head),
        offsetof(struct lend_shm_page, chunks),
        offsetof(struct lend_shm_page, ring),
        offsetof(struct lend_shm_page, cells),
        sizeof(struct lend_shm_cell),
        offsetof(struct lend_shm_cell, used),
    };
    static uint64_t known; /* atomic; 0: not yet computed. Always the same value, so racing threads do no harm */
    uint64_t hash = lend__load_relaxed(&known);
    if (hash) return hash;
    hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        for (int byte = 0; byte < 8; byte++) hash = (hash ^ (facts[i] >> (8 * byte) & 0xff)) * 0x100000001b3ull;
    lend__store_relaxed(&known, hash);
    return hash;
}
