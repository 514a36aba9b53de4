/* SPDX-License-Identifier: MIT */
/* Forced schedules: the test itself exports, so that it can look into the ledger and act at its own points; actors
 * (actor.c) import. */
#ifndef LEND_TESTS_KILL_EXPORTER_H_
#define LEND_TESTS_KILL_EXPORTER_H_

#include "role.h"
#include "share/ledger.h"

#include <lend/lend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILL = 42 };

static struct lend_pool *pool;
static struct lend_error error;

/* --- this process ------------------------------------------------------------------------------------------------- */

static inline void begin(void) {
    struct lend_opts opts = {.size = sizeof opts, .pin_orphan_ns = 200000000};
    CHECK_OK(lend_open(&opts, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
}

static inline void finish(void) {
    CHECK_OK(lend_check(&error), &error);
    lend_pool_unref(pool);
    CHECK_EVENTUALLY(2000, lend_close(&error) == 0);
}

static inline struct lend_tensor *filled(struct lend_pool *from, int64_t bytes, int fill) {
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_tensor_new(from, (DLDataType){kDLUInt, 8, 1}, 1, &bytes, &tensor, &error), &error);
    memset(lend_tensor_data(tensor), fill, (size_t)bytes);
    return tensor;
}

static inline struct lend_tensor *lent(int64_t bytes, uint32_t flags, char ret_text[LEND_HANDLE_TEXT_MAX],
                                       struct lend_handle_info *ret_info) {
    struct lend_tensor *tensor = filled(pool, bytes, FILL);
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = flags};
    struct lend_handle_info info = {.size = sizeof info};
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    CHECK_OK(lend_reduce(tensor, &opts, handle, sizeof handle, &n, &error), &error);
    CHECK_OK(lend_handle_format(handle, n, ret_text, LEND_HANDLE_TEXT_MAX), NULL);
    CHECK_OK(lend_handle_describe(handle, n, &info, &error), &error);
    if (ret_info) *ret_info = info;
    return tensor;
}

/* The tensors under the names t0, t1, ... Actors expect tI to be filled with 10 + I. */
static inline struct lend_group *group_of(struct lend_tensor *const *tensors, unsigned n) {
    struct lend_group *group = NULL;
    char name[16];
    CHECK_OK(lend_group_new(&group, &error), &error);
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof name, "t%u", i);
        CHECK_OK(lend_group_add(group, name, tensors[i], &error), &error);
    }
    return group;
}

/* The group's handle as text, to be freed. */
static inline char *reduced(struct lend_group *group, uint32_t flags) {
    const struct lend_reduce_opts opts = {.size = sizeof opts, .flags = flags};
    void *handle = NULL;
    size_t n = 0;
    CHECK_OK(lend_group_reduce(group, &opts, &handle, &n, &error), &error);
    char *text = malloc(LEND_HANDLE_TEXT_BYTES(n));
    CHECK(text);
    CHECK_OK(lend_handle_format(handle, n, text, LEND_HANDLE_TEXT_BYTES(n)), NULL);
    lend_free(handle);
    return text;
}

static inline uint32_t n_limbo(void) {
    lend__ledger_lock();
    uint32_t n = lend__ledger.n_limbo;
    lend__ledger_unlock();
    return n;
}

static inline uint32_t n_pins(void) {
    lend__ledger_lock();
    uint32_t n = lend__ledger.n_pins;
    lend__ledger_unlock();
    return n;
}

/* Looks at what importers have announced, now instead of at the next tick. */
static inline void look(void) {
    struct lend_report *report = NULL;
    CHECK_OK(lend_report_get(NULL, 0, 0, &report, &error), &error);
    lend_report_free(report);
}

/* --- the importers ------------------------------------------------------------------------------------------------ */

/* Says a line, and is answered "ok". */
#define TELL(role, ...)                 \
    do {                                \
        role_send((role), __VA_ARGS__); \
        role_expect((role), "ok");      \
    } while (0)

static inline void start(struct role *role, const char *at) {
    const char *env[] = {at, NULL};
    struct role_opts opts = {.env = at ? env : NULL};
    ROLE_START(role, &opts, "actor");
    TELL(role, "open 3000");
}

static inline void rebuild(struct role *role, int i, const char *handle) {
    TELL(role, "rebuild %d %d %s", i, FILL, handle);
}

static inline void end(struct role *role) {
    TELL(role, "quit");
    for (const char *line = ""; line && strcmp(line, "points end");) line = role_line(role, 5000);
    role_end(role);
}

static inline void await_stop(struct role *role) {
    CHECK_EVENTUALLY(5000, process_state(role->pid) == 'T');
}

#endif
