/* SPDX-License-Identifier: MIT */
/* The table of what has been given out of a file: many ranges, many threads, and no memory for it. */
#include "memory/places.h"

#include "file_pools.h"

#include <pthread.h>

LEND_TEST(many_ranges_in_any_order) {
    enum { N = 20000 };
    static struct lend_tensor *tensors[N];
    uint64_t state = 1, bytes = 0;
    unsigned n_blocks = 0;
    int fd = test_file_patterned(1 << 20);
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 1 << 20));
    for (unsigned i = 0; i < N; i++) {
        uint64_t off = random_next(&state) % 1000 * 1000, n = 1 + random_next(&state) % 40;
        tensors[i] = tensor_at(pool, off, (int64_t)n);
        CHECK_UINT(*(uint8_t *)lend_tensor_data(tensors[i]), test_file_byte(off));
        if (i % 1000 == 0) pool_check(pool);
    }
    pool_check(pool);
    CHECK(stats_of(pool).n_blocks <= 40000);
    for (unsigned i = 0; i < N; i++) { /* the number of distinct ranges, by their storages */
        bool is_new = lend__storage_refs((struct lend__storage *)(uintptr_t)info_of(tensors[i]).storage_id) == 1;
        n_blocks += is_new;
        bytes += is_new ? info_of(tensors[i]).storage_bytes : 0;
        lend_tensor_unref(tensors[i]);
        if (i % 1000 == 0) pool_check(pool);
    }
    struct lend_pool_stats s = stats_of(pool);
    CHECK_UINT(s.n_frees, s.n_allocs);
    CHECK(n_blocks > 10000 && n_blocks < N);
    CHECK_UINT(s.allocated_bytes_peak >= bytes, 1);
    pool_check(pool);
    lend_pool_unref(pool);
    close(fd);
}

struct racer {
    struct lend_pool *pool;
    uint64_t ids[500];
    struct lend_tensor *tensors[500];
};

static void *race(void *arg) {
    struct racer *me = arg;
    for (unsigned i = 0; i < 500; i++) {
        me->tensors[i] = tensor_at(me->pool, i, 100);
        me->ids[i] = info_of(me->tensors[i]).storage_id;
    }
    return NULL;
}

static void *churn(void *arg) {
    struct lend_pool *pool = arg;
    for (unsigned i = 0; i < 20000; i++) lend_tensor_unref(tensor_at(pool, i % 7, 50));
    return NULL;
}

LEND_TEST(threads_that_ask_for_one_range_share_its_storage) {
    static struct racer racers[4];
    int fd = test_file_patterned(1000);
    pthread_t threads[4];
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 1000));
    for (unsigned t = 0; t < 4; t++) {
        racers[t].pool = pool;
        CHECK_INT(pthread_create(&threads[t], NULL, race, &racers[t]), 0);
    }
    for (unsigned t = 0; t < 4; t++) pthread_join(threads[t], NULL);
    for (unsigned i = 0; i < 500; i++)
        for (unsigned t = 0; t < 4; t++) {
            CHECK_UINT(racers[t].ids[i], racers[0].ids[i]);
            lend_tensor_unref(racers[t].tensors[i]);
        }
    CHECK_UINT(stats_of(pool).n_blocks, 0);
    /* Storages that end while others look for them. */
    for (unsigned t = 0; t < 4; t++) CHECK_INT(pthread_create(&threads[t], NULL, churn, pool), 0);
    for (unsigned t = 0; t < 4; t++) pthread_join(threads[t], NULL);
    CHECK_UINT(stats_of(pool).n_blocks, 0);
    pool_check(pool);
    lend_pool_unref(pool);
    close(fd);
}

/* Without memory for a larger table the chains get longer, and nothing else changes. */
static long small_calloc(size_t n, size_t bytes, void **ret) {
    return n * bytes > 512 && n * bytes < 16384 ? -ENOMEM : lend__sys_real.calloc(n, bytes, ret);
}

LEND_TEST(a_table_that_cannot_grow_still_finds_everything) {
    enum { N = 1000 };
    static struct lend_tensor *tensors[N];
    int fd = test_file_patterned(2 * N);
    struct lend_pool *pool = pool_make(file_opts(fd, 0, 2 * N));
    struct lend__sys before = lend__sys;
    lend__sys.calloc = small_calloc;
    for (unsigned i = 0; i < N; i++) tensors[i] = tensor_at(pool, i, 20);
    lend__sys = before;
    CHECK_UINT(stats_of(pool).n_blocks, N);
    pool_check(pool);
    struct lend_tensor *again = tensor_at(pool, 17, 20); /* with memory for it, the table grows again */
    CHECK_UINT(info_of(again).storage_id, info_of(tensors[17]).storage_id);
    lend_tensor_unref(again);
    pool_check(pool);
    for (unsigned i = 0; i < N; i++) lend_tensor_unref(tensors[i]);
    lend_pool_unref(pool);
    close(fd);
}
