/* SPDX-License-Identifier: MIT */
/* The kill matrix. Each scenario is played once per role to learn which points (LEND_POINTs, and both sides of every
 * system call) that role passes and how often; then, for every such point, fresh processes play it again and the role
 * is killed, or stopped, exactly there. Cases run side by side in processes of their own.
 *
 * By default a sample: every LEND_POINT of every role in every scenario at its first and last hit, and every system
 * call of every role in the first scenario that has it. LEND_KILL_FULL=1 takes the first three hits and the last of
 * everything. */
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
} *plan;

static const char *const victim_names[] = {"A", "B", "C", "child"};

static bool is_full(void) {
    const char *value = getenv("LEND_KILL_FULL");
    return value && *value && strcmp(value, "0");
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
    if (who != counting->victim || !count || !strncmp(label, "sys.calloc", 10) || !strncmp(label, "sys.realloc", 11)) return;
    if (!is_full() && (is_call || counting->first_only) && is_known(who, label)) return;
    unsigned first = is_full() && !counting->first_only ? 3 : 1;
    for (unsigned nth = 0; nth < first && nth < count; nth++) add(counting->scenario, who, label, nth);
    bool with_last = !counting->first_only && (is_full() || !is_call);
    if (with_last && count > first) add(counting->scenario, who, label, count - 1);
}

/* Plays without harm, with the victim-to-be ending first, as it will. */
static void learn(unsigned scenario, int victim, bool first_only) {
    struct counting counting = {scenario, victim, first_only};
    struct world world = {.victim = victim, .action = ACTION_NONE, .deadline_ms = 5000, .on_point = on_point, .arg = &counting};
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

static unsigned side_by_side(void) {
    const char *value = getenv("LEND_KILL_JOBS");
    return value && atoi(value) > 0 ? (unsigned)atoi(value) : SIDE_BY_SIDE;
}

static void play_all(enum action action) {
    unsigned n_running = 0;
    for (unsigned i = 0; i < plan->n || n_running;) {
        if (i < plan->n && n_running < side_by_side()) {
            fflush(NULL);
            pid_t pid = fork();
            if (pid < 0) FAIL("fork");
            if (!pid) {
                printf("case %s %s %s %u\n", scenarios[plan->cases[i].scenario].name, victim_names[plan->cases[i].victim],
                       plan->cases[i].label, plan->cases[i].nth);
                /* Said only when the case fails: a process that ends well throws its buffer away. */
                play(&plan->cases[i], action);
            }
            n_running++;
            i++;
            continue;
        }
        int status;
        if (wait(&status) > 0) n_running--;
    }
}

static void judge(const char *what) {
    unsigned n_hit = 0, n_missed = 0, n_failed = 0, n_points = 0;
    for (unsigned i = 0; i < plan->n; i++) {
        struct point_case *c = &plan->cases[i];
        n_hit += c->outcome == HIT;
        n_missed += c->outcome == MISSED;
        if (c->outcome == FAILED) {
            n_failed++;
            printf("failed: %s, %s %s at %s, hit %u\n", scenarios[c->scenario].name, victim_names[c->victim], what, c->label, c->nth);
        }
        bool is_new = c->outcome == HIT;
        for (unsigned j = 0; j < i && is_new; j++)
            is_new = plan->cases[j].outcome != HIT || plan->cases[j].victim != c->victim || strcmp(plan->cases[j].label, c->label) != 0;
        n_points += is_new;
    }
    printf("%u cases: %u %s, %u passed by, %u failed; %u different points\n", plan->n, n_hit, what, n_missed, n_failed, n_points);
    munmap(plan, sizeof *plan);
    if (n_failed) FAIL("%u of the cases failed", n_failed);
    if (n_points < POINTS_MIN) FAIL("%u different points are fewer than %d", n_points, POINTS_MIN);
}

LEND_TEST_TIMED(the_others_go_on_when_one_is_killed, 3000) {
    make_plan(false);
    play_all(ACTION_KILL);
    judge("killed");
}

LEND_TEST_TIMED(the_others_go_on_while_one_is_stopped_and_then_it_too, 3000) {
    make_plan(true);
    play_all(ACTION_STOP);
    judge("stopped");
}
