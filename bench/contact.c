/* SPDX-License-Identifier: MIT */
/* First contact: a fresh process meets an exporter. Each sample is a process of its own, so that the floor is cold in
 * the same way. */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GROUP "first contact, a fresh process each"
#define N_SAMPLES 61

struct times {
    double open_ns, first_ns, second_ns;
};

/* The role: descriptor 0 brings the handle and takes the times. */
static int lend_contact(void) {
    struct record handle;
    uint64_t bytes;
    struct lend_error error;
    struct lend_tensor *first = NULL, *second = NULL;
    receive_all(0, &bytes, sizeof bytes);
    receive_all(0, &handle, sizeof handle);
    uint64_t t0 = now_ns();
    must(lend_open(NULL, &error), &error, "lend_open");
    uint64_t t1 = now_ns();
    must(lend_rebuild(handle.bytes, bytes, NULL, &first, &error), &error, "lend_rebuild");
    uint64_t t2 = now_ns();
    must(lend_rebuild(handle.bytes, bytes, NULL, &second, &error), &error, "lend_rebuild");
    uint64_t t3 = now_ns();
    struct times times = {(double)(t1 - t0), (double)(t2 - t1), (double)(t3 - t2)};
    send_all(0, &times, sizeof times);
    lend_tensor_unref(first);
    lend_tensor_unref(second);
    must(lend_close(&error), &error, "lend_close");
    return 0;
}

int contact_main(const char *which, const char *argument) {
    if (!strcmp(which, "contact")) return lend_contact();
    struct times times = {0};
    MUST(!strcmp(which, "raw-contact"), "no role %s", which);
    uint64_t go;
    receive_all(0, &go, sizeof go);
    times.first_ns = (double)raw_contact_ns(argument);
    send_all(0, &times, sizeof times);
    return 0;
}

static struct times sample(const char *role, const char *argument, uint64_t bytes, const struct record *handle) {
    struct peer peer;
    struct times times;
    peer_start(&peer, role, argument);
    send_all(peer.fd, &bytes, sizeof bytes);
    if (handle) send_all(peer.fd, handle, sizeof *handle);
    receive_all(peer.fd, &times, sizeof times);
    peer_end(&peer);
    return times;
}

void bench_contact(void) {
    struct lend_error error;
    struct lend_pool *pool = NULL;
    struct record handle;
    size_t bytes = 0;
    struct peer raw;
    char name[16];
    must(lend_open(NULL, &error), &error, "lend_open");
    must(lend_pool_new(NULL, &pool, &error), &error, "lend_pool_new");
    struct lend_tensor *tensor = tensor_of(pool, 64);
    handle_of(tensor, 0, &handle, &bytes);
    peer_start(&raw, "raw-server", "");
    (void)peer_answer(&raw);
    snprintf(name, sizeof name, "%d", raw.pid);
    double opens[N_SAMPLES], firsts[N_SAMPLES], floors[N_SAMPLES];
    for (int i = 0; i < N_SAMPLES; i++) {
        struct times t = sample("contact", "", bytes, &handle);
        opens[i] = t.open_ns;
        firsts[i] = t.first_ns;
        floors[i] = sample("raw-contact", name, 0, NULL).first_ns;
    }
    raw_server_stop(name);
    peer_end(&raw);
    struct result r = {.group = GROUP,
                       .name = "first lend_rebuild",
                       .floor_name = "connect, SCM_RIGHTS x3, mmap x3",
                       .aim_kind = AIM_RATIO,
                       .aim = 3};
    r.ours = figure_of(firsts, N_SAMPLES);
    r.floor = figure_of(floors, N_SAMPLES);
    report(&r);
    struct result open = {.group = GROUP, .name = "lend_open before it"};
    open.ours = figure_of(opens, N_SAMPLES);
    report(&open);
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    must(lend_close(&error), &error, "lend_close");
}
