/* SPDX-License-Identifier: MIT */
/* Whole hand-overs between two processes: lend_send and lend_recv, the same of a group, a pin for another's tensor, and
 * a large fresh tensor written on one side and read on the other. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define GROUP "hand-overs between two processes"
#define LARGE_BYTES ((uint64_t)64 << 20)
#define N_SENT 100u /* tensors of a group */
#define FLOOR_SEND "sendmsg with 2 descriptors, recvmsg, close x2, answer"

struct side {
    struct peer peer;
    struct lend_tensor *tensor;
    struct lend_group *group;
    int fds[2];
    const void *raw; /* what the floor sends */
    size_t raw_bytes;
};

static void send_round(void *arg, uint64_t n) {
    struct side *side = arg;
    struct lend_error error;
    peer_request(&side->peer, PEER_RECEIVE, n, 0, NULL);
    for (uint64_t i = 0; i < n; i++) {
        must(lend_send(side->peer.fd, side->tensor, NULL, 0, &error), &error, "lend_send");
        (void)peer_answer(&side->peer);
    }
}

static void raw_send_round(void *arg, uint64_t n) {
    struct side *side = arg;
    peer_request(&side->peer, PEER_RECEIVE_RAW, n, side->raw_bytes, NULL);
    for (uint64_t i = 0; i < n; i++) {
        raw_send(side->peer.fd, side->raw, side->raw_bytes, side->fds, 2);
        (void)peer_answer(&side->peer);
    }
}

static void send_group_round(void *arg, uint64_t n) {
    struct side *side = arg;
    struct lend_error error;
    peer_request(&side->peer, PEER_RECEIVE_GROUP, n, 0, NULL);
    for (uint64_t i = 0; i < n; i++) {
        must(lend_group_send(side->peer.fd, side->group, NULL, 0, &error), &error, "lend_group_send");
        MUST(peer_answer(&side->peer) == N_SENT, "not all tensors of the group came");
    }
}

static void pin_round(void *arg, uint64_t n) {
    struct side *side = arg;
    struct lend_error error;
    for (uint64_t i = 0; i < n; i++) {
        struct record handle;
        size_t bytes = 0;
        handle_of(side->tensor, LEND_REDUCE_PIN, &handle, &bytes);
        must(lend_pin_cancel(handle.bytes, bytes, 0, &error), &error, "lend_pin_cancel");
    }
}

/* Two round trips on the same kind of socket. */
static void echo_round(void *arg, uint64_t n) {
    struct side *side = arg;
    for (uint64_t i = 0; i < 2 * n; i++) {
        peer_request(&side->peer, PEER_DROP, 0, 0, NULL);
        (void)peer_answer(&side->peer);
    }
}

static void one_tensor(struct side *side, struct lend_pool *pool) {
    static const struct record handle;
    side->raw = &handle;
    side->raw_bytes = sizeof handle;
    side->tensor = tensor_of(pool, 64);
    struct result r = {
        .group = GROUP, .name = "lend_send, lend_recv, release, one answer back", .floor_name = FLOOR_SEND};
    measure(&r, send_round, raw_send_round, side, 200);
    report(&r);
    lend_tensor_unref(side->tensor);
}

/* The floor's message is as long as the handle. */
static void whole_group(struct side *side, struct lend_pool *pool) {
    struct lend_error error;
    void *handle = NULL;
    side->group = group_of(pool, N_SENT);
    must(lend_group_reduce(side->group, NULL, &handle, &side->raw_bytes, &error), &error, "lend_group_reduce");
    side->raw = handle;
    struct result r = {.group = GROUP,
                       .name = "the same of a group of 100, as a whole",
                       .floor_name = "the same, a message as long as the handle"};
    measure(&r, send_group_round, raw_send_round, side, 200);
    report(&r);
    lend_free(handle);
    lend_group_unref(side->group);
}

static void messages(struct side *side, struct lend_pool *pool) {
    for (int i = 0; i < 2; i++) MUST((side->fds[i] = memfd_create("lend-bench", MFD_CLOEXEC)) >= 0, "memfd");
    one_tensor(side, pool);
    whole_group(side, pool);
    close(side->fds[0]);
    close(side->fds[1]);
}

static void forwarded_pin(struct side *side) {
    size_t bytes = 0;
    struct lend_error error;
    struct record *record = peer_records(&side->peer, PEER_MAKE, 1, 64, &bytes);
    must(lend_rebuild(record->bytes, bytes, NULL, &side->tensor, &error), &error, "lend_rebuild");
    free(record);
    struct result r = {.group = GROUP,
                       .name = "pin another's tensor, and cancel (2 round trips)",
                       .floor_name = "two socket round trips"};
    measure(&r, pin_round, NULL, side, 200);
    lend_tensor_unref(side->tensor);
    struct result echo = {.group = GROUP};
    measure(&echo, echo_round, NULL, side, 200);
    r.floor = echo.ours;
    report(&r);
}

/* --- a large tensor, fresh each time ---------------------------------------------------------------------------------- */

struct large {
    double ns;
    long faults;
};

static struct large lend_large(struct side *side, struct lend_pool *pool, const void *source) {
    struct rusage before, after;
    struct record handle;
    size_t bytes = 0;
    getrusage(RUSAGE_SELF, &before);
    uint64_t start = now_ns();
    struct lend_tensor *tensor = tensor_of(pool, LARGE_BYTES);
    memcpy(lend_tensor_data(tensor), source, LARGE_BYTES);
    handle_of(tensor, 0, &handle, &bytes);
    peer_request(&side->peer, PEER_READ, 0, 0, &handle);
    (void)peer_answer(&side->peer);
    lend_tensor_unref(tensor);
    uint64_t ns = now_ns() - start;
    getrusage(RUSAGE_SELF, &after);
    return (struct large){(double)ns, after.ru_minflt - before.ru_minflt};
}

/* The same bytes written and read by one process in its own warm memory. */
static double copy_large(uint8_t *target, const void *source) {
    uint64_t start = now_ns(), sum = 0;
    memcpy(target, source, LARGE_BYTES);
    const uint64_t *words = (const void *)target;
    for (uint64_t i = 0; i < LARGE_BYTES / 8; i++) sum += words[i];
    __asm__ volatile("" : : "r"(sum));
    return (double)(now_ns() - start);
}

static void large(struct side *side, struct lend_pool *pool) {
    enum { N = 25 };
    double ours[N], floor[N], faults[N];
    uint8_t *source = malloc(LARGE_BYTES);
    uint8_t *target = mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(source && target != MAP_FAILED, "no memory");
    memset(source, 1, LARGE_BYTES);
    memset(target, 2, LARGE_BYTES);
    for (int i = 0; i < 3; i++) (void)lend_large(side, pool, source);
    for (int i = 0; i < N; i++) {
        struct large l = lend_large(side, pool, source);
        ours[i] = l.ns;
        faults[i] = (double)l.faults;
        floor[i] = copy_large(target, source);
    }
    struct result r = {.group = GROUP,
                       .name = "64 MiB: made, written, sent, read there, dropped",
                       .floor_name = "memcpy and read in one process"};
    r.ours = figure_of(ours, N);
    r.floor = figure_of(floor, N);
    report(&r);
    struct result f = {
        .group = GROUP, .name = "  page faults of the writer in it", .unit = "faults", .aim_kind = AIM_VALUE};
    f.ours = figure_of(faults, N);
    report(&f);
    free(source);
    munmap(target, LARGE_BYTES);
}

void bench_message(void) {
    struct lend_error error;
    struct lend_pool *pool = NULL;
    struct side side;
    must(lend_open(NULL, &error), &error, "lend_open");
    must(lend_pool_new(NULL, &pool, &error), &error, "lend_pool_new");
    peer_start(&side.peer, "peer", "");
    messages(&side, pool);
    forwarded_pin(&side);
    large(&side, pool);
    peer_end(&side.peer);
    lend_pool_unref(pool);
    must(lend_close(&error), &error, "lend_close");
}
