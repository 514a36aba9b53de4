/* SPDX-License-Identifier: MIT */
/* The service thread's loop: accepts, reads one message at a time, answers without ever waiting for a peer, and looks
 * after the dead. It takes none of the user's locks and has all signals blocked.
 *
 * The end of a connection, and a tick, only say when to look; that a peer is dead is the word of the kernel's lock
 * (liveness.h). The tick runs only while it has something to do: fast while limbo, pins with an end or pages without a
 * connection exist; once a second while anybody holds a page; not at all otherwise. */
#include "share/service.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/control.h"
#include "share/folder.h"
#include "share/ledger.h"
#include "share/requests.h"

#include <errno.h>
#include <fcntl.h>
#include <lend/watch.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_FAST_MS 100 /* a dead process is noticed well within a second, without a connection too */
#define TICK_SLOW_MS 1000
#define TEST_ALL_NS 900000000ull /* with every slow tick */
#define TICK_DYING_MS 2 /* right after an end of connection: the lock follows within a few hundred microseconds */
#define DYING_ROUNDS 50
#define GREETING_NS 5000000000ull /* a connection that has not said hello by then is closed */
#define BACKLOG 4096

static struct {
    bool is_running;
    bool is_stopping; /* atomic */
    bool sleeps_long; /* atomic: the tick found nothing that needs it often */
    pthread_t thread;
    int listen_fd, epoll_fd, wake_fd, reserve_fd;
    struct sockaddr_un address;
    struct lend__connection *connections; /* service thread; the child's fork handler */
    int dying_rounds;                     /* fast ticks left after an end of connection */
    uint64_t all_tested_ns;               /* when every page was last tested, with or without a connection */
} service = {.listen_fd = -1, .epoll_fd = -1, .wake_fd = -1, .reserve_fd = -1};

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

void lend__service_forget_page(struct lend__page *page) {
    for (struct lend__connection *c = service.connections; c; c = c->next)
        if (c->page == page) c->page = NULL;
}

/* --- connections -------------------------------------------------------------------------------------------------- */

static void close_connection(struct lend__connection *connection) {
    struct lend__connection **at = &service.connections;
    while (*at != connection) at = &(*at)->next;
    lend__ledger_lock();
    *at = connection->next;
    struct lend__page *page = connection->page;
    if (page) {
        page->has_connection = false;
        lend__ledger.n_unconnected++;
        service.dying_rounds = DYING_ROUNDS;
    }
    lend__pages_test(false);
    lend__ledger_unlock();
    /* By name: epoll itself forgets only with the last descriptor, and a child between fork and exec may have one. */
    (void)lend__sys.epoll_ctl(service.epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    lend__fd_close(&connection->fd);
    free(connection);
}

static bool is_admitted(uint32_t uid) {
    if (lend__identity_is_same_user(uid)) return true;
    /* The folder's permissions decided who could connect. */
    return lend__context.peers == LEND_PEERS_GROUP && lend__context.socket_dir[0];
}

static int adopt_connection(int fd, struct lend__connection **ret) {
    uint32_t uid = 0, pid = 0;
    int r = lend__control_credentials(fd, &uid, &pid);
    if (r < 0) return r;
    if (!is_admitted(uid)) return -EPERM;
    struct lend__connection *connection = lend__zalloc(sizeof *connection);
    if (!connection) return -ENOMEM;
    *connection = (struct lend__connection){.fd = fd, .uid = uid, .pid = pid, .since_ns = lend__now_ns()};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    r = (int)lend__sys.epoll_ctl(service.epoll_fd, EPOLL_CTL_ADD, fd, &event);
    if (r < 0) {
        free(connection);
        return r;
    }
    lend__ledger_lock();
    connection->next = service.connections;
    service.connections = connection;
    lend__ledger_unlock();
    *ret = connection;
    return 0;
}

/* The table of descriptors is full: with the one kept in reserve the peer is told so. */
static void refuse_for_descriptors(void) {
    lend__fd_close(&service.reserve_fd);
    int fd = (int)lend__sys.accept(service.listen_fd);
    if (fd >= 0) {
        lend__request_refuse(fd, -EMFILE);
        lend__fd_close(&fd);
    }
    service.reserve_fd = (int)lend__sys.open("/dev/null", O_RDONLY);
}

/* One message; a peer that has more is met again by the level-triggered epoll, after the others. */
static void serve(struct lend__connection *connection) {
    static union { /* the service thread is alone here */
        struct lend__control_request request;
        uint8_t bytes[LEND__CONTROL_REQUEST_BYTES_MAX];
    } message;
    struct lend__control_fds fds;
    int n = lend__control_recv(connection->fd, message.bytes, sizeof message, &fds);
    if (n == -EAGAIN) return;
    lend__control_drop_fds(&fds); /* no request carries any */
    if (n <= 0 || !lend__request_handle(connection, message.bytes, (size_t)n)) close_connection(connection);
}

static void accept_all(void) {
    for (;;) {
        int fd = (int)lend__sys.accept(service.listen_fd);
        if (fd == -EMFILE || fd == -ENFILE) {
            refuse_for_descriptors();
            return; /* the level-triggered listener comes back for the next one */
        }
        if (fd < 0) return;
        LEND_POINT("C1.accepted");
        struct lend__connection *connection = NULL;
        int r = adopt_connection(fd, &connection);
        if (r < 0) {
            lend__request_refuse(fd, r);
            lend__fd_close(&fd);
        } else {
            serve(connection); /* hello has usually come by now: the first contact need not wait for another round */
        }
    }
}

/* --- the tick ----------------------------------------------------------------------------------------------------- */

static void note_limbo_budgets(void) {
    uint64_t budget = lend__context.limbo_bytes_max;
    if (!budget) return;
    for (uint32_t i = 0; i < lend__ledger.n_pages; i++) lend__ledger.pages[i]->limbo_bytes = 0;
    for (uint32_t slot = lend__ledger.limbo_first; slot != LEND__SLOT_NONE; slot = lend__ledger.slots[slot].next)
        for (uint32_t i = 0; i < lend__ledger.n_pages; i++)
            if (lend__page_held(lend__ledger.pages[i], slot))
                lend__ledger.pages[i]->limbo_bytes += lend__ledger.slots[slot].storage->bytes;
    for (uint32_t i = 0; i < lend__ledger.n_pages; i++) {
        struct lend__page *page = lend__ledger.pages[i];
        bool is_over = page->limbo_bytes > budget;
        if (is_over && !page->is_over_budget)
            lend__ledger_note(LEND_WATCH_LIMBO_EXCEEDED, lend__page_pid(page), page->limbo_bytes);
        page->is_over_budget = is_over;
    }
}

static void close_ungreeted(void) {
    uint64_t now = lend__now_ns();
    for (struct lend__connection *c = service.connections, *next; c; c = next) {
        next = c->next;
        lend__ledger_lock();
        bool is_greeted = c->page != NULL;
        lend__ledger_unlock();
        if (!is_greeted && now - c->since_ns > GREETING_NS) close_connection(c);
    }
}

/* Looks after the dead; returns how long to sleep, -1 for ever. */
static int tick(void) {
    lend__ledger_lock();
    for (uint32_t i = 0; i < lend__ledger.n_pages; i++) lend__page_drain(lend__ledger.pages[i]);
    /* The end of a connection may stay unseen (a child of the peer holds it open), so all are tested now and then. */
    uint64_t now = lend__now_ns();
    bool all = !lend__context.has_open_file_locks || now - service.all_tested_ns >= TEST_ALL_NS;
    if (all) service.all_tested_ns = now;
    lend__pages_test(all);
    lend__pins_expire();
    note_limbo_budgets();
    bool fast = lend__ledger.n_limbo || lend__ledger.n_pins_expiring || lend__ledger.n_unconnected;
    bool slow = lend__ledger.n_pages || lend__ledger.n_pins;
    if (!lend__ledger.n_unconnected) service.dying_rounds = 0;
    lend__page_stock();
    lend__store_release(&service.sleeps_long, !fast); /* under the lock: limbo cannot fill unseen in between */
    lend__ledger_unlock();
    close_ungreeted();
    if (service.dying_rounds > 0) return service.dying_rounds--, TICK_DYING_MS;
    return fast ? TICK_FAST_MS : slow || service.connections ? TICK_SLOW_MS : -1;
}

static void *service_main(void *arg) {
    (void)arg;
    pthread_setname_np(pthread_self(), "lend-service");
    for (;;) {
        struct epoll_event events[32];
        long n = lend__sys.epoll_wait(service.epoll_fd, events, 32, tick());
        bool listener_is_ready = false;
        for (long i = 0; i < n; i++) {
            if (events[i].data.ptr == &service.wake_fd)
                lend__sys.read(service.wake_fd, &(uint64_t){0}, sizeof(uint64_t));
            else if (events[i].data.ptr == &service.listen_fd)
                listener_is_ready = true;
            else
                serve(events[i].data.ptr); /* may close that connection, and only that one */
        }
        if (lend__load_acquire(&service.is_stopping)) return NULL;
        if (listener_is_ready) accept_all();
    }
}

/* --- start and stop ----------------------------------------------------------------------------------------------- */

static void close_files(void) {
    if (service.listen_fd >= 0 && service.address.sun_path[0]) lend__sys.unlink(service.address.sun_path);
    lend__fd_close(&service.listen_fd);
    lend__fd_close(&service.epoll_fd);
    lend__fd_close(&service.wake_fd);
    lend__fd_close(&service.reserve_fd);
}

static int watch_fd(int fd, void *tag) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    return (int)lend__sys.epoll_ctl(service.epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int open_socket(struct lend_error *error) {
    const struct lend__context *context = &lend__context;
    int length =
        lend__identity_address(context->identity.uid, context->identity.id, context->socket_dir, &service.address);
    if (length < 0)
        return lend__fail(error, length, "lend_open",
                          "the socket folder %s makes a path of more than 107 bytes; use a shorter one",
                          context->socket_dir);
    LEND__CLEANUP_FD folder = -1;
    if (context->socket_dir[0]) {
        folder = lend__folder_lock(context->socket_dir);
        if (folder < 0) return lend__fail_sys(error, folder, "lend_reduce", "flock", context->socket_dir);
        lend__folder_sweep(context->socket_dir);
    }
    service.listen_fd = (int)lend__sys.socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (service.listen_fd < 0) return lend__fail_sys(error, service.listen_fd, "lend_reduce", "socket", "the service");
    long r = lend__sys.bind(service.listen_fd, (const struct sockaddr *)&service.address, (socklen_t)length);
    bool has_name = r >= 0 && context->socket_dir[0];
    /* To connect takes write permission, which an ordinary umask denies: the folder alone decides who comes in. */
    if (has_name && context->peers == LEND_PEERS_GROUP) r = lend__sys.chmod(service.address.sun_path, 0666);
    if (r >= 0) r = lend__sys.listen(service.listen_fd, BACKLOG);
    if (r < 0) {
        if (has_name) lend__sys.unlink(service.address.sun_path);
        service.address.sun_path[0] = '\0';
        return lend__fail_sys(error, (int)r, "lend_reduce", "bind",
                              context->socket_dir[0] ? context->socket_dir : "the service");
    }
    return 0;
}

static int open_files(struct lend_error *error) {
    int r = open_socket(error);
    if (r < 0) return r;
    service.epoll_fd = (int)lend__sys.epoll_create();
    service.wake_fd = (int)lend__sys.eventfd(0);
    service.reserve_fd = (int)lend__sys.open("/dev/null", O_RDONLY);
    if (service.epoll_fd < 0 || service.wake_fd < 0 || service.reserve_fd < 0) {
        int code = service.epoll_fd < 0 ? service.epoll_fd : service.wake_fd < 0 ? service.wake_fd : service.reserve_fd;
        return lend__fail_sys(error, code, "lend_reduce", "epoll_create1", "the service");
    }
    r = watch_fd(service.wake_fd, &service.wake_fd);
    if (r >= 0) r = watch_fd(service.listen_fd, &service.listen_fd);
    return r < 0 ? lend__fail_sys(error, r, "lend_reduce", "epoll_ctl", "the service") : 0;
}

int lend__service_start(struct lend_error *error) {
    pthread_mutex_lock(&start_lock);
    int r = 0;
    if (!service.is_running) {
        lend__ledger_lock();
        r = lend__ledger_start(error);
        if (r >= 0) lend__page_stock();
        lend__ledger_unlock();
        if (r >= 0) r = open_files(error);
        if (r >= 0) {
            r = (int)lend__sys.thread_create(&service.thread, service_main, NULL);
            if (r < 0) lend__fail_sys(error, r, "lend_reduce", "pthread_create", "the service");
        }
        if (r < 0)
            close_files();
        else
            service.is_running = true;
    }
    pthread_mutex_unlock(&start_lock);
    return r;
}

void lend__service_want_tick(void) {
    if (lend__exchange_acquire(&service.sleeps_long, false)) lend__service_wake();
}

void lend__service_wake(void) {
    uint64_t one = 1;
    if (service.wake_fd >= 0) lend__sys.write(service.wake_fd, &one, sizeof one);
}

void lend__service_stop(void) {
    if (!service.is_running) return;
    lend__store_release(&service.is_stopping, true);
    lend__service_wake();
    pthread_join(service.thread, NULL);
    while (service.connections) close_connection(service.connections);
    close_files();
    service.is_running = false;
    service.is_stopping = false;
}

void lend__service_fork_prepare(void) {
    pthread_mutex_lock(&start_lock);
}

void lend__service_fork_parent(void) {
    pthread_mutex_unlock(&start_lock);
}

/* The thread is not in the child; its descriptors are. The socket's name is the parent's: not unlinked. */
void lend__service_fork_child(void) {
    pthread_mutex_init(&start_lock, NULL);
    for (struct lend__connection *c = service.connections, *next; c; c = next) {
        next = c->next;
        lend__fd_close(&c->fd);
        free(c);
    }
    service.connections = NULL;
    service.address.sun_path[0] = '\0';
    close_files();
    service.is_running = false;
    service.dying_rounds = 0;
}
