/* SPDX-License-Identifier: MIT */
/* lend__point_hit. Called from any thread of the twin, between any two of its steps: takes no lock, allocates nothing
 * and uses no call of the table. Labels are kept in order of first hit, in a fixed array that only grows: a slot is
 * claimed by one compare-and-swap. */
#include "points.h"

#include "base/atomic.h"
#include "base/point.h"
#include "role.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LABELS_MAX = 1024, LABEL_BYTES = 96 };

static struct {
    const char *label; /* NULL: free */
    unsigned n_hits;
} seen[LABELS_MAX];

static struct {
    uint32_t is_set;
    char label[LABEL_BYTES];
    unsigned nth;
    enum point_action action;
    void (*fn)(void *arg);
    void *arg;
} trap;

static void set_trap(const char *label, unsigned nth, enum point_action action, void (*fn)(void *), void *arg) {
    lend__store_release(&trap.is_set, 0);
    snprintf(trap.label, sizeof trap.label, "%s", label);
    trap.nth = nth + points_count(label);
    trap.action = action;
    trap.fn = fn;
    trap.arg = arg;
    lend__store_release(&trap.is_set, 1);
}

void points_at(const char *label, unsigned nth, enum point_action action) {
    set_trap(label, nth, action, NULL, NULL);
}

void points_call_at(const char *label, unsigned nth, void (*fn)(void *arg), void *arg) {
    set_trap(label, nth, POINT_CALL, fn, arg);
}

/* The slot of a label, claimed if need be; -1 when the array is full. */
static int slot_of(const char *label) {
    for (int i = 0; i < LABELS_MAX; i++) {
        const char *l = lend__load_acquire(&seen[i].label);
        if (!l && lend__cas_acq_rel(&seen[i].label, &l, label)) return i;
        if (!strcmp(l, label)) return i;
    }
    return -1;
}

void lend__point_hit(const char *label) {
    int slot = slot_of(label);
    if (slot < 0) {
        static const char message[] = "more labels than points.c can keep\n";
        ssize_t n = write(2, message, sizeof message - 1);
        _exit(n < 0 ? 125 : 124);
    }
    unsigned before = lend__add_relaxed(&seen[slot].n_hits, 1);
    if (!lend__load_acquire(&trap.is_set) || before != trap.nth || strcmp(trap.label, label)) return;
    switch (trap.action) {
    case POINT_KILL: kill(getpid(), SIGKILL); break;
    case POINT_STOP:
        raise(SIGSTOP);
        break; /* this thread: kill() may stop another first, and this one goes on a while */
    case POINT_CALL: trap.fn(trap.arg); break;
    case POINT_COUNT: break;
    }
}

void points_reset(void) {
    lend__store_release(&trap.is_set, 0);
    for (int i = 0; i < LABELS_MAX; i++) lend__store_relaxed(&seen[i].n_hits, 0);
}

unsigned points_count(const char *label) {
    for (int i = 0; i < LABELS_MAX; i++) {
        const char *l = lend__load_acquire(&seen[i].label);
        if (!l) break;
        if (!strcmp(l, label)) return lend__load_relaxed(&seen[i].n_hits);
    }
    return 0;
}

const char *points_label(unsigned i) {
    return i < LABELS_MAX ? lend__load_acquire(&seen[i].label) : NULL;
}

void points_say(void) {
    const char *label;
    for (unsigned i = 0; (label = points_label(i)); i++) role_say("point %s %u", label, points_count(label));
    role_say("points end");
}

__attribute__((constructor)) static void read_environment(void) {
    const char *at = getenv("LEND_POINT_AT");
    char label[LABEL_BYTES], action[8];
    unsigned nth;
    if (!at || sscanf(at, "%95s %u %7s", label, &nth, action) != 3) return;
    points_at(label, nth, strcmp(action, "stop") ? POINT_KILL : POINT_STOP);
}
