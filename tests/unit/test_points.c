/* SPDX-License-Identifier: MIT */
/* Test points of the twin: counted, listed, and able to kill or stop at an exact place. */
#include "base/sys.h"
#include "points.h"
#include "role.h"

#include <signal.h>

static void one_eventfd(void) {
    int fd = (int)lend__sys.eventfd(0);
    CHECK(fd >= 0);
    lend__fd_close(&fd);
}

LEND_TEST(each_call_of_the_table_is_two_points) {
    for (int i = 0; i < 3; i++) one_eventfd();
    CHECK_UINT(points_count("sys.eventfd<"), 3);
    CHECK_UINT(points_count("sys.eventfd>"), 3);
    CHECK_UINT(points_count("sys.close<"), 3);
    CHECK_UINT(points_count("sys.mmap<"), 0);
    CHECK_STR(points_label(0), "sys.eventfd<");
    CHECK_STR(points_label(1), "sys.eventfd>");
    CHECK_STR(points_label(2), "sys.close<");
    CHECK_PTR(points_label(4), NULL);
    points_reset();
    CHECK_UINT(points_count("sys.eventfd<"), 0);
}

static void count_up(void *arg) {
    ++*(int *)arg;
}

LEND_TEST(a_call_happens_at_the_nth_hit_once) {
    int n = 0;
    one_eventfd();
    points_call_at("sys.eventfd>", 1, count_up, &n);
    one_eventfd();
    CHECK_INT(n, 0);
    one_eventfd();
    CHECK_INT(n, 1);
    one_eventfd();
    CHECK_INT(n, 1);
}

LEND_ROLE(victim) {
    for (int i = 0; i < 5; i++) {
        one_eventfd();
        role_say("did %d", i);
    }
    points_say();
    return 0;
}

static struct role role;

static void start(const char *at) {
    const char *env[] = {at, NULL};
    struct role_opts opts = {.env = env};
    ROLE_START(&role, &opts, "victim");
}

LEND_TEST(a_role_dies_before_its_third_call) {
    start("LEND_POINT_AT=sys.eventfd< 2 kill");
    role_expect(&role, "did 0");
    role_expect(&role, "did 1");
    CHECK_PTR(role_line(&role, 10000), NULL);
    CHECK_INT(role_wait(&role), 128 + SIGKILL);
}

LEND_TEST(a_role_stops_after_its_first_call_and_goes_on) {
    start("LEND_POINT_AT=sys.eventfd> 0 stop");
    CHECK_EVENTUALLY(10000, process_state(role.pid) == 'T');
    role_kill(&role, SIGCONT);
    for (int i = 0; i < 5; i++) role_expect(&role, "did ");
    CHECK_STR(role_expect(&role, "point "), "sys.eventfd< 5");
    CHECK_STR(role_expect(&role, "point "), "sys.eventfd> 5");
    CHECK_STR(role_expect(&role, "point "), "sys.close< 5");
    CHECK_STR(role_expect(&role, "point "), "sys.close> 5");
    role_expect(&role, "points end");
    role_end(&role);
}
