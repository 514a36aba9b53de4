/* SPDX-License-Identifier: MIT */
/* A to B to C: a handle names its exporter whoever passes it on, and a pin holds the storage on the way. */
#include "memory.h"
#include "peer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

/* A has dropped, B has pinned and is gone: only the pin holds. */
static void forward_past_the_dead(bool is_killed) {
    struct memory_count before = memory_count();
    struct handle first, forwarded;
    struct role a, b, c;
    actor_start(&a, NULL, "orphan_ms=20000");
    actor_start(&b, &(struct role_opts){.is_detached = true}, NULL);
    actor_start(&c, NULL, NULL);
    actor_ok(&a, "new 0 123456 17");
    snprintf(first.text, sizeof first.text, "%s", actor_ok(&a, "reduce 0"));
    actor_ok(&b, "rebuild 0 %s", first.text);
    actor_ok(&a, "drop 0");
    snprintf(forwarded.text, sizeof forwarded.text, "%s", actor_ok(&b, "reduce 0 pin"));
    CHECK_INT(actor_int(&a, "pins"), 1);
    if (is_killed)
        role_kill(&b, SIGKILL);
    else
        role_end(&b);
    CHECK_EVENTUALLY(1000, actor_int(&a, "peers") == 0);
    CHECK(actor_int(&a, "count limbo") >= 123456);
    actor_ok(&c, "rebuild 0 %s", forwarded.text);
    CHECK_INT(actor_int(&c, "filled 0"), 17);
    CHECK_EVENTUALLY(1000, actor_int(&a, "pins") == 0);
    CHECK(actor_int(&a, "count limbo") >= 123456);
    /* The token is used up: the handle is now as good as any other of a storage that C holds. */
    actor_ok(&c, "rebuild 1 %s", forwarded.text);
    CHECK_INT(actor_int(&c, "same 0 1"), 1);
    actor_ok(&c, "drop 1");
    actor_ok(&c, "drop 0");
    CHECK_EVENTUALLY(1000, actor_int(&a, "count limbo") == 0);
    CHECK_INT(actor_code(&c, "rebuild 0 %s", forwarded.text), -ESTALE);
    role_end(&a);
    role_end(&c);
    CHECK_UINT(memory_count().n_inodes, before.n_inodes);
}

LEND_TEST(b_ends_before_c_rebuilds) {
    forward_past_the_dead(false);
}

LEND_TEST(b_is_killed_before_c_rebuilds) {
    forward_past_the_dead(true);
}

/* A process that only stores bytes: it does not know what they are. */
LEND_ROLE(storehouse) {
    char stored[LEND_HANDLE_TEXT_MAX] = "";
    for (const char *line; (line = role_hear());) {
        if (!strcmp(line, "fetch"))
            role_say("%s", stored);
        else
            snprintf(stored, sizeof stored, "%s", line);
    }
    return 0;
}

LEND_TEST(through_a_process_that_only_stores_bytes) {
    struct role a, store, c;
    char text[LEND_HANDLE_TEXT_MAX];
    actor_start(&a, NULL, NULL);
    actor_start(&c, NULL, NULL);
    ROLE_START(&store, NULL, "storehouse");
    actor_ok(&a, "new 0 70000 21");
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0 pin"));
    actor_ok(&a, "drop 0");
    role_send(&store, "%s", text);
    role_send(&store, "fetch");
    snprintf(text, sizeof text, "%s", role_expect(&store, ""));
    role_end(&store);
    actor_ok(&c, "rebuild 0 %s", text);
    CHECK_INT(actor_int(&c, "filled 0"), 21);
    CHECK_EVENTUALLY(1000, actor_int(&a, "pins") == 0);
    CHECK(actor_int(&a, "count limbo") >= 70000);
    actor_ok(&c, "drop 0");
    CHECK_EVENTUALLY(1000, actor_int(&a, "count limbo") == 0);
    role_end(&a);
    role_end(&c);
}

/* Without a pin the forwarder's own hold is what counts, until the next process has taken. */
LEND_TEST(a_forwarder_that_holds_needs_no_pin) {
    struct role r[5];
    char text[LEND_HANDLE_TEXT_MAX];
    for (int i = 0; i < 5; i++) actor_start(&r[i], NULL, NULL);
    actor_ok(&r[0], "new 0 9999 1");
    snprintf(text, sizeof text, "%s", actor_ok(&r[0], "reduce 0"));
    for (int i = 1; i < 5; i++) {
        actor_ok(&r[i], "rebuild 0 %s", text);
        snprintf(text, sizeof text, "%s", actor_ok(&r[i], "reduce 0"));
        actor_ok(&r[i - 1], "drop 0");
    }
    CHECK_INT(actor_int(&r[4], "filled 0"), 1);
    CHECK_INT(actor_int(&r[0], "peers"), 4);
    /* Back to where it came from: the original storage. */
    actor_ok(&r[0], "rebuild 1 %s", text);
    CHECK_CONTAINS(actor_ok(&r[0], "info 1"), "imported 0 ");
    role_end(&r[4]);
    CHECK_INT(actor_int(&r[0], "filled 1"), 1);
    for (int i = 0; i < 4; i++) role_end(&r[i]);
}

LEND_TEST(the_exporter_rebuilds_its_own_pinned_handle_from_limbo) {
    struct role a, b;
    char text[LEND_HANDLE_TEXT_MAX], place[256];
    actor_start(&a, NULL, NULL);
    actor_start(&b, NULL, NULL);
    actor_ok(&a, "new 0 4000 3");
    snprintf(place, sizeof place, "%s", actor_ok(&a, "info 0"));
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
    actor_ok(&b, "rebuild 0 %s", text);
    snprintf(text, sizeof text, "%s", actor_ok(&b, "reduce 0 pin"));
    actor_ok(&a, "drop 0");
    role_end(&b);
    CHECK(actor_int(&a, "count limbo") >= 4000);
    actor_ok(&a, "rebuild 0 %s", text);
    CHECK_STR(actor_ok(&a, "info 0"), place);
    CHECK_INT(actor_int(&a, "pins"), 0);
    CHECK_INT(actor_int(&a, "count limbo"), 0);
    actor_ok(&a, "drop 0");
    CHECK_INT(actor_code(&a, "rebuild 0 %s", text), -ESTALE);
    role_end(&a);
}
