/* SPDX-License-Identifier: MIT */
/* What lies in memory that processes share: the exporter's slot table and the importers' pages.
 *
 *   slot table   made, sealed and written by the exporter alone; importers map it read-only
 *   page         one per importer (or forked child): made and sealed by the exporter, written by that importer alone
 *
 * Both have their full length from birth (sparse memfds, sealed against shrinking and growing), so nothing is ever
 * remapped. Fixed-width members, no pointers; every offset is asserted here and described in docs/shm-layout.md. */
#ifndef LEND_SHARE_SHM_H_
#define LEND_SHARE_SHM_H_

#include <stddef.h>
#include <stdint.h>

/* 16.7 million storages lent at a time; the sparse table is 512 MiB of addresses, no memory. */
#define LEND_SHM_SLOTS_MAX (1u << 24)
/* Importers and forked children of one exporter; more than any descriptor limit lets in. */
#define LEND_SHM_PAGES_MAX 4096u
#define LEND_SHM_ALLOCATIONS_MAX (1u << 16)
/* Pin tokens that an importer may have in use before the exporter must have seen them. */
#define LEND_SHM_CELLS 256u
/* Announcements between two drains before "try all of limbo" is cheaper anyway. A power of two. */
#define LEND_SHM_RING 1024u
/* Counts that share one bit in `chunks`: 4 KiB of counts, the granule in which a page takes memory. */
#define LEND_SHM_CHUNK_SLOTS 1024u

/* A slot's word: generation << 2 | state. Generations are never repeated: 62 bits last 146 years at 10^9 a second. */
enum lend_shm_state {
    LEND_SHM_FREE = 0,   /* the generation is the next one to be given out */
    LEND_SHM_OPEN = 1,   /* may be taken */
    LEND_SHM_CLOSING = 2 /* the exporter is reading the pages: keep the count and look again */
};
#define LEND_SHM_WORD(gen, state) ((uint64_t)(gen) << 2 | (uint64_t)(state))
#define LEND_SHM_GEN(word) ((word) >> 2)
#define LEND_SHM_STATE(word) ((word)&3u)

/* Word and entry share half a cache line: a random slot costs an importer one miss. The entry changes only while the
 * word says free, so who holds a lease may read it. */
struct lend_shm_slot {
    uint64_t word; /* atomic */
    uint32_t allocation;
    uint32_t allocation_gen;
    uint64_t offset; /* bytes from the start of the allocation's mapped range */
    uint64_t bytes;
};

/* state: generation << 1 | retired. Retired: the exporter gave it back; unmap it when nothing of it is held. */
struct lend_shm_allocation {
    uint64_t state; /* atomic; the rest changes only while it says retired */
    uint64_t bytes;
    uint64_t fd_offset; /* where the range begins in the descriptor (adopted memory) */
    uint64_t flags;     /* enum lend_shm_allocation_flags */
};
enum lend_shm_allocation_flags {
    LEND_SHM_ALLOCATION_READ_ONLY = 1, /* peers can only read: the kernel sees to it */
    LEND_SHM_ALLOCATION_FILE = 2       /* the pages of a file, which nothing keeps from being cut; always read-only */
};

#define LEND_SHM_TABLE_MAGIC 0x304241544e454cull /* "LENTAB0" */
#define LEND_SHM_PAGE_MAGIC 0x304741504e454cull  /* "LENPAG0" */

struct lend_shm_table {
    uint64_t magic;
    uint64_t layout; /* lend__shm_layout() */
    uint8_t boot_id[16];
    uint8_t exporter_id[16];
    uint64_t start_ns; /* CLOCK_BOOTTIME, a label */
    uint32_t uid, pid; /* labels */
    uint32_t has_lock; /* an open-file lock says whether the exporter lives; otherwise a pidfd must */
    uint32_t reserved0;
    uint64_t reserved[7];
    uint64_t n_slots;   /* atomic: slots below it have been used; others must not be read */
    uint64_t n_retired; /* atomic: rises with every retired allocation, so that importers look */
};

/* A pin token on its way. Two words that are each a token of their own, so that none is ever read with the meaning of
 * another (models/cell.pml). */
struct lend_shm_cell {
    uint64_t intent; /* atomic: a rebuild is under way; consumed only when the page is dropped. 0: none */
    uint64_t used;   /* atomic: its lease is taken; the exporter consumes the token and acknowledges. 0: none yet */
};

struct lend_shm_page {
    uint64_t magic; /* these six: by the exporter, before the importer gets the page */
    uint64_t layout;
    uint64_t nonce; /* proves to the exporter that a process maps this page */
    uint32_t index;
    uint32_t reserved0;
    uint8_t exporter_id[16];
    uint32_t pid; /* by the importer: a label */
    uint32_t reserved1;
    uint64_t reserved2;
    uint64_t ring_head; /* atomic: announcements ever made */
    uint64_t reserved3[247];
    uint64_t chunks[LEND_SHM_SLOTS_MAX / LEND_SHM_CHUNK_SLOTS / 64]; /* atomic bits: this chunk of counts is in use */
    uint32_t ring[LEND_SHM_RING];                                    /* slot, or LEND_SHM_RING_CELL | cell */
    struct lend_shm_cell cells[LEND_SHM_CELLS];
};
#define LEND_SHM_RING_CELL 0x80000000u

/* Parts start at multiples of 64 KiB, the largest page size. */
#define LEND_SHM_ACKS_OFF (64u << 10)
#define LEND_SHM_ALLOCATIONS_OFF (LEND_SHM_ACKS_OFF + LEND_SHM_PAGES_MAX * LEND_SHM_CELLS * 8u)
#define LEND_SHM_SLOTS_OFF (LEND_SHM_ALLOCATIONS_OFF + LEND_SHM_ALLOCATIONS_MAX * 32u)
#define LEND_SHM_TABLE_BYTES ((uint64_t)LEND_SHM_SLOTS_OFF + (uint64_t)LEND_SHM_SLOTS_MAX * 32u)
#define LEND_SHM_HELD_OFF (64u << 10)
#define LEND_SHM_PAGE_BYTES ((uint64_t)LEND_SHM_HELD_OFF + (uint64_t)LEND_SHM_SLOTS_MAX * 4u)

_Static_assert(sizeof(struct lend_shm_slot) == 32, "slot");
_Static_assert(offsetof(struct lend_shm_slot, allocation) == 8, "slot");
_Static_assert(offsetof(struct lend_shm_slot, allocation_gen) == 12, "slot");
_Static_assert(offsetof(struct lend_shm_slot, offset) == 16, "slot");
_Static_assert(offsetof(struct lend_shm_slot, bytes) == 24, "slot");
_Static_assert(sizeof(struct lend_shm_allocation) == 32, "allocation");
_Static_assert(offsetof(struct lend_shm_table, boot_id) == 16, "table");
_Static_assert(offsetof(struct lend_shm_table, exporter_id) == 32, "table");
_Static_assert(offsetof(struct lend_shm_table, start_ns) == 48, "table");
_Static_assert(offsetof(struct lend_shm_table, uid) == 56, "table");
_Static_assert(offsetof(struct lend_shm_table, pid) == 60, "table");
_Static_assert(offsetof(struct lend_shm_table, has_lock) == 64, "table");
_Static_assert(offsetof(struct lend_shm_table, n_slots) == 128, "table");
_Static_assert(offsetof(struct lend_shm_table, n_retired) == 136, "table");
_Static_assert(sizeof(struct lend_shm_table) <= LEND_SHM_ACKS_OFF, "table");
_Static_assert(sizeof(struct lend_shm_cell) == 16, "cell");
_Static_assert(offsetof(struct lend_shm_page, nonce) == 16, "page");
_Static_assert(offsetof(struct lend_shm_page, index) == 24, "page");
_Static_assert(offsetof(struct lend_shm_page, exporter_id) == 32, "page");
_Static_assert(offsetof(struct lend_shm_page, pid) == 48, "page");
_Static_assert(offsetof(struct lend_shm_page, ring_head) == 64, "page");
_Static_assert(offsetof(struct lend_shm_page, chunks) == 2048, "page");
_Static_assert(offsetof(struct lend_shm_page, ring) == 4096, "page");
_Static_assert(offsetof(struct lend_shm_page, cells) == 8192, "page");
_Static_assert(sizeof(struct lend_shm_page) == 12288, "page");
_Static_assert(sizeof(struct lend_shm_page) <= LEND_SHM_HELD_OFF, "page");
_Static_assert(LEND_SHM_ALLOCATIONS_OFF % (64u << 10) == 0 && LEND_SHM_SLOTS_OFF % (64u << 10) == 0, "parts");

static inline uint32_t *lend__shm_held(struct lend_shm_page *page) {
    return (uint32_t *)((uint8_t *)page + LEND_SHM_HELD_OFF);
}
static inline struct lend_shm_slot *lend__shm_slots(const struct lend_shm_table *table) {
    return (struct lend_shm_slot *)((uintptr_t)table + LEND_SHM_SLOTS_OFF);
}
static inline struct lend_shm_allocation *lend__shm_allocations(const struct lend_shm_table *table) {
    return (struct lend_shm_allocation *)((uintptr_t)table + LEND_SHM_ALLOCATIONS_OFF);
}
/* The exporter's acknowledgements: the token that it last consumed from that cell of that page. */
static inline uint64_t *lend__shm_acks(const struct lend_shm_table *table, uint32_t page_index) {
    return (uint64_t *)((uintptr_t)table + LEND_SHM_ACKS_OFF) + (size_t)page_index * LEND_SHM_CELLS;
}

/* Fingerprint of everything above; peers compare it in hello. */
uint64_t lend__shm_layout(void);

#endif
