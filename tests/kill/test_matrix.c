/* SPDX-License-Identifier: MIT */
/* The kill matrix. Each scenario is played once per role to learn which points (LEND_POINTs, and both sides of every
 * system call) that role passes and how often; then, for every such point, fresh processes play it again and the role
 * is killed, or stopped, exactly there. Cases run side by side in processes of their own.
 *
 * LEND_KILL_HITS is how many of the first hits of each point are played, besides the last; 3 by default. 0 (and the
 * default where a sanitizer makes everything slow, LEND_TEST_SCALE) is a sample: each LEND_POINT at its first and last
 * hit, and each system call of a role only in the first scenario that has it. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CASES_MAX = 16384, LABEL_BYTES = 64, POINTS_MIN = 60, SIDE_BY_SIDE = 8 };

struct point_case {
    unsigned scenario;
    int victim;
    char label[LABEL_BYTES];
    unsigned nth;
    enum { NOT_RUN, HIT, MISSED, FAILED } outcome;
};

/* Shared between this test and the processes that play. */
static struct plan {
    unsigned n;
    struct point_case cases[CASES_MAX];
} * plan;

static const char *const victim_names[] = {"A", "B", "C", "child"};

/* 0: a sample. */
static unsigned first_hits(void) {
    const char *value = getenv("LEND_KILL_HITS"), *scale = getenv("LEND_TEST_SCALE");
    return value ? (unsigned)atoi(value) : scale && atoi(scale) > 1 ? 0 : 3;
}

/* --- which cases -------------------------------------------------------------------------------------------------- */

static void add(unsigned scenario, int victim, const char *label, unsigned nth) {
    if (plan->n == CASES_MAX) FAIL("more cases than the plan holds");
    struct point_case *c = &plan->cases[plan->n++];
    *c = (struct point_case){.scenario = scenario, .victim = victim, .nth = nth};
    snprintf(c->label, sizeof c->label, "%s", label);
}

static bool is_known(int victim, const char *label) {
    for (unsigned i = 0; i < plan->n; i++)
        if (plan->cases[i].victim == victim && !strcmp(plan->cases[i].label, label)) return true;
    return false;
}

struct counting {
    unsigned scenario;
    int victim;
    bool first_only; /* stops: one hit of each point */
};

static void on_point(struct world *world, int who, const char *label, unsigned count) {
    struct counting *counting = world->arg;
    bool is_call = !strncmp(label, "sys.", 4);
    if (who != counting->victim || !count || !strncmp(label, "sys.calloc", 10) || !strncmp(label, "sys.realloc", 11))
        return;
    bool is_sample = counting->first_only || !first_hits();
    if (is_sample && (is_call || counting->first_only) && is_known(who, label)) return;
    unsigned first = is_sample ? 1 : first_hits();
    for (unsigned nth = 0; nth < first && nth < count; nth++) add(counting->scenario, who, label, nth);
    bool with_last = !counting->first_only && !(is_sample && is_call);
    if (with_last && count > first) add(counting->scenario, who, label, count - 1);
}

/* Plays without harm, with the victim-to-be ending first, as it will. */
static void learn(unsigned scenario, int victim, bool first_only) {
    struct counting counting = {scenario, victim, first_only};
    struct world world = {
        .victim = victim, .action = ACTION_NONE, .deadline_ms = 5000, .on_point = on_point, .arg = &counting};
    world_play(&world, &scenarios[scenario]);
}

static void in_process(void (*fn)(unsigned, int, bool), unsigned scenario, int victim, bool flag) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) FAIL("fork");
    if (!pid) {
        fn(scenario, victim, flag);
        fflush(NULL);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status) FAIL("%s does not even work without a kill (as %s)", scenarios[scenario].name, victim_names[victim]);
}

static void make_plan(bool first_only) {
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan == MAP_FAILED) FAIL("no memory for the plan");
    for (unsigned s = 0; s < n_scenarios; s++) {
        for (int victim = A; victim < (int)scenarios[s].n_actors; victim++) in_process(learn, s, victim, first_only);
        if (scenarios[s].has_fork && !first_only) in_process(learn, s, CHILD, first_only);
    }
}

/* --- playing them ------------------------------------------------------------------------------------------------- */

static void play(struct point_case *c, enum action action) __attribute__((noreturn));
static void play(struct point_case *c, enum action action) {
    struct world world = {.victim = c->victim,
                          .action = action,
                          .label = c->label,
                          .nth = c->nth,
                          .deadline_ms = action == ACTION_STOP ? 400 : 5000};
    c->outcome = FAILED;
    world_play(&world, &scenarios[c->scenario]);
    c->outcome = world.was_hit ? HIT : MISSED;
    fflush(NULL);
    _exit(0);
}

/* A case that is being played; what it says is shown when it fails. */
struct running {
    pid_t pid; /* 0: free */
    int output;
    struct point_case *which;
};

static void begin(struct running *running, struct point_case *which, enum action action) {
    fflush(NULL);
    *running = (struct running){.output = memfd_create("case-output", MFD_CLOEXEC), .which = which};
    running->pid = fork();
    if (running->output < 0 || running->pid < 0) FAIL("cannot start a case");
    if (running->pid) return;
    dup2(running->output, 1);
    dup2(running->output, 2);
    play(which, action);
}

static void end(struct running *running, int status) {
    struct point_case *c = running->which;
    if (status) {
        char said[2000];
        ssize_t n = pread(running->output, said, sizeof said - 1, 0);
        said[n > 0 ? n : 0] = '\0';
        c->outcome = FAILED;
        printf("case %s, %s at %s, hit %u:\n%s", scenarios[c->scenario].name, victim_names[c->victim], c->label, c->nth,
               said);
    }
    close(running->output);
    running->pid = 0;
}

static void play_all(enum action action) {
    struct running running[SIDE_BY_SIDE] = {{0}};
    unsigned n_running = 0;
    for (unsigned i = 0; i < plan->n || n_running;) {
        struct running *slot = running;
        if (i < plan->n && n_running < SIDE_BY_SIDE) {
            while (slot->pid) slot++;
            begin(slot, &plan->cases[i++], action);
            n_running++;
            continue;
        }
        int status;
        pid_t pid = wait(&status);
        while (slot->pid != pid) slot++;
        end(slot, status);
        n_running--;
    }
}

static bool was_hit(const char *label) {
    for (unsigned i = 0; i < plan->n; i++)
        if (plan->cases[i].outcome == HIT && !strcmp(plan->cases[i].label, label)) return true;
    return false;
}

/* No LEND_POINT of the source is left out. */
static void expect_every_point(void) {
    const char *source = getenv("LEND_TEST_SOURCE");
    char command[4096], label[LABEL_BYTES];
    unsigned n = 0, n_never = 0;
    if (!source) return;
    snprintf(command, sizeof command, "grep -rhoE 'LEND_POINT\\(\"[^\"]+' '%s/src' | cut -d'\"' -f2", source);
    FILE *labels = popen(command, "re");
    while (labels && fgets(label, sizeof label, labels)) {
        label[strcspn(label, "\n")] = '\0';
        n++;
        if (!strcmp(label, "sys.") || was_hit(label)) continue; /* the first: the pieces of the table's names */
        n_never++;
        printf("nobody was killed at %s\n", label);
    }
    if (!labels || pclose(labels) || !n) FAIL("the points of the source cannot be listed");
    if (n_never) FAIL("%u points of the source were never hit", n_never);
}

static void judge(const char *what) {
    unsigned n_hit = 0, n_missed = 0, n_failed = 0, n_points = 0;
    for (unsigned i = 0; i < plan->n; i++) {
        struct point_case *c = &plan->cases[i];
        n_hit += c->outcome == HIT;
        n_missed += c->outcome == MISSED;
        n_failed += c->outcome == FAILED;
        bool is_new = c->outcome == HIT;
        for (unsigned j = 0; j < i && is_new; j++)
            is_new = plan->cases[j].outcome != HIT || plan->cases[j].victim != c->victim ||
                     strcmp(plan->cases[j].label, c->label) != 0;
        n_points += is_new;
        if (is_new) printf("%s %s at %s\n", victim_names[c->victim], what, c->label);
    }
    printf("%u cases: %u %s, %u passed by, %u failed; %u different points\n", plan->n, n_hit, what, n_missed, n_failed,
           n_points);
    if (n_failed) FAIL("%u of the cases failed", n_failed);
    if (n_points < POINTS_MIN) FAIL("%u different points are fewer than %d", n_points, POINTS_MIN);
}

LEND_TEST_TIMED(the_others_go_on_when_one_is_killed, 3000) {
    make_plan(false);
    play_all(ACTION_KILL);
    judge("killed");
    expect_every_point();
    munmap(plan, sizeof *plan);
}

LEND_TEST_TIMED(the_others_go_on_while_one_is_stopped_and_then_it_too, 3000) {
    make_plan(true);
    play_all(ACTION_STOP);
    judge("stopped");
    munmap(plan, sizeof *plan);
}
