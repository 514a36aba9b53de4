/* SPDX-License-Identifier: MIT */
/* The exporter's books: which storages are lent (slots), who may hold them (pages), what waits in limbo, and pins.
 * The only place that writes the slot table.
 *
 * One lock, the ledger lock. Under it: slots, limbo, pages, allocations' names, pins. Order of locks: context, region,
 * service start, import, ledger, pool, watch. No callback, log or heap-freeing of user memory happens under it; what has become free is
 * collected and given back afterwards (lend__ledger_unlock). */
#ifndef LEND_SHARE_LEDGER_H_
#define LEND_SHARE_LEDGER_H_

#include "memory/block.h"
#include "share/shm.h"
#include "share/wire.h"
#include "tensor/storage.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define LEND__SLOT_NONE UINT32_MAX
#define LEND__PAGE_NONE UINT32_MAX

/* The private side of a slot; what peers see of it is struct lend_shm_slot. */
struct lend__slot {
    struct lend__storage *storage; /* NULL: free */
    uint64_t gen;                  /* of the storage, or the next one to be given out */
    uint32_t n_pins;
    uint32_t next, prev; /* in the free list (next only) or in limbo */
    bool is_limbo;
};

/* An importer's page, seen from the exporter. */
struct lend__page {
    struct lend_shm_page *shm;
    int lent_fd; /* the open file that its importer will hold; -1 once it was sent */
    int mine_fd; /* tests the lock of the open file that the importer has */
    int pidfd;   /* only where that lock cannot decide */
    uint32_t index;
    uint64_t nonce;
    uint32_t pid;          /* a label */
    uint32_t parent_index; /* of a spare page: the page whose process asked for it; LEND__PAGE_NONE */
    bool has_connection;   /* its end triggers a test; without one the tick tests */
    uint64_t since_ns;     /* CLOCK_BOOTTIME */
    uint64_t tail;         /* announcements handled */
    uint64_t limbo_bytes;  /* what this page keeps in limbo, as of the last tick */
    bool is_over_budget;
    uint8_t *given; /* bit per allocation whose descriptor this peer has: only those can it hold (facts: flaw 27) */
    uint32_t given_bits;
};

struct lend__pin {
    uint64_t token, bytes, made_ns;
    uint64_t expires_ns; /* CLOCK_BOOTTIME; UINT64_MAX: not */
    uint32_t sender_page, sender_pid;
    uint32_t n_slots, *slots; /* what it holds, in the order in which it was asked for */
    struct lend__pin *hash_next, *older, *newer;
};

struct lend__ledger {
    pthread_mutex_t lock;
    struct lend_shm_table
        *table;              /* mapped writable; its open file holds the lock that says we live. NULL: not exporting */
    int table_fd;            /* another open file of it, for importers */
    uint64_t table_reserved; /* bytes of the slots part that have memory behind them */
    struct lend__slot *slots;
    uint32_t n_slots, slots_room, free_slot;
    uint32_t limbo_first, n_limbo;
    uint64_t limbo_bytes, n_lent, lent_bytes;
    struct lend__allocation **allocations; /* by index; NULL: free */
    uint32_t n_allocations, allocations_room;
    struct lend__page **pages;     /* dense */
    struct lend__page *ready_page; /* in stock for the next first contact; not among the pages */
    uint32_t n_pages, pages_room, n_unconnected;
    uint8_t page_used[LEND_SHM_PAGES_MAX / 8]; /* indexes in use */
    struct lend__pin **pin_hash;
    uint32_t pin_hash_room, n_pins, n_pins_expiring;
    struct lend__pin *oldest_pin, *newest_pin;
    uint64_t pin_bytes, n_pins_made, pin_key;
    /* Collected under the lock, handled by lend__ledger_unlock. */
    struct lend__storage *freed;
    struct lend__ledger_event {
        uint32_t kind, pid;
        uint64_t bytes;
    } events[16];
    uint32_t n_events;
    bool wants_tick; /* limbo is no longer empty: the service must look at the pages again and again */
};

extern struct lend__ledger lend__ledger;

void lend__ledger_lock(void);
/* Unlocks, then gives freed blocks back to their pools and emits the events. True when a block came back. */
bool lend__ledger_unlock(void);

/* Storages that this process has dropped and whose blocks are not back in their pools: in limbo, or on their way after
 * an unlock in another thread. */
uint64_t lend__ledger_leaving(void);

/* Fork: only unlocks (other lend locks are still held); lend__ledger_flush does the rest later. fork_child: unmaps and
 * frees everything that was the parent's, and makes the lock new. */
void lend__ledger_unlock_only(void);
void lend__ledger_flush(void);
void lend__ledger_fork_child(void);

/* Notes an event for after the unlock (dropped when sixteen are waiting already; watches count losses). */
void lend__ledger_note(uint32_t kind, uint32_t pid, uint64_t bytes);

/* --- ledger.c: slots ------------------------------------------------------------------------------------------- */

/* Makes the slot table, once. */
int lend__ledger_start(struct lend_error *error);

/* Drops everything at lend_close: pages, pins, limbo (what others hold survives with them), and the table, whose lock
 * then says that we are gone. The service has stopped. */
void lend__ledger_stop(void);

/* Gives a pool storage its slot, if it has none. The caller holds a reference of the storage. */
int lend__ledger_lend(struct lend__storage *storage, const char *operation, struct lend_error *error);
int lend__ledger_lend_locked(struct lend__storage *storage, const char *operation, struct lend_error *error);

/* A handle that names this very process: the original storage, with a new reference (out of limbo, too). The pin is
 * not yet consumed. Return: 0, -ESTALE, -EBADMSG. */
int lend__ledger_find(const struct lend__wire_storage *wire, struct lend__storage **ret, struct lend_error *error);

/* Reuse (design: "Reuse"): tries to free a storage without own references. Locked. */
void lend__ledger_try_reuse(uint32_t slot);
void lend__ledger_try_all_limbo(void);

/* Drains every page's announcements and drops dead pages; tries limbo where that may help. True when a block came
 * back to a pool. The hook `reclaim` of memory/. */
bool lend__ledger_reclaim(void);

void lend__ledger_retire(struct lend__allocation *allocation);

/* --- page.c: pages ---------------------------------------------------------------------------------------------- */

/* Makes a page. `ret_lent_fd` is the locked open file for its importer: send it and close it under the same hold of
 * the ledger lock, so that no fork of ours can inherit it. Locked. */
int lend__page_new(uint32_t pid, struct lend__page **ret, int *ret_lent_fd);
/* Makes a page ahead, if there is none in stock: a first contact then waits for fewer system calls. Best effort. Locked. */
void lend__page_stock(void);
/* Unmaps and closes all pages and the one in stock, without a word to anybody: a forked child's copies of its parent's.
 * Locked. */
void lend__pages_free(void);
/* Everything that the page claims is over: consumes its cells, hands its pins to expiry, unmaps it. Limbo is not yet
 * tried again. Locked. */
void lend__page_drop(struct lend__page *page);
/* The label: as hello said, or for a forked child that has not, as it wrote itself. */
uint32_t lend__page_pid(const struct lend__page *page);
bool lend__page_is_dead(const struct lend__page *page);
struct lend__page *lend__page_find(uint32_t index, uint64_t nonce);
/* Remembers that this peer has the allocation's descriptor, and so have the spare pages that wait for its children.
 * 0 or -ENOMEM. Locked. */
int lend__page_give(struct lend__page *page, uint32_t allocation);
bool lend__page_was_given(const struct lend__page *page, uint32_t allocation);
/* The count that the page shows for a slot; 0 when its chunk is not in use. Locked. */
uint32_t lend__page_held(const struct lend__page *page, uint32_t slot);
/* Handles its announcements. Locked. */
void lend__page_drain(struct lend__page *page);
/* Tests pages and drops the dead ones, then tries limbo. `all`: also those with a living connection. Locked. */
void lend__pages_test(bool all);

/* --- pins.c ------------------------------------------------------------------------------------------------------ */

/* A pin for one delivery, asked for by the page's process (LEND__PAGE_NONE: by this one). */
struct lend__pin_request {
    uint32_t sender_page, sender_pid;
    uint64_t ns_max; /* 0: no limit of its own */
};

/* Pins n open slots with one token, or none of them. *token: 0, or a pin of the same sender to which they are added.
 * -ENOSPC: the budget; -ENOMEM; -ESTALE: that pin has ended. Locked. */
int lend__pin_add(const struct lend__pin_request *request, const uint32_t *slots, uint32_t n, uint64_t *token,
                  struct lend_error *error);
/* Ends a pin, if it still exists; limbo is tried. Idempotent. Locked. */
void lend__pin_consume(uint64_t token);
void lend__pins_orphan(uint32_t sender_page);
/* Ends what has expired. Locked. */
void lend__pins_expire(void);
void lend__pins_drop_all(void);

#endif
