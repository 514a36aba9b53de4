/* SPDX-License-Identifier: MIT */
/* The process's one context: options, identity, and the checks that every public call begins with. */
#ifndef LEND_SHARE_CONTEXT_H_
#define LEND_SHARE_CONTEXT_H_

#include "base/process.h"
#include "share/identity.h"

#include <lend/context.h>
#include <lend/pool.h>
#include <stdbool.h>
#include <stdint.h>

struct lend__context {
    uint32_t n_opens;     /* atomic for readers; written under the context lock */
    char socket_dir[108]; /* empty: abstract */
    uint32_t peers, fork;
    int64_t deadline_ns;
    uint64_t pin_bytes_max, pin_orphan_ns, limbo_bytes_max;
    lend_log_fn log;
    void *log_user;
    struct lend__identity identity; /* changes only in a fork handler */
    bool has_open_file_locks;       /* lend__life_selftest */
};

extern struct lend__context lend__context;

/* 0; -ECHILD (raw clone); -ENOTCONN (lend_open has not been called). */
int lend__context_check(const char *operation, struct lend_error *error);

/* An absolute deadline from a public call's deadline_ns. */
uint64_t lend__context_deadline(int64_t deadline_ns);

/* Calls the log callback, if there is one. Never with a lend lock held. */
void lend__log(enum lend_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The pool into which private tensors are copied (made at the first need). Returns it borrowed. */
int lend__context_pool(struct lend_pool **ret, struct lend_error *error);

/* The hook `event` of memory/. */
void lend__context_memory_event(uint32_t kind, uint64_t bytes);

/* Fork: the context lock is taken before every other lock but fork.c's own. */
void lend__context_fork_prepare(void);
void lend__context_fork_parent(void);
void lend__context_fork_child(void);

#endif
