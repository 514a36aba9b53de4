/* SPDX-License-Identifier: MIT */
/* Events of this process as plain records behind a descriptor for poll. */
#ifndef LEND_WATCH_H_
#define LEND_WATCH_H_

#include <lend/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lend_watch;

enum lend_watch_kind {
    LEND_WATCH_PEER_DIED = 1,      /* a peer ended while it held something of ours; bytes: what its leases held */
    LEND_WATCH_EXPORTER_DIED = 2,  /* an exporter whose tensors we hold ended; bytes: what we still hold of it */
    LEND_WATCH_LIMBO_EXCEEDED = 3, /* pid keeps more in limbo than limbo_bytes_max; bytes: how much */
    LEND_WATCH_PIN_EXCEEDED = 4,   /* a pin was refused; bytes: live pins; pid: sender of the oldest */
    LEND_WATCH_PIN_EXPIRED = 5,    /* a pin ended by its lifetime or after its sender's death */
    LEND_WATCH_POOL_GREW = 6,      /* bytes: the new allocation */
    LEND_WATCH_POOL_TRIMMED = 7    /* bytes: returned to the system */
};

struct lend_watch_record {
    uint32_t kind; /* enum lend_watch_kind */
    uint32_t pid;  /* a label; 0 when no other process is meant */
    uint64_t bytes;
    uint64_t time_ns; /* CLOCK_BOOTTIME */
    uint64_t n_lost;  /* records lost before this one because nobody read */
};

/* Starts to record. Several watches may exist; each gets every event.
 *   ret_watch  returned; give it to lend_watch_unref.
 *   error      borrowed, NULL allowed.
 * Return: 0; -ENOMEM; -EMFILE; -ENOTCONN; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: eventfd(2). */
LEND_API int lend_watch_new(struct lend_watch **ret_watch, struct lend_error *error);

/* Ends a watch; its records and its descriptor are gone.
 *   watch  consumed; NULL allowed.
 * Return: nothing; cannot fail.
 * Threads: any, when no other uses the watch.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_watch_new. */
LEND_API void lend_watch_unref(struct lend_watch *watch);

/* Gives the descriptor: readable while a record waits. Borrowed: do not read or close it.
 * Return: the descriptor.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: poll(2). */
LEND_API int lend_watch_fd(const struct lend_watch *watch);

/* Takes the oldest record. 256 are kept; older ones are lost and counted, writers never wait.
 *   ret_record  written on 0.
 * Return: 0; LEND_EMPTY; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_watch_kind. */
LEND_API int lend_watch_next(struct lend_watch *watch, struct lend_watch_record *ret_record);

#ifdef __cplusplus
}
#endif
#endif
