/* SPDX-License-Identifier: MIT */
/* The harness proves itself: a harness that cannot fail proves nothing about the rest. Bad tests run in a second
 * process of this program, and its TAP is read. */
#include "base/sys.h"
#include "fault.h"
#include "memory.h"
#include "role.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The tests named victim_... pass unless LEND_TEST_VICTIM is set, which only the tests below do. */
static bool is_victim(void) {
    return getenv("LEND_TEST_VICTIM");
}

LEND_TEST(victim_value) {
    CHECK_INT(1 + 1, is_victim() ? 3 : 2);
}

LEND_TEST(victim_descriptor) {
    if (is_victim()) CHECK(memfd_create("lend-lost", MFD_CLOEXEC) >= 0);
}

LEND_TEST(victim_mapping) {
    if (!is_victim()) return;
    int fd = memfd_create("lend-lost", MFD_CLOEXEC);
    CHECK_INT(ftruncate(fd, 1), 0);
    CHECK(mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    close(fd);
}

LEND_TEST(victim_child) {
    if (is_victim() && !fork()) pause();
}

LEND_TEST(victim_stray) {
    static struct role role;
    struct role_opts opts = {.is_detached = true};
    if (is_victim()) ROLE_START(&role, &opts, "sleeper");
    if (is_victim()) close(role.fd);
}

static void *sleep_for_ever(void *arg) {
    pause();
    return arg;
}

LEND_TEST(victim_thread) {
    pthread_t thread;
    if (is_victim()) CHECK_INT(pthread_create(&thread, NULL, sleep_for_ever, NULL), 0);
}

LEND_TEST_TIMED(victim_slow, 1) {
    if (is_victim()) pause();
}

LEND_TEST(victim_signal) {
    if (is_victim()) kill(getpid(), SIGKILL);
}

LEND_TEST(victim_forked_check) {
    pid_t child = fork();
    if (!child) {
        CHECK(!is_victim());
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

LEND_TEST(victim_skip) {
    if (is_victim()) SKIP("because of %d", 7);
}

/* Runs one victim in a second process of this program; returns what it printed. */
static const char *output_of(const char *victim) {
    static char text[8192];
    int out[2];
    if (test_is_emulated()) SKIP("needs a second process by exec, which the emulator cannot give");
    CHECK_INT(pipe2(out, O_CLOEXEC), 0);
    pid_t child = fork();
    if (!child) {
        char name[64], program[] = "harness";
        char *argv[] = {program, name, NULL};
        snprintf(name, sizeof name, "%s", victim);
        setenv("LEND_TEST_VICTIM", "1", 1);
        dup2(out[1], 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(out[1]);
    size_t n = 0;
    for (ssize_t r; (r = read(out[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)r;
    text[n] = '\0';
    close(out[0]);
    waitpid(child, NULL, 0);
    return text;
}

#define EXPECT_FAILURE(victim, sentence)                   \
    LEND_TEST(harness_tells_##victim) {                    \
        const char *text = output_of(#victim);             \
        CHECK_CONTAINS(text, "1..1\nnot ok 1 - " #victim); \
        CHECK_CONTAINS(text, sentence);                    \
    }

EXPECT_FAILURE(victim_value, "1 + 1 is 2, not 3")
EXPECT_FAILURE(victim_descriptor, "/memfd:lend-lost (deleted)")
EXPECT_FAILURE(victim_mapping, "left behind: mapping ")
EXPECT_FAILURE(victim_child, "left behind: child ")
EXPECT_FAILURE(victim_stray, "left behind: process ")
EXPECT_FAILURE(victim_slow, "killed after ")
EXPECT_FAILURE(victim_signal, "killed by signal 9")
EXPECT_FAILURE(victim_forked_check, "!is_victim() does not hold")
#if !defined(__SANITIZE_THREAD__)
EXPECT_FAILURE(victim_thread, "left behind: thread ")
#endif

LEND_TEST(harness_tells_victim_skip) {
    CHECK_CONTAINS(output_of("victim_skip"), "ok 1 - victim_skip # SKIP because of 7");
}

LEND_ROLE(sleeper) {
    pause();
    return 0;
}

LEND_ROLE(echo) {
    role_say("args %d %s parent %d", argc, argc ? argv[0] : "", (int)getppid());
    for (const char *line; (line = role_hear());) role_say("heard %s", line);
    return 0;
}

LEND_ROLE(whoami) {
    role_say("uid %d open %ld env %s", (int)getuid(), sysconf(_SC_OPEN_MAX), getenv("ROLE_WORD"));
    return 3;
}

LEND_ROLE(holder) {
    int fd = memfd_create("lend-held", MFD_CLOEXEC);
    CHECK_INT(ftruncate(fd, 1 << 20), 0);
    CHECK_INT(fallocate(fd, 0, 0, 1 << 16), 0);
    role_say("holding");
    role_hear();
    close(fd);
    return 0;
}

static struct role role;

/* Starts a role and returns the first line that it says. */
static const char *start(const struct role_opts *opts, const char *name) {
    ROLE_START(&role, opts, name, "x y");
    return role_expect(&role, "");
}

LEND_TEST(a_role_talks_in_lines) {
    char expected[64];
    snprintf(expected, sizeof expected, "args 1 x y parent %d", (int)getpid());
    CHECK_STR(start(NULL, "echo"), expected);
    for (int i = 0; i < 100; i++) role_send(&role, "line %d", i);
    for (int i = 0; i < 100; i++) CHECK_INT(atoi(role_expect(&role, "heard line ")), i);
    role_end(&role);
    CHECK_INT(role.exit_code, 0);
}

LEND_TEST(a_detached_role_is_no_descendant) {
    struct role_opts opts = {.is_detached = true};
    char expected[64];
    snprintf(expected, sizeof expected, "args 1 x y parent %d", (int)getppid());
    CHECK_STR(start(&opts, "echo"), expected);
    role_kill(&role, SIGSTOP);
    CHECK_INT(process_state(role.pid), 'T');
    role_kill(&role, SIGCONT);
    role_send(&role, "on");
    role_expect(&role, "heard on");
    role_kill(&role, SIGKILL);
    CHECK_INT(role.pid, 0);
}

LEND_TEST(a_killed_role_is_told) {
    start(NULL, "echo");
    role_kill(&role, SIGKILL);
    CHECK_INT(role.exit_code, 128 + SIGKILL);
    CHECK_INT(role_wait(&role), 128 + SIGKILL);
}

LEND_TEST(a_role_can_be_another_user) {
    static const char *const env[] = {"ROLE_WORD=hi", NULL};
    struct role_opts opts = {.uid = 12345, .nofile_max = 100, .env = env};
    if (getuid()) SKIP("needs root");
    CHECK_STR(start(&opts, "whoami"), "uid 12345 open 100 env hi");
    CHECK_INT(role_wait(&role), 3);
}

LEND_TEST(memory_is_counted_by_inode_over_all_processes_of_the_run) {
    struct role_opts opts = {.is_detached = true};
    CHECK_UINT(memory_count().n_inodes, 0);
    start(&opts, "holder");
    struct memory_count count = memory_count();
    CHECK_UINT(count.n_inodes, 1);
    CHECK_UINT(count.bytes, 1 << 20);
    CHECK_UINT(count.resident_bytes, 1 << 16);
    role_kill(&role, SIGKILL);
    CHECK_UINT(memory_count().n_inodes, 0);
}

/* Two calls of the table, to sweep over. */
static int two_calls(void) {
    long fd = lend__sys.eventfd(0);
    if (fd < 0) return (int)fd;
    long other = lend__sys.dup((int)fd);
    lend__sys.close((int)fd);
    if (other < 0) return (int)other;
    lend__sys.close((int)other);
    return 0;
}

LEND_TEST(a_sweep_fails_each_call_once) {
    static const char *const expected[] = {"eventfd", "dup"};
    unsigned n = 0;
    for (;; n++) {
        fault_arm_thread(n);
        int r = two_calls();
        const char *failed = fault_disarm();
        CHECK_INT(r, failed ? -EMFILE : 0);
        if (!failed) break;
        CHECK(n < 2);
        CHECK_STR(failed, expected[n]);
    }
    CHECK_UINT(n, 2);
    CHECK_UINT(fault_count(), 2);
    CHECK_CODE(two_calls(), 0);
}
