/* SPDX-License-Identifier: MIT */
/* Emitting events to every watch. The watch lock is innermost; emitters hold no other lend lock. */
#ifndef LEND_SHARE_WATCH_H_
#define LEND_SHARE_WATCH_H_

#include <stdbool.h>
#include <stdint.h>

void lend__watch_emit(uint32_t kind, uint32_t pid, uint64_t bytes);

/* An event was dropped before it reached the watches; each of them counts it as lost. Callable under any lock. */
void lend__watch_count_lost(void);

/* A connection to an exporter: its end makes every watch readable. */
void lend__watch_add_connection(int fd);

void lend__watch_fork_prepare(void);
void lend__watch_fork_release(bool is_child);

#endif
