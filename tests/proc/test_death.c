/* SPDX-License-Identifier: MIT */
/* SIGKILL: importers, exporters, and everyone; what the others see, and that nothing is left. */
#include "memory.h"
#include "peer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool is_shown(pid_t pid) {
    struct lend_report_peer *peers = NULL;
    size_t n = 0;
    bool found = false;
    CHECK_OK(lend_peers_list(&peers, &n, NULL), NULL);
    for (size_t i = 0; i < n; i++) found |= peers[i].pid == (uint32_t)pid;
    lend_free(peers);
    return found;
}

/* What one peer holds, as the books say it. */
static uint64_t bytes_held_by(pid_t pid) {
    struct lend_report_peer *peers = NULL;
    size_t n = 0;
    uint64_t bytes = 0;
    CHECK_OK(lend_peers_list(&peers, &n, NULL), NULL);
    for (size_t i = 0; i < n; i++)
        if (peers[i].pid == (uint32_t)pid) bytes += peers[i].bytes;
    lend_free(peers);
    return bytes;
}

LEND_TEST(a_killed_importer_is_forgotten_within_a_second) {
    enum { BYTES = 64 << 20 };
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, BYTES, 1);
    struct lend_report *report = NULL;
    struct lend_error error = {0};
    struct handle handle;
    struct role r[2];
    reduce_to(tensor, NULL, 0, &handle);
    for (int i = 0; i < 2; i++) {
        actor_start(&r[i], &(struct role_opts){.is_detached = i}, NULL);
        actor_ok(&r[i], "rebuild 0 %s", handle.text);
    }
    lend_tensor_unref(tensor);
    pid_t killed = r[0].pid, alive = r[1].pid;
    CHECK(is_shown(killed) && is_shown(alive));
    CHECK_UINT(bytes_held_by(killed), BYTES);
    role_kill(&r[0], SIGKILL);
    CHECK_EVENTUALLY(1000, !is_shown(killed));
    CHECK_UINT(bytes_held_by(alive), BYTES);
    CHECK_OK(lend_report_get(NULL, 1, 0, &report, &error), &error);
    CHECK_UINT(report->totals.n_peers, 1);
    CHECK_UINT(report->totals.n_limbo, 1);
    CHECK_UINT(report->n_holds, 1);
    CHECK_UINT(report->holds[0].pid, (unsigned)alive);
    CHECK_UINT(report->holds[0].count, 1);
    CHECK_UINT(report->storages[0].n_holders, 1);
    lend_report_free(report);
    CHECK_INT(actor_int(&r[1], "filled 0"), 1);
    pid_t second = r[1].pid;
    role_kill(&r[1], SIGKILL);
    CHECK_EVENTUALLY(1000, !is_shown(second) && limbo_bytes(pool) == 0);
    CHECK_OK(lend_check(&error), &error);
    /* Reusable: the next one gets the same memory. */
    tensor = new_bytes(pool, BYTES, 2);
    struct lend_pool_stats stats = {.size = sizeof stats};
    CHECK_OK(lend_pool_stats(pool, &stats), NULL);
    CHECK_UINT(stats.n_allocations_made, 1);
    lend_tensor_unref(tensor);
    close_all(pool);
}

LEND_TEST(importers_of_a_killed_exporter_go_on) {
    struct memory_count before = memory_count();
    struct handle first, second, never, dropped;
    struct role a, b, c;
    actor_start(&a, NULL, NULL);
    actor_start(&b, NULL, NULL);
    actor_start(&c, &(struct role_opts){.is_detached = true}, NULL);
    actor_ok(&a, "new 0 100000 5");
    actor_ok(&a, "new 1 1000 6");
    actor_ok(&a, "new 2 1000 7");
    snprintf(first.text, sizeof first.text, "%s", actor_ok(&a, "reduce 0"));
    snprintf(second.text, sizeof second.text, "%s", actor_ok(&a, "reduce 1"));
    snprintf(dropped.text, sizeof dropped.text, "%s", actor_ok(&a, "reduce 2"));
    actor_ok(&a, "drop 2");
    snprintf(never.text, sizeof never.text, "%s", actor_ok(&a, "reduce 0 pin"));
    actor_ok(&b, "rebuild 0 %s", first.text);
    actor_ok(&c, "rebuild 0 %s", first.text);
    role_kill(&a, SIGKILL);
    CHECK_INT(actor_int(&b, "filled 0"), 5);
    actor_ok(&b, "fill 0 8");
    CHECK_INT(actor_int(&c, "filled 0"), 8);
    /* Table and allocation are here: the frozen words decide. */
    actor_ok(&b, "rebuild 1 %s", second.text);
    CHECK_INT(actor_int(&b, "filled 1"), 6);
    CHECK_INT(actor_code(&b, "rebuild 2 %s", dropped.text), -ESTALE);
    actor_ok(&b, "drop 0");
    actor_ok(&b, "rebuild 3 %s", first.text);
    CHECK_INT(actor_int(&b, "filled 3"), 8);
    actor_ok(&b, "rebuild 4 %s", never.text); /* its pin has nobody left to end it */
    CHECK_INT(actor_int(&b, "same 3 4"), 1);
    struct role d;
    actor_start(&d, NULL, NULL);
    CHECK_INT(actor_code(&d, "rebuild 0 %s", first.text), -EOWNERDEAD);
    CHECK_CONTAINS(actor_sentence, "gone");
    CHECK_INT(actor_code(&d, "cancel %s", never.text), -EOWNERDEAD);
    role_end(&d);
    role_end(&b);
    CHECK_INT(actor_int(&c, "filled 0"), 8);
    CHECK(memory_count().n_inodes > before.n_inodes);
    role_end(&c);
    CHECK_UINT(memory_count().n_inodes, before.n_inodes);
}

/* One session: an exporter with 200 allocations of its own and four that hold 50 each. */
LEND_ROLE(holder_of_many) {
    enum { N = 200 };
    struct lend_pool_opts opts = {.size = sizeof opts, .flags = LEND_POOL_ISOLATE};
    struct lend_tensor *tensors[N] = {NULL};
    open_with(NULL);
    if (!strcmp(argv[0], "export")) {
        struct lend_pool *pool = new_pool(&opts);
        for (int i = 0; i < N; i++) {
            tensors[i] = new_bytes(pool, 4096, i);
            role_say("%s", reduce_text(tensors[i], NULL, 0));
        }
    } else {
        for (int i = 0; i < N / 4; i++) {
            const char *text = role_hear();
            CHECK(text != NULL);
            CHECK_OK(rebuild_text(text, NULL, &tensors[i], NULL), NULL);
        }
        role_say("holding");
    }
    role_hear();
    return 1; /* it is killed before */
}

LEND_TEST(when_all_are_killed_nothing_is_left) {
    struct memory_count before = memory_count();
    unsigned fds = count_fds(), shm = count_dev_shm();
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    struct lend_handle_info info = {.size = sizeof info};
    size_t n = 0;
    struct role a, r[4];
    ROLE_START(&a, &(struct role_opts){.is_detached = true}, "holder_of_many", "export");
    for (int i = 0; i < 4; i++) ROLE_START(&r[i], &(struct role_opts){.is_detached = true}, "holder_of_many", "import");
    for (int i = 0; i < 200; i++) {
        const char *text = role_expect(&a, "");
        if (!i) CHECK_OK(lend_handle_parse(text, bytes, sizeof bytes, &n), NULL);
        role_send(&r[i % 4], "%s", text);
    }
    for (int i = 0; i < 4; i++) role_expect(&r[i], "holding");
    CHECK_OK(lend_handle_describe(bytes, n, &info, NULL), NULL);
    CHECK(has_socket(info.exporter_id));
    CHECK(memory_count().n_inodes >= before.n_inodes + 200);
    kill(a.pid, SIGKILL);
    for (int i = 0; i < 4; i++) kill(r[i].pid, SIGKILL);
    role_wait(&a);
    for (int i = 0; i < 4; i++) role_wait(&r[i]);
    CHECK_EVENTUALLY(1000, memory_count().n_inodes == before.n_inodes);
    CHECK_UINT(memory_count().bytes, before.bytes);
    CHECK(!has_socket(info.exporter_id));
    CHECK_UINT(count_dev_shm(), shm);
    CHECK_UINT(count_fds(), fds);
}

/* Killed in the middle of whatever it does, again and again: the exporter gets every block back. */
LEND_ROLE(restless) {
    struct lend_tensor *tensors[8] = {NULL};
    char texts[8][LEND_HANDLE_TEXT_MAX];
    open_with(NULL);
    for (int i = 0; i < 8; i++) snprintf(texts[i], sizeof texts[i], "%s", role_hear());
    role_say("going");
    unsigned seed = (unsigned)getpid();
    while (true) { /* until it is killed */
        int k = rand_r(&seed) % 8;
        lend_tensor_unref(tensors[k]);
        tensors[k] = NULL;
        if (rand_r(&seed) % 2) (void)rebuild_text(texts[k], NULL, &tensors[k], NULL);
        if (getppid() == 1) return 1;
    }
}

LEND_TEST(importers_killed_at_random_moments) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_error error = {0};
    for (int round = 0; round < 12; round++) {
        struct lend_tensor *tensors[8];
        struct role r[2];
        for (int i = 0; i < 2; i++) ROLE_START(&r[i], NULL, "restless");
        for (int i = 0; i < 8; i++) {
            tensors[i] = new_bytes(pool, 10000, round);
            const char *text = reduce_text(tensors[i], NULL, 0);
            for (int j = 0; j < 2; j++) role_send(&r[j], "%s", text);
        }
        for (int i = 0; i < 2; i++) role_expect(&r[i], "going");
        usleep((useconds_t)(round * 3000));
        for (int i = 0; i < 2; i++) role_kill(&r[i], SIGKILL);
        for (int i = 0; i < 8; i++) lend_tensor_unref(tensors[i]);
        CHECK_EVENTUALLY(1000, limbo_bytes(pool) == 0);
        CHECK_OK(lend_check(&error), &error);
    }
    struct lend_pool_stats stats = {.size = sizeof stats};
    CHECK_OK(lend_pool_stats(pool, &stats), NULL);
    CHECK_UINT(stats.allocated_bytes, 0);
    close_all(pool);
}

/* A long-lived importer of exporters that come and go: what it keeps of those that have ended does not add up. */
LEND_TEST(exporters_that_have_ended_are_let_go_of) {
    enum { EXPORTERS = 12 };
    open_with(NULL);
    unsigned fds = 0, maps = 0;
    for (int i = 0; i < EXPORTERS; i++) {
        struct role a;
        char text[LEND_HANDLE_TEXT_MAX];
        struct lend_tensor *tensor = NULL;
        struct lend_error error = {0};
        actor_start(&a, NULL, NULL);
        actor_ok(&a, "new 0 1000 7");
        snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
        CHECK_OK(rebuild_text(text, NULL, &tensor, &error), &error);
        CHECK(is_filled(tensor, 7));
        lend_tensor_unref(tensor);
        role_kill(&a, SIGKILL);
        if (i == 1) { /* the one that has just ended, and the one before it */
            fds = count_fds();
            maps = count_lend_maps();
        }
    }
    CHECK(count_fds() <= fds);
    CHECK(count_lend_maps() <= maps);
    close_all(NULL);
}
