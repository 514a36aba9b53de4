/* SPDX-License-Identifier: MIT */
/* The one context of a process: where it is reached, how long it waits, what it may hold. */
#ifndef LEND_CONTEXT_H_
#define LEND_CONTEXT_H_

#include <lend/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a forked child of this process keeps (see docs/fork.md). */
enum lend_fork_policy {
    LEND_FORK_HOLD = 0, /* the child holds every tensor that the parent held at fork (cost: O(live storages)) */
    LEND_FORK_DROP = 1  /* the child holds nothing: its tensors answer -ECHILD and their memory is unmapped */
};

/* Who may reach this process's tensors. */
enum lend_peers_policy {
    LEND_PEERS_SAME_USER = 0, /* equal effective user ids only */
    LEND_PEERS_GROUP = 1      /* with socket_dir: also every user whom the folder's permissions let in */
};

enum lend_log_level { LEND_LOG_INFO = 1, LEND_LOG_WARNING = 2 };

/* Called without any lock of ours, from any thread of ours or of the caller. It must not block for long. */
typedef void (*lend_log_fn)(void *user, enum lend_log_level level, const char *text);

struct lend_opts {
    size_t size;              /* sizeof(struct lend_opts) */
    const char *socket_dir;   /* borrowed: folder for a path socket (containers that share a volume but no network
                             * namespace); NULL: $LEND_SOCKET_DIR, and without it an abstract socket */
    uint32_t peers;           /* enum lend_peers_policy */
    uint32_t fork;            /* enum lend_fork_policy */
    int64_t deadline_ns;      /* default of calls that may wait; 0: 5 s; negative: no limit */
    uint64_t pin_bytes_max;   /* bytes that live pins may hold; 0: no limit */
    uint64_t pin_orphan_ns;   /* a pin ends this long after its sender's death; 0: 60 s */
    uint64_t limbo_bytes_max; /* bytes that one peer may keep in limbo before it gets no new contact; 0: no limit */
    lend_log_fn log;          /* NULL: nothing is logged */
    void *log_user;           /* given back to log */
};

/* Opens the process's context, or adds a reference when it is open.
 *   opts   borrowed; NULL: defaults. A further open must pass NULL or equal options.
 *   error  borrowed, NULL allowed.
 * Return: 0; -EINVAL (opts, or other options than the open context has); -ENOMEM; -EMFILE; -ECHILD.
 * Threads: any.  Crash: nothing is left: the kernel closes what was opened; a path socket's name stays in
 * its folder and is removed by the next opener there.  Since: 0.1.
 * See: docs/architecture.md. */
LEND_API int lend_open(const struct lend_opts *opts, struct lend_error *error);

/* Gives one reference back; the last one ends the service thread and closes every peer.
 *   error  borrowed, NULL allowed.
 * Return: 0; -EBUSY while pools or tensors of this process still exist (the sentence counts them; the
 * context stays open); -ENOTCONN.
 * Threads: any; not from a log callback.  Crash: as the end of the process.  Since: 0.1.
 * See: docs/failure-modes.md. */
LEND_API int lend_close(struct lend_error *error);

/* Tells this process's exporter id, which every handle made here carries.
 *   ret_id  16 bytes, written on success. It changes in a forked child.
 * Return: 0; -ENOTCONN; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: docs/wire.md. */
LEND_API int lend_exporter_id(uint8_t ret_id[16]);

#ifdef __cplusplus
}
#endif
#endif
