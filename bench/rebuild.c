/* SPDX-License-Identifier: MIT */
/* The warm path, seen from the importer: rebuild + release of tensors that another process holds. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_SIZE "rebuild + release, one live tensor of"
#define GROUP_LIVE "rebuild + release, live tensors of 64 B"
#define GROUP_MORE "other warm paths"

struct loop {
    struct record *records;
    const uint32_t *order; /* NULL: as they lie */
    uint64_t n_records, next;
    size_t handle_bytes;
    struct lend_tensor *tensor; /* to be reduced */
};

static void rebuild_round(void *arg, uint64_t n) {
    struct loop *loop = arg;
    for (uint64_t i = 0; i < n; i++) {
        struct lend_tensor *tensor;
        uint64_t at = loop->next++;
        if (loop->next == loop->n_records) loop->next = 0;
        int r = lend_rebuild(loop->records[loop->order ? loop->order[at] : at].bytes, loop->handle_bytes, NULL, &tensor,
                             NULL);
        MUST(r == 0, "lend_rebuild: %s", lend_strerror(r));
        lend_tensor_unref(tensor);
    }
}

static void reduce_round(void *arg, uint64_t n) {
    struct loop *loop = arg;
    for (uint64_t i = 0; i < n; i++) {
        struct record handle;
        size_t bytes;
        int r = lend_reduce(loop->tensor, NULL, handle.bytes, sizeof handle.bytes, &bytes, NULL);
        MUST(r == 0, "lend_reduce: %s", lend_strerror(r));
    }
}

static uint64_t random_below(uint64_t n) {
    static uint64_t state = 42;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

static void shuffle(struct record *records, uint64_t n) {
    for (uint64_t i = n - 1; i > 0; i--) {
        uint64_t j = random_below(i + 1);
        struct record t = records[i];
        records[i] = records[j];
        records[j] = t;
    }
}

static uint32_t *random_order(uint64_t n) {
    uint32_t *order = malloc(n * sizeof *order);
    MUST(order, "no memory");
    for (uint64_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (uint64_t i = n - 1; i > 0; i--) {
        uint64_t j = random_below(i + 1);
        uint32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    return order;
}

static void sizes(const struct peer *peer) {
    static const struct {
        uint64_t bytes;
        const char *name;
    } sizes[] = {{1, "1 B"},         {64, "64 B"},         {4096, "4 KiB"},
                 {1 << 20, "1 MiB"}, {64 << 20, "64 MiB"}, {1 << 30, "1 GiB"}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct loop loop = {.n_records = 1};
        loop.records = peer_records(peer, PEER_MAKE, 1, sizes[i].bytes, &loop.handle_bytes);
        struct result r = {.group = GROUP_SIZE, .floor_name = FLOOR_REBUILD, .aim_kind = AIM_VALUE, .aim = 150};
        snprintf(r.name, sizeof r.name, "%s", sizes[i].name);
        measure(&r, rebuild_round, floor_rebuild, &loop, UINT64_MAX);
        report(&r);
        free(loop.records);
    }
    struct result mutex = {.group = GROUP_SIZE, .name = "(beside: mutex lock + unlock; there are two in it)"};
    measure(&mutex, floor_mutex, NULL, NULL, UINT64_MAX);
    report(&mutex);
    struct result core = {.group = GROUP_SIZE, .name = "(beside: a core-bound loop of 1,750 instructions)"};
    measure(&core, floor_instructions, NULL, NULL, UINT64_MAX);
    report(&core);
}

/* The misses of a random handle: the slot (32 bytes), our count (4 bytes), the pointer to the storage (8 bytes). */
static void report_misses(uint64_t n, double more_ns, const char *what) {
    struct result r = {.group = GROUP_LIVE, .unit = "misses", .aim_kind = AIM_VALUE, .aim = 4};
    struct figure miss = floor_miss(n * 44);
    snprintf(r.name, sizeof r.name, "%s, more than one handle (%.1f ns a miss)", what, miss.best);
    r.ours.best = r.ours.median = more_ns / miss.best;
    report(&r);
}

static void live(const struct peer *peer, uint64_t n, const char *n_name) {
    struct loop loop = {.n_records = n}, one = {.n_records = 1};
    loop.records = peer_records(peer, PEER_MAKE, n, 64, &loop.handle_bytes);
    one.handle_bytes = loop.handle_bytes;
    one.records = &loop.records[n / 2];
    struct result same = {.group = GROUP_LIVE, .floor_name = FLOOR_REBUILD, .aim_kind = AIM_VALUE, .aim = 150};
    snprintf(same.name, sizeof same.name, "%s, one handle", n_name);
    measure(&same, rebuild_round, floor_rebuild, &one, UINT64_MAX);
    report(&same);
    if (n > 1) {
        shuffle(loop.records, n);
        rebuild_round(&loop, n); /* every page of the table and of our page has been touched */
        struct result random = {.group = GROUP_LIVE, .floor_name = FLOOR_REBUILD};
        snprintf(random.name, sizeof random.name, "%s, random handles", n_name);
        measure(&random, rebuild_round, floor_rebuild, &loop, UINT64_MAX);
        report(&random);
        if (n >= 1000000) report_misses(n, random.ours.best - same.ours.best, n_name); /* fewer fit the caches */
        uint32_t *order = random_order(n);
        loop.order = order;
        snprintf(random.name, sizeof random.name, "%s, random, the handles' own bytes cold too", n_name);
        measure(&random, rebuild_round, floor_rebuild, &loop, UINT64_MAX);
        report(&random);
        free(order);
    }
    free(loop.records);
}

static void joins(const struct peer *peer) {
    struct loop loop = {.n_records = 1};
    struct lend_error error;
    struct lend_tensor *held = NULL;
    loop.records = peer_records(peer, PEER_MAKE, 1, 64, &loop.handle_bytes);
    must(lend_rebuild(loop.records->bytes, loop.handle_bytes, NULL, &held, &error), &error, "lend_rebuild");
    struct result r = {
        .group = GROUP_MORE, .name = "join: rebuild + release of a storage held here", .floor_name = FLOOR_REBUILD};
    measure(&r, rebuild_round, floor_rebuild, &loop, UINT64_MAX);
    report(&r);
    loop.tensor = held;
    struct result forward = {.group = GROUP_MORE, .name = "forward: reduce of an imported tensor"};
    measure(&forward, reduce_round, NULL, &loop, UINT64_MAX);
    report(&forward);
    lend_tensor_unref(held);
    free(loop.records);
}

static void reduces(void) {
    struct loop loop = {.n_records = 1};
    struct lend_pool *pool = NULL;
    struct lend_error error;
    must(lend_pool_new(NULL, &pool, &error), &error, "lend_pool_new");
    loop.tensor = tensor_of(pool, 64);
    struct result r = {.group = GROUP_MORE, .name = "reduce of an own tensor"};
    measure(&r, reduce_round, NULL, &loop, UINT64_MAX);
    report(&r);
    lend_tensor_unref(loop.tensor);
    lend_pool_unref(pool);
}

/* With a second thread (the service, from the first reduce on) libc's mutexes and allocator use locked instructions. */
static void threaded(const struct peer *peer) {
    struct loop loop = {.n_records = 1};
    loop.records = peer_records(peer, PEER_MAKE, 1, 64, &loop.handle_bytes);
    struct result r = {.group = GROUP_MORE,
                       .name = "rebuild + release in a process of several threads",
                       .floor_name = FLOOR_REBUILD,
                       .aim_kind = AIM_VALUE,
                       .aim = 150};
    measure(&r, rebuild_round, floor_rebuild, &loop, UINT64_MAX);
    report(&r);
    free(loop.records);
    struct result m = {.group = GROUP_MORE, .name = "(beside: mutex lock + unlock there)"};
    measure(&m, floor_mutex, NULL, NULL, UINT64_MAX);
    report(&m);
}

/* Each handle is used once; the exporter acknowledges the tokens meanwhile. */
static void pinned(const struct peer *peer) {
    enum { N = 4096, N_ROUNDS = 15 };
    double samples[N_ROUNDS];
    for (int i = 0; i < N_ROUNDS; i++) {
        struct loop loop = {.n_records = N};
        loop.records = peer_records(peer, PEER_PINNED, N, 64, &loop.handle_bytes);
        uint64_t start = now_ns();
        rebuild_round(&loop, N);
        samples[i] = (double)(now_ns() - start) / N;
        free(loop.records);
    }
    struct result r = {.group = GROUP_MORE, .name = "pinned: rebuild + release, each handle once"};
    r.ours = figure_of(samples, N_ROUNDS);
    report(&r);
}

void bench_rebuild(void) {
    struct lend_error error;
    struct peer peer;
    must(lend_open(NULL, &error), &error, "lend_open");
    peer_start(&peer, "peer", "");
    sizes(&peer);
    live(&peer, 1, "1");
    live(&peer, 1000, "10^3");
    if (!is_quick) live(&peer, 1000000, "10^6");
    joins(&peer);
    reduces();
    bench_group_reduce(GROUP_MORE);
    threaded(&peer);
    pinned(&peer);
    peer_end(&peer);
    must(lend_close(&error), &error, "lend_close");
}
