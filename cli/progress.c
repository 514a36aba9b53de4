/* SPDX-License-Identifier: MIT */
/* The bar is drawn by a thread of its own, ten times a second after the first, because one read of a large tensor
 * does not return for long. The two counts are atomic; drawing between their updates shows a bar that is a little
 * behind, never wrong. */
#include "progress.h"

#include "base/atomic.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define BAR_COLUMNS 30
#define FIRST_NS 1000000000
#define NEXT_NS 100000000

static uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void draw(struct progress *p) {
    uint64_t done = lend__load_relaxed(&p->base_bytes) + lend__load_relaxed(&p->part_bytes);
    double share = p->total_bytes ? (double)done / (double)p->total_bytes : 1, seconds;
    if (share > 1) share = 1;
    seconds = (double)(now_ns(CLOCK_MONOTONIC) - p->start_ns) / 1e9;
    int filled = (int)(share * BAR_COLUMNS);
    fprintf(stderr, "\r%s [%.*s%*s] %3.0f %% of %.1f MiB, %.0f s", p->what, filled, "##############################",
            BAR_COLUMNS - filled, "", share * 100, (double)p->total_bytes / 1048576, seconds);
    fflush(stderr);
}

static void *run(void *arg) {
    struct progress *p = arg;
    bool has_drawn = false;
    /* sem_timedwait knows only the wall clock; a step of it draws too early or too late once. */
    for (uint64_t wait = FIRST_NS;; wait = NEXT_NS) {
        uint64_t until = now_ns(CLOCK_REALTIME) + wait;
        struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
        int r;
        do r = sem_timedwait(&p->end, &t);
        while (r < 0 && errno == EINTR);
        if (r == 0) break;
        draw(p);
        has_drawn = true;
    }
    if (has_drawn) fputs("\r\033[K", stderr);
    return NULL;
}

void progress_begin(struct progress *p, const char *what, uint64_t total_bytes) {
    *p = (struct progress){.what = what, .total_bytes = total_bytes, .start_ns = now_ns(CLOCK_MONOTONIC)};
    if (!isatty(STDERR_FILENO) || sem_init(&p->end, 0, 0)) return;
    /* Signals are for the main thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    p->has_thread = pthread_create(&p->thread, NULL, run, p) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void progress_set(struct progress *p, uint64_t part_bytes) {
    lend__store_relaxed(&p->part_bytes, part_bytes);
}

void progress_add(struct progress *p, uint64_t bytes) {
    lend__store_relaxed(&p->part_bytes, 0);
    lend__add_relaxed(&p->base_bytes, bytes);
}

void progress_end(struct progress *p) {
    if (!p->has_thread) return;
    sem_post(&p->end);
    pthread_join(p->thread, NULL);
    sem_destroy(&p->end);
}
