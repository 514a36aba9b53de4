/* SPDX-License-Identifier: MIT */
/* The bar is drawn by a thread of its own, ten times a second after the first, because one read of a large piece
 * does not return for long; until then the seconds show that the command lives. The two counts are atomic; drawing
 * between their updates shows a bar that is a little behind, never wrong. */
#include "progress.h"

#include "base/atomic.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define BAR_COLUMNS_MAX 30
#define BAR_COLUMNS_MIN 4
#define LINE_BYTES 128
#define COLUMNS_DEFAULT 80
#define FIRST_NS 1000000000
#define NEXT_NS 100000000

static uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

const char *progress_format(const struct progress *p, uint64_t done, double seconds, size_t columns, char *buf,
                            size_t buf_bytes) {
    char tail[64];
    double share = p->total_bytes ? (double)done / (double)p->total_bytes : 1;
    if (share > 1) share = 1;
    snprintf(tail, sizeof tail, "%3.0f %% of %.1f MiB, %.0f s", share * 100, (double)p->total_bytes / 1048576, seconds);
    /* The last column stays free: some terminals would begin a new line. */
    size_t text = strlen(p->what) + strlen(" [] ") + strlen(tail) + 1;
    size_t bar = columns > text ? columns - text : 0;
    if (bar > BAR_COLUMNS_MAX) bar = BAR_COLUMNS_MAX;
    int filled = (int)(share * (double)bar);
    if (bar >= BAR_COLUMNS_MIN)
        snprintf(buf, buf_bytes, "%s [%.*s%*s] %s", p->what, filled, "##############################",
                 (int)bar - filled, "", tail);
    else
        snprintf(buf, buf_bytes, "%s %s", p->what, tail);
    if (columns && strlen(buf) >= columns) buf[columns - 1] = 0;
    return buf;
}

static void draw(const struct progress *p) {
    char line[LINE_BYTES];
    struct winsize size = {.ws_col = 0};
    uint64_t done = lend__load_relaxed(&p->base_bytes) + lend__load_relaxed(&p->part_bytes);
    double seconds = (double)(now_ns(CLOCK_MONOTONIC) - p->start_ns) / 1e9;
    size_t columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : COLUMNS_DEFAULT;
    fprintf(stderr, "\r%s\033[K", progress_format(p, done, seconds, columns, line, sizeof line));
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
