/* SPDX-License-Identifier: MIT */
/* A little world of three actors, one of which may be a victim that is killed or stopped at one point of one
 * scenario. A scenario is a script of asks; it returns false as soon as a death has cut it short. */
#ifndef LEND_TESTS_KILL_WORLD_H_
#define LEND_TESTS_KILL_WORLD_H_

#include "role.h"

#include <stdbool.h>

enum { A, B, C, N_ACTORS, CHILD = N_ACTORS, N_VICTIMS, NOBODY = -1 };

enum action { ACTION_NONE, ACTION_KILL, ACTION_STOP };

#define HANDLE_BYTES 10932 /* LEND_HANDLE_TEXT_MAX */

struct world {
    struct role actor[N_ACTORS];
    bool is_started[N_ACTORS], is_gone[N_ACTORS];
    int victim; /* A, B, C, CHILD (a forked child of whoever forks) or NOBODY */
    enum action action;
    const char *label;
    unsigned nth;
    bool was_hit;
    long deadline_ms;        /* of every call of every actor */
    char last[HANDLE_BYTES]; /* the last handle: what others try to rebuild while the victim is stopped */
    int last_fill;
    /* Counting: what each actor reported at its end; the child through its parent. */
    void (*on_point)(struct world *world, int who, const char *label, unsigned count);
    void *arg;
};

struct scenario {
    const char *name;
    bool (*run)(struct world *world);
    unsigned n_actors;
    bool has_fork;
};

extern const struct scenario scenarios[];
extern const unsigned n_scenarios;

/* Starts the actors that the scenario needs, runs it, lets the victim end, then sees to it that the survivors go on,
 * that a fresh pair can begin at once, that what was lent comes back, and that nothing is left. */
void world_play(struct world *world, const struct scenario *scenario);

/* Sends a line and gives what follows "ok" in the answer ("" if nothing does); NULL when a death has come between, with
 * a typed error or none at all. Static, valid until the next ask. Everything else fails the test. */
const char *ask(struct world *world, int who, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* For the scripts. `fill` of tensor i is 10 + i everywhere, and its name in a group is ti. */
bool do_ask(struct world *world, int who, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool ask_reduce(struct world *world, int who, int tensor, bool with_pin, char ret_handle[HANDLE_BYTES]);
bool ask_rebuild(struct world *world, int who, int tensor, const char *handle);
bool ask_group_reduce(struct world *world, int who, int group, bool with_pin, char ret_handle[HANDLE_BYTES]);
/* Stops an actor for a while, whoever is the victim; false where it is gone, or is to be stopped by its own point. */
bool world_pause(struct world *world, int who);
void world_go_on(struct world *world, int who);
/* Forks the actor; the child checks what it inherited, gives it back and ends. */
bool ask_fork(struct world *world, int who);

#endif
