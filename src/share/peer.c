/* SPDX-License-Identifier: MIT */
/* The importer's table of exporters. Locking: the import lock guards everything here; what has to be unmapped is taken
 * out under it and unmapped after it, since regions are removed with no lock held. */
#include "share/peer.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/lease.h"
#include "share/liveness.h"
#include "share/watch.h"

#include <errno.h>
#include <lend/watch.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define N_BUCKETS 256       /* by the first byte of a random id */
#define EOF_NS 100000000ull /* how long the end of a connection may come before the end of its process */

static pthread_mutex_t import_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t call_ended;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct lend__peer *buckets[N_BUCKETS];

static void init_condition(void) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&call_ended, &attr);
    pthread_condattr_destroy(&attr);
}

void lend__import_lock(void) {
    pthread_mutex_lock(&import_lock);
}

void lend__import_unlock(void) {
    pthread_mutex_unlock(&import_lock);
}

/* The forking thread holds the lock; no other thread exists in the child, so no call is under way there. */
void lend__import_fork_child(void) {
    pthread_mutex_init(&import_lock, NULL);
    init_condition();
}

struct lend__peer *lend__peer_find(const uint8_t id[LEND__ID_BYTES]) {
    struct lend__peer *peer = buckets[id[0]];
    while (peer && memcmp(peer->id, id, LEND__ID_BYTES) != 0) peer = peer->next;
    return peer;
}

static int set_address(struct lend__peer *peer, const struct lend__wire_exporter *exporter) {
    if (!exporter->socket_path) {
        int length = lend__identity_address(exporter->identity.uid, exporter->identity.id, NULL, &peer->address);
        peer->address_bytes = (socklen_t)length;
        return 0;
    }
    peer->address.sun_family = AF_UNIX;
    memcpy(peer->address.sun_path, exporter->socket_path, exporter->socket_path_bytes);
    peer->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + exporter->socket_path_bytes + 1);
    return 0;
}

void lend__peer_insert(struct lend__peer *peer) {
    struct lend__peer **bucket = &buckets[peer->id[0]];
    peer->next = *bucket;
    *bucket = peer;
}

struct lend__peer *lend__peer_obtain(const struct lend__wire_exporter *exporter) {
    struct lend__peer *peer = lend__peer_find(exporter->identity.id);
    if (!peer) {
        pthread_once(&once, init_condition);
        peer = lend__zalloc(sizeof *peer);
        if (!peer) return NULL;
        memcpy(peer->id, exporter->identity.id, LEND__ID_BYTES);
        peer->table_fd = peer->connection_fd = peer->pidfd = -1;
        set_address(peer, exporter);
        lend__peer_insert(peer);
    }
    peer->n_users++;
    return peer;
}

static void unmap_page(struct lend_shm_page **page) {
    if (*page) lend__sys.munmap(*page, LEND_SHM_PAGE_BYTES);
    *page = NULL;
}

static void destroy(struct lend__peer *peer) {
    for (uint32_t i = 0; i < peer->mappings_room; i++) lend__mapping_free(peer->mappings[i]);
    unmap_page(&peer->page);
    unmap_page(&peer->pending_page);
    unmap_page(&peer->spare.page);
    unmap_page(&peer->family_page);
    if (peer->table) lend__sys.munmap(peer->table, LEND_SHM_TABLE_BYTES);
    lend__fd_close(&peer->table_fd);
    lend__fd_close(&peer->connection_fd);
    lend__fd_close(&peer->pidfd);
    free(peer->imported);
    free(peer->mappings);
    free(peer);
}

/* Nobody uses it, nothing of it lives here, and it cannot be of use again: take it out. */
static bool forget_if_done(struct lend__peer *peer) {
    if (peer->n_users || peer->n_imported || (peer->table && !lend__peer_known_dead(peer))) return false;
    struct lend__peer **at = &buckets[peer->id[0]];
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    return true;
}

void lend__peer_release(struct lend__peer *peer) {
    lend__import_lock();
    peer->n_users--;
    bool done = forget_if_done(peer);
    lend__import_unlock();
    if (done) destroy(peer);
}

/* Takes out a peer of which nothing is held, and whose exporter has ended. */
static void collect_dead(struct lend__peer *peer, void *arg) {
    struct lend__peer **dead = arg;
    if (peer->n_users || peer->n_imported || peer->is_calling || !peer->table) return;
    struct pollfd p = {.fd = peer->connection_fd, .events = POLLRDHUP};
    struct timespec none = {0, 0};
    bool is_suspect = peer->connection_fd < 0 || lend__sys.poll(&p, 1, &none) > 0;
    if (!is_suspect || !lend__peer_is_dead(peer) || !forget_if_done(peer)) return;
    peer->next = *dead;
    *dead = peer;
}

void lend__peers_forget_dead(void) {
    struct lend__peer *dead = NULL;
    lend__import_lock();
    lend__peers_visit(collect_dead, &dead);
    lend__import_unlock();
    while (dead) {
        struct lend__peer *next = dead->next;
        destroy(dead);
        dead = next;
    }
}

/* Records of storages that are gone, for the next: both ends of their lives are under the import lock, so a list costs
 * nothing, while the C library's allocator would be a third of a rebuild. It is kept short (512 KiB), and not under
 * AddressSanitizer, which is to see every use after the end. */
#ifdef __SANITIZE_ADDRESS__
#define SPARE_STORAGES_MAX 0
#else
#define SPARE_STORAGES_MAX 4096
#endif
static struct lend__storage *spare_storages; /* linked by private_ctx */
static uint32_t n_spare_storages;

struct lend__storage *lend__storage_imported_alloc(void) {
    struct lend__storage *storage = spare_storages;
    void *at = NULL;
    if (!storage) return lend__sys.realloc(NULL, sizeof *storage, &at) < 0 ? NULL : at;
    spare_storages = storage->private_ctx;
    n_spare_storages--;
    return storage;
}

/* Locked. True: it was kept. */
static bool keep_storage(struct lend__storage *storage) {
    uint32_t room = SPARE_STORAGES_MAX;
    if (n_spare_storages == room) return false;
    storage->private_ctx = spare_storages;
    spare_storages = storage;
    n_spare_storages++;
    return true;
}

/* Locked. */
static void free_spare_storages(void) {
    while (spare_storages) {
        struct lend__storage *next = spare_storages->private_ctx;
        free(spare_storages);
        spare_storages = next;
    }
    n_spare_storages = 0;
}

/* The last_unref of an imported storage: the lease goes back. Memory only, unless its exporter is known dead and this
 * was the last of it. */
void lend__storage_last_unref_imported(struct lend__storage *storage) {
    struct lend__peer *peer = storage->peer;
    lend__import_lock();
    /* References are added by holders, and by finders under this lock: a count of 1 is ours alone and needs no locked
     * instruction. */
    if (lend__storage_refs(storage) != 1 && !lend__storage_lower(storage)) {
        lend__import_unlock();
        return;
    }
    peer->imported[storage->slot] = NULL;
    peer->n_imported--;
    if (storage->mapping) storage->mapping->n_storages--;
    if (storage->has_lease) lend__lease_give_back(peer, storage->slot);
    bool done = lend__peer_known_dead(peer) && forget_if_done(peer), is_kept = keep_storage(storage);
    lend__import_unlock();
    if (done) destroy(peer);
    if (!is_kept) free(storage);
}

void lend__peers_visit(void (*fn)(struct lend__peer *peer, void *arg), void *arg) {
    for (unsigned i = 0; i < N_BUCKETS; i++)
        for (struct lend__peer *peer = buckets[i], *next; peer; peer = next) {
            next = peer->next;
            fn(peer, arg);
        }
}

static void count_storages(struct lend__peer *peer, void *arg) {
    *(uint64_t *)arg += peer->n_imported;
}

uint64_t lend__peers_storages(void) {
    uint64_t n = 0;
    lend__import_lock();
    lend__peers_visit(count_storages, &n);
    lend__import_unlock();
    return n;
}

int lend__peers_close(uint64_t *ret_storages) {
    *ret_storages = lend__peers_storages();
    if (*ret_storages) return -EBUSY;
    lend__import_lock();
    struct lend__peer *all = NULL;
    for (unsigned i = 0; i < N_BUCKETS; i++)
        while (buckets[i]) {
            struct lend__peer *peer = buckets[i];
            buckets[i] = peer->next;
            peer->next = all;
            all = peer;
        }
    free_spare_storages();
    lend__import_unlock();
    while (all) {
        struct lend__peer *next = all->next;
        destroy(all);
        all = next;
    }
    return 0;
}

bool lend__peer_is_dead(struct lend__peer *peer) {
    if (lend__peer_known_dead(peer)) return true;
    if (!peer->table) return false;
    if (peer->table->has_lock ? !lend__life_is_over_shared(peer->table_fd)
                              : peer->pidfd < 0 || !lend__life_pidfd_is_over(peer->pidfd))
        return false;
    LEND_POINT("X1.exporter-dead");
    lend__store_release(&peer->is_dead, true);
    return true;
}

static uint64_t imported_bytes(const struct lend__peer *peer) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < peer->imported_room; i++)
        if (peer->imported[i]) bytes += peer->imported[i]->bytes;
    return bytes;
}

struct death {
    uint32_t pid;
    uint64_t bytes;
};
struct deaths {
    struct death list[16];
    unsigned n;
};

/* The end of a connection says when to look; the table's lock says what happened. */
static void notice_death(struct lend__peer *peer, void *arg) {
    struct deaths *deaths = arg;
    if (peer->connection_fd < 0 || peer->is_calling || deaths->n == 16) return;
    struct pollfd p = {.fd = peer->connection_fd, .events = POLLRDHUP};
    struct timespec none = {0, 0};
    if (lend__sys.poll(&p, 1, &none) <= 0 || !(p.revents & (POLLHUP | POLLRDHUP | POLLERR))) return;
    /* The lock follows the end of the connection within a moment: a dying process closes its files one by one. Until
     * then the connection stays, and keeps the watch readable; a living exporter's is closed, and made anew at need. */
    uint64_t now = lend__now_ns();
    if (!peer->eof_ns) peer->eof_ns = now;
    bool is_dead = lend__peer_is_dead(peer);
    if (!is_dead && now - peer->eof_ns < EOF_NS) return;
    peer->eof_ns = 0;
    lend__fd_close(&peer->connection_fd);
    if (is_dead) deaths->list[deaths->n++] = (struct death){peer->table ? peer->table->pid : 0, imported_bytes(peer)};
}

void lend__peers_notice_deaths(void) {
    struct deaths deaths = {.n = 0};
    lend__import_lock();
    lend__peers_visit(notice_death, &deaths);
    lend__import_unlock();
    for (unsigned i = 0; i < deaths.n; i++)
        lend__watch_emit(LEND_WATCH_EXPORTER_DIED, deaths.list[i].pid, deaths.list[i].bytes);
}

/* Grows an array of pointers to hold `index`, doubling. */
static int room(void **array, uint32_t *room_now, uint32_t index, uint32_t first) {
    if (index < *room_now) return 0;
    uint64_t wanted = *room_now ? *room_now : first;
    while (wanted <= index) wanted *= 2;
    void *grown = NULL;
    if (lend__sys.realloc(*array, wanted * sizeof(void *), &grown) < 0) return -ENOMEM;
    memset((uint8_t *)grown + *room_now * sizeof(void *), 0, (wanted - *room_now) * sizeof(void *));
    *array = grown;
    *room_now = (uint32_t)wanted;
    return 0;
}

int lend__peer_room_imported(struct lend__peer *peer, uint32_t slot) {
    void *array = peer->imported;
    int r = room(&array, &peer->imported_room, slot, 64);
    peer->imported = array;
    return r;
}

int lend__peer_room_mappings(struct lend__peer *peer, uint32_t index) {
    void *array = peer->mappings;
    int r = room(&array, &peer->mappings_room, index, 8);
    peer->mappings = array;
    return r;
}

/* R2: pairs with R1 of the exporter (ledger.c). */
struct lend__mapping *lend__peer_sweep_retired(struct lend__peer *peer) {
    struct lend__mapping *out = NULL;
    peer->seen_retired = lend__load_acquire(&peer->table->n_retired);
    for (uint32_t i = 0; i < peer->mappings_room; i++) {
        struct lend__mapping *m = peer->mappings[i];
        if (!m || m->n_storages) continue;
        if (lend__load_acquire(&lend__shm_allocations(peer->table)[i].state) == (uint64_t)m->gen << 1) continue;
        peer->mappings[i] = NULL;
        m->next = out;
        out = m;
        LEND_POINT("R2.swept");
    }
    return out;
}

int lend__peer_begin_call(struct lend__peer *peer, uint64_t deadline) {
    struct timespec until = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};
    int r = 0;
    lend__import_lock();
    while (peer->is_calling && r != ETIMEDOUT)
        r = deadline == UINT64_MAX ? pthread_cond_wait(&call_ended, &import_lock)
                                   : pthread_cond_timedwait(&call_ended, &import_lock, &until);
    if (!peer->is_calling) {
        peer->is_calling = true;
        r = 0;
    }
    lend__import_unlock();
    return -r;
}

void lend__peer_end_call(struct lend__peer *peer) {
    lend__import_lock();
    peer->is_calling = false;
    pthread_cond_broadcast(&call_ended);
    lend__import_unlock();
}
