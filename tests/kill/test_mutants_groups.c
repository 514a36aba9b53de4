/* SPDX-License-Identifier: MIT */
/* As test_mutants.c: one test for each mutant, of what several storages under one handle need. */
#include "base/atomic.h"
#include "exporter.h"
#include "points.h"
#include "share/shm.h"

#include <signal.h>

/* Two tensors in a group. */
static struct lend_group *pair(struct lend_pool *first, struct lend_pool *second, struct lend_tensor *ret[2]) {
    ret[0] = filled(first, 1000, 10);
    ret[1] = filled(second, 1000, 11);
    return group_of(ret, 2);
}

static void unref_pair(struct lend_tensor *tensors[2]) {
    lend_tensor_unref(tensors[0]);
    lend_tensor_unref(tensors[1]);
}

/* Only the pin holds the two, and the importer is stopped before its first count: the pin must still be there. */
LEND_TEST(cellsearly) {
    struct lend_tensor *tensors[2];
    struct role r;
    begin();
    struct lend_group *group = pair(pool, pool, tensors);
    char *handle = reduced(group, LEND_REDUCE_PIN);
    lend_group_unref(group);
    unref_pair(tensors);
    start(&r, "LEND_POINT_AT=L1.before-count 0 stop");
    role_send(&r, "grebuild 0 0 %s", handle);
    await_stop(&r);
    look();
    CHECK_UINT(n_pins(), 1);
    role_kill(&r, SIGCONT);
    role_expect(&r, "ok");
    TELL(&r, "check");
    CHECK_EVENTUALLY(2000, (look(), n_pins()) == 0);
    CHECK_UINT(n_limbo(), 2);
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    free(handle);
    finish();
}

/* The second storage is gone: the first, which was taken already, is given back. */
LEND_TEST(halfgroup) {
    struct lend_tensor *tensors[2];
    struct role r;
    begin();
    struct lend_group *group = pair(pool, pool, tensors);
    char *handle = reduced(group, 0);
    lend_group_unref(group);
    lend_tensor_unref(tensors[1]);
    start(&r, NULL);
    role_send(&r, "grebuild 0 0 %s", handle);
    CHECK_CONTAINS(role_line(&r, 5000), "error -116");
    lend_tensor_unref(tensors[0]);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    end(&r);
    free(handle);
    finish();
}

/* The second storage may not be written, which is found when both are taken: the pin is as good as before. */
LEND_TEST(pinlost) {
    const struct lend_pool_opts opts = {.size = sizeof opts, .flags = LEND_POOL_PEERS_READ_ONLY};
    struct lend_pool *read_only = NULL;
    struct lend_tensor *tensors[2];
    struct role r;
    begin();
    CHECK_OK(lend_pool_new(&opts, &read_only, &error), &error);
    struct lend_group *group = pair(pool, read_only, tensors);
    char *handle = reduced(group, LEND_REDUCE_PIN);
    lend_group_unref(group);
    unref_pair(tensors);
    start(&r, NULL);
    role_send(&r, "grebuild 0 %d %s", LEND_REBUILD_WRITABLE, handle);
    CHECK_CONTAINS(role_line(&r, 5000), "error -13");
    look();
    CHECK_UINT(n_pins(), 1);
    TELL(&r, "grebuild 0 0 %s", handle);
    TELL(&r, "check");
    CHECK_EVENTUALLY(2000, (look(), n_pins()) == 0);
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    lend_pool_unref(read_only);
    free(handle);
    finish();
}

struct retirement {
    struct role *role;
    const char *handle, *other;
    uint32_t allocation;
};

/* The first slot is closing, so the importer waits; meanwhile the table says, wrongly, that the allocation of the second
 * is retired, and the importer's other thread lets it go. */
static void retire_meanwhile(void *arg) {
    const struct retirement *x = arg;
    struct lend_shm_table *table = lend__ledger.table;
    struct lend_shm_allocation *entry = &lend__shm_allocations(table)[x->allocation];
    TELL(x->role, "glater 0 %s", x->handle);
    TELL(x->role, "until L2.word-read 3");
    lend__or_seq_cst(&entry->state, UINT64_C(1));
    lend__add_relaxed(&table->n_retired, 1);
    rebuild(x->role, 1, x->other);
    lend__store_release(&entry->state, entry->state & ~UINT64_C(1));
}

/* A mapping that was found before a wait is not trusted after it, whatever the exporter did in between. */
LEND_TEST(mappingstale) {
    char other[LEND_HANDLE_TEXT_MAX], alone[LEND_HANDLE_TEXT_MAX];
    struct lend_handle_info info = {.size = sizeof info};
    struct lend_pool *second = NULL;
    struct lend_tensor *tensors[2];
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct role r;
    begin();
    CHECK_OK(lend_pool_new(NULL, &second, &error), &error);
    struct lend_tensor *kept = lent(1000, 0, other, NULL);
    struct lend_group *group = pair(pool, second, tensors);
    char *handle = reduced(group, 0);
    CHECK_OK(lend_reduce(tensors[1], NULL, bytes, sizeof bytes, &n, &error), &error);
    CHECK_OK(lend_handle_describe(bytes, n, &info, &error), &error);
    CHECK_OK(lend_handle_format(bytes, n, alone, sizeof alone), NULL);
    start(&r, NULL);
    TELL(&r, "grebuild 1 0 %s", handle); /* so that both allocations are mapped */
    TELL(&r, "gdrop 1");
    lend_group_unref(group);
    struct retirement retirement = {&r, handle, other, info.allocation};
    points_call_at("L5.closing", 0, retire_meanwhile, &retirement);
    lend_tensor_unref(tensors[0]);
    role_send(&r, "gawait");
    CHECK_CONTAINS(role_line(&r, 5000), "error -116");
    TELL(&r, "rebuild 2 11 %s", alone);
    TELL(&r, "check");
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    lend_tensor_unref(tensors[1]);
    lend_tensor_unref(kept);
    lend_pool_unref(second);
    free(handle);
    finish();
}
