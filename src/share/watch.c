/* SPDX-License-Identifier: MIT */
/* Watches: each keeps its own last 256 records behind an eventfd. Writers never wait: when a watch is full its oldest
 * record goes and is counted. The descriptor that users poll is an epoll of that eventfd and of the connections to the
 * exporters of this process: a pure importer has no thread, so the end of a connection wakes the user, and
 * lend_watch_next finds out what it means. One lock (the watch lock, innermost) guards the list and the rings. */
#include "share/watch.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/peer.h"

#include <errno.h>
#include <lend/watch.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define N_RECORDS 256u

struct lend_watch {
    struct lend_watch *next;
    int fd;              /* epoll: what users poll */
    int event_fd;        /* readable while records wait */
    uint64_t head, tail; /* records written and read */
    uint64_t n_lost;
    struct lend_watch_record records[N_RECORDS];
};

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lend_watch *watches;
static uint64_t n_lost_early; /* atomic: events lost before they reached any watch */

static void add(struct lend_watch *watch, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    lend__sys.epoll_ctl(watch->fd, EPOLL_CTL_ADD, fd, &event);
}

static void add_peer(struct lend__peer *peer, void *arg) {
    if (peer->connection_fd >= 0) add(arg, peer->connection_fd, EPOLLRDHUP);
}

static int open_files(struct lend_watch *watch) {
    watch->event_fd = (int)lend__sys.eventfd(watch->head != watch->tail);
    if (watch->event_fd < 0) return watch->event_fd;
    watch->fd = (int)lend__sys.epoll_create();
    if (watch->fd < 0) {
        lend__fd_close(&watch->event_fd);
        return watch->fd;
    }
    add(watch, watch->event_fd, EPOLLIN);
    return 0;
}

int lend_watch_new(struct lend_watch **ret_watch, struct lend_error *error) {
    int r = lend__context_check("lend_watch_new", error);
    if (r < 0) return r;
    struct lend_watch *watch = lend__zalloc(sizeof *watch);
    if (!watch)
        return lend__fail(error, -ENOMEM, "lend_watch_new", "no memory for a watch of %zu bytes", sizeof *watch);
    r = open_files(watch);
    if (r < 0) {
        lend__fail_sys(error, r, "lend_watch_new", "eventfd", "a watch");
        free(watch);
        return r;
    }
    lend__import_lock();
    pthread_mutex_lock(&watch_lock);
    watch->next = watches;
    watches = watch;
    pthread_mutex_unlock(&watch_lock);
    lend__peers_visit(add_peer, watch);
    lend__import_unlock();
    *ret_watch = watch;
    return 0;
}

void lend_watch_unref(struct lend_watch *watch) {
    if (!watch) return;
    pthread_mutex_lock(&watch_lock);
    struct lend_watch **at = &watches;
    while (*at && *at != watch) at = &(*at)->next;
    if (*at) *at = watch->next;
    pthread_mutex_unlock(&watch_lock);
    lend__fd_close(&watch->fd);
    lend__fd_close(&watch->event_fd);
    free(watch);
}

int lend_watch_fd(const struct lend_watch *watch) {
    return watch->fd;
}

static int take(struct lend_watch *watch, struct lend_watch_record *ret_record) {
    int r = 0;
    pthread_mutex_lock(&watch_lock);
    if (watch->tail == watch->head) {
        r = LEND_EMPTY;
    } else {
        *ret_record = watch->records[watch->tail++ % N_RECORDS];
        ret_record->n_lost = watch->n_lost;
        watch->n_lost = 0;
        uint64_t count;
        if (watch->tail == watch->head) lend__sys.read(watch->event_fd, &count, sizeof count);
    }
    pthread_mutex_unlock(&watch_lock);
    return r;
}

int lend_watch_next(struct lend_watch *watch, struct lend_watch_record *ret_record) {
    if (lend__is_raw_clone()) return -ECHILD;
    int r = take(watch, ret_record);
    if (r != LEND_EMPTY) return r;
    lend__peers_notice_deaths(); /* the wake-up may have been the end of a connection */
    return take(watch, ret_record);
}

void lend__watch_emit(uint32_t kind, uint32_t pid, uint64_t bytes) {
    struct lend_watch_record record = {kind, pid, bytes, lend__boottime_ns(), 0};
    pthread_mutex_lock(&watch_lock);
    uint64_t lost = __atomic_exchange_n(&n_lost_early, 0, __ATOMIC_RELAXED);
    for (struct lend_watch *watch = watches; watch; watch = watch->next) {
        watch->n_lost += lost;
        if (watch->head - watch->tail == N_RECORDS) {
            watch->tail++;
            watch->n_lost++;
        }
        watch->records[watch->head++ % N_RECORDS] = record;
        uint64_t one = 1;
        if (watch->head - watch->tail == 1) lend__sys.write(watch->event_fd, &one, sizeof one);
    }
    pthread_mutex_unlock(&watch_lock);
}

void lend__watch_add_connection(int fd) {
    pthread_mutex_lock(&watch_lock);
    for (struct lend_watch *watch = watches; watch; watch = watch->next) add(watch, fd, EPOLLRDHUP);
    pthread_mutex_unlock(&watch_lock);
}

void lend__watch_count_lost(void) {
    lend__add_relaxed(&n_lost_early, 1);
}

void lend__watch_fork_prepare(void) {
    pthread_mutex_lock(&watch_lock);
}

void lend__watch_fork_release(bool is_child) {
    /* The descriptors are shared with the parent: a read in the child would take the parent's wake-up. */
    for (struct lend_watch *watch = watches; is_child && watch; watch = watch->next) {
        lend__fd_close(&watch->fd);
        lend__fd_close(&watch->event_fd);
        open_files(watch); /* on failure the watch stays silent: its descriptor is -1 */
    }
    pthread_mutex_unlock(&watch_lock);
}
