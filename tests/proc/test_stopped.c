/* SPDX-License-Identifier: MIT */
/* Exporters that are stopped (SIGSTOP) in the middle of something: the caller's deadline holds, nothing stays behind,
 * and all goes on when they do. In the twin they stop at a labelled step of the protocol. */
#include "peer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

/* The call came back with that code, between its deadline and a second later. */
static void expect_late(struct role *actor, const char *command, int code, uint64_t deadline_ms) {
    uint64_t began = test_now_ms();
    int r = actor_code(actor, "%s ms=%d", command, (int)deadline_ms);
    uint64_t took = test_now_ms() - began, slack = test_deadline_ms(1500) - test_now_ms();
    if (r != code) FAIL("\"%.40s\" gave %d instead of %d: %s", command, r, code, actor_sentence);
    CHECK_CONTAINS(actor_sentence, "stopped");
    if (took < deadline_ms || took > deadline_ms + slack)
        FAIL("%d ms for a deadline of %d", (int)took, (int)deadline_ms);
}

static char *command_of(const char *verb, const char *text) {
    static char command[LEND_HANDLE_TEXT_MAX + 32];
    snprintf(command, sizeof command, "%s %s", verb, text);
    return command;
}

LEND_TEST(a_stopped_exporter_costs_its_callers_their_deadline_and_no_more) {
    struct role a, b, c;
    char text[LEND_HANDLE_TEXT_MAX], other[LEND_HANDLE_TEXT_MAX], pinned[LEND_HANDLE_TEXT_MAX];
    actor_start(&a, NULL, "isolate");
    actor_start(&b, NULL, NULL);
    actor_start(&c, NULL, NULL);
    actor_ok(&a, "new 0 1000 7");
    actor_ok(&a, "new 1 1000 8");
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
    snprintf(other, sizeof other, "%s", actor_ok(&a, "reduce 1"));
    snprintf(pinned, sizeof pinned, "%s", actor_ok(&a, "reduce 0 pin"));
    actor_ok(&b, "rebuild 0 %s", text);
    long long maps = actor_int(&c, "count lend_maps"), fds = actor_int(&c, "count fds");
    role_kill(&a, SIGSTOP);
    expect_late(&c, command_of("rebuild 0", text), -ETIMEDOUT, 300); /* first contact */
    CHECK_INT(actor_int(&c, "count lend_maps"), maps);
    CHECK(actor_int(&c, "count fds") <= fds + 1); /* the connection may be kept for the late answer */
    expect_late(&b, command_of("rebuild 1", other), -ETIMEDOUT, 300); /* another allocation */
    expect_late(&b, "reduce 0 pin", -ETIMEDOUT, 300);
    CHECK_INT(actor_code(&b, "cancel %s 300", pinned), -ETIMEDOUT);
    /* What needs no answer goes on: warm rebuilds, reads, releases. */
    actor_ok(&b, "rebuild 2 %s", text);
    CHECK_INT(actor_int(&b, "same 0 2"), 1);
    actor_ok(&b, "drop 2");
    struct lend_exporter *found = NULL;
    size_t n = 0;
    CHECK_OK(lend_exporters_find(&found, &n, NULL), NULL);
    for (size_t i = 0; i < n; i++) {
        struct lend_report *report = NULL;
        uint64_t began = test_now_ms();
        int r = lend_report_get(&found[i], 0, 200000000, &report, NULL);
        CHECK(test_now_ms() - began < test_deadline_ms(2000) - test_now_ms());
        if (!r) CHECK(report->totals.pid != (uint32_t)a.pid);
        lend_report_free(report);
    }
    lend_free(found);
    kill(a.pid, SIGCONT);
    actor_ok(&c, "rebuild 0 %s", text);
    CHECK_INT(actor_int(&c, "filled 0"), 7);
    actor_ok(&b, "rebuild 1 %s", other);
    CHECK_INT(actor_int(&b, "filled 1"), 8);
    /* The pin whose answer came too late was ended, and so was the one that was cancelled. */
    actor_ok(&b, "cancel %s", pinned);
    CHECK_EVENTUALLY(2000, actor_int(&a, "pins") == 0);
    CHECK_INT(actor_int(&a, "peers"), 2);
    role_end(&b);
    role_end(&c);
    CHECK_EVENTUALLY(2000, actor_int(&a, "peers") == 0);
    role_end(&a);
}

#ifdef LEND_TEST_POINTS

static void start_at(struct role *a, const char *at) {
    const char *env[] = {at, NULL};
    actor_start(a, &(struct role_opts){.env = env}, NULL);
}

/* Its service stops in the middle of its answer to hello; the main thread with it. */
LEND_TEST(stopped_in_mid_handshake) {
    static const char *const points[] = {"LEND_POINT_AT=C1.accepted 0 stop", "LEND_POINT_AT=A1.page-made 0 stop",
                                         "LEND_POINT_AT=C2.welcome 0 stop"};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        struct role a, b;
        char text[LEND_HANDLE_TEXT_MAX];
        start_at(&a, points[i]);
        actor_start(&b, NULL, NULL);
        actor_ok(&a, "new 0 1000 7");
        snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
        long long maps = actor_int(&b, "count lend_maps");
        expect_late(&b, command_of("rebuild 0", text), -ETIMEDOUT, 300);
        CHECK_INT(process_state(a.pid), 'T');
        CHECK_INT(actor_int(&b, "count lend_maps"), maps);
        kill(a.pid, SIGCONT);
        actor_ok(&b, "rebuild 0 %s", text);
        CHECK_INT(actor_int(&b, "filled 0"), 7);
        actor_ok(&a, "drop 0");
        actor_ok(&b, "drop 0");
        CHECK_EVENTUALLY(2000, actor_int(&a, "count limbo") == 0);
        CHECK_INT(actor_int(&a, "peers"), 1); /* the page of the first attempt is gone */
        role_end(&b);
        role_end(&a);
    }
}

/* Stopped while it closes a slot: whoever takes meanwhile waits, up to its deadline. */
static void stop_in_closing(struct role *a, struct role *b, char text[LEND_HANDLE_TEXT_MAX]) {
    start_at(a, "LEND_POINT_AT=L5.closing 0 stop");
    actor_start(b, NULL, NULL);
    actor_ok(a, "new 0 1000 7");
    actor_ok(a, "new 1 1000 8");
    snprintf(text, LEND_HANDLE_TEXT_MAX, "%s", actor_ok(a, "reduce 0"));
    actor_ok(b, "rebuild 1 %s", actor_ok(a, "reduce 1"));
    role_send(a, "drop 0");
    CHECK_EVENTUALLY(5000, process_state(a->pid) == 'T');
    expect_late(b, command_of("rebuild 0", text), -EAGAIN, 300);
    CHECK_INT(actor_int(b, "filled 1"), 8);
}

LEND_TEST(stopped_while_closing_then_going_on) {
    struct role a, b;
    char text[LEND_HANDLE_TEXT_MAX];
    stop_in_closing(&a, &b, text);
    kill(a.pid, SIGCONT);
    role_expect(&a, "ok"); /* it had read no page yet: nobody holds */
    CHECK_INT(actor_code(&b, "rebuild 0 %s", text), -ESTALE);
    CHECK_INT(actor_int(&a, "count limbo"), 0);
    role_end(&b);
    role_end(&a);
}

/* A taker whose count stands when the exporter goes on keeps the block: closing becomes open again. */
LEND_TEST(stopped_while_closing_with_a_taker_waiting) {
    struct role a, b;
    char text[LEND_HANDLE_TEXT_MAX];
    stop_in_closing(&a, &b, text);
    role_send(&b, "rebuild 0 %s ms=20000", text);
    for (int i = 0; i < 20; i++) test_pause();
    kill(a.pid, SIGCONT);
    role_expect(&a, "ok");
    const char *answer = role_expect(&b, "");
    if (!strncmp(answer, "ok", 2)) {
        CHECK_INT(actor_int(&b, "filled 0"), 7);
        CHECK(actor_int(&a, "count limbo") >= 1000);
        actor_ok(&b, "drop 0");
    } else {
        CHECK_CONTAINS(answer, "error -116 "); /* its count came just after the page was read */
    }
    CHECK_EVENTUALLY(2000, actor_int(&a, "count limbo") == 0);
    role_end(&b);
    role_end(&a);
}

/* Killed while closing: nobody will reopen the slot, and nobody can reuse it. */
LEND_TEST(killed_while_closing) {
    struct role a, b;
    char text[LEND_HANDLE_TEXT_MAX];
    stop_in_closing(&a, &b, text);
    role_kill(&a, SIGKILL);
    actor_ok(&b, "rebuild 0 %s ms=5000", text);
    CHECK_INT(actor_int(&b, "filled 0"), 7);
    CHECK_INT(actor_int(&b, "filled 1"), 8);
    role_end(&b);
}

#endif
