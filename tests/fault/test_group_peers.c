/* SPDX-License-Identifier: MIT */
/* As test_peers.c, for groups and tensors of components: two allocations, a file in place, a pin of many slots, a
 * forwarder that adds memory of its own, a message whose handle is a file, and one whose sender is dead. */
#include "books.h"
#include "file.h"
#include "many.h"
#include "role.h"
#include "sweep.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MEMBERS = 5, LONG = 3000 };

/* --- the peer ----------------------------------------------------------------------------------------------------- */

static uint8_t handle[ROLE_LINE_BYTES];
static void *forwarded;
static size_t handle_bytes, forwarded_bytes;
static struct lend_group *held, *second;
static int line[2] = {-1, -1};
static uint64_t n_imported_before, n_pins_before;
static const struct lend_rebuild_opts checked = {.size = sizeof checked, .flags = LEND_REBUILD_CHECK};
static const struct lend_rebuild_opts with_file = {.size = sizeof with_file, .flags = LEND_REBUILD_FILE_IN_PLACE};
static const struct lend_reduce_opts pinned = {.size = sizeof pinned,
                                               .flags = LEND_REDUCE_PIN | LEND_REDUCE_MATERIALIZE};

/* Asks for a handle: "plain", "pinned", or "file", which is pinned too. */
static void get_handle(const char *kind) {
    role_say("%s", kind);
    CHECK_INT(lend_handle_parse(role_hear(), handle, sizeof handle, &handle_bytes), 0);
}

/* Pins in the exporter's books. */
static uint64_t ask_pins(void) {
    role_say("pins");
    return strtoull(role_hear(), NULL, 10);
}

static void remember(void) {
    n_imported_before = lend__peers_storages();
    n_pins_before = ask_pins();
}

/* Nothing is held that was not, and every pin is still good. */
static void look(const char *failed) {
    uint64_t n_pins = ask_pins(), n_imported = lend__peers_storages();
    if (n_imported != n_imported_before || n_pins != n_pins_before)
        FAIL("after a failed %s there are %d storages and %d pins more", failed, (int)(n_imported - n_imported_before),
             (int)(n_pins - n_pins_before));
}

static void open_peer(void) {
    struct lend_error error = {0};
    struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 300000000};
    CHECK_OK(lend_open(&opts, &error), &error);
}

static void close_peer(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_check(&error), &error);
    CHECK_EVENTUALLY(2000, lend_close(&error) == 0);
}

static void open_pinned(void) {
    open_peer();
    get_handle("pinned");
    remember();
}

static int call_rebuild(struct lend_error *error) {
    return lend_group_rebuild(handle, handle_bytes, NULL, 0, &checked, &held, error);
}

static int call_rebuild_part(struct lend_error *error) {
    static const char *const names[] = {"wrapper", "plain"};
    return lend_group_rebuild(handle, handle_bytes, names, 2, NULL, &held, error);
}

static void end_rebuild(void) {
    check_group(held, lend_group_count(held));
    lend_group_unref(held);
    CHECK_UINT(lend__peers_storages(), 0);
    close_peer();
}

/* Another group of the same allocations is held. */
static void open_warm(void) {
    struct lend_error error = {0};
    open_peer();
    get_handle("plain");
    CHECK_OK(lend_group_rebuild(handle, handle_bytes, NULL, 0, NULL, &second, &error), &error);
    get_handle("pinned");
    remember();
}

static void end_warm(void) {
    lend_group_unref(second);
    end_rebuild();
}

/* The size of a file is looked at when everything has been taken. */
static void open_file(void) {
    open_peer();
    get_handle("file");
    remember();
}

static void open_warm_file(void) {
    struct lend_error error = {0};
    open_peer();
    get_handle("file");
    CHECK_OK(lend_group_rebuild(handle, handle_bytes, NULL, 0, &with_file, &second, &error), &error);
    get_handle("file");
    remember();
}

static int call_rebuild_file(struct lend_error *error) {
    return lend_group_rebuild(handle, handle_bytes, NULL, 0, &with_file, &held, error);
}

static int call_cancel(struct lend_error *error) {
    return lend_pin_cancel(handle, handle_bytes, 0, error);
}

/* What it hands on is the exporter's, and more that has to be copied. */
static void open_held(void) {
    struct lend_error error = {0};
    open_peer();
    get_handle("plain");
    CHECK_OK(call_rebuild(&error), &error);
    add_private(held, LONG);
    remember();
}

static int call_forward(struct lend_error *error) {
    return lend_group_reduce(held, &pinned, &forwarded, &forwarded_bytes, error);
}

static void end_forward(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_pin_cancel(forwarded, forwarded_bytes, 0, &error), &error);
    lend_free(forwarded);
    end_rebuild();
}

static void open_line(void) {
    open_held();
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
}

static int call_send(struct lend_error *error) {
    return lend_group_send(line[0], held, &pinned, 0, error);
}

static int call_recv(struct lend_error *error) {
    return lend_group_recv(line[1], &checked, 100000000, &second, error);
}

static void close_line(void) {
    close(line[0]);
    close(line[1]);
}

static void end_send(void) {
    struct lend_error error = {0};
    CHECK_OK(call_recv(&error), &error);
    check_group(second, MEMBERS + 5);
    lend_group_unref(second);
    close_line();
    end_rebuild();
}

/* The message waits while its receiver knows nothing of the exporter. */
static void open_sent(void) {
    struct lend_error error = {0};
    open_peer();
    get_handle("plain");
    CHECK_OK(call_rebuild(&error), &error);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
    CHECK_INT(call_send(&error), 0);
    lend_group_unref(held);
    close_peer();
    open_peer();
    second = NULL;
    remember();
}

static void end_recv(void) {
    if (second) check_group(second, MEMBERS);
    lend_group_unref(second);
    close_line();
    close_peer();
}

/* A message that is lost takes no pin along, but the reading of it may. */
static void look_at_storages(const char *failed) {
    if (lend__peers_storages() != n_imported_before) FAIL("a failed %s leaves storages", failed);
}

LEND_ROLE(sweeper) {
    sweep_run_and_look(&(struct sweep){"first contact for a group", open_pinned, call_rebuild, end_rebuild, false, 30},
                       look);
    sweep_run_and_look(
        &(struct sweep){"first contact for a part", open_pinned, call_rebuild_part, end_rebuild, false, 25}, look);
    sweep_run_and_look(&(struct sweep){"warm rebuild of a group", open_warm, call_rebuild, end_warm, false, 10}, look);
    sweep_run_and_look(
        &(struct sweep){"first contact for a file", open_file, call_rebuild_file, end_rebuild, false, 30}, look);
    sweep_run_and_look(&(struct sweep){"warm rebuild of a file", open_warm_file, call_rebuild_file, end_warm, false, 5},
                       look);
    sweep_run(&(struct sweep){"cancel of a group's pin", open_pinned, call_cancel, close_peer, false, 10});
    sweep_run_and_look(&(struct sweep){"a forwarder's group", open_held, call_forward, end_forward, false, 40}, look);
    sweep_run_and_look(&(struct sweep){"a forwarder's group as a message", open_line, call_send, end_send, false, 40},
                       look);
    sweep_run_and_look(&(struct sweep){"a group from a stranger", open_sent, call_recv, end_recv, true, 30},
                       look_at_storages);
    role_say("done");
    return 0;
}

/* --- the exporter ------------------------------------------------------------------------------------------------- */

static struct lend_pool *pools[2], *file_pool;
static struct lend_group *kept;

/* In two allocations. */
static struct lend_group *make_group(size_t pad) {
    struct lend_group *group = pooled_group(pools[0], pad);
    add(group, "more", sevens(pools[1], 100), pad);
    return group;
}

static void open_exporter(void) {
    struct lend_error error = {0};
    struct lend_opts opts = {.size = sizeof opts, .pin_orphan_ns = 200000000};
    CHECK_OK(lend_open(&opts, &error), &error);
    for (int i = 0; i < 2; i++) CHECK_OK(lend_pool_new(NULL, &pools[i], &error), &error);
}

static void open_file_pool(void) {
    struct lend_error error = {0};
    size_t n = (size_t)sysconf(_SC_PAGESIZE);
    char *bytes = malloc(n);
    CHECK(bytes);
    memset(bytes, SEVEN, n);
    int fd = test_file_make(bytes, n);
    const struct lend_pool_opts opts = {
        .size = sizeof opts, .flags = LEND_POOL_FILE_IN_PLACE, .adopt_fd = fd, .adopt_bytes = n};
    CHECK_OK(lend_pool_new(&opts, &file_pool, &error), &error);
    close(fd);
    free(bytes);
}

static void add_file(struct lend_group *group) {
    static const int64_t n = 1000;
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_tensor_new_at(file_pool, 0, (DLDataType){kDLUInt, 8, 1}, 1, &n, &tensor, &error), &error);
    add(group, "file", tensor, 0);
}

static void begin(void) {
    open_exporter();
    open_file_pool();
    kept = make_group(0);
}

/* A pinned one is a group of its own, which only the pin holds. */
static void send_handle(struct role *role, const char *kind) {
    struct lend_error error = {0};
    bool with_pin = strcmp(kind, "plain");
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = with_pin ? LEND_REDUCE_PIN : 0};
    struct lend_group *group = with_pin ? make_group(0) : lend_group_ref(kept);
    char text[ROLE_LINE_BYTES];
    void *bytes = NULL;
    size_t n = 0;
    if (!strcmp(kind, "file")) add_file(group);
    opts.pin_ns_max = with_pin ? 3000000000 : 0;
    CHECK_OK(lend_group_reduce(group, &opts, &bytes, &n, &error), &error);
    CHECK_OK(lend_handle_format(bytes, n, text, sizeof text), NULL);
    lend_free(bytes);
    lend_group_unref(group);
    role_send(role, "%s", text);
}

static bool is_drained(void) {
    lend__ledger_lock();
    bool yes = !lend__ledger.n_limbo && !lend__ledger.n_pins && !lend__ledger.n_pages;
    lend__ledger_unlock();
    return yes;
}

static void close_exporter(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_check(&error), &error);
    for (int i = 0; i < 2; i++) lend_pool_unref(pools[i]);
    CHECK_EVENTUALLY(2000, lend_close(&error) == 0);
}

static void finish(void) {
    CHECK_EVENTUALLY(5000, is_drained());
    lend_group_unref(kept);
    lend_pool_unref(file_pool);
    close_exporter();
}

LEND_TEST_TIMED(every_call_of_an_importer_of_groups, 240) {
    struct role role;
    begin();
    ROLE_START(&role, NULL, "sweeper");
    for (const char *said = ""; said && strcmp(said, "done");) {
        said = role_line(&role, 20000);
        if (!said) FAIL("the sweeper ended with %d", role_wait(&role));
        if (!strcmp(said, "pins"))
            role_send(&role, "%d", (int)books_now().n_pins);
        else if (strcmp(said, "done") != 0)
            send_handle(&role, said);
    }
    role_end(&role);
    finish();
}

/* --- the service thread ------------------------------------------------------------------------------------------- */

/* Each line is a pinned handle: rebuilt, handed on with a pin of many slots, cancelled. */
LEND_ROLE(visitor) {
    for (const char *text; (text = role_hear());) {
        struct lend_error error = {0};
        struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 500000000};
        CHECK_INT(lend_handle_parse(text, handle, sizeof handle, &handle_bytes), 0);
        CHECK_OK(lend_open(&opts, &error), &error);
        int r = call_rebuild(&error);
        if (r >= 0) {
            check_group(held, MEMBERS);
            r = call_forward(&error);
            if (r >= 0) {
                r = lend_pin_cancel(forwarded, forwarded_bytes, 0, &error);
                lend_free(forwarded);
            }
            lend_group_unref(held);
        }
        if (r < 0 && (!sweep_is_typed(r) || error.code != r || !error.text[0]))
            FAIL("%d, %d %s", r, (int)error.code, error.text);
        CHECK_UINT(lend__peers_storages(), 0);
        CHECK_OK(lend_close(&error), &error);
        role_say("got %d %s", r, error.text);
    }
    return 0;
}

static int visit(struct role *role) {
    send_handle(role, "pinned");
    return atoi(role_expect(role, "got "));
}

/* The text of a pinned handle, made while nothing is armed. */
static void make_text(char text[ROLE_LINE_BYTES]) {
    struct lend_error error = {0};
    const struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_PIN, .pin_ns_max = 2000000000};
    struct lend_group *group = make_group(0);
    void *bytes = NULL;
    size_t n = 0;
    CHECK_OK(lend_group_reduce(group, &opts, &bytes, &n, &error), &error);
    CHECK_OK(lend_handle_format(bytes, n, text, ROLE_LINE_BYTES), NULL);
    lend_free(bytes);
    lend_group_unref(group);
}

LEND_TEST_TIMED(every_call_of_the_service_for_groups, 300) {
    char text[ROLE_LINE_BYTES];
    struct role role;
    struct lend_error error = {0};
    unsigned n = 0, n_refused = 0;
    begin();
    ROLE_START(&role, NULL, "visitor");
    CHECK_INT(visit(&role), 0);
    for (const char *failed = ""; failed; n++) {
        make_text(text);
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
    CHECK(n > 20 && n_refused > 0);
    role_end(&role);
    finish();
}

/* --- a sender that is dead ---------------------------------------------------------------------------------------- */

static int listener = -1, connection = -1;

static socklen_t name_line(const char *number, struct sockaddr_un *ret) {
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "fault-test-%s", number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Sends a group of its own, and ends. */
LEND_ROLE(ghost) {
    struct lend_error error = {0};
    struct sockaddr_un address;
    socklen_t bytes = name_line(argv[0], &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(connect(fd, (struct sockaddr *)&address, bytes), 0);
    open_exporter();
    struct lend_group *group = make_group(LONG);
    CHECK_OK(lend_group_send(fd, group, NULL, 0, &error), &error);
    lend_group_unref(group);
    close_exporter();
    close(fd);
    return 0;
}

static void open_ghost(void) {
    char number[32];
    struct sockaddr_un address;
    struct role ghost;
    snprintf(number, sizeof number, "%d", (int)getpid());
    socklen_t bytes = name_line(number, &address);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(bind(listener, (struct sockaddr *)&address, bytes), 0);
    CHECK_INT(listen(listener, 1), 0);
    ROLE_START(&ghost, NULL, "ghost", number);
    connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(connection >= 0);
    role_end(&ghost);
    held = NULL;
    open_peer();
}

static int call_recv_of_the_dead(struct lend_error *error) {
    return lend_group_recv(connection, &checked, 100000000, &held, error);
}

static void end_ghost(void) {
    if (held) check_group(held, MEMBERS);
    lend_group_unref(held);
    CHECK_UINT(lend__peers_storages(), 0);
    close(connection);
    close(listener);
    close_peer();
}

static void look_for_storages(const char *failed) {
    if (lend__peers_storages()) FAIL("a failed %s leaves storages", failed);
}

LEND_TEST_TIMED(every_call_of_a_receiver_whose_sender_is_dead, 240) {
    sweep_run_and_look(&(struct sweep){"a group of the dead", open_ghost, call_recv_of_the_dead, end_ghost, true, 40},
                       look_for_storages);
}
