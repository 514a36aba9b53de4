/* SPDX-License-Identifier: MIT */
/* What grows with the number of others: fork while many tensors are held, and the exporter's drop of a shared tensor
 * while many importers have a page. */
#include "bench.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GROUP_FORK "fork() of an importer, as its parent sees it"
#define GROUP_DROP "exporter drops a shared tensor"

static double fork_ns(bool is_raw) {
    uint64_t start = now_ns();
    long pid = is_raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (!pid) _exit(0);
    uint64_t end = now_ns();
    MUST(pid > 0 && waitpid((pid_t)pid, NULL, 0) == pid, "no child");
    return (double)(end - start);
}

static void forks(const struct peer *peer, uint64_t n, const char *n_name) {
    enum { N = 15 };
    double ours[N], floor[N];
    size_t bytes = 0;
    struct lend_error error;
    struct record *records = peer_records(peer, PEER_MAKE, n, 64, &bytes);
    struct lend_tensor **held = calloc(n, sizeof *held);
    MUST(held, "no memory");
    for (uint64_t i = 0; i < n; i++)
        must(lend_rebuild(records[i].bytes, bytes, NULL, &held[i], &error), &error, "lend_rebuild");
    for (int i = 0; i < N; i++) {
        ours[i] = fork_ns(false);
        floor[i] = fork_ns(true);
    }
    struct result r = {.group = GROUP_FORK, .floor_name = "clone without handlers"};
    snprintf(r.name, sizeof r.name, "%s imported tensors held", n_name);
    r.ours = figure_of(ours, N);
    r.floor = figure_of(floor, N);
    report(&r);
    for (uint64_t i = 0; i < n; i++) lend_tensor_unref(held[i]);
    free(held);
    free(records);
}

static void drops(struct lend_pool *pool, const struct peer *peers, int n_peers, int *n_met, const char *name) {
    enum { N = 1000, N_ROUNDS = 15 };
    static struct lend_tensor *tensors[N];
    double samples[N_ROUNDS];
    struct record handle;
    size_t bytes = 0;
    struct lend_tensor *first = tensor_of(pool, 64);
    handle_of(first, 0, &handle, &bytes);
    for (; *n_met < n_peers; ++*n_met) { /* contact: each gets a page, and the allocation */
        peer_request(&peers[*n_met], PEER_REBUILD, 0, 0, &handle);
        (void)peer_answer(&peers[*n_met]);
        peer_request(&peers[*n_met], PEER_RELEASE, 0, 0, NULL);
        (void)peer_answer(&peers[*n_met]);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            tensors[i] = tensor_of(pool, 64);
            handle_of(tensors[i], 0, &handle, &bytes);
        }
        uint64_t start = now_ns();
        for (int i = 0; i < N; i++) lend_tensor_unref(tensors[i]);
        samples[round] = (double)(now_ns() - start) / N;
    }
    struct result r = {.group = GROUP_DROP};
    snprintf(r.name, sizeof r.name, "%s", name);
    r.ours = figure_of(samples, N_ROUNDS);
    report(&r);
    lend_tensor_unref(first);
}

void bench_fork(void) {
    static struct peer peers[64];
    struct lend_error error;
    struct lend_pool *pool = NULL;
    int n_met = 0;
    must(lend_open(NULL, &error), &error, "lend_open");
    peer_start(&peers[0], "peer", "");
    forks(&peers[0], 1, "1");
    forks(&peers[0], 1000, "10^3");
    if (!is_quick) forks(&peers[0], 100000, "10^5");
    for (int i = 1; i < 64; i++) peer_start(&peers[i], "peer", "");
    must(lend_pool_new(NULL, &pool, &error), &error, "lend_pool_new");
    drops(pool, peers, 0, &n_met, "no importer");
    drops(pool, peers, 1, &n_met, "1 importer");
    drops(pool, peers, 8, &n_met, "8 importers");
    drops(pool, peers, 64, &n_met, "64 importers");
    for (int i = 0; i < 64; i++) peer_end(&peers[i]);
    lend_pool_unref(pool);
    must(lend_close(&error), &error, "lend_close");
}
