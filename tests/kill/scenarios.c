/* SPDX-License-Identifier: MIT */
/* The scripts. Each covers one job of the protocol from an empty start. A exports, B imports, C gets what B forwards;
 * other actors of the same scenario show what the death of one means to the rest. */
#include "world.h"

#include <lend/handle.h>
#include <stdio.h>
#include <unistd.h>

#define DO(...)                                        \
    do {                                               \
        if (!do_ask(world, __VA_ARGS__)) return false; \
    } while (0)
#define REDUCE(who, i, with_pin, handle)                                        \
    do {                                                                        \
        if (!ask_reduce(world, (who), (i), (with_pin), (handle))) return false; \
    } while (0)
#define GREDUCE(who, g, with_pin, handle)                                             \
    do {                                                                              \
        if (!ask_group_reduce(world, (who), (g), (with_pin), (handle))) return false; \
    } while (0)
#define REBUILD(who, i, handle)                                      \
    do {                                                             \
        if (!ask_rebuild(world, (who), (i), (handle))) return false; \
    } while (0)

/* The victim last, so that the others are there whatever happens to it. */
static bool open_all(struct world *world, int n) {
    for (int i = 0; i < n; i++)
        if (i != world->victim) DO(i, "open %ld", world->deadline_ms);
    if (world->victim >= 0 && world->victim < n) DO(world->victim, "open %ld", world->deadline_ms);
    return true;
}

/* Export, first contact, cold rebuild, release, reuse. */
static bool hand_over(struct world *world) {
    char handle[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    REDUCE(A, 0, false, handle);
    REBUILD(B, 0, handle);
    DO(B, "check");
    DO(A, "drop 0");
    DO(B, "drop 0");
    DO(A, "drained 4000");
    return true;
}

/* Warm rebuilds, two storages, one of them twice; the exporter rebuilds its own. */
static bool warm(struct world *world) {
    char first[HANDLE_BYTES], second[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 100 10");
    DO(A, "new 1 100 11");
    REDUCE(A, 0, false, first);
    REDUCE(A, 1, false, second);
    REBUILD(B, 0, first);
    REBUILD(B, 1, second);
    DO(B, "rebuild 2 11 %s", second);
    DO(A, "rebuild 3 10 %s", first);
    DO(A, "drop 1");
    DO(B, "drop 1");
    DO(B, "drop 2");
    DO(A, "drained 4000");
    DO(B, "report");
    return true;
}

/* The sender lets go at once: the pin holds until the one delivery. */
static bool pin(struct world *world) {
    char handle[HANDLE_BYTES], more[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "new 1 5000 11");
    REDUCE(A, 0, true, handle);
    DO(A, "drop 0");
    REBUILD(B, 0, handle);
    REDUCE(A, 1, true, more);
    DO(A, "drop 1");
    REBUILD(B, 1, more);
    DO(B, "drop 0");
    DO(B, "drop 1");
    DO(A, "drained 4000");
    return true;
}

/* A pin ends without a delivery, by the exporter's word and by a stranger's who only has the handle. */
static bool cancel(struct world *world) {
    char mine[HANDLE_BYTES], yours[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    REDUCE(A, 0, true, mine);
    REDUCE(A, 0, true, yours);
    DO(A, "drop 0");
    DO(A, "cancel %s", mine);
    DO(B, "cancel %s", yours);
    DO(A, "drained 4000");
    /* A delivery that comes too late fails, and takes its intent back. */
    DO(A, "new 1 5000 11");
    REDUCE(A, 1, false, mine);
    REBUILD(B, 1, mine);
    DO(B, "stale %s", yours);
    return true;
}

/* A -> B -> C; B is done before C takes, so the pin that B asked for stands at A. */
static bool forward(struct world *world) {
    char handle[HANDLE_BYTES], plain[HANDLE_BYTES], pinned[HANDLE_BYTES];
    if (!open_all(world, 3)) return false;
    DO(A, "new 0 5000 10");
    REDUCE(A, 0, false, handle);
    REBUILD(B, 0, handle);
    DO(A, "drop 0");
    REDUCE(B, 0, false, plain);
    REBUILD(C, 0, plain);
    REDUCE(B, 0, true, pinned);
    DO(B, "drop 0");
    DO(C, "drop 0");
    REBUILD(C, 0, pinned);
    DO(C, "check");
    DO(C, "drop 0");
    DO(A, "drained 4000");
    return true;
}

/* The pool grows, the second allocation is handed over, retired, and its index used again. */
static bool grow_and_trim(struct world *world) {
    char small[HANDLE_BYTES], large[HANDLE_BYTES], again[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    REDUCE(A, 0, false, small);
    REBUILD(B, 0, small);
    DO(A, "new 1 8388608 11");
    REDUCE(A, 1, false, large);
    REBUILD(B, 1, large);
    DO(B, "drop 1");
    DO(A, "drop 1");
    DO(A, "drained 4000");
    DO(A, "trim");
    DO(B, "rebuild 2 10 %s", small);
    DO(A, "new 1 8388608 11");
    REDUCE(A, 1, false, again);
    REBUILD(B, 1, again);
    DO(B, "check");
    return true;
}

static bool open_line(struct world *world, int from, int to) {
    char name[32];
    snprintf(name, sizeof name, "%d", (int)getpid());
    DO(to, "listen %s", name);
    DO(from, "connect %s", name);
    DO(to, "accept");
    return true;
}

static bool message(struct world *world) {
    if (!open_all(world, 2) || !open_line(world, A, B)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "send 0");
    DO(A, "drop 0");
    DO(B, "recv 0 10");
    DO(B, "check");
    DO(B, "drop 0");
    DO(A, "drained 4000");
    return true;
}

/* The sender is gone before anybody reads: table and allocation wait in the socket. */
static bool message_of_the_dead(struct world *world) {
    if (!open_all(world, 2) || !open_line(world, A, B)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "send 0");
    DO(A, "quit");
    DO(B, "recv 0 10");
    DO(B, "check");
    return true;
}

/* The exporter is gone; what its importer holds goes on to another, who never met the exporter. */
static bool inheritance(struct world *world) {
    char handle[HANDLE_BYTES], pinned[HANDLE_BYTES];
    if (!open_all(world, 3) || !open_line(world, B, C)) return false;
    DO(A, "new 0 5000 10");
    REDUCE(A, 0, false, handle);
    REBUILD(B, 0, handle);
    DO(A, "quit");
    DO(B, "rebuild 1 10 %s", handle);
    REDUCE(B, 0, true, pinned);
    DO(B, "send 0");
    DO(B, "drop 0");
    DO(B, "drop 1");
    DO(C, "recv 0 10");
    DO(C, "check");
    return true;
}

static bool importer_forks(struct world *world) {
    char handle[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    REDUCE(A, 0, false, handle);
    REBUILD(B, 0, handle);
    DO(A, "drop 0");
    if (!ask_fork(world, B)) return false;
    DO(B, "drop 0");
    /* An exporter that was slow to give a page for the child has B's page count for both, until B ends. */
    DO(B, "quit");
    DO(A, "drained 4000");
    return true;
}

/* The exporter cannot give a page for the child in time, so the parent's page counts for both. */
static bool family_forks(struct world *world) {
    char handle[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    REDUCE(A, 0, false, handle);
    REBUILD(B, 0, handle);
    DO(A, "drop 0");
    bool has_stopped = world_pause(world, A);
    bool has_forked = ask_fork(world, B);
    if (has_stopped) world_go_on(world, A);
    if (!has_forked) return false;
    DO(B, "drop 0");
    DO(B, "quit");
    DO(A, "drained 4000");
    return true;
}

/* The child holds what its parent lends, as one importer more; another one is there already. */
static bool exporter_forks(struct world *world) {
    char handle[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "new 1 5000 11");
    REDUCE(A, 0, false, handle);
    REBUILD(B, 0, handle);
    if (!ask_fork(world, A)) return false;
    DO(B, "drop 0");
    DO(A, "drop 0");
    DO(A, "drop 1");
    DO(A, "drained 4000");
    return true;
}

/* Two tensors in two allocations (the first has 2 MiB), a third of components. Only the pin holds them; it ends with the one delivery. */
static bool group(struct world *world) {
    char handle[HANDLE_BYTES], csr[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "new 1 2500000 11");
    DO(A, "csr 2 12");
    DO(A, "group 0 0 0 1 2");
    REDUCE(A, 2, false, csr);
    GREDUCE(A, 0, true, handle);
    DO(A, "droptensors");
    DO(B, "grebuild 0 0 %s", handle);
    DO(B, "rebuild 2 12 %s", csr);
    DO(B, "check");
    DO(B, "gdrop 0");
    DO(B, "drop 2");
    DO(A, "drained 4000");
    return true;
}

/* A part of a group: the others' storages are not touched. Then the part again, by its pin, which holds all until then. */
static bool subset(struct world *world) {
    char plain[HANDLE_BYTES], pinned[HANDLE_BYTES];
    if (!open_all(world, 2)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "new 1 5000 11");
    DO(A, "csr 2 12");
    DO(A, "group 0 0 0 1 2");
    GREDUCE(A, 0, false, plain);
    DO(B, "grebuild 0 %d %s 1 2", LEND_REBUILD_CHECK, plain);
    DO(B, "check");
    GREDUCE(A, 0, true, pinned);
    DO(A, "droptensors");
    DO(B, "gdrop 0");
    DO(B, "grebuild 1 0 %s 0", pinned);
    DO(B, "check");
    DO(B, "gdrop 1");
    DO(A, "drained 4000");
    return true;
}

/* A -> B -> C, and something of B's own goes along: one handle of two exporters, with a pin at each, one of which holds
 * several slots. */
static bool group_forward(struct world *world) {
    char handle[HANDLE_BYTES], pinned[HANDLE_BYTES];
    if (!open_all(world, 3)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "new 1 2500000 11");
    DO(A, "group 0 0 0 1");
    GREDUCE(A, 0, false, handle);
    DO(B, "grebuild 0 0 %s", handle);
    DO(A, "droptensors");
    DO(B, "new 3 5000 13");
    DO(B, "group 0 0 3");
    GREDUCE(B, 0, true, pinned);
    DO(B, "droptensors");
    DO(C, "grebuild 0 0 %s", pinned);
    DO(C, "check");
    DO(C, "gdrop 0");
    DO(A, "drained 4000");
    DO(B, "drained 4000");
    return true;
}

/* A tensor of components by lend_send; then a group with names so long that its handle travels as a memfd. */
static bool group_message(struct world *world) {
    if (!open_all(world, 2) || !open_line(world, A, B)) return false;
    DO(A, "csr 0 10");
    DO(A, "send 0");
    DO(B, "recv 0 10");
    DO(A, "new 1 5000 11");
    DO(A, "new 2 2500000 12");
    DO(A, "group 0 4000 0 1 2");
    DO(A, "gsend 0");
    DO(A, "droptensors");
    DO(B, "grecv 0");
    DO(B, "check");
    DO(B, "gdrop 0");
    DO(B, "drop 0");
    DO(A, "drained 4000");
    return true;
}

/* The sender of a group is gone before anybody reads; a tensor of its importer's own goes along. */
static bool group_of_the_dead(struct world *world) {
    char handle[HANDLE_BYTES];
    if (!open_all(world, 3) || !open_line(world, B, C)) return false;
    DO(A, "new 0 5000 10");
    DO(A, "new 1 2500000 11");
    DO(A, "group 0 0 0 1");
    GREDUCE(A, 0, false, handle);
    DO(B, "grebuild 0 0 %s", handle);
    DO(A, "quit");
    DO(B, "new 3 5000 13");
    DO(B, "group 0 0 3");
    DO(B, "gsend 0");
    DO(B, "droptensors");
    DO(C, "grecv 0");
    DO(C, "check");
    DO(C, "gdrop 0");
    DO(B, "drained 4000");
    return true;
}

const struct scenario scenarios[] = {
    {"hand-over", hand_over, 2, false},
    {"warm", warm, 2, false},
    {"pin", pin, 2, false},
    {"cancel", cancel, 2, false},
    {"forward", forward, 3, false},
    {"grow-and-trim", grow_and_trim, 2, false},
    {"message", message, 2, false},
    {"message-of-the-dead", message_of_the_dead, 2, false},
    {"inheritance", inheritance, 3, false},
    {"group", group, 2, false},
    {"subset", subset, 2, false},
    {"group-forward", group_forward, 3, false},
    {"group-message", group_message, 2, false},
    {"group-of-the-dead", group_of_the_dead, 3, false},
    {"importer-forks", importer_forks, 2, true},
    {"family-forks", family_forks, 2, true},
    {"exporter-forks", exporter_forks, 2, true},
};
const unsigned n_scenarios = sizeof scenarios / sizeof scenarios[0];
