/* SPDX-License-Identifier: MIT */
/* Opening and closing the process's context. The context lock guards opening, closing and the pool for copies; it comes
 * before the import and ledger locks. `n_opens` is read without it by every public call. */
#include "share/context.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/sys.h"
#include "memory/block.h"
#include "share/fork.h"
#include "share/ledger.h"
#include "share/liveness.h"
#include "share/peer.h"
#include "share/service.h"
#include "share/watch.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEADLINE_NS 5000000000ll     /* longer than any living exporter needs, short enough for a person */
#define PIN_ORPHAN_NS 60000000000ull /* a message may wait this long for its reader after the sender died */

struct lend__context lend__context;

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lend_pool *copies; /* for private tensors; made at the first need */

int lend__context_check(const char *operation, struct lend_error *error) {
    if (lend__is_raw_clone())
        return lend__fail(error, -ECHILD, operation,
                          "this process was made by a raw clone or _Fork, which lend cannot follow; use fork() or exec "
                          "a new program");
    if (__builtin_expect(!lend__load_relaxed(&lend__context.n_opens), 0))
        return lend__fail(error, -ENOTCONN, operation, "lend_open has not been called (or the last lend_close was)");
    return 0;
}

uint64_t lend__context_deadline(int64_t deadline_ns) {
    return lend__deadline(deadline_ns, lend__context.deadline_ns);
}

void lend__log(enum lend_log_level level, const char *format, ...) {
    if (!lend__context.log) return;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    lend__context.log(lend__context.log_user, level, text);
}

/* Handles carry the folder to processes with other working folders: it must be absolute. */
static int set_folder(struct lend__context *ret, const char *dir, struct lend_error *error) {
    char here[PATH_MAX] = "";
    if (*dir && *dir != '/' && !getcwd(here, sizeof here))
        return lend__fail_sys(error, -errno, "lend_open", "getcwd", "the relative socket_dir");
    int n = snprintf(ret->socket_dir, sizeof ret->socket_dir, "%s%s%s", here, *here ? "/" : "", dir);
    if (n < (int)sizeof ret->socket_dir) return 0;
    return lend__fail(error, -EINVAL, "lend_open",
                      "socket_dir has %d bytes and a socket path can have 107; use a shorter one", n);
}

static int read_opts(const struct lend_opts *opts, struct lend__context *ret, struct lend_error *error) {
    static const struct lend_opts none = {.size = sizeof none};
    if (!opts) opts = &none;
    if (opts->size != sizeof *opts)
        return lend__fail(error, -EINVAL, "lend_open", "opts.size is %zu; set it to sizeof(struct lend_opts) = %zu",
                          opts->size, sizeof *opts);
    if (opts->peers > LEND_PEERS_GROUP || opts->fork > LEND_FORK_DROP)
        return lend__fail(error, -EINVAL, "lend_open", "opts.peers %u or opts.fork %u is not a policy", opts->peers,
                          opts->fork);
    const char *dir = opts->socket_dir ? opts->socket_dir : secure_getenv("LEND_SOCKET_DIR");
    if (!dir) dir = "";
    if (opts->peers == LEND_PEERS_GROUP && !*dir)
        return lend__fail(error, -EINVAL, "lend_open",
                          "LEND_PEERS_GROUP needs socket_dir: the folder's permissions say who belongs to the group");
    *ret = (struct lend__context){
        .peers = opts->peers,
        .fork = opts->fork,
        .deadline_ns = opts->deadline_ns ? opts->deadline_ns : DEADLINE_NS,
        .pin_bytes_max = opts->pin_bytes_max,
        .pin_orphan_ns = opts->pin_orphan_ns ? opts->pin_orphan_ns : PIN_ORPHAN_NS,
        .limbo_bytes_max = opts->limbo_bytes_max,
        .log = opts->log,
        .log_user = opts->log_user,
    };
    return set_folder(ret, dir, error);
}

static bool are_equal(const struct lend__context *a, const struct lend__context *b) {
    return a->peers == b->peers && a->fork == b->fork && a->deadline_ns == b->deadline_ns &&
           a->pin_bytes_max == b->pin_bytes_max && a->pin_orphan_ns == b->pin_orphan_ns &&
           a->limbo_bytes_max == b->limbo_bytes_max && a->log == b->log && a->log_user == b->log_user &&
           !strcmp(a->socket_dir, b->socket_dir);
}

static int require_context(void) {
    return lend__load_relaxed(&lend__context.n_opens) ? 0 : -ENOTCONN;
}

static int open_first(struct lend__context *fresh, struct lend_error *error) {
    int r = lend__process_init();
    if (r < 0) return lend__fail_sys(error, r, "lend_open", "mmap", "the process word");
    r = lend__identity_draw(&fresh->identity);
    if (r < 0) return lend__fail_sys(error, r, "lend_open", "getrandom", "the exporter id");
    r = lend__fork_register();
    if (r < 0) return lend__fail_sys(error, r, "lend_open", "pthread_atfork", "the fork handlers");
    fresh->has_open_file_locks = lend__life_selftest();
    lend__memory_hooks.reclaim = lend__ledger_reclaim;
    lend__memory_hooks.allocation_retire = lend__ledger_retire;
    lend__memory_hooks.event = lend__context_memory_event;
    lend__memory_hooks.require_context = require_context;
    lend__context = *fresh;
    lend__store_release(&lend__context.n_opens, 1u);
    if (!fresh->has_open_file_locks)
        lend__log(LEND_LOG_WARNING,
                  "locks of open files do not follow their mappings here (is /proc mounted?): "
                  "pidfds decide whether a peer lives, and forked children of peers are not seen");
    return 0;
}

void lend__context_memory_event(uint32_t kind, uint64_t bytes) {
    lend__watch_emit(kind, 0, bytes);
}

int lend_open(const struct lend_opts *opts, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__context_check("lend_open", error);
    struct lend__context fresh = {0};
    int r = read_opts(opts, &fresh, error);
    if (r < 0) return r;
    pthread_mutex_lock(&context_lock);
    if (!lend__context.n_opens)
        r = open_first(&fresh, error);
    else if (opts && !are_equal(&fresh, &lend__context))
        r = lend__fail(error, -EINVAL, "lend_open",
                       "the context of this process is open already with other options; pass NULL to share it");
    else
        lend__store_relaxed(&lend__context.n_opens, lend__context.n_opens + 1);
    pthread_mutex_unlock(&context_lock);
    return r;
}

/* What still lives, before anything is closed. */
static int check_unused(struct lend_error *error) {
    uint64_t n_pools = 0, n_blocks = 0, n_imported = lend__peers_storages();
    uint64_t n_leaving = lend__ledger_leaving(); /* before the blocks, whose number only falls by it */
    lend__pools_count(&n_pools, &n_blocks);
    if (n_pools || n_blocks > n_leaving || n_imported)
        return lend__fail(error, -EBUSY, "lend_close",
                          "%llu pools, %llu tensors in them and %llu imported storages still exist; unref them first",
                          (unsigned long long)n_pools,
                          (unsigned long long)(n_blocks > n_leaving ? n_blocks - n_leaving : 0),
                          (unsigned long long)n_imported);
    return 0;
}

int lend_close(struct lend_error *error) {
    int r = lend__context_check("lend_close", error);
    if (r < 0) return r;
    pthread_mutex_lock(&context_lock);
    uint64_t n_storages = 0;
    if (!lend__context.n_opens) {
        r = -ENOTCONN;
    } else if (lend__context.n_opens > 1) {
        lend__store_relaxed(&lend__context.n_opens, lend__context.n_opens - 1);
    } else if ((r = check_unused(error)) >= 0) {
        lend__service_stop();
        lend__ledger_stop();
        struct lend_pool *pool = copies;
        copies = NULL;
        lend_pool_unref(pool);
        r = lend__peers_close(&n_storages);
        lend__store_release(&lend__context.n_opens, 0u);
    }
    pthread_mutex_unlock(&context_lock);
    return r;
}

int lend_exporter_id(uint8_t ret_id[16]) {
    int r = lend__context_check("lend_exporter_id", NULL);
    if (r < 0) return r;
    memcpy(ret_id, lend__context.identity.id, LEND__ID_BYTES);
    return 0;
}

int lend__context_pool(struct lend_pool **ret, struct lend_error *error) {
    int r = 0;
    pthread_mutex_lock(&context_lock);
    if (!copies) {
        r = lend_pool_new(NULL, &copies, error);
        if (r >= 0) lend__pool_set_internal(copies);
    }
    *ret = copies;
    pthread_mutex_unlock(&context_lock);
    return r;
}

void lend__context_fork_prepare(void) {
    pthread_mutex_lock(&context_lock);
}

void lend__context_fork_parent(void) {
    pthread_mutex_unlock(&context_lock);
}

/* The child's copies go into a pool of its own. */
void lend__context_fork_child(void) {
    pthread_mutex_init(&context_lock, NULL);
    copies = NULL;
}
