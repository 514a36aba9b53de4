/* SPDX-License-Identifier: MIT */
/* Pools as their users see them: options, sizes, growth, budget, figures, trim, isolation, lifetime. */
#include "memory/pool.h"

#include "leftovers.h"
#include "pool_fixture.h"
#include "tensor/storage.h"

#include <fcntl.h>
#include <lend/tensor.h>
#include <lend/watch.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void expect_refused(struct lend_pool_opts opts, int code, const char *part) {
    struct lend_error error = {0};
    struct lend_pool *pool = (void *)&error;
    lend__memory_hooks.require_context = NULL;
    CHECK_CODE(lend_pool_new(&opts, &pool, &error), code);
    CHECK_PTR(pool, &error);
    CHECK_INT(error.code, code);
    CHECK_CONTAINS(error.text, part);
}

LEND_TEST(wrong_options_are_named) {
    expect_refused((struct lend_pool_opts){.size = 4}, -EINVAL, "size");
    expect_refused(POOL_OPTS(.flags = 16), -EINVAL, "flags");
    expect_refused(POOL_OPTS(.huge_pages = 3), -EINVAL, "huge_pages");
    expect_refused(POOL_OPTS(.numa_mode = 4), -EINVAL, "numa_mode");
    expect_refused(POOL_OPTS(.numa_mode = LEND_NUMA_BIND), -EINVAL, "numa_nodes");
    expect_refused(POOL_OPTS(.alignment = 32), -EINVAL, "alignment");
    expect_refused(POOL_OPTS(.alignment = 96), -EINVAL, "alignment");
    expect_refused(POOL_OPTS(.alignment = 4 << 20), -EINVAL, "alignment");
    expect_refused(POOL_OPTS(.device_type = 99), -ENODEV, "device_type 99");
    expect_refused(POOL_OPTS(.device_id = 1), -ENODEV, "device_id is 1");
    expect_refused(POOL_OPTS(.device_type = LEND_DEVICE_META), -EOPNOTSUPP, "meta");
    expect_refused(POOL_OPTS(.adopt_bytes = 64, .adopt_offset = 1), -EINVAL, "adopt_offset");
    expect_refused(POOL_OPTS(.adopt_bytes = 65), -EINVAL, "adopt_bytes");
    expect_refused(POOL_OPTS(.adopt_bytes = 64, .budget_bytes = 64), -EINVAL, "adopted");
    expect_refused(POOL_OPTS(.budget_bytes = MIB, .initial_bytes = 2 * MIB), -ENOSPC, "2097152 bytes asked");
    expect_refused(POOL_OPTS(.flags = LEND_POOL_ISOLATE, .initial_bytes = 1), -EINVAL, "isolated");
}

LEND_TEST(longer_and_shorter_option_structs_are_understood) {
    struct {
        struct lend_pool_opts opts;
        uint64_t newer;
    } longer = {.opts = {.size = sizeof longer, .budget_bytes = 4 * MIB}};
    struct lend_error error;
    struct lend_pool *pool;
    lend__memory_hooks.require_context = NULL;
    CHECK_OK(lend_pool_new(&longer.opts, &pool, &error), &error);
    lend_pool_unref(pool);
    longer.newer = 1;
    CHECK_CODE(lend_pool_new(&longer.opts, &pool, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "newer than this library");
    /* flags lies beyond this size. */
    struct lend_pool_opts shorter = {.size = offsetof(struct lend_pool_opts, flags), .flags = UINT32_MAX};
    CHECK_OK(lend_pool_new(&shorter, &pool, &error), &error);
    lend_pool_unref(pool);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    struct lend_pool_stats stats = {.size = 4};
    CHECK_CODE(lend_pool_stats(pool, &stats), -EINVAL);
    stats = (struct lend_pool_stats){.size = offsetof(struct lend_pool_stats, reserved_bytes), .reserved_bytes = 77};
    CHECK_CODE(lend_pool_stats(pool, &stats), 0);
    CHECK_UINT(stats.reserved_bytes, 77);
    lend_pool_unref(pool);
    lend_pool_unref(NULL);
}

static int not_connected(void) {
    return -ENOTCONN;
}

LEND_TEST(a_pool_needs_the_context) {
    struct lend_error error;
    struct lend_pool *pool;
    lend__memory_hooks.require_context = not_connected;
    CHECK_CODE(lend_pool_new(NULL, &pool, &error), -ENOTCONN);
    CHECK_CONTAINS(error.text, "lend_open");
}

LEND_TEST(every_alignment_holds) {
    for (uint32_t alignment = 64; alignment <= 2 << 20; alignment *= 2) {
        struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = alignment));
        static const uint64_t sizes[] = {1, 63, 64, 65, 4097, 70000, 3 << 20};
        struct lend__block *blocks[7];
        for (unsigned i = 0; i < 7; i++) {
            blocks[i] = block_make(pool, sizes[i]);
            CHECK_UINT((uintptr_t)lend__block_data(blocks[i]) % alignment, 0);
            memset(lend__block_data(blocks[i]), (int)i + 1, sizes[i]);
        }
        pool_check(pool);
        for (unsigned i = 0; i < 7; i++) {
            CHECK_UINT(lend__block_data(blocks[i])[sizes[i] - 1], i + 1);
            lend__pool_free(blocks[i]);
        }
        pool_check(pool);
        lend_pool_unref(pool);
    }
}

LEND_TEST(figures_are_exact) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    struct lend__block *a = block_make(pool, 100), *b = block_make(pool, 1 * MIB + 1), *c = block_make(pool, 64);
    struct lend_pool_stats s = stats_of(pool);
    CHECK_UINT(s.n_blocks, 3);
    CHECK_UINT(s.n_allocs, 3);
    CHECK_UINT(s.requested_bytes, 100 + MIB + 1 + 64);
    CHECK_UINT(s.allocated_bytes, 128 + MIB + 64 + 64);
    CHECK_UINT(s.n_allocations, 1);
    CHECK_UINT(s.reserved_bytes, 2 * MIB);
    CHECK_UINT(s.cached_bytes, s.reserved_bytes - s.allocated_bytes);
    lend__pool_free(b);
    lend__pool_free(a);
    for (int i = 0; i < 1000; i++) lend__pool_free(block_make(pool, 4096));
    s = stats_of(pool);
    CHECK_UINT(s.n_blocks, 1);
    CHECK_UINT(s.n_allocs, 1003);
    CHECK_UINT(s.n_frees, 1002);
    CHECK_UINT(s.allocated_bytes, 64);
    CHECK_UINT(s.allocated_bytes_peak, 128 + MIB + 64 + 64);
    CHECK_UINT(s.reserved_bytes_peak, 2 * MIB);
    CHECK_UINT(s.n_failures, 0);
    lend__pool_account_limbo(pool, 500);
    lend__pool_account_limbo(pool, -200);
    CHECK_UINT(stats_of(pool).limbo_bytes, 300);
    lend__pool_free(c);
    lend_pool_unref(pool);
}

LEND_TEST(the_peak_counts_blocks_that_only_the_shards_saw) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    struct lend__block *blocks[300];
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 300; i++) blocks[i] = block_make(pool, 64);
        for (unsigned i = 0; i < 300; i++) lend__pool_free(blocks[i]);
    }
    CHECK_UINT(stats_of(pool).allocated_bytes_peak, 300 * 64);
    lend_pool_unref(pool);
}

LEND_TEST(small_tensors_need_few_allocations) {
    enum { N_SMALL = 200000, N_MEDIUM = 10000 };
    struct lend__block **blocks = malloc(N_SMALL * sizeof *blocks);
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    for (unsigned i = 0; i < N_SMALL; i++) blocks[i] = block_make(pool, 4);
    CHECK(stats_of(pool).n_allocations < 20);
    CHECK(stats_of(pool).reserved_bytes <= N_SMALL * 64 * 3 / 2 + 4 * MIB);
    pool_check(pool);
    for (unsigned i = 0; i < N_SMALL; i++) lend__pool_free(blocks[i]);
    pool_check(pool);
    lend_pool_unref(pool);
    pool = pool_make(POOL_OPTS(.alignment = 64));
    for (unsigned i = 0; i < N_MEDIUM; i++) blocks[i] = block_make(pool, 64 * KIB);
    CHECK(stats_of(pool).n_allocations < 20);
    for (unsigned i = 0; i < N_MEDIUM; i++) lend__pool_free(blocks[i]);
    uint64_t returned;
    CHECK_CODE(lend_pool_trim(pool, 0, &returned), 0);
    CHECK(returned >= N_MEDIUM * 64 * KIB);
    CHECK_UINT(stats_of(pool).reserved_bytes, 0);
    lend_pool_unref(pool);
    free(blocks);
}

LEND_TEST(a_budget_too_small_is_an_error_with_numbers) {
    struct lend_error error = {0};
    struct lend_pool *pool = pool_make(POOL_OPTS(.budget_bytes = 5 * MIB));
    struct lend__block *a = block_make(pool, MIB), *b = NULL;
    CHECK_CODE(lend__pool_alloc(pool, 8 * MIB, &b, &error), -ENOSPC);
    CHECK_UINT(error.asked, 8 * MIB);
    CHECK_UINT(error.available, 3 * MIB);
    CHECK_CONTAINS(error.text, "8388608");
    CHECK_PTR(b, NULL);
    struct lend_pool_stats s = stats_of(pool);
    CHECK_UINT(s.reserved_bytes, 2 * MIB);
    CHECK_UINT(s.n_failures, 1);
    CHECK_UINT(s.n_blocks, 1);
    pool_check(pool);
    /* What was said to be available is. */
    b = block_make(pool, error.available);
    CHECK_UINT(stats_of(pool).reserved_bytes, 5 * MIB);
    CHECK_CODE(lend__pool_alloc(pool, 2 * MIB, &(struct lend__block *){NULL}, NULL), -ENOSPC);
    lend__pool_free(a);
    lend__pool_free(b);
    /* Empty allocations make room for one that needs all. */
    a = block_make(pool, 5 * MIB);
    CHECK_UINT(stats_of(pool).n_allocations, 1);
    CHECK_UINT(stats_of(pool).n_allocations_returned, 2);
    lend__pool_free(a);
    pool_check(pool);
    lend_pool_unref(pool);
}

LEND_TEST(cached_small_blocks_never_cause_a_shortage) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.budget_bytes = 2 * MIB, .initial_bytes = 2 * MIB));
    for (uint64_t bytes = 64; bytes <= MIB; bytes += 64 + bytes / 2) lend__pool_free(block_make(pool, bytes));
    struct lend__block *all = block_make(pool, 2 * MIB);
    CHECK_UINT(stats_of(pool).cached_bytes, 0);
    lend__pool_free(all);
    lend_pool_unref(pool);
}

LEND_TEST(absurd_sizes_are_refused) {
    struct lend_error error = {0};
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64)), *tight = pool_make(POOL_OPTS(.budget_bytes = MIB));
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 63, (uint64_t)1 << 63, (uint64_t)1 << 50};
    struct lend__block *block;
    for (unsigned i = 0; i < 4; i++) {
        error.code = 0;
        CHECK_CODE(lend__pool_alloc(pool, sizes[i], &block, &error), -ENOMEM);
        CHECK_INT(error.code, -ENOMEM);
        CHECK_UINT(error.asked, sizes[i]);
        int r = lend__pool_alloc(tight, sizes[i], &block, NULL);
        CHECK(r == -ENOMEM || r == -ENOSPC);
    }
    pool_check(pool);
    pool_check(tight);
    lend__pool_free(block_make(pool, 1));
    lend_pool_unref(pool);
    lend_pool_unref(tight);
}

LEND_TEST(trim_keeps_what_it_is_told) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    struct lend__block *blocks[4];
    for (unsigned i = 0; i < 4; i++) blocks[i] = block_make(pool, 8 * MIB);
    CHECK_UINT(stats_of(pool).n_allocations, 4);
    uint64_t returned = 1;
    CHECK_CODE(lend_pool_trim(pool, 0, &returned), 0);
    CHECK_UINT(returned, 0);
    for (unsigned i = 1; i < 4; i++) lend__pool_free(blocks[i]);
    uint64_t cached = stats_of(pool).cached_bytes;
    CHECK_CODE(lend_pool_trim(pool, cached, &returned), 0);
    CHECK_UINT(returned, 0);
    CHECK_CODE(lend_pool_trim(pool, cached - 1, NULL), 0);
    CHECK_UINT(stats_of(pool).n_allocations, 3);
    CHECK_CODE(lend_pool_trim(pool, 0, &returned), 0);
    CHECK_UINT(stats_of(pool).n_allocations, 1);
    CHECK_UINT(stats_of(pool).n_allocations_returned, 3);
    pool_check(pool);
    lend__pool_free(blocks[0]);
    lend_pool_unref(pool);
}

LEND_TEST(isolated_blocks_have_no_neighbours) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.flags = LEND_POOL_ISOLATE, .budget_bytes = MIB));
    uint64_t page = lend__page_bytes();
    struct lend__block *a = block_make(pool, 10), *b = block_make(pool, page + 1);
    CHECK(a->allocation != b->allocation);
    CHECK(a->allocation->extent.inode != b->allocation->extent.inode);
    struct lend_pool_stats s = stats_of(pool);
    CHECK_UINT(s.n_allocations, 2);
    CHECK_UINT(s.reserved_bytes, 3 * page);
    CHECK_UINT(s.cached_bytes, 0);
    pool_check(pool);
    lend__pool_free(a);
    s = stats_of(pool);
    CHECK_UINT(s.n_allocations, 1);
    CHECK_UINT(s.reserved_bytes, 2 * page);
    CHECK_UINT(s.n_allocations_returned, 1);
    CHECK_CODE(lend__pool_alloc(pool, MIB, &a, NULL), -ENOSPC);
    lend__pool_free(b);
    b = block_make(pool, MIB);
    lend__pool_free(b);
    lend_pool_unref(pool);
}

LEND_TEST(blocks_keep_their_pool) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    struct lend__block *small = block_make(pool, 100), *large = block_make(pool, 9 * MIB);
    uint64_t n_pools, n_blocks;
    CHECK_PTR(lend_pool_ref(pool), pool);
    lend_pool_unref(pool);
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_pools, 1);
    CHECK_UINT(n_blocks, 2);
    lend_pool_unref(pool);
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_pools, 0);
    CHECK_UINT(n_blocks, 2);
    memset(lend__block_data(small), 1, 100);
    memset(lend__block_data(large), 1, 9 * MIB);
    CHECK_CODE(lend__pools_check(NULL), 0);
    int fd = large->allocation->extent.fd;
    lend__pool_free(large);
    CHECK_INT(fcntl(fd, F_GETFD), -1); /* an orphan keeps nothing that is empty */
    lend__pool_free(small);
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_blocks, 0);
}

LEND_TEST(an_internal_pool_counts_by_its_blocks) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    uint64_t n_pools, n_blocks;
    lend__pool_set_internal(pool);
    struct lend__block *block = block_make(pool, 1);
    lend__pools_count(&n_pools, &n_blocks);
    CHECK_UINT(n_pools, 0);
    CHECK_UINT(n_blocks, 1);
    lend__pool_free(block);
    lend_pool_unref(pool);
}

/* Hooks that count, and a limbo of one block. */
static unsigned n_reclaims, n_retired, n_grew, n_trimmed;
static struct lend__block *limbo;

static bool reclaim(void) {
    n_reclaims++;
    if (!limbo) return false;
    lend__pool_free(limbo);
    limbo = NULL;
    return true;
}

static void retire(struct lend__allocation *allocation) {
    CHECK_UINT(allocation->index, 3);
    *(volatile uint8_t *)allocation->extent.base = 1;        /* it is still mapped */
    CHECK_UINT(stats_of(allocation->pool).n_allocations, 1); /* and no lock is held */
    n_retired++;
}

static void event(uint32_t kind, uint64_t bytes) {
    CHECK_UINT(bytes, 2 * MIB);
    if (kind == LEND_WATCH_POOL_GREW) n_grew++;
    if (kind == LEND_WATCH_POOL_TRIMMED) n_trimmed++;
}

LEND_TEST(hooks_hear_of_growth_and_end) {
    struct lend_pool *pool = pool_make(POOL_OPTS(.budget_bytes = 2 * MIB));
    lend__memory_hooks = (struct lend__memory_hooks){.reclaim = reclaim, .allocation_retire = retire, .event = event};
    limbo = block_make(pool, 2 * MIB);
    CHECK_UINT(n_reclaims, 1);
    CHECK_UINT(n_grew, 1);
    /* The pool is full; what waits in limbo is taken before it fails. */
    struct lend__block *block = block_make(pool, 2 * MIB);
    CHECK_UINT(n_reclaims, 2);
    CHECK_UINT(n_grew, 1);
    block->allocation->index = 3;
    int other = dup(block->allocation->extent.fd);
    struct stat st;
    lend__pool_free(block);
    CHECK_CODE(lend_pool_trim(pool, 0, NULL), 0);
    CHECK_UINT(n_retired, 1);
    CHECK_UINT(n_trimmed, 1);
    /* Peers still have the object, but not the pages. */
    CHECK_INT(fstat(other, &st), 0);
    CHECK_UINT(st.st_size, 2 * MIB);
    CHECK_UINT(st.st_blocks, 0);
    close(other);
    lend_pool_unref(pool);
}

LEND_TEST(adopted_memory_is_carved_and_never_grows) {
    struct lend_error error;
    uint64_t page = lend__page_bytes();
    int fd = memfd_create("lend-adopt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_INT(ftruncate(fd, (off_t)(8 * page)), 0);
    struct lend_pool *pool = pool_make(POOL_OPTS(.adopt_fd = fd, .adopt_offset = page, .adopt_bytes = 4 * page));
    struct stat st;
    CHECK_INT(fstat(fd, &st), 0);
    CHECK_UINT((uint64_t)st.st_blocks * 512, 4 * page); /* the holes of the range have pages now */
    struct lend__block *a = block_make(pool, 3 * page), *b;
    CHECK_UINT(a->allocation->extent.fd_offset, page);
    CHECK_UINT(a->allocation->extent.inode, st.st_ino);
    memset(lend__block_data(a), 0x5a, 3 * page);
    uint8_t byte = 0;
    CHECK_INT(pread(fd, &byte, 1, (off_t)(page + a->off)), 1);
    CHECK_UINT(byte, 0x5a);
    CHECK_CODE(lend__pool_alloc(pool, 2 * page, &b, &error), -ENOSPC);
    CHECK_UINT(error.available, page);
    CHECK_CONTAINS(error.text, "range");
    CHECK_INT(ftruncate(fd, 0), -1);
    CHECK_INT(errno, EPERM);
    lend__pool_free(a);
    CHECK_CODE(lend_pool_trim(pool, 0, NULL), 0);
    b = block_make(pool, 4 * page); /* trim leaves the range */
    pool_check(pool);
    lend__pool_free(b);
    lend_pool_unref(pool);
    CHECK_INT(pread(fd, &byte, 1, (off_t)page), 1);
    CHECK_UINT(byte, 0x5a); /* and its owner's bytes stay */
    close(fd);
}

LEND_TEST(addresses_find_their_storage) {
    struct lend_error error;
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    struct lend__storage *small, *large;
    CHECK_OK(lend__storage_new_pool(pool, 100, &small, &error), &error);
    CHECK_OK(lend__storage_new_pool(pool, 3 * MIB, &large, &error), &error);
    static const uint64_t offs[] = {0, 1, MIB, 2 * MIB + 17, 3 * MIB - 1};
    for (unsigned i = 0; i < 5; i++) {
        CHECK_PTR(lend__region_find(large->data + offs[i], 1), large);
        lend__storage_unref(large);
    }
    CHECK_PTR(lend__region_find(small->data, 100), small);
    lend__storage_unref(small);
    CHECK_PTR(lend__region_find(small->data, 101), NULL);
    CHECK_PTR(lend__region_find(small->data + 100, 1), NULL); /* the rest of the block is nobody's */
    uint8_t *address = small->data;
    lend__storage_unref(small);
    CHECK_PTR(lend__region_find(address, 1), NULL);
    lend_pool_unref(pool);
    address = large->data;
    CHECK_PTR(lend__region_find(address, 1), large);
    lend__storage_unref(large);
    lend__storage_unref(large);
    CHECK_PTR(lend__region_find(address, 1), NULL);
}

LEND_TEST(damage_is_named) {
    struct lend_error error;
    struct lend_pool *pool = pool_make(POOL_OPTS(.alignment = 64));
    struct lend__block *a = block_make(pool, 5 * MIB), *b = block_make(pool, 64);
    pool_check(pool);
    a->bytes -= 64;
    CHECK_CODE(lend_pool_check(pool, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "do not meet");
    a->bytes += 64;
    uint64_t requested = b->requested;
    b->requested = 65;
    CHECK_CODE(lend_pool_check(pool, &error), -EBADMSG);
    b->requested = requested;
    b->state = LEND__BLOCK_CACHED;
    CHECK_CODE(lend__pools_check(&error), -EBADMSG);
    CHECK_CONTAINS(error.text, "cached");
    b->state = LEND__BLOCK_USED;
    pool->n_allocations++;
    CHECK_CODE(lend_pool_check(pool, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "allocations: the books say");
    pool->n_allocations--;
    pool_check(pool);
    lend__pool_free(a);
    lend__pool_free(b);
    lend_pool_unref(pool);
}
