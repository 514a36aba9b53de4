/* SPDX-License-Identifier: MIT */
/* Every public call in one process, with each call of the table failing once: a typed error, everything as before,
 * nothing lost. What a sweep leaks, the harness (and LeakSanitizer) finds at its end. */
#include "base/sys.h"
#include "sweep.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct lend_pool *pool;
static struct lend_tensor *tensor, *other;
static struct lend_watch *watch;
static uint8_t handle[LEND_HANDLE_BYTES_MAX];
static size_t handle_bytes;
static int line[2] = {-1, -1};

static const DLDataType uint8 = {kDLUInt, 8, 1};
static const int64_t shape[1] = {3000};

static void open_context(void) {
    struct lend_error error = {0};
    struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 500000000};
    CHECK_OK(lend_open(&opts, &error), &error);
}

static void close_context(void) {
    struct lend_error error = {0};
    CHECK_EVENTUALLY(2000, lend_close(&error) == 0);
}

static void open_pool(void) {
    struct lend_error error = {0};
    open_context();
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
}

static void close_pool(void) {
    lend_pool_unref(pool);
    close_context();
}

static void open_tensor(void) {
    struct lend_error error = {0};
    open_pool();
    CHECK_OK(lend_tensor_new(pool, uint8, 1, shape, &tensor, &error), &error);
    memset(lend_tensor_data(tensor), 7, 3000);
}

static void close_tensor(void) {
    struct lend_error error = {0};
    CHECK_INT(((uint8_t *)lend_tensor_data(tensor))[2999], 7);
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(tensor);
    close_pool();
}

/* --- opening, pools, tensors -------------------------------------------------------------------------------------- */

static int call_open(struct lend_error *error) {
    return lend_open(NULL, error);
}

static int call_pool(struct lend_error *error) {
    return lend_pool_new(NULL, &pool, error);
}

static int call_tensor(struct lend_error *error) {
    return lend_tensor_new(pool, uint8, 1, shape, &tensor, error);
}

static void end_tensor(void) {
    lend_tensor_unref(tensor);
    close_pool();
}

LEND_TEST(opening_pools_and_tensors) {
    sweep_run(&(struct sweep){"lend_open", NULL, call_open, close_context, false, 5});
    sweep_run(&(struct sweep){"lend_pool_new", open_context, call_pool, close_pool, false, 1});
    sweep_run(&(struct sweep){"lend_tensor_new", open_pool, call_tensor, end_tensor, false, 5});
}

/* --- reduce ------------------------------------------------------------------------------------------------------- */

static struct lend_reduce_opts reduce_opts = {.size = sizeof reduce_opts};

static int call_reduce(struct lend_error *error) {
    return lend_reduce(tensor, &reduce_opts, handle, sizeof handle, &handle_bytes, error);
}

static void end_reduce(void) {
    struct lend_error error = {0};
    if (reduce_opts.flags & LEND_REDUCE_PIN || reduce_opts.mode)
        CHECK_OK(lend_pin_cancel(handle, handle_bytes, 0, &error), &error);
    close_tensor();
}

static void open_private(void) {
    struct lend_error error = {0};
    open_tensor();
    CHECK_OK(lend_tensor_copy(tensor, NULL, &other, &error), &error);
}

static int call_reduce_private(struct lend_error *error) {
    return lend_reduce(other, NULL, handle, sizeof handle, &handle_bytes, error);
}

static void end_private(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_pin_cancel(handle, handle_bytes, 0, &error), &error);
    lend_tensor_unref(other);
    close_tensor();
}

LEND_TEST(reduce) {
    sweep_run(&(struct sweep){"lend_reduce", open_tensor, call_reduce, end_reduce, false, 20});
    reduce_opts.flags = LEND_REDUCE_PIN;
    sweep_run(&(struct sweep){"lend_reduce with a pin", open_tensor, call_reduce, end_reduce, false, 20});
    reduce_opts.flags = 0;
    reduce_opts.mode = LEND_MODE_SNAPSHOT;
    sweep_run(&(struct sweep){"lend_reduce of a snapshot", open_tensor, call_reduce, end_reduce, false, 20});
    sweep_run(
        &(struct sweep){"lend_reduce of private memory", open_private, call_reduce_private, end_private, false, 20});
}

/* --- the exporter's own handles, messages ------------------------------------------------------------------------- */

static void open_pinned(void) {
    struct lend_error error = {0};
    reduce_opts.flags = LEND_REDUCE_PIN;
    reduce_opts.mode = LEND_MODE_SHARE;
    open_tensor();
    CHECK_OK(call_reduce(&error), &error);
}

static int call_rebuild(struct lend_error *error) {
    return lend_rebuild(handle, handle_bytes, NULL, &other, error);
}

static void end_rebuild(void) {
    lend_tensor_unref(other);
    close_tensor();
}

static int call_cancel(struct lend_error *error) {
    return lend_pin_cancel(handle, handle_bytes, 0, error);
}

LEND_TEST(rebuild_and_cancel_at_home) {
    sweep_run(&(struct sweep){"lend_rebuild of an own tensor", open_pinned, call_rebuild, end_rebuild, false, 1});
    sweep_run(&(struct sweep){"lend_pin_cancel of an own pin", open_pinned, call_cancel, close_tensor, false, 0});
}

static void open_line(void) {
    open_tensor();
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
}

static int call_send(struct lend_error *error) {
    return lend_send(line[0], tensor, NULL, 0, error);
}

static void close_line(void) {
    close(line[0]);
    close(line[1]);
    close_tensor();
}

static void end_send(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_recv(line[1], NULL, 0, &other, &error), &error);
    lend_tensor_unref(other);
    close_line();
}

static void open_sent(void) {
    struct lend_error error = {0};
    open_line();
    CHECK_OK(call_send(&error), &error);
}

static int call_recv(struct lend_error *error) {
    return lend_recv(line[1], NULL, 0, &other, error);
}

static void end_recv(void) {
    lend_tensor_unref(other);
    close_line();
}

LEND_TEST(send_and_receive_at_home) {
    sweep_run(&(struct sweep){"lend_send", open_line, call_send, end_send, false, 20});
    sweep_run(&(struct sweep){"lend_recv", open_sent, call_recv, end_recv, false, 3});
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

static int call_watch(struct lend_error *error) {
    return lend_watch_new(&watch, error);
}

static void end_watch(void) {
    lend_watch_unref(watch);
    close_context();
}

static int call_report(struct lend_error *error) {
    struct lend_report *report = NULL;
    int r = lend_report_get(NULL, 1, 0, &report, error);
    if (r >= 0) lend_report_free(report);
    return r;
}

static int call_peers(struct lend_error *error) {
    struct lend_report_peer *peers = NULL;
    size_t n;
    int r = lend_peers_list(&peers, &n, error);
    if (r >= 0) lend_free(peers);
    return r;
}

static int call_find(struct lend_error *error) {
    struct lend_exporter *exporters = NULL;
    size_t n;
    int r = lend_exporters_find(&exporters, &n, error);
    if (r >= 0) lend_free(exporters);
    return r;
}

static void end_looking(void) {
    CHECK_INT(lend_pin_cancel(handle, handle_bytes, 0, NULL), 0);
    close_tensor();
}

LEND_TEST(watch_and_report) {
    sweep_run(&(struct sweep){"lend_watch_new", open_context, call_watch, end_watch, false, 3});
    sweep_run(&(struct sweep){"lend_report_get", open_pinned, call_report, end_looking, false, 1});
    sweep_run(&(struct sweep){"lend_peers_list", open_pinned, call_peers, end_looking, false, 1});
    sweep_run(&(struct sweep){"lend_exporters_find", open_pinned, call_find, end_looking, false, 1});
}

/* --- fork --------------------------------------------------------------------------------------------------------- */

enum { CHILD_FAULT = 10 };

/* The child holds the bytes or knows that it does not; never others. */
static void be_child(void) __attribute__((noreturn));
static void be_child(void) {
    const char *failed = fault_disarm();
    struct lend_tensor_info info = {.size = sizeof info};
    int r = lend_tensor_info(tensor, &info);
    const uint8_t *data = lend_tensor_data(tensor);
    bool good = r == 0 ? data && data[0] == 7 && data[2999] == 7 : r == -ECHILD && !data;
    good = good && (lend_check(NULL) == 0 || lend_check(NULL) == -ENOTCONN);
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    r = lend_close(NULL);
    _exit(!good ? 1 : r && r != -ENOTCONN ? 2 : failed ? CHILD_FAULT : 0);
}

LEND_TEST(fork_of_an_exporter) {
    struct lend_error error = {0};
    for (unsigned n = 0;; n++) {
        open_tensor();
        reduce_opts = (struct lend_reduce_opts){.size = sizeof reduce_opts};
        CHECK_OK(call_reduce(&error), &error);
        fault_arm_thread(n);
        pid_t pid = fork();
        if (!pid) be_child();
        const char *failed = fault_disarm();
        int status = -1;
        CHECK_INT(waitpid(pid, &status, 0), pid);
        if (status && status != CHILD_FAULT << 8)
            FAIL("the child ended with status %x after fault %u in %s", status, n, failed);
        close_tensor();
        if (failed || status) continue;
        CHECK(n > 10);
        return;
    }
}
