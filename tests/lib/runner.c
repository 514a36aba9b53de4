/* SPDX-License-Identifier: MIT */
/* The runner: forks a process per test, waits with a time limit, prints TAP.
 *
 * It is the subreaper of everything that tests start, so that processes which cut loose from their test come to it:
 * those still there after a test are killed, and the test fails. It carries its pid in the environment
 * (LEND_TEST_RUN), by which memory.c knows the processes of this run, and executes itself once to get it there. */
#include "runner.h"

#include "drop.h"
#include "leftovers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct test_outcome *test_outcome;

/* Where a sanitizer is built in: a request that is too large is refused, as by the system, and any finding ends the
 * test. The environment can still change each. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:detect_stack_use_after_return=1";
}

const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1:halt_on_error=1";
}

const char *__ubsan_default_options(void) {
    return "halt_on_error=1:print_stacktrace=1";
}

static struct test *tests, **last = &tests;
static bool is_emulated;

bool test_is_emulated(void) {
    return is_emulated;
}

void test_register(struct test *test) {
    *last = test;
    last = &test->next;
}

static void run_in_child(const struct test *test, int output) __attribute__((noreturn));
static void run_in_child(const struct test *test, int output) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(output, 1);
    dup2(output, 2);
    close(output);
    setvbuf(stdout, NULL, _IOLBF, 0);
    char *before = leftovers_snapshot();
    test->run();
    leftovers_check(before);
    free(before);
    exit(0);
}

/* Reaps whatever ends until `pid` does or the deadline comes. Returns whether `pid` ended. */
static bool wait_for(pid_t pid, uint64_t deadline, int *ret_status) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        int status;
        for (pid_t p; (p = waitpid(-1, &status, WNOHANG)) > 0;) {
            if (p != pid) continue;
            *ret_status = status;
            return true;
        }
        uint64_t now = test_now_ms();
        if (now >= deadline) return false;
        uint64_t left = deadline - now;
        sigtimedwait(&child, NULL, &(struct timespec){(time_t)(left / 1000), (long)(left % 1000) * 1000000});
    }
}

struct strays {
    FILE *out; /* NULL: kill without a word */
    unsigned n;
};

static void kill_stray(pid_t pid, const char *comm, char state, void *arg) {
    struct strays *strays = arg;
    if (state == 'Z') return;
    strays->n++;
    if (strays->out) fprintf(strays->out, "left behind: process %d (%s)\n", (int)pid, comm);
    kill(pid, SIGKILL);
}

/* Kills and reaps all that a test left; each death may bring us more children. Returns how many were alive. */
static unsigned kill_strays(FILE *out) {
    struct strays strays = {out, 0};
    while (leftovers_each_child(kill_stray, &strays)) {
        strays.out = NULL;
        int status;
        waitpid(-1, &status, 0);
    }
    return strays.n;
}

static void show_output(int output) {
    FILE *in = fdopen(dup(output), "r");
    if (!in) return;
    rewind(in);
    char line[1024];
    for (unsigned n = 0; fgets(line, sizeof line, in) && n < 400; n++)
        printf("#   %s%s", line, strchr(line, '\n') ? "" : "\n");
    fclose(in);
}

static void explain(FILE *out, int status, bool is_late, unsigned seconds_max) {
    if (is_late)
        fprintf(out, "killed after %u s\n", seconds_max);
    else if (WIFSIGNALED(status))
        fprintf(out, "killed by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) > TEST_EXIT_FAILED)
        fprintf(out, "exit status %d\n", WEXITSTATUS(status));
}

/* Returns whether it passed or was skipped. */
static bool run(const struct test *test, unsigned number, bool is_verbose) {
    int output = memfd_create("test-output", MFD_CLOEXEC), status = 0;
    unsigned seconds_max = test->seconds_max * (unsigned)test_scale();
    memset(test_outcome, 0, sizeof *test_outcome);
    fflush(NULL);
    pid_t pid = fork();
    if (output < 0 || pid < 0) {
        printf("not ok %u - %s # cannot start: %s\n", number, test->name, strerror(errno));
        if (output >= 0) close(output);
        return false;
    }
    if (!pid) run_in_child(test, output);
    bool is_late = !wait_for(pid, test_now_ms() + seconds_max * 1000ull, &status);
    if (is_late) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    FILE *out = fdopen(dup(output), "a");
    bool is_skip = !is_late && WIFEXITED(status) && WEXITSTATUS(status) == TEST_EXIT_SKIPPED;
    bool is_good = !is_late && WIFEXITED(status) && (is_skip || WEXITSTATUS(status) == 0);
    is_good = is_good && !test_outcome->has_failed;
    if (kill_strays(out) && is_good && !is_skip) is_good = false;
    if (out) {
        if (!is_good) explain(out, status, is_late, seconds_max);
        fclose(out);
    }
    printf("%s %u - %s%s%s\n", is_good ? "ok" : "not ok", number, test->name, is_good && is_skip ? " # SKIP " : "",
           is_good && is_skip ? test_outcome->skip : "");
    if (!is_good || is_verbose) show_output(output);
    close(output);
    return is_good;
}

static bool is_picked(const struct test *test, char **names) {
    if (!*names) return true;
    for (; *names; names++)
        if (!strncmp(test->name, *names, strlen(*names))) return true;
    return false;
}

static int run_all(char **names, bool is_verbose) {
    unsigned n = 0, number = 0;
    bool is_good = true;
    for (struct test *t = tests; t; t = t->next) n += is_picked(t, names);
    printf("TAP version 13\n1..%u\n", n);
    for (struct test *t = tests; t; t = t->next)
        if (is_picked(t, names)) is_good = run(t, ++number, is_verbose) && is_good;
    if (!n) fprintf(stderr, "no test of that name\n");
    return n && is_good ? 0 : 1;
}

/* Becomes the user asked for and puts LEND_TEST_RUN into the environment that the kernel shows. */
static void settle(char **argv) {
    const char *uid = getenv("LEND_TEST_UID"), *nofile = getenv("LEND_TEST_NOFILE"), *run_pid = getenv("LEND_TEST_RUN");
    char self[16];
    snprintf(self, sizeof self, "%d", (int)getpid());
    if (run_pid && !strcmp(run_pid, self)) return;
    int r = drop_to(uid ? (uid_t)strtoul(uid, NULL, 10) : 0, nofile ? strtoul(nofile, NULL, 10) : 0);
    if (r < 0) {
        printf("1..0 # SKIP cannot become user %s: %s\n", uid ? uid : "", strerror(-r));
        exit(TEST_EXIT_SKIPPED);
    }
    unsetenv("LEND_TEST_UID");
    unsetenv("LEND_TEST_NOFILE");
    setenv("LEND_TEST_RUN", self, 1);
    execv("/proc/self/exe", argv);
    is_emulated = true;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "--role")) return test_role_main(argc, argv);
    settle(argv);
    bool is_verbose = false;
    int option;
    while ((option = getopt(argc, argv, "lv")) != -1) {
        if (option == 'v') {
            is_verbose = true;
        } else {
            if (option == 'l')
                for (struct test *t = tests; t; t = t->next) puts(t->name);
            return option == 'l' ? 0 : 2;
        }
    }
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    test_outcome = mmap(NULL, sizeof *test_outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (test_outcome == MAP_FAILED) return 2;
    return run_all(argv + optind, is_verbose);
}
