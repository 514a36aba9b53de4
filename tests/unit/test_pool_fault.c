/* SPDX-License-Identifier: MIT */
/* Every call that a pool makes of the system or the heap fails once: the answer is an error with its numbers, or what
 * was wanted by another way; the pool is as before, and works. */
#include "fault.h"
#include "memory/pool.h"
#include "pool_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

static bool is_expected(int code) {
    return code == -ENOMEM || code == -ENOSPC || code == -EMFILE || code == -EBUSY || code == -EOPNOTSUPP ||
           code == -EINVAL;
}

/* One sweep over making a pool and what it then does; returns how many calls there were. */
static unsigned sweep_new(struct lend_pool_opts opts) {
    lend__memory_hooks.require_context = NULL;
    for (unsigned n = 0;; n++) {
        struct lend_error error = {0};
        struct lend_pool *pool = NULL;
        fault_arm_thread(n);
        int r = lend_pool_new(&opts, &pool, &error);
        const char *failed = fault_disarm();
        if (r < 0) {
            CHECK(is_expected(r));
            CHECK_INT(error.code, r);
            CHECK(error.text[0]);
            CHECK_PTR(pool, NULL);
        } else {
            pool_check(pool);
            lend_pool_unref(pool);
        }
        if (!failed) return n;
    }
}

LEND_TEST(every_call_of_making_a_pool) {
    int fd = memfd_create("lend-adopt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_INT(ftruncate(fd, (off_t)(4 * MIB)), 0);
    CHECK(sweep_new(POOL_OPTS(.initial_bytes = MIB)) > 10);
    CHECK(sweep_new(POOL_OPTS(.flags = LEND_POOL_PEERS_READ_ONLY | LEND_POOL_PRETOUCH, .initial_bytes = MIB)) > 10);
    CHECK(sweep_new(POOL_OPTS(.huge_pages = LEND_HUGE_HUGETLB, .initial_bytes = 2 * MIB)) > 10);
    CHECK(sweep_new(POOL_OPTS(.huge_pages = LEND_HUGE_THP, .initial_bytes = 2 * MIB)) > 10);
    CHECK(sweep_new(POOL_OPTS(.adopt_fd = fd, .adopt_bytes = 4 * MIB)) > 5);
    close(fd);
}

static unsigned sweep_alloc(struct lend_pool_opts opts, uint64_t bytes) {
    for (unsigned n = 0;; n++) {
        struct lend_error error = {0};
        struct lend_pool *pool = pool_make(opts);
        struct lend__block *first = block_make(pool, MIB), *block = NULL;
        struct lend_pool_stats before = stats_of(pool);
        fault_arm_thread(n);
        int r = lend__pool_alloc(pool, bytes, &block, &error);
        const char *failed = fault_disarm();
        pool_check(pool);
        if (r < 0) {
            struct lend_pool_stats after = stats_of(pool);
            CHECK(is_expected(r));
            CHECK_INT(error.code, r);
            CHECK_PTR(block, NULL);
            CHECK_UINT(after.reserved_bytes, before.reserved_bytes);
            CHECK_UINT(after.n_allocations, before.n_allocations);
            CHECK_UINT(after.n_blocks, before.n_blocks);
            CHECK_UINT(after.n_failures, before.n_failures + 1);
            block = block_make(pool, bytes);
        }
        memset(lend__block_data(block), 1, bytes);
        lend__pool_free(block);
        lend__pool_free(first);
        pool_check(pool);
        lend_pool_unref(pool);
        if (!failed) return n;
    }
}

LEND_TEST(every_call_of_growing) {
    CHECK(sweep_alloc(POOL_OPTS(.alignment = 64), 5 * MIB) > 10);
    CHECK(sweep_alloc(POOL_OPTS(.budget_bytes = 7 * MIB), 5 * MIB) > 10);
    CHECK(sweep_alloc(POOL_OPTS(.flags = LEND_POOL_ISOLATE), 5 * MIB) > 10);
    CHECK(sweep_alloc(POOL_OPTS(.alignment = 2 << 20), 5 * MIB) > 10);
}

static struct lend__sys before;

static long no_calloc(size_t n, size_t bytes, void **ret) {
    (void)n;
    (void)bytes;
    (void)ret;
    return -ENOMEM;
}

LEND_TEST(records_that_cannot_be_had) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.initial_bytes = 4 * MIB, .budget_bytes = 8 * MIB));
    static struct lend__block *blocks[3000];
    unsigned n_failed = 0, n = 0;
    before = lend__sys;
    for (unsigned i = 0; i < 3000; i++) {
        struct lend_error error = {0};
        lend__sys.calloc = no_calloc;
        int r = lend__pool_alloc(pool, 64, &blocks[n], &error);
        lend__sys = before;
        pool_check(pool);
        if (r < 0) {
            CHECK_CODE(r, -ENOMEM);
            CHECK_CONTAINS(error.text, "record");
            n_failed++;
            blocks[n] = block_make(pool, 64);
        }
        n++;
    }
    CHECK(n_failed > 0);
    CHECK_UINT(stats_of(pool).n_allocations, 1);
    for (unsigned i = 0; i < n; i++) lend__pool_free(blocks[i]);
    pool_check(pool);
    lend_pool_unref(pool);
}

/* Old kernels: MFD_NOEXEC_SEAL, FUTURE_WRITE and MADV_POPULATE_WRITE are unknown. */
static long old_memfd_create(const char *name, unsigned flags) {
    return flags & 8 ? -EINVAL : before.memfd_create(name, flags);
}

static long old_add_seals(int fd, unsigned seals) {
    return seals & 0x10 ? -EINVAL : before.add_seals(fd, seals);
}

static long old_madvise(void *at, size_t bytes, int advice) {
    return advice == 23 ? -EINVAL : before.madvise(at, bytes, advice);
}

LEND_TEST(kernels_without_the_newer_calls) {
    struct lend_error error;
    struct lend_pool *pool;
    before = lend__sys;
    lend__sys.memfd_create = old_memfd_create;
    lend__sys.add_seals = old_add_seals;
    lend__sys.madvise = old_madvise;
    lend__memory_hooks.require_context = NULL;
    struct lend_pool_opts opts = POOL_OPTS(.flags = LEND_POOL_PEERS_READ_ONLY);
    CHECK_CODE(lend_pool_new(&opts, &pool, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "5.1");
    opts = POOL_OPTS(.flags = LEND_POOL_PRETOUCH, .initial_bytes = 2 * MIB);
    CHECK_OK(lend_pool_new(&opts, &pool, &error), &error);
    lend__pool_free(block_make(pool, MIB));
    pool_check(pool);
    lend_pool_unref(pool);
    lend__sys = before;
}
