/* SPDX-License-Identifier: MIT */
/* The exporter's one thread: asleep in epoll until somebody makes contact, dies, or limbo wants a look. */
#ifndef LEND_SHARE_SERVICE_H_
#define LEND_SHARE_SERVICE_H_

#include <lend/error.h>
#include <stdbool.h>
#include <stdint.h>

struct lend__page;

/* One connection of a peer; owned by the service thread. */
struct lend__connection {
    struct lend__connection *next;
    int fd;
    uint32_t uid, pid;       /* as the kernel vouches */
    uint64_t since_ns;       /* monotonic */
    struct lend__page *page; /* under the ledger lock; NULL: not greeted yet, or its page was dropped */
};

/* Starts the service (table, socket, thread), once per process. Every call that exports goes through here.
 * Return: 0; -EMFILE; -ENOMEM; -EINVAL (socket folder too long); -EACCES and others of bind. */
int lend__service_start(struct lend_error *error);

/* The tick must be fast from now on: wakes the service only if it is about to sleep for long, so at most once for each
 * time that it finds nothing to do. */
void lend__service_want_tick(void);

/* The tick has something new to look after. One write to an eventfd; nothing when no service runs. */
void lend__service_wake(void);

/* Ends it: thread joined, socket closed, pages and table unmapped. Under the context lock. */
void lend__service_stop(void);

/* A page is about to be dropped: its connection, if any, must not point at it. Under the ledger lock. */
void lend__service_forget_page(struct lend__page *page);

/* Fork: no start may be under way. */
void lend__service_fork_prepare(void);
void lend__service_fork_parent(void);
/* Fork: what the child closes, without a call-back to the kernel's thread that is not there. */
void lend__service_fork_child(void);

#endif
