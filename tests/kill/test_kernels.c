/* SPDX-License-Identifier: MIT */
/* The scripts on older kernels and on one where the locks of open files do not work: everything is handed over, and
 * the death of an importer, a forwarder and an exporter is noticed all the same. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *scenario;
    int victim;
    const char *label;
} kills[] = {
    {"hand-over", A, "L8.limbo"},
    {"hand-over", B, "L2.adopted"},
    {"hand-over", B, "C7.installed"},
    {"warm", B, "L2.adopted"},
    {"pin", B, "P2.used"},
    {"pin", B, "L1.counted"},
    {"pin", A, "P3.consume"},
    {"forward", B, "L3.given-back"},
    {"forward", C, "L2.word-read"},
    {"message", A, "S1.sent"},
    {"message", B, "S3.rebuilt"},
    {"cancel", B, "P7.cancel"},
    {"group", B, "L2.adopted"},
    {"group", A, "A7.group-reduced"},
    {"group-forward", B, "C3.sent"},
    {"group-message", A, "S4.tree-sent"},
};

static const struct scenario *find(const char *name) {
    for (unsigned i = 0; i < n_scenarios; i++)
        if (!strcmp(scenarios[i].name, name)) return &scenarios[i];
    FAIL("no scenario %s", name);
}

static void play(const struct scenario *scenario, int victim, const char *label) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) FAIL("fork");
    if (!pid) {
        struct world world = {
            .victim = victim, .action = label ? ACTION_KILL : ACTION_NONE, .label = label, .deadline_ms = 5000};
        world_play(&world, scenario);
        if (label && !world.was_hit) FAIL("nobody came by %s", label);
        fflush(NULL);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status) FAIL("%s fails%s%s", scenario->name, label ? " with a death at " : "", label ? label : "");
}

/* What needs a lock that follows the last mapping: forked children, and what comes from a dead exporter to a process
 * that never met it. */
static bool needs_locks(const struct scenario *scenario) {
    return scenario->has_fork || !strcmp(scenario->name, "message-of-the-dead") ||
           !strcmp(scenario->name, "group-of-the-dead") || !strcmp(scenario->name, "inheritance");
}

static void play_on(const char *kernel, bool with_locks) {
    setenv("LEND_TEST_KERNEL", kernel, 1);
    for (unsigned i = 0; i < n_scenarios; i++)
        if (with_locks || !needs_locks(&scenarios[i])) play(&scenarios[i], NOBODY, NULL);
    for (unsigned i = 0; i < sizeof kills / sizeof kills[0]; i++)
        /* There, too, the sender is dead before the receipt. */
        if (with_locks || (strcmp(kills[i].label, "S1.sent") != 0 && strcmp(kills[i].label, "S4.tree-sent") != 0))
            play(find(kills[i].scenario), kills[i].victim, kills[i].label);
}

LEND_TEST(linux_5_4) {
    play_on("5.4", true);
}

LEND_TEST(linux_5_15_and_6_1) {
    play_on("6.1", true);
}

/* Where open-file locks work nobody needs a pidfd. */
LEND_TEST(no_pidfds) {
    play_on("5.4 no-pidfd", true);
}

/* Forked children are not seen there (docs/fork.md), so what is tested is the rest. */
LEND_TEST(no_locks_of_open_files) {
    play_on("no-locks", false);
}

LEND_TEST(no_locks_of_open_files_on_linux_5_4) {
    play_on("5.4 no-locks", false);
}
