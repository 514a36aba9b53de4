/* SPDX-License-Identifier: MIT */
/* The actor's words for groups and tensors of components. */
#include "actor.h"
#include "points.h"
#include "role.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLE_BYTES = ROLE_LINE_BYTES * 3 / 4, NAME_BYTES = LEND_GROUP_NAME_MAX + 1, DENSE = 1000 };

/* A rebuild in a thread of its own. */
static struct {
    pthread_t thread;
    int group;
    uint8_t handle[HANDLE_BYTES];
    size_t bytes;
    int code;
    struct lend_error error;
} later;

/* --- bytes ------------------------------------------------------------------------------------------------------------ */

static bool has_bytes(const struct lend_tensor *tensor, uint8_t fill) {
    struct lend_tensor_info info = {.size = sizeof info};
    if (lend_tensor_info(tensor, &info) < 0) return false;
    const uint8_t *bytes = info.data;
    return !info.nbytes || (bytes[0] == fill && !memcmp(bytes, bytes + 1, info.nbytes - 1));
}

bool is_filled(struct lend_tensor *tensor, uint8_t fill) {
    struct lend_compound compound = {.size = sizeof compound};
    if (lend_tensor_components(tensor, &compound) < 0) return has_bytes(tensor, fill);
    return lend_tensor_check(tensor, &me.error) >= 0 && has_bytes(compound.components[compound.n_components - 1], fill);
}

bool is_group_filled(const struct lend_group *group) {
    const char *name;
    struct lend_tensor *tensor;
    for (size_t i = 0; (tensor = lend_group_get(group, i, &name)); i++)
        if (!is_filled(tensor, (uint8_t)(10 + atoi(name + 1)))) return false;
    return true;
}

/* --- making ----------------------------------------------------------------------------------------------------------- */

static struct lend_tensor *new_part(DLDataType dtype, int32_t ndim, const int64_t *shape, int *code) {
    struct lend_tensor *part = NULL;
    if (*code >= 0) *code = lend_tensor_new(me.pool, dtype, ndim, shape, &part, &me.error);
    return part;
}

/* A compressed sparse tensor of 2 rows and 2 columns with a dense dimension: (0, 0) and (1, 1) are stored. */
static int do_csr(int i, int fill) {
    static const int64_t crow[] = {0, 1, 2}, col[] = {0, 1}, values[] = {2, DENSE}, shape[] = {2, 2, DENSE};
    const DLDataType int64 = {kDLInt, 64, 1}, uint8 = {kDLUInt, 8, 1};
    int r = 0;
    struct lend_tensor *parts[] = {new_part(int64, 1, (const int64_t[]){3}, &r),
                                   new_part(int64, 1, (const int64_t[]){2}, &r), new_part(uint8, 2, values, &r)};
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = LEND_LAYOUT_CSR,
                                           .n_components = 3,
                                           .components = parts,
                                           .ndim = 3,
                                           .shape = shape};
    if (r >= 0) {
        memcpy(lend_tensor_data(parts[0]), crow, sizeof crow);
        memcpy(lend_tensor_data(parts[1]), col, sizeof col);
        memset(lend_tensor_data(parts[2]), fill, 2 * DENSE);
        r = lend_tensor_new_compound(&compound, &me.tensor[i], &me.error);
    }
    me.fill[i] = (uint8_t)fill;
    for (int part = 0; part < 3; part++) lend_tensor_unref(parts[part]);
    return r;
}

/* "group G PAD I...": adds the tensors I, whose names are PAD characters longer than they need to be. */
static int do_group(int g, int pad, char **rest) {
    char name[NAME_BYTES];
    int r = me.group[g] ? 0 : lend_group_new(&me.group[g], &me.error);
    for (const char *word; r >= 0 && *(word = next(rest));) {
        int i = atoi(word);
        snprintf(name, sizeof name, "t%d", i);
        size_t n = strlen(name);
        memset(name + n, '.', (size_t)pad);
        name[n + (size_t)pad] = '\0';
        r = lend_group_add(me.group[g], name, me.tensor[i], &me.error);
    }
    return r;
}

/* --- crossing --------------------------------------------------------------------------------------------------------- */

static void do_group_reduce(int g, bool with_pin) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = with_pin ? LEND_REDUCE_PIN : 0};
    void *handle = NULL;
    size_t bytes = 0;
    int r = lend_group_reduce(me.group[g], &opts, &handle, &bytes, &me.error);
    if (r < 0)
        answer(r);
    else
        answer_handle(handle, bytes, with_pin);
    if (r >= 0) lend_free(handle);
}

/* "grebuild G FLAGS HANDLE [I...]": all of it, or the tensors tI. */
static int do_group_rebuild(char **rest) {
    static uint8_t handle[HANDLE_BYTES];
    struct lend_rebuild_opts opts = {.size = sizeof opts};
    char names[TENSORS][8];
    const char *wanted[TENSORS];
    size_t bytes = 0, n = 0;
    int g = number(rest);
    opts.flags = (uint32_t)number(rest);
    int r = lend_handle_parse(next(rest), handle, sizeof handle, &bytes);
    for (const char *word; n < TENSORS && *(word = next(rest)); n++) {
        snprintf(names[n], sizeof names[n], "t%s", word);
        wanted[n] = names[n];
    }
    return r < 0 ? r : lend_group_rebuild(handle, bytes, n ? wanted : NULL, n, &opts, &me.group[g], &me.error);
}

int probe_group(const void *handle, size_t bytes) {
    struct lend_group *group = NULL;
    int r = lend_group_rebuild(handle, bytes, NULL, 0, NULL, &group, &me.error);
    if (r < 0) return r;
    bool is_good = is_group_filled(group);
    lend_group_unref(group);
    return is_good ? 0 : -1;
}

static int do_group_send(int g) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .pin_ns_max = SEND_PIN_MS * 1000000ull};
    return lend_group_send(me.connection, me.group[g], &opts, 0, &me.error);
}

static void *rebuild_later(void *arg) {
    (void)arg;
    later.code = lend_group_rebuild(later.handle, later.bytes, NULL, 0, NULL, &me.group[later.group], &later.error);
    return NULL;
}

/* "glater G HANDLE": a rebuild goes on beside what follows, until "gawait". */
static int do_group_later(int g, const char *text) {
    later.group = g;
    int r = lend_handle_parse(text, later.handle, sizeof later.handle, &later.bytes);
    return r < 0 ? r : -pthread_create(&later.thread, NULL, rebuild_later, NULL);
}

static int do_group_await(void) {
    pthread_join(later.thread, NULL);
    me.error = later.error;
    return later.code;
}

/* "until LABEL N": another thread passes it N times more. */
static int do_until(const char *label, unsigned n) {
    unsigned before = points_count(label);
    uint64_t deadline = test_deadline_ms(5000);
    while (points_count(label) - before < n) {
        if (test_now_ms() >= deadline) return -ETIMEDOUT;
        test_pause();
    }
    return 0;
}

static void do_group_drop(int g) {
    lend_group_unref(me.group[g]);
    me.group[g] = NULL;
}

bool obey_many(const char *word, char **rest) {
    if (!strcmp(word, "csr")) {
        int i = number(rest);
        answer(do_csr(i, number(rest)));
    } else if (!strcmp(word, "group")) {
        int g = number(rest), pad = number(rest);
        answer(do_group(g, pad, rest));
    } else if (!strcmp(word, "greduce")) {
        int g = number(rest);
        do_group_reduce(g, number(rest));
    } else if (!strcmp(word, "grebuild")) {
        answer(do_group_rebuild(rest));
    } else if (!strcmp(word, "gsend")) {
        answer(do_group_send(number(rest)));
    } else if (!strcmp(word, "grecv")) {
        answer(lend_group_recv(me.connection, NULL, 0, &me.group[number(rest)], &me.error));
    } else if (!strcmp(word, "gdrop")) {
        do_group_drop(number(rest));
        answer(0);
    } else if (!strcmp(word, "glater")) {
        int g = number(rest);
        answer(do_group_later(g, next(rest)));
    } else if (!strcmp(word, "gawait")) {
        answer(do_group_await());
    } else if (!strcmp(word, "until")) {
        const char *label = next(rest);
        answer(do_until(label, (unsigned)number(rest)));
    } else {
        return false;
    }
    return true;
}
