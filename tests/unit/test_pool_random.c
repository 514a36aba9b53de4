/* SPDX-License-Identifier: MIT */
/* Random work on pools: the whole book-keeping is checked after every operation, every block carries a canary that
 * must still be there when it goes; threads, and forks in the middle. */
#include "memory/pool.h"

#include "pool_fixture.h"
#include "tensor/storage.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_HELD 256

/* One thread alone shows nothing to a thread sanitizer. */
#if defined(__SANITIZE_THREAD__)
#define ROUNDS(n) ((n) / 20)
#else
#define ROUNDS(n) (n)
#endif

struct held {
    struct lend__block *block;
    uint64_t bytes, canary;
};

/* The canary at both ends and in the middle: a block that overlaps another one loses it. */
static void canary_put(struct held *held, uint64_t canary) {
    uint8_t *data = lend__block_data(held->block);
    held->canary = canary;
    data[0] = data[held->bytes / 2] = data[held->bytes - 1] = (uint8_t)canary;
}

static void canary_check(const struct held *held) {
    const uint8_t *data = lend__block_data(held->block);
    CHECK_UINT(data[0], (uint8_t)held->canary);
    CHECK_UINT(data[held->bytes / 2], (uint8_t)held->canary);
    CHECK_UINT(data[held->bytes - 1], (uint8_t)held->canary);
}

static void random_step(struct lend_pool *pool, struct held *held, uint64_t *state, unsigned bits_max) {
    struct held *h = &held[random_next(state) % N_HELD];
    if (h->block) {
        canary_check(h);
        lend__pool_free(h->block);
        h->block = NULL;
        return;
    }
    h->bytes = random_bytes(state, bits_max);
    int r = lend__pool_alloc(pool, h->bytes, &h->block, NULL);
    if (r == 0)
        canary_put(h, random_next(state));
    else
        CHECK_CODE(r, -ENOSPC);
}

static void random_work(struct lend_pool_opts opts, unsigned n, unsigned bits_max) {
    struct held held[N_HELD] = {0};
    uint64_t state = 0x9e3779b97f4a7c15u;
    struct lend_pool *pool = pool_make(opts);
    for (unsigned i = 0; i < ROUNDS(n); i++) {
        random_step(pool, held, &state, bits_max);
        if (random_next(&state) % 512 == 0) CHECK_CODE(lend_pool_trim(pool, random_next(&state) % (8 * MIB), NULL), 0);
        pool_check(pool);
    }
    for (unsigned i = 0; i < N_HELD; i++) {
        if (!held[i].block) continue;
        canary_check(&held[i]);
        lend__pool_free(held[i].block);
        pool_check(pool);
    }
    struct lend_pool_stats s = stats_of(pool);
    CHECK_UINT(s.n_blocks, 0);
    CHECK_UINT(s.allocated_bytes, 0);
    CHECK_UINT(s.requested_bytes, 0);
    CHECK_CODE(lend_pool_trim(pool, 0, NULL), 0);
    CHECK_UINT(stats_of(pool).reserved_bytes, 0);
    lend_pool_unref(pool);
}

LEND_TEST_TIMED(random_work_on_a_growing_pool, 300) {
    random_work(POOL_OPTS(.alignment = 64), 100000, 20);
}

LEND_TEST_TIMED(random_work_within_a_budget, 300) {
    random_work(POOL_OPTS(.budget_bytes = 4 * MIB), 30000, 22);
}

LEND_TEST_TIMED(random_work_with_a_coarse_alignment, 300) {
    random_work(POOL_OPTS(.alignment = 64 << 10), 10000, 20);
    random_work(POOL_OPTS(.alignment = 2 << 20, .budget_bytes = 64 * MIB), 5000, 23);
}

LEND_TEST_TIMED(random_work_on_isolated_memory, 300) {
    random_work(POOL_OPTS(.flags = LEND_POOL_ISOLATE, .budget_bytes = 8 * MIB), 2000, 18);
}

#define N_THREADS 4

struct worker {
    struct lend_pool *pool;
    uint64_t state;
    unsigned n, bits_max;
    struct held held[N_HELD];
    pthread_t thread;
};

static void *work(void *arg) {
    struct worker *w = arg;
    for (unsigned i = 0; i < w->n; i++) random_step(w->pool, w->held, &w->state, w->bits_max);
    return NULL;
}

/* Threads take and give; the main thread meanwhile reads figures, trims and checks. */
static void threaded_work(struct lend_pool_opts opts, unsigned n, unsigned bits_max) {
    static struct worker workers[N_THREADS];
    struct lend_pool *pool = pool_make(opts);
    for (unsigned i = 0; i < N_THREADS; i++) {
        workers[i] = (struct worker){.pool = pool, .state = 1000 + i, .n = n, .bits_max = bits_max};
        CHECK_INT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 50; i++) {
        pool_check(pool);
        (void)stats_of(pool);
        CHECK_CODE(lend_pool_trim(pool, MIB, NULL), 0);
        lend__sleep_ns(1000000);
    }
    for (unsigned i = 0; i < N_THREADS; i++) pthread_join(workers[i].thread, NULL);
    pool_check(pool);
    /* The blocks of one thread are given back by another, the last ones to an orphan. */
    lend_pool_unref(pool);
    for (unsigned i = 0; i < N_THREADS; i++) {
        for (unsigned k = 0; k < N_HELD; k++) {
            if (!workers[i].held[k].block) continue;
            canary_check(&workers[i].held[k]);
            lend__pool_free(workers[i].held[k].block);
        }
    }
    uint64_t n_pools, n_blocks;
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_pools, 0);
    CHECK_UINT(n_blocks, 0);
}

LEND_TEST_TIMED(threads_on_a_growing_pool, 300) {
    threaded_work(POOL_OPTS(.alignment = 64), 100000, 20);
}

LEND_TEST_TIMED(threads_within_a_budget, 300) {
    threaded_work(POOL_OPTS(.budget_bytes = 8 * MIB), 30000, 20);
}

LEND_TEST_TIMED(threads_on_isolated_memory, 300) {
    threaded_work(POOL_OPTS(.flags = LEND_POOL_ISOLATE), 1000, 16);
}

/* One thread makes, another ends: blocks wander from shard to shard through the heap. */
static struct lend__block *hand[64];

static void *consume(void *arg) {
    for (unsigned n = *(unsigned *)arg, i = 0; n; i = (i + 1) % 64) {
        struct lend__block *block = __atomic_exchange_n(&hand[i], NULL, __ATOMIC_ACQ_REL);
        if (!block) continue;
        lend__pool_free(block);
        n--;
    }
    return NULL;
}

LEND_TEST_TIMED(blocks_may_be_given_back_by_another_thread, 120) {
    unsigned n = 200000;
    pthread_t thread;
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    CHECK_INT(pthread_create(&thread, NULL, consume, &n), 0);
    for (unsigned i = 0, made = 0; made < n; i = (i + 1) % 64) {
        if (lend__load_acquire(&hand[i])) continue;
        lend__store_release(&hand[i], block_make(pool, 1 + made % 5000));
        made++;
    }
    pthread_join(thread, NULL);
    pool_check(pool);
    CHECK_UINT(stats_of(pool).n_blocks, 0);
    CHECK_UINT(stats_of(pool).n_allocations, 1);
    lend_pool_unref(pool);
}

/* Look-ups by address while the storages they may find come and go. */
struct finder {
    uint8_t *low;
    uint64_t bytes;
    uint32_t is_over;
    unsigned n_found;
};

static void *find(void *arg) {
    struct finder *f = arg;
    uint64_t state = 7;
    while (!lend__load_relaxed(&f->is_over)) {
        struct lend__storage *storage = lend__region_find(f->low + random_next(&state) % f->bytes, 1);
        if (!storage) continue;
        f->n_found++;
        lend__storage_unref(storage);
    }
    return NULL;
}

LEND_TEST_TIMED(addresses_are_looked_up_while_storages_go, 120) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.initial_bytes = 2 * MIB, .budget_bytes = 2 * MIB));
    struct lend__block *first = block_make(pool, 1);
    struct finder finder = {.low = first->allocation->extent.base, .bytes = 2 * MIB};
    struct lend__storage *storages[64] = {0};
    uint64_t state = 5;
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, find, &finder), 0);
    for (unsigned i = 0; i < 50000; i++) {
        unsigned at = (unsigned)(random_next(&state) % 64);
        if (storages[at]) {
            lend__storage_unref(storages[at]);
            storages[at] = NULL;
        } else if (lend__storage_new_pool(pool, random_bytes(&state, 16), &storages[at], NULL) < 0) {
            storages[at] = NULL;
        }
    }
    lend__store_relaxed(&finder.is_over, 1);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < 64; i++)
        if (storages[i]) lend__storage_unref(storages[i]);
    CHECK(finder.n_found > 0);
    lend__pool_free(first);
    pool_check(pool);
    lend_pool_unref(pool);
}

static void count_owner(struct lend__block *block, void *arg) {
    CHECK(block->owner);
    ++*(unsigned *)arg;
}

static void count_allocation(struct lend__allocation *allocation, void *arg) {
    CHECK(allocation->extent.fd >= 0);
    ++*(unsigned *)arg;
}

/* What the child of a fork sees: pools that are its parent's, frees that do nothing, and pools of its own. */
static void child(struct lend_pool *pool, struct lend__block *block) {
    struct lend_error error;
    struct lend__block *other = NULL;
    uint64_t n_pools, n_blocks;
    lend__fork_epoch++;
    unsigned n_owned = 0, n_allocations = 0;
    lend__pools_fork_visit(count_owner, &n_owned);
    lend__pools_fork_visit_allocations(count_allocation, &n_allocations);
    CHECK_UINT(n_owned, 1);
    CHECK(n_allocations >= 1);
    lend__pools_fork_release(true);
    lend__region_fork_release(true);
    CHECK_CODE(lend__pool_alloc(pool, 64, &other, &error), -ECHILD);
    CHECK_CONTAINS(error.text, "parent");
    CHECK_CODE(lend_pool_check(pool, NULL), -ECHILD);
    CHECK_CODE(lend_pool_trim(pool, 0, NULL), -ECHILD);
    CHECK_CODE(lend_pool_stats(pool, &(struct lend_pool_stats){.size = 8}), -ECHILD);
    lend__pool_free(block);
    lend_pool_unref(pool);
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_pools + n_blocks, 0);
    struct lend_pool *own = pool_make(POOL_OPTS(.alignment = 64));
    lend__pool_free(block_make(own, 5 * MIB));
    pool_check(own);
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_pools, 1);
    lend_pool_unref(own);
    _exit(0);
}

LEND_TEST_TIMED(a_fork_in_the_middle_of_work, 120) {
    static struct worker worker;
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    struct lend__storage *storage;
    CHECK_CODE(lend__storage_new_pool(pool, 1000, &storage, NULL), 0);
    worker = (struct worker){.pool = pool, .state = 3, .n = 20000, .bits_max = 22};
    CHECK_INT(pthread_create(&worker.thread, NULL, work, &worker), 0);
    for (unsigned i = 0; i < 20; i++) {
        lend__region_fork_prepare();
        lend__pools_fork_prepare();
        pid_t pid = fork();
        if (!pid) child(pool, storage->block);
        lend__pools_fork_release(false);
        lend__region_fork_release(false);
        int status = -1;
        CHECK_INT(waitpid(pid, &status, 0), pid);
        CHECK_INT(status, 0);
        CHECK_CODE(lend_pool_trim(pool, 0, NULL), 0);
    }
    pthread_join(worker.thread, NULL);
    for (unsigned k = 0; k < N_HELD; k++)
        if (worker.held[k].block) lend__pool_free(worker.held[k].block);
    lend__storage_unref(storage);
    pool_check(pool);
    lend_pool_unref(pool);
}
