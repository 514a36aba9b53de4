/* SPDX-License-Identifier: MIT */
/* Timing. A round is long enough for the clock and short enough that many of them meet no interruption; the best round
 * is what the code costs, the median says how quiet the machine was. */
#include "bench.h"

#include <stdlib.h>
#include <time.h>

#define ROUND_NS 1000000.0
#define N_ROUNDS 61

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double round_ns(round_fn fn, void *arg, uint64_t n) {
    uint64_t start = now_ns();
    fn(arg, n);
    return (double)(now_ns() - start) / (double)n;
}

/* How many operations make a round? */
static uint64_t calibrate(round_fn fn, void *arg, uint64_t n_max) {
    uint64_t n = 16;
    for (;;) {
        if (n > n_max) n = n_max;
        double ns = round_ns(fn, arg, n), again = round_ns(fn, arg, n);
        ns = (again < ns ? again : ns) * (double)n; /* one interruption must not make the rounds short */
        if (n == n_max || ns >= ROUND_NS / 2) return n;
        n *= 2;
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct figure figure_of(double *samples, size_t n) {
    qsort(samples, n, sizeof *samples, by_value);
    return (struct figure){samples[0], samples[n / 2]};
}

struct figure figure_per(struct figure figure, double n) {
    return (struct figure){figure.best / n, figure.median / n};
}

void measure(struct result *result, round_fn ours, round_fn floor, void *arg, uint64_t n_max) {
    double ours_ns[N_ROUNDS], floor_ns[N_ROUNDS];
    int n_rounds = is_quick ? 15 : N_ROUNDS;
    uint64_t n = calibrate(ours, arg, n_max), n_floor = floor ? calibrate(floor, arg, n_max) : 0;
    for (int i = 0; i < n_rounds; i++) {
        ours_ns[i] = round_ns(ours, arg, n);
        if (floor) floor_ns[i] = round_ns(floor, arg, n_floor);
    }
    result->ours = figure_of(ours_ns, (size_t)n_rounds);
    if (floor) result->floor = figure_of(floor_ns, (size_t)n_rounds);
}
