/* SPDX-License-Identifier: MIT */
/* The pool, warm: inside (block out, block in) and as a caller sees it (a tensor made and dropped). */
#include "bench.h"
#include "memory/block.h"

#include <pthread.h>
#include <stdio.h>

#define GROUP "pool: alloc + free, warm"

struct job {
    uint64_t bytes; /* first: floor_malloc reads it */
    struct lend_pool *pool;
};

static void block_round(void *arg, uint64_t n) {
    const struct job *job = arg;
    for (uint64_t i = 0; i < n; i++) {
        struct lend__block *block;
        int r = lend__pool_alloc(job->pool, job->bytes, &block, NULL);
        MUST(r == 0, "lend__pool_alloc: %s", lend_strerror(r));
        lend__pool_free(block);
    }
}

static void tensor_round(void *arg, uint64_t n) {
    const struct job *job = arg;
    int64_t shape = (int64_t)job->bytes;
    for (uint64_t i = 0; i < n; i++) {
        struct lend_tensor *tensor;
        int r = lend_tensor_new(job->pool, uint8, 1, &shape, &tensor, NULL);
        MUST(r == 0, "lend_tensor_new: %s", lend_strerror(r));
        lend_tensor_unref(tensor);
    }
}

struct thread {
    round_fn fn;
    void *arg;
    uint64_t n;
};

static void *run_thread(void *arg) {
    struct thread *t = arg;
    t->fn(t->arg, t->n);
    return NULL;
}

/* Two threads at once, each n operations; the time is that of the slower one, per operation of one thread. */
static void in_two(round_fn fn, void *arg, uint64_t n) {
    struct thread t = {fn, arg, n};
    pthread_t other;
    MUST(pthread_create(&other, NULL, run_thread, &t) == 0, "no thread");
    fn(arg, n);
    pthread_join(other, NULL);
}

/* Many to a turn, so that making the thread does not count. */
#define PER_TURN 4096

static void block_round_2(void *arg, uint64_t n) {
    in_two(block_round, arg, PER_TURN * n);
}

static void floor_malloc_2(void *arg, uint64_t n) {
    in_two(floor_malloc, arg, PER_TURN * n);
}

void bench_pool(void) {
    static const struct {
        uint64_t bytes;
        const char *name;
    } sizes[] = {{64, "64 B"}, {4096, "4 KiB"}, {1 << 20, "1 MiB"}, {64 << 20, "64 MiB"}};
    struct lend_error error;
    must(lend_open(NULL, &error), &error, "lend_open");
    struct job job = {.pool = NULL};
    struct lend_pool_opts opts = {.size = sizeof opts, .initial_bytes = 256 << 20};
    must(lend_pool_new(&opts, &job.pool, &error), &error, "lend_pool_new");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        job.bytes = sizes[i].bytes;
        struct result r = {.group = GROUP, .floor_name = "malloc+free", .aim_kind = AIM_VALUE, .aim = 60};
        snprintf(r.name, sizeof r.name, "block of %s", sizes[i].name);
        measure(&r, block_round, floor_malloc, &job, UINT64_MAX);
        report(&r);
    }
    job.bytes = 64;
    struct result two = {.group = GROUP,
                         .name = "block of 64 B, two threads at once (as a thread sees it)",
                         .floor_name = "malloc+free"};
    measure(&two, block_round_2, floor_malloc_2, &job, UINT64_MAX);
    two.ours = figure_per(two.ours, PER_TURN);
    two.floor = figure_per(two.floor, PER_TURN);
    report(&two);
    struct result tensor = {.group = GROUP, .name = "tensor of 64 B (three allocations)", .floor_name = "malloc+free"};
    measure(&tensor, tensor_round, floor_malloc, &job, UINT64_MAX);
    report(&tensor);
    lend_pool_unref(job.pool);
    must(lend_close(&error), &error, "lend_close");
}
