/* SPDX-License-Identifier: MIT */
/* What needs two processes. This one exports; the peer is started by exec and sweeps its own calls, or makes contact
 * while every call of this process's service thread fails once. */
#include "base/sys.h"
#include "role.h"
#include "share/ledger.h"
#include "sweep.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const DLDataType uint8 = {kDLUInt, 8, 1};
enum { BYTES = 3000, FILL = 9, CHILD_FAULT = 10 };

/* --- the peer ----------------------------------------------------------------------------------------------------- */

static uint8_t handle[LEND_HANDLE_BYTES_MAX], forwarded[LEND_HANDLE_BYTES_MAX];
static size_t handle_bytes, forwarded_bytes;
static struct lend_tensor *held, *second;
static int line[2] = {-1, -1};

static void check_bytes(struct lend_tensor *tensor) {
    const uint8_t *data = lend_tensor_data(tensor);
    for (int i = 0; i < BYTES; i++) CHECK_INT(data[i], FILL);
}

/* Asks for a handle: "plain" or "pinned". */
static void get_handle(const char *kind) {
    role_say("%s", kind);
    CHECK_INT(lend_handle_parse(role_hear(), handle, sizeof handle, &handle_bytes), 0);
}

static void open_peer(void) {
    struct lend_error error = {0};
    struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 300000000};
    CHECK_OK(lend_open(&opts, &error), &error);
}

static void close_peer(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_check(&error), &error);
    CHECK_OK(lend_close(&error), &error);
}

static void open_plain(void) {
    open_peer();
    get_handle("plain");
}

static void open_pinned(void) {
    open_peer();
    get_handle("pinned");
}

static int call_rebuild(struct lend_error *error) {
    return lend_rebuild(handle, handle_bytes, NULL, &held, error);
}

static void end_rebuild(void) {
    check_bytes(held);
    lend_tensor_unref(held);
    close_peer();
}

/* Warm: another storage of the same allocation is held. */
static void open_warm(void) {
    open_plain();
    struct lend_error error = {0};
    CHECK_OK(lend_rebuild(handle, handle_bytes, NULL, &second, &error), &error);
    get_handle("pinned");
}

static void end_warm(void) {
    lend_tensor_unref(second);
    end_rebuild();
}

static int call_cancel(struct lend_error *error) {
    return lend_pin_cancel(handle, handle_bytes, 0, error);
}

static void open_held(void) {
    struct lend_error error = {0};
    open_plain();
    CHECK_OK(call_rebuild(&error), &error);
}

static int call_forward(struct lend_error *error) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_PIN};
    return lend_reduce(held, &opts, forwarded, sizeof forwarded, &forwarded_bytes, error);
}

static void end_forward(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_pin_cancel(forwarded, forwarded_bytes, 0, &error), &error);
    end_rebuild();
}

static void open_line(void) {
    open_held();
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
}

static int call_send(struct lend_error *error) {
    return lend_send(line[0], held, NULL, 0, error);
}

static int call_recv(struct lend_error *error) {
    return lend_recv(line[1], NULL, 100000000, &second, error);
}

static void close_line(void) {
    close(line[0]);
    close(line[1]);
    end_rebuild();
}

static void end_send(void) {
    struct lend_error error = {0};
    CHECK_OK(call_recv(&error), &error);
    check_bytes(second);
    lend_tensor_unref(second);
    close_line();
}

/* The message waits while its receiver knows nothing of the exporter. */
static void open_sent(void) {
    struct lend_error error = {0};
    open_line();
    CHECK_OK(call_send(&error), &error);
    lend_tensor_unref(held);
    close_peer();
    open_peer();
    held = second = NULL;
}

static void end_recv(void) {
    if (second) check_bytes(second);
    lend_tensor_unref(second);
    close(line[0]);
    close(line[1]);
    close_peer();
}

static void fork_sweep(void) {
    for (unsigned n = 0;; n++) {
        open_held();
        fault_arm_thread(n);
        pid_t pid = fork();
        if (!pid) {
            const char *failed = fault_disarm();
            check_bytes(held);
            lend_tensor_unref(held);
            int r = lend_close(NULL); /* a child that could not draw an identity has no context */
            _exit(r && r != -ENOTCONN ? 2 : failed ? CHILD_FAULT : 0);
        }
        const char *failed = fault_disarm();
        int status = -1;
        CHECK_INT(waitpid(pid, &status, 0), pid);
        if (status && status != CHILD_FAULT << 8)
            FAIL("the child ended with status %x after fault %u in %s", status, n, failed);
        end_rebuild();
        if (!failed && !status) return;
    }
}

LEND_ROLE(sweeper) {
    sweep_run(&(struct sweep){"first contact", open_plain, call_rebuild, end_rebuild, false, 15});
    sweep_run(&(struct sweep){"first contact with a pin", open_pinned, call_rebuild, end_rebuild, false, 15});
    sweep_run(&(struct sweep){"warm rebuild with a pin", open_warm, call_rebuild, end_warm, false, 1});
    sweep_run(&(struct sweep){"cancel", open_pinned, call_cancel, close_peer, false, 10});
    sweep_run(&(struct sweep){"a forwarder's pin", open_held, call_forward, end_forward, false, 2});
    sweep_run(&(struct sweep){"a forwarder's message", open_line, call_send, end_send, false, 3});
    sweep_run(&(struct sweep){"a message from a stranger", open_sent, call_recv, end_recv, true, 15});
    fork_sweep();
    role_say("done");
    return 0;
}

/* --- the exporter ------------------------------------------------------------------------------------------------- */

static struct lend_pool *pool;
static struct lend_tensor *kept;

static void begin(void) {
    struct lend_error error = {0};
    struct lend_opts opts = {.size = sizeof opts, .pin_orphan_ns = 200000000};
    int64_t shape = BYTES;
    CHECK_OK(lend_open(&opts, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    CHECK_OK(lend_tensor_new(pool, uint8, 1, &shape, &kept, &error), &error);
    memset(lend_tensor_data(kept), FILL, BYTES);
}

static void send_handle(struct role *role, bool with_pin) {
    struct lend_error error = {0};
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = with_pin ? LEND_REDUCE_PIN : 0};
    struct lend_tensor *tensor = NULL;
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    char text[LEND_HANDLE_TEXT_MAX];
    size_t n = 0;
    /* A pinned one is a tensor of its own, which only the pin holds. */
    if (with_pin)
        CHECK_OK(lend_tensor_copy(kept, pool, &tensor, &error), &error);
    else
        tensor = lend_tensor_ref(kept);
    CHECK_OK(lend_reduce(tensor, &opts, bytes, sizeof bytes, &n, &error), &error);
    CHECK_OK(lend_handle_format(bytes, n, text, sizeof text), NULL);
    lend_tensor_unref(tensor);
    role_send(role, "%s", text);
}

static bool is_drained(void) {
    lend__ledger_lock();
    bool yes = !lend__ledger.n_limbo && !lend__ledger.n_pins && !lend__ledger.n_pages;
    lend__ledger_unlock();
    return yes;
}

static void finish(void) {
    struct lend_error error = {0};
    CHECK_EVENTUALLY(4000, is_drained());
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(kept);
    lend_pool_unref(pool);
    CHECK_EVENTUALLY(2000, lend_close(&error) == 0);
}

LEND_TEST_TIMED(every_call_of_an_importer, 120) {
    struct role role;
    begin();
    ROLE_START(&role, NULL, "sweeper");
    for (const char *said = ""; said && strcmp(said, "done");) {
        said = role_line(&role, 20000);
        if (!said) FAIL("the sweeper ended with %d", role_wait(&role));
        if (!strcmp(said, "plain") || !strcmp(said, "pinned")) send_handle(&role, said[1] == 'i');
    }
    role_end(&role);
    finish();
}

/* --- the service thread ------------------------------------------------------------------------------------------- */

/* Each line is a pinned handle; everything that a peer can ask of an exporter is asked. */
LEND_ROLE(visitor) {
    for (const char *text; (text = role_hear());) {
        struct lend_error error = {0};
        struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 500000000};
        CHECK_INT(lend_handle_parse(text, handle, sizeof handle, &handle_bytes), 0);
        CHECK_OK(lend_open(&opts, &error), &error);
        int r = call_rebuild(&error);
        if (r >= 0) {
            check_bytes(held);
            r = call_forward(&error);
            if (r >= 0) r = lend_pin_cancel(forwarded, forwarded_bytes, 0, &error);
            pid_t pid = fork();
            if (!pid) {
                check_bytes(held);
                _exit(0);
            }
            int status = 0;
            waitpid(pid, &status, 0);
            CHECK_INT(status, 0);
            lend_tensor_unref(held);
        }
        if (r < 0 && (!sweep_is_typed(r) || error.code != r || !error.text[0]))
            FAIL("%d, %d %s", r, (int)error.code, error.text);
        CHECK_OK(lend_close(&error), &error);
        role_say("got %d %s", r, error.text);
    }
    return 0;
}

static int visit(struct role *role) {
    send_handle(role, true);
    return atoi(role_expect(role, "got "));
}

LEND_TEST_TIMED(every_call_of_the_service, 300) {
    struct role role;
    struct lend_error error = {0};
    unsigned n = 0, n_refused = 0;
    begin();
    ROLE_START(&role, NULL, "visitor");
    CHECK_INT(visit(&role), 0);
    for (const char *failed = ""; failed; n++) {
        struct lend_tensor *tensor = NULL;
        struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_PIN, .pin_ns_max = 2000000000};
        uint8_t bytes[LEND_HANDLE_BYTES_MAX];
        char text[LEND_HANDLE_TEXT_MAX];
        size_t size = 0;
        CHECK_OK(lend_tensor_copy(kept, pool, &tensor, &error), &error);
        CHECK_OK(lend_reduce(tensor, &opts, bytes, sizeof bytes, &size, &error), &error);
        CHECK_OK(lend_handle_format(bytes, size, text, sizeof text), NULL);
        lend_tensor_unref(tensor);
        fault_arm(n); /* this thread makes no call of the library until it is disarmed */
        role_send(&role, "%s", text);
        int r = atoi(role_expect(&role, "got "));
        failed = fault_disarm();
        n_refused += r < 0;
        if (r < 0 && !failed) FAIL("%d without a fault", r);
        r = visit(&role);
        if (r < 0) FAIL("after a failed %s (call %u) the exporter does not serve any more: %d", failed, n, r);
        CHECK_OK(lend_check(&error), &error);
        if (n > 400) FAIL("no end");
    }
    printf("%u calls, %u of them refused a visitor\n", n, n_refused);
    CHECK(n > 30 && n_refused > 0); /* how many: the page in stock keeps most faults from the visitor */
    role_end(&role);
    finish();
}
