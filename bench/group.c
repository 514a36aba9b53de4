/* SPDX-License-Identifier: MIT */
/* Groups and tensors of components, warm, seen from the importer. The rows come before all others: this process has no
 * thread yet, so libc's mutexes and allocator cost here what they cost in a pure importer. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_MANY "groups, each tensor 128 B (4 x 8 float32)"
#define GROUP_KINDS "rebuild + release, one tensor of another kind"
#define FLOOR_MANY "90 B copied, CRC-32C, 2 lock xadd, 2 records of 64 B, each"
#define FLOOR_SUBSET "CRC-32C of the whole handle, and the above for 10"
#define FLOOR_FIND "strlen, strcmp"
#define FLOOR_REDUCE "90 B copied each, CRC-32C"
#define FLOOR_CSR "CRC-32C, 4 copies of 90 B, 6 lock xadd, 7 records of 64 B"

#define N_TENSORS 1000u
#define N_SUBSET 10u
#define STEP 617u /* coprime with N_TENSORS: all names, none beside the one before */

struct many {
    struct floor_many floor; /* first: floor_many reads it */
    uint64_t n;
    char last_name[MATRIX_NAME_ROOM];
};

static void receive_group(struct many *many, const struct peer *peer, uint64_t n) {
    size_t bytes = 0;
    uint8_t *handle = peer_handle(peer, PEER_GROUP, n, &bytes);
    *many = (struct many){.n = n};
    floor_many_begin(&many->floor, handle, bytes, (uint32_t)n, (uint32_t)n);
    matrix_name(n - 1, many->last_name);
}

static void forget(struct many *many) {
    free((void *)(uintptr_t)many->floor.handle);
    floor_many_end(&many->floor);
}

static struct lend_group *rebuilt(const struct many *many, const char *const *names, size_t n_names) {
    struct lend_group *group = NULL;
    struct lend_error error;
    int r = lend_group_rebuild(many->floor.handle, many->floor.bytes, names, n_names, NULL, &group, &error);
    must(r, &error, "lend_group_rebuild");
    return group;
}

/* Cheap enough to be part of every round. */
static void check_last(const struct many *many, const struct lend_group *group, uint64_t n) {
    const char *name = NULL;
    struct lend_tensor *last = lend_group_get(group, n - 1, &name);
    MUST(lend_group_count(group) == n && !strcmp(name, many->last_name) && is_matrix(last, many->n - 1),
         "the group that was rebuilt is not the one that was lent");
}

static void check_all(const struct many *many) {
    struct lend_group *group = rebuilt(many, NULL, 0);
    check_last(many, group, many->n);
    for (uint64_t i = 0; i < many->n; i++) {
        const char *name = NULL;
        char expected[MATRIX_NAME_ROOM];
        matrix_name(i, expected);
        MUST(is_matrix(lend_group_get(group, i, &name), i) && !strcmp(name, expected), "tensor %llu is another",
             (unsigned long long)i);
    }
    lend_group_unref(group);
}

static void all_round(void *arg, uint64_t n) {
    const struct many *many = arg;
    for (uint64_t i = 0; i < n; i++) {
        struct lend_group *group = rebuilt(many, NULL, 0);
        check_last(many, group, many->n);
        lend_group_unref(group);
    }
}

/* aim: 0 for none. */
static void whole(struct many *many, const char *name, double aim, uint64_t n_max) {
    struct result r = {
        .group = GROUP_MANY, .floor_name = FLOOR_MANY, .aim_kind = aim > 0 ? AIM_VALUE : AIM_NONE, .aim = aim};
    snprintf(r.name, sizeof r.name, "%s", name);
    check_all(many);
    measure(&r, all_round, floor_many, many, n_max);
    r.ours = figure_per(r.ours, (double)many->n);
    r.floor = figure_per(r.floor, (double)many->n);
    report(&r);
}

/* --- a part of a group ------------------------------------------------------------------------------------------ */

static void subset_round(void *arg, uint64_t n) {
    const struct many *many = arg;
    char names[N_SUBSET][MATRIX_NAME_ROOM];
    const char *wanted[N_SUBSET];
    for (uint64_t i = 0; i < N_SUBSET; i++) {
        matrix_name((i + 1) * (N_TENSORS / N_SUBSET) - 1, names[i]); /* the last is the group's last */
        wanted[i] = names[i];
    }
    for (uint64_t i = 0; i < n; i++) {
        struct lend_group *group = rebuilt(many, wanted, N_SUBSET);
        check_last(many, group, N_SUBSET);
        lend_group_unref(group);
    }
}

static void subset(struct many *many) {
    struct result r = {.group = GROUP_MANY,
                       .name = "10 of 1,000, by name: rebuild + release",
                       .unit = "us",
                       .floor_name = FLOOR_SUBSET};
    many->floor.n_tensors = many->floor.n_storages = N_SUBSET;
    measure(&r, subset_round, floor_many, many, UINT64_MAX);
    r.ours = figure_per(r.ours, 1000);
    r.floor = figure_per(r.floor, 1000);
    report(&r);
}

/* --- look-up ---------------------------------------------------------------------------------------------------- */

struct names {
    const struct lend_group *group;
    char asked[N_TENSORS][MATRIX_NAME_ROOM], same[N_TENSORS][MATRIX_NAME_ROOM];
    uint64_t at;
};

static uint64_t next_of(struct names *names) {
    names->at = (names->at + STEP) % N_TENSORS;
    return names->at;
}

static void find_round(void *arg, uint64_t n) {
    struct names *names = arg;
    for (uint64_t i = 0; i < n; i++) MUST(lend_group_find(names->group, names->asked[next_of(names)]), "no such name");
}

/* Of the name its length, and once a comparison with the one that is found. */
static void find_floor(void *arg, uint64_t n) {
    struct names *names = arg;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = next_of(names);
        size_t bytes = strlen(names->asked[at]);
        __asm__ volatile("" : : "r"(bytes));
        MUST(!strcmp(names->asked[at], names->same[at]), "the names differ");
    }
}

static void find(const struct many *many) {
    static struct names names;
    struct lend_group *group = rebuilt(many, NULL, 0);
    names.group = group;
    for (uint64_t i = 0; i < N_TENSORS; i++) {
        matrix_name(i, names.asked[i]);
        matrix_name(i, names.same[i]);
        MUST(is_matrix(lend_group_find(group, names.asked[i]), i), "%s is another tensor", names.asked[i]);
    }
    struct result r = {
        .group = GROUP_MANY, .name = "lend_group_find in 1,000 that were rebuilt", .floor_name = FLOOR_FIND};
    measure(&r, find_round, find_floor, &names, UINT64_MAX);
    report(&r);
    lend_group_unref(group);
}

/* --- one tensor of another kind --------------------------------------------------------------------------------- */

static struct lend_tensor *rebuilt_one(const struct many *many) {
    struct lend_tensor *tensor = NULL;
    int r = lend_rebuild(many->floor.handle, many->floor.bytes, NULL, &tensor, NULL);
    MUST(r == 0, "lend_rebuild: %s", lend_strerror(r));
    return tensor;
}

static void one_round(void *arg, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) lend_tensor_unref(rebuilt_one(arg));
}

static void receive_one(struct many *many, const struct peer *peer, enum peer_op op, uint32_t n, uint32_t n_storages) {
    size_t bytes = 0;
    uint8_t *handle = peer_handle(peer, op, 1, &bytes);
    *many = (struct many){.n = 1};
    floor_many_begin(&many->floor, handle, bytes, n, n_storages);
}

static void sparse(const struct peer *peer) {
    struct many many;
    struct lend_error error;
    struct lend_compound parts = {.size = sizeof parts};
    receive_one(&many, peer, PEER_CSR, 4, 3);
    struct lend_tensor *tensor = rebuilt_one(&many);
    must(lend_tensor_components(tensor, &parts), NULL, "lend_tensor_components");
    must(lend_tensor_check(tensor, &error), &error, "lend_tensor_check");
    MUST(parts.layout == LEND_LAYOUT_CSR && parts.n_components == 3, "it is no CSR tensor");
    const float *values = lend_tensor_data(parts.components[2]);
    MUST(values[CSR_STORED - 1] == CSR_STORED - 1, "its values are not those that were lent");
    lend_tensor_unref(tensor);
    struct result r = {.group = GROUP_KINDS, .name = "CSR (3 components)", .floor_name = FLOOR_CSR};
    measure(&r, one_round, floor_many, &many, UINT64_MAX);
    report(&r);
    forget(&many);
}

static void conjugated(const struct peer *peer) {
    struct many many;
    struct lend_tensor_info info = {.size = sizeof info};
    receive_one(&many, peer, PEER_CONJUGATED, 1, 1);
    struct lend_tensor *tensor = rebuilt_one(&many);
    must(lend_tensor_info(tensor, &info), NULL, "lend_tensor_info");
    MUST(info.attrs == LEND_ATTR_CONJ && info.nbytes == 64, "it is not the conjugated tensor");
    lend_tensor_unref(tensor);
    struct result r = {.group = GROUP_KINDS, .name = "strided, 64 B, conjugated", .floor_name = FLOOR_REBUILD};
    measure(&r, one_round, floor_rebuild, &many, UINT64_MAX);
    report(&r);
    forget(&many);
}

void bench_group(void) {
    struct lend_error error;
    struct peer peer;
    struct many many;
    must(lend_open(NULL, &error), &error, "lend_open");
    peer_start(&peer, "peer", "");
    receive_group(&many, &peer, N_TENSORS);
    whole(&many, "1,000: rebuild + release, per tensor", 60, UINT64_MAX);
    find(&many);
    subset(&many);
    forget(&many);
    if (!is_quick) {
        receive_group(&many, &peer, 100000);
        whole(&many, "100,000: rebuild + release, per tensor", 0, 1);
        forget(&many);
    }
    sparse(&peer);
    conjugated(&peer);
    peer_end(&peer);
    must(lend_close(&error), &error, "lend_close");
}

/* --- the exporter's side ---------------------------------------------------------------------------------------- */

struct own {
    struct floor_many floor; /* first: floor_reduce reads it */
    struct lend_group *group;
};

static void reduce_round(void *arg, uint64_t n) {
    const struct own *own = arg;
    for (uint64_t i = 0; i < n; i++) {
        void *handle = NULL;
        size_t bytes = 0;
        int r = lend_group_reduce(own->group, NULL, &handle, &bytes, NULL);
        MUST(r == 0 && bytes == own->floor.bytes, "lend_group_reduce: %s", lend_strerror(r));
        lend_free(handle);
    }
}

void bench_group_reduce(const char *heading) {
    struct own own;
    struct lend_pool *pool = NULL;
    struct lend_error error;
    void *handle = NULL;
    size_t bytes = 0;
    struct lend_handle_info info = {.size = sizeof info};
    must(lend_pool_new(NULL, &pool, &error), &error, "lend_pool_new");
    own.group = group_of(pool, N_TENSORS);
    must(lend_group_reduce(own.group, NULL, &handle, &bytes, &error), &error, "lend_group_reduce");
    must(lend_handle_describe(handle, bytes, &info, &error), &error, "lend_handle_describe");
    MUST(info.n_tensors == N_TENSORS && info.n_storages == N_TENSORS, "the handle is not of %u tensors", N_TENSORS);
    floor_many_begin(&own.floor, handle, bytes, N_TENSORS, N_TENSORS);
    struct result r = {
        .group = heading, .name = "reduce of a group of 1,000 own tensors, per tensor", .floor_name = FLOOR_REDUCE};
    measure(&r, reduce_round, floor_reduce, &own, UINT64_MAX);
    r.ours = figure_per(r.ours, N_TENSORS);
    r.floor = figure_per(r.floor, N_TENSORS);
    report(&r);
    floor_many_end(&own.floor);
    lend_free(handle);
    lend_group_unref(own.group);
    lend_pool_unref(pool);
}
