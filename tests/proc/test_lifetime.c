/* SPDX-License-Identifier: MIT */
/* How long a block stays: until its last holder, in whatever process, is done; and what late handles answer. */
#include "memory.h"
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_IMPORTERS = 8 };

/* Allocates tensors of that size until one gets the place, fills them all, and gives back how many there are. */
static int allocate_until(struct lend_pool *pool, int64_t bytes, uint64_t offset, struct lend_tensor **made, int max) {
    int n = 0;
    while (n < max) {
        made[n] = new_bytes(pool, bytes, 0xee);
        if (info_of(made[n++]).allocation_offset == offset) return n;
    }
    FAIL("%d tensors of %lld bytes and none got the place %llu", max, (long long)bytes, (unsigned long long)offset);
}

LEND_TEST(eight_importers_twice_each_in_any_order_then_the_block_is_reused) {
    enum { BYTES = 100000, MAX = 64 };
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, BYTES, 3), *made[MAX], *late = NULL;
    struct lend_error error = {0};
    struct handle handle;
    struct role r[N_IMPORTERS];
    unsigned seed = 1;
    reduce_to(tensor, NULL, 0, &handle);
    for (int i = 0; i < N_IMPORTERS; i++) actor_start(&r[i], &(struct role_opts){.is_detached = i % 2}, NULL);
    /* Each of the sixteen rebuilds once, in a shuffled order; the exporter drops its own half way. */
    int order[2 * N_IMPORTERS];
    for (int i = 0; i < 2 * N_IMPORTERS; i++) order[i] = i;
    for (int i = 2 * N_IMPORTERS - 1; i > 0; i--) {
        int j = rand_r(&seed) % (i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    uint64_t offset = info_of(tensor).allocation_offset;
    for (int i = 0; i < 2 * N_IMPORTERS; i++) {
        actor_ok(&r[order[i] % N_IMPORTERS], "rebuild %d %s", order[i] / N_IMPORTERS, handle.text);
        if (i == N_IMPORTERS) lend_tensor_unref(tensor);
    }
    for (int i = 0; i < N_IMPORTERS; i++) {
        CHECK_INT(actor_int(&r[i], "filled 0"), 3);
        CHECK_INT(actor_int(&r[i], "same 0 1"), 1);
    }
    for (int i = 2 * N_IMPORTERS - 1; i >= 0; i--) {
        CHECK(limbo_bytes(pool) >= BYTES);
        actor_ok(&r[order[i] % N_IMPORTERS], "drop %d", order[i] / N_IMPORTERS);
    }
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    /* Late, and later, when other bytes lie at the same address: never those. */
    for (int i = 0; i < N_IMPORTERS; i++) CHECK_INT(actor_code(&r[i], "rebuild 0 %s", handle.text), -ESTALE);
    int n = allocate_until(pool, BYTES, offset, made, MAX);
    struct handle second;
    reduce_to(made[n - 1], NULL, 0, &second);
    for (int i = 0; i < N_IMPORTERS; i++) {
        CHECK_INT(actor_code(&r[i], "rebuild 0 %s", handle.text), -ESTALE);
        CHECK_CONTAINS(actor_sentence, "gone");
        actor_ok(&r[i], "rebuild 1 %s", second.text);
        CHECK_INT(actor_code(&r[i], "rebuild 0 %s", handle.text), -ESTALE);
        CHECK_INT(actor_int(&r[i], "filled 1"), 0xee);
    }
    CHECK_CODE(lend_rebuild(handle.bytes, handle.n, NULL, &late, &error), -ESTALE);
    struct role fresh;
    actor_start(&fresh, NULL, NULL);
    CHECK_INT(actor_code(&fresh, "rebuild 0 %s", handle.text), -ESTALE);
    role_end(&fresh);
    for (int i = 0; i < N_IMPORTERS; i++) role_end(&r[i]);
    while (n) lend_tensor_unref(made[--n]);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

/* The block comes back through the announcements, without a tick: a full pool drains them before it says no. */
LEND_TEST(a_full_pool_takes_back_what_was_given_back) {
    struct lend_pool_opts opts = {.size = sizeof opts, .budget_bytes = 8 << 20};
    struct lend_error error = {0};
    open_with(NULL);
    struct lend_pool *pool = new_pool(&opts);
    struct role r;
    actor_start(&r, NULL, NULL);
    for (int round = 0; round < 20; round++) {
        int64_t n = 6 << 20;
        struct lend_tensor *tensor = NULL, *second = NULL;
        CHECK_OK(lend_tensor_new(pool, uint8, 1, &n, &tensor, &error), &error);
        memset(lend_tensor_data(tensor), round, (size_t)n);
        actor_ok(&r, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
        lend_tensor_unref(tensor);
        CHECK_CODE(lend_tensor_new(pool, uint8, 1, &n, &second, &error), -ENOSPC);
        CHECK_INT(actor_int(&r, "filled 0"), round);
        actor_ok(&r, "drop 0");
    }
    CHECK_OK(lend_check(&error), &error);
    role_end(&r);
    close_all(pool);
}

/* Retired allocations leave the importers' address space when they next look; their handles are stale for good. */
LEND_TEST(a_trimmed_allocation_is_unmapped_by_its_importers) {
    struct lend_pool_opts opts = {.size = sizeof opts, .flags = LEND_POOL_ISOLATE};
    open_with(NULL);
    struct lend_pool *pool = new_pool(&opts), *other = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1 << 20, 1), *next = new_bytes(other, 64, 2);
    struct handle handle, alive;
    struct role r;
    reduce_to(tensor, NULL, 0, &handle);
    reduce_to(next, NULL, 0, &alive);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 1 %s", alive.text);
    long long maps = actor_int(&r, "count lend_maps"), fds = actor_int(&r, "count fds");
    actor_ok(&r, "rebuild 0 %s", handle.text);
    CHECK_INT(actor_int(&r, "count lend_maps"), maps + 1);
    lend_tensor_unref(tensor);
    actor_ok(&r, "drop 0");
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    CHECK_OK(lend_pool_trim(pool, 0, NULL), NULL);
    actor_ok(&r, "rebuild 2 %s", alive.text); /* it looks */
    CHECK_INT(actor_int(&r, "count lend_maps"), maps);
    CHECK_INT(actor_int(&r, "count fds"), fds);
    CHECK_INT(actor_code(&r, "rebuild 0 %s", handle.text), -ESTALE);
    /* A new allocation may get the old one's number; the old handle does not reach it. */
    tensor = new_bytes(pool, 1 << 20, 4);
    struct handle second;
    reduce_to(tensor, NULL, 0, &second);
    CHECK_INT(actor_code(&r, "rebuild 0 %s", handle.text), -ESTALE);
    actor_ok(&r, "rebuild 0 %s", second.text);
    CHECK_INT(actor_int(&r, "filled 0"), 4);
    CHECK_INT(actor_code(&r, "rebuild 3 %s", handle.text), -ESTALE);
    lend_tensor_unref(tensor);
    lend_tensor_unref(next);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0 && limbo_bytes(other) == 0);
    lend_pool_unref(other);
    close_all(pool);
}

/* Closed while others hold: they keep what they have, and what is left ends with them. */
LEND_TEST(an_exporter_that_closes_leaves_its_importers_their_memory) {
    struct memory_count before = memory_count();
    struct role a, b;
    struct handle handle;
    actor_start(&a, NULL, NULL);
    actor_start(&b, NULL, NULL);
    actor_ok(&a, "new 0 5000 6");
    snprintf(handle.text, sizeof handle.text, "%s", actor_ok(&a, "reduce 0"));
    actor_ok(&b, "rebuild 0 %s", handle.text);
    role_end(&a);
    CHECK_INT(actor_int(&b, "filled 0"), 6);
    actor_ok(&b, "rebuild 1 %s", handle.text); /* the frozen word says open */
    CHECK_INT(actor_int(&b, "same 0 1"), 1);
    actor_ok(&b, "fill 1 9");
    CHECK_INT(actor_int(&b, "filled 0"), 9);
    struct role c;
    actor_start(&c, NULL, NULL);
    CHECK_INT(actor_code(&c, "rebuild 0 %s", handle.text), -EOWNERDEAD);
    role_end(&c);
    role_end(&b);
    CHECK_UINT(memory_count().n_inodes, before.n_inodes);
}
