/* SPDX-License-Identifier: MIT */
/* A progress bar on stderr, for a terminal and for what takes longer than a second. */
#ifndef LEND_CLI_PROGRESS_H_
#define LEND_CLI_PROGRESS_H_

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    const char *what;
    uint64_t total_bytes;
    uint64_t base_bytes; /* atomic: parts that are complete */
    uint64_t part_bytes; /* atomic: of the part at work */
    uint64_t start_ns;
    sem_t end;
    pthread_t thread;
    bool has_thread;
};

/* Begins; `progress` must stay until progress_end. Where no thread can be made there is no bar. */
void progress_begin(struct progress *progress, const char *what, uint64_t total_bytes);
void progress_set(struct progress *progress, uint64_t part_bytes); /* of the part at work */
void progress_add(struct progress *progress, uint64_t bytes);      /* a part is complete */
void progress_end(struct progress *progress);

/* The line that is drawn for `done` bytes after `seconds`, in fewer than `columns`: a narrow terminal gets a shorter
 * bar, then none, then less text. Returns buf. */
const char *progress_format(const struct progress *progress, uint64_t done, double seconds, size_t columns, char *buf,
                            size_t buf_bytes);

#endif
