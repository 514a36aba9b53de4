/* SPDX-License-Identifier: MIT */
/* An exporter, seen from an importer: its slot table, our page at it, its allocations mapped here, and the storages of
 * it that live here.
 *
 * One lock, the import lock, guards all peers and is held across fork. Round trips to an exporter are made without it,
 * by one thread at a time per peer (is_calling). */
#ifndef LEND_SHARE_PEER_H_
#define LEND_SHARE_PEER_H_

#include "share/control.h"
#include "share/mapping.h"
#include "share/shm.h"
#include "share/wire.h"
#include "tensor/storage.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* A page that waits for a forked child: mapped, its descriptor closed. */
struct lend__spare {
    struct lend_shm_page *page;
    uint32_t index;
    uint64_t nonce;
};

struct lend__peer {
    uint8_t id[LEND__ID_BYTES];
    struct lend__peer *next; /* in its hash bucket */
    struct sockaddr_un address;
    socklen_t address_bytes;
    uint32_t n_users; /* threads that are about to use it without the lock */
    bool is_calling;  /* a thread is in a round trip */
    bool is_dead;     /* atomic, for good: the kernel said so (lend__peer_known_dead) */
    uint64_t eof_ns;  /* when the end of its connection was first seen, while the kernel has not yet said so */

    struct lend_shm_table *table; /* mapped read-only; NULL: no contact yet */
    int table_fd;                 /* its lock is tested through this, and lend_send passes it on */
    struct lend_shm_page *page;   /* ours; NULL: none (a dead exporter's tensors that came with a message) */
    uint32_t page_index;
    uint64_t page_nonce;
    uint64_t ring_head;                 /* what we last published */
    struct lend_shm_page *pending_page; /* mapped by the call under way, not yet installed: a fork must know it */
    int connection_fd;
    int pidfd; /* only where the table has no lock */
    uint32_t sequence;

    struct lend__storage **imported; /* by slot: what lives here */
    uint32_t imported_room;
    uint64_t n_imported;
    struct lend__mapping **mappings; /* by allocation index */
    uint32_t mappings_room;
    uint64_t seen_retired;

    uint64_t cells_busy[LEND_SHM_CELLS / 64]; /* a rebuild of ours is under way in the cell */
    uint32_t next_cell, n_cells_since_kick;

    struct lend__spare spare;          /* for the fork under way */
    struct lend_shm_page *family_page; /* in a child without a spare: keeps the parent's page alive */
    bool is_family_fork;               /* decided in the prepare handler */
};

void lend__import_lock(void);
void lend__import_unlock(void);

/* The peer with this id, or NULL. Locked. */
struct lend__peer *lend__peer_find(const uint8_t id[LEND__ID_BYTES]);

/* The same, made if need be, with a user counted. NULL: no memory. Locked. */
struct lend__peer *lend__peer_obtain(const struct lend__wire_exporter *exporter);

/* Puts a peer that was made elsewhere (fork.c) into the table. Locked. */
void lend__peer_insert(struct lend__peer *peer);

/* Gives the user back; a peer without contact, or dead and without storages, goes with its last user. What is to be
 * unmapped is done after the lock was released, so: called unlocked. */
void lend__peer_release(struct lend__peer *peer);

/* Lets go of exporters that have ended and of which nothing is held: their tables, pages, mappings and descriptors. For
 * long-lived importers of short-lived exporters, before each first contact. Unlocked. */
void lend__peers_forget_dead(void);

/* Memory for the record of an imported storage, not cleared; NULL: none. Locked. */
struct lend__storage *lend__storage_imported_alloc(void);

/* The last_unref of an imported storage. */
void lend__storage_last_unref_imported(struct lend__storage *storage);

/* Goes through all peers. Locked. */
void lend__peers_visit(void (*fn)(struct lend__peer *peer, void *arg), void *arg);

/* Closes all peers at lend_close; -EBUSY when storages live. */
int lend__peers_close(uint64_t *ret_storages);
uint64_t lend__peers_storages(void);

/* Is its exporter dead? Tests the table's lock, or its pidfd (a system call). Sets is_dead. Locked or not. */
bool lend__peer_is_dead(struct lend__peer *peer);

/* Room for slot / allocation index in the arrays. 0 or -ENOMEM. Locked. */
int lend__peer_room_imported(struct lend__peer *peer, uint32_t slot);
int lend__peer_room_mappings(struct lend__peer *peer, uint32_t index);

/* Has its death been noticed? Acquire: what is read of its table afterwards is final. */
static inline bool lend__peer_known_dead(const struct lend__peer *peer) {
    return lend__load_acquire(&peer->is_dead);
}

/* The mapping of exactly this allocation, from which our page can take, or NULL. Locked. Hot. */
static inline struct lend__mapping *lend__peer_mapping(const struct lend__peer *peer, uint32_t index, uint32_t gen) {
    struct lend__mapping *m = index < peer->mappings_room ? peer->mappings[index] : NULL;
    return m && m->gen == gen && (m->is_given || lend__peer_known_dead(peer)) ? m : NULL;
}

/* Takes mappings out that their exporter has retired and that hold nothing; returns them for lend__mapping_free_list
 * after the unlock. Locked. */
struct lend__mapping *lend__peer_sweep_retired(struct lend__peer *peer);

/* --- contact.c ---------------------------------------------------------------------------------------------------- */

/* What is wanted of an exporter. */
struct lend__contact_request {
    const struct lend__wire_exporter *exporter;
    uint32_t allocation, allocation_gen; /* LEND__CONTROL_NONE: its books, no memory */
    bool accepts_files;                  /* otherwise memory that is a file's is refused before it is touched */
    uint64_t deadline;
};

/* Makes sure that this peer can be taken from: table, page and the allocation. One deadline, all or nothing.
 * Unlocked, with a user counted.
 * Return: 0; -EOWNERDEAD; -ESTALE; -ETIMEDOUT; -EPERM; -EPROTONOSUPPORT; -EMFILE; -EREMOTE; -EBADMSG; -ENOMEM... */
int lend__contact(struct lend__peer *peer, const struct lend__contact_request *wanted, struct lend_error *error);

/* Asks the exporter to drain our page; does not wait, and may be lost. Locked or not. */
void lend__peer_kick(struct lend__peer *peer);

/* Gets peer->spare before a fork; failure leaves it empty. Unlocked, with a user counted. */
void lend__peer_get_spare(struct lend__peer *peer, uint64_t deadline);

/* Uses a table and an allocation that came with a message, when the exporter itself is dead. The descriptors are
 * consumed on success. allocation_fd may be -1 for a storage of no bytes. Unlocked, with a user counted. */
int lend__contact_frozen(struct lend__peer *peer, const struct lend__contact_request *wanted, int *table_fd,
                         int *allocation_fd, struct lend_error *error);

/* Pins n storages at the exporter with one token, or none. Cancels a token. Unlocked, with a user counted. */
int lend__contact_pin(struct lend__peer *peer, const struct lend__control_slot *slots, uint32_t n, uint64_t ns_max,
                      uint64_t deadline, uint64_t *ret_token, struct lend_error *error);
int lend__contact_cancel(struct lend__peer *peer, uint64_t token, uint64_t deadline, struct lend_error *error);

/* A connection to an exporter's socket, and one whole exchange on it (inspect.c uses them without a peer). `peer`:
 * whose death is to be noticed while waiting; NULL: unknown. */
int lend__dial(const struct sockaddr_un *address, socklen_t bytes, uint64_t deadline);
int lend__dial_send(int fd, const struct lend__control_request *request, uint64_t deadline);
int lend__dial_wait(int fd, struct lend__peer *peer, uint64_t deadline);

/* Emits LEND_WATCH_EXPORTER_DIED for exporters that have ended since. Unlocked. */
void lend__peers_notice_deaths(void);

/* --- waiting for the call slot (peer.c) ----------------------------------------------------------------------------- */
int lend__peer_begin_call(struct lend__peer *peer, uint64_t deadline); /* 0, -ETIMEDOUT */
void lend__peer_end_call(struct lend__peer *peer);

/* Fork (fork.c). */
void lend__import_fork_child(void);

#endif
