/* SPDX-License-Identifier: MIT */
/* lend_watch: what happened to others, as records, and that none is lost without being counted. */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* Waits for a record of that kind, through poll as a user does; others are skipped. */
static struct lend_watch_record expect(struct lend_watch *watch, uint32_t kind, uint64_t ms) {
    uint64_t deadline = test_deadline_ms(ms);
    for (;;) {
        struct lend_watch_record record;
        int r;
        while ((r = lend_watch_next(watch, &record)) == 0)
            if (record.kind == kind) return record;
        CHECK_INT(r, LEND_EMPTY);
        uint64_t now = test_now_ms();
        if (now >= deadline) FAIL("no record of kind %u within %d ms", kind, (int)ms);
        struct pollfd p = {.fd = lend_watch_fd(watch), .events = POLLIN};
        poll(&p, 1, (int)(deadline - now));
    }
}

static struct lend_watch *new_watch(void) {
    struct lend_watch *watch = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_watch_new(&watch, &error), &error);
    return watch;
}

LEND_TEST(a_peer_that_died_is_told_with_what_it_held) {
    open_with(NULL);
    struct lend_watch *watch = new_watch(), *second = new_watch();
    struct role r;
    actor_start(&r, NULL, NULL); /* first: a child of ours would hold what lives here until its exec */
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 70000, 1), *other = new_bytes(pool, 30000, 1);
    actor_ok(&r, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
    actor_ok(&r, "rebuild 1 %s", reduce_text(other, NULL, 0));
    struct lend_watch_record record = expect(watch, LEND_WATCH_POOL_GREW, 100);
    CHECK_UINT(record.bytes, info_of(tensor).allocation_bytes);
    CHECK_UINT(record.pid, 0);
    CHECK_INT(lend_watch_next(watch, &record), LEND_EMPTY);
    pid_t pid = r.pid;
    role_kill(&r, SIGKILL);
    record = expect(watch, LEND_WATCH_PEER_DIED, 1000);
    CHECK_UINT(record.pid, (unsigned)pid);
    CHECK_UINT(record.bytes, 100000);
    CHECK_UINT(record.n_lost, 0);
    CHECK(record.time_ns > 0);
    record = expect(second, LEND_WATCH_PEER_DIED, 1000); /* each watch gets every event */
    CHECK_UINT(record.bytes, 100000);
    lend_tensor_unref(other);
    lend_tensor_unref(tensor);
    CHECK_OK(lend_pool_trim(pool, 0, NULL), NULL);
    record = expect(watch, LEND_WATCH_POOL_TRIMMED, 100);
    CHECK(record.bytes >= 100000);
    lend_watch_unref(second);
    lend_watch_unref(watch);
    close_all(pool);
}

LEND_TEST(an_exporter_that_died_is_told_with_what_is_held_of_it) {
    open_with(NULL);
    struct lend_watch *watch = new_watch();
    struct lend_tensor *held[2] = {NULL};
    struct lend_error error = {0};
    struct role a;
    actor_start(&a, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        actor_ok(&a, "new %d %d 3", i, 1000 + i);
        CHECK_OK(rebuild_text(actor_ok(&a, "reduce %d", i), NULL, &held[i], &error), &error);
    }
    struct pollfd p = {.fd = lend_watch_fd(watch), .events = POLLIN};
    CHECK_INT(poll(&p, 1, 0), 0);
    pid_t pid = a.pid;
    role_kill(&a, SIGKILL);
    struct lend_watch_record record = expect(watch, LEND_WATCH_EXPORTER_DIED, 1000);
    CHECK_UINT(record.pid, (unsigned)pid);
    CHECK_UINT(record.bytes, 2001);
    CHECK_INT(lend_watch_next(watch, &record), LEND_EMPTY);
    CHECK(is_filled(held[1], 3));
    for (int i = 0; i < 2; i++) lend_tensor_unref(held[i]);
    lend_watch_unref(watch);
    close_all(NULL);
}

LEND_TEST(pins_that_are_refused_or_expire_are_told) {
    struct lend_opts opts = {.size = sizeof opts, .pin_bytes_max = 1500};
    struct lend_reduce_opts brief = {.size = sizeof brief, .flags = LEND_REDUCE_PIN, .pin_ns_max = 100000000};
    struct lend_error error = {0};
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    open_with(&opts);
    struct lend_watch *watch = new_watch();
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 1);
    reduce_text(tensor, &brief, 0);
    CHECK_CODE(lend_reduce(tensor, &brief, bytes, sizeof bytes, &n, &error), -ENOSPC);
    struct lend_watch_record record = expect(watch, LEND_WATCH_PIN_EXCEEDED, 100);
    CHECK_UINT(record.bytes, 1000);
    CHECK_UINT(record.pid, (unsigned)getpid());
    record = expect(watch, LEND_WATCH_PIN_EXPIRED, 1500);
    CHECK_UINT(record.bytes, 1000);
    lend_tensor_unref(tensor);
    lend_watch_unref(watch);
    close_all(pool);
}

LEND_TEST(a_peer_that_keeps_too_much_in_limbo_is_told_and_gets_nothing_new) {
    struct lend_opts opts = {.size = sizeof opts, .limbo_bytes_max = 5000};
    struct lend_pool_opts isolate = {.size = sizeof isolate, .flags = LEND_POOL_ISOLATE};
    open_with(&opts);
    struct lend_watch *watch = new_watch();
    struct lend_pool *pool = new_pool(&isolate);
    struct lend_tensor *tensor = new_bytes(pool, 9000, 1), *next = new_bytes(pool, 10, 2);
    struct role r, other;
    actor_start(&r, NULL, NULL);
    actor_start(&other, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
    lend_tensor_unref(tensor);
    struct lend_watch_record record = expect(watch, LEND_WATCH_LIMBO_EXCEEDED, 2000);
    CHECK_UINT(record.pid, (unsigned)r.pid);
    CHECK_UINT(record.bytes, 9000);
    CHECK_INT(actor_code(&r, "rebuild 1 %s", reduce_text(next, NULL, 0)), -ENOSPC);
    CHECK_CONTAINS(actor_sentence, "limbo");
    actor_ok(&other, "rebuild 1 %s", reduce_text(next, NULL, 0));
    actor_ok(&r, "drop 0");
    CHECK_EVENTUALLY(2000, actor_code(&r, "rebuild 1 %s", reduce_text(next, NULL, 0)) == 0);
    role_end(&r);
    role_end(&other);
    lend_tensor_unref(next);
    lend_watch_unref(watch);
    close_all(pool);
}

/* 256 records are kept; what goes over the edge is counted, and nobody waits. */
LEND_TEST(lost_records_are_counted) {
    enum { N = 300 };
    struct lend_pool_opts isolate = {.size = sizeof isolate, .flags = LEND_POOL_ISOLATE};
    struct lend_watch_record record;
    open_with(NULL);
    struct lend_watch *watch = new_watch();
    struct lend_pool *pool = new_pool(&isolate);
    for (int i = 0; i < N; i++) lend_tensor_unref(new_bytes(pool, 100, 0)); /* grows and trims: two records */
    unsigned n = 0;
    uint64_t n_lost = 0;
    while (lend_watch_next(watch, &record) == 0) {
        CHECK(n > 0 || record.n_lost > 0);
        n_lost += record.n_lost;
        n++;
    }
    CHECK_UINT(n, 256);
    CHECK_UINT(n + n_lost, 2 * N);
    lend_watch_unref(watch);
    close_all(pool);
}
