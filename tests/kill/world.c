/* SPDX-License-Identifier: MIT */
/* The director: asks actors, notices deaths and stops, and judges what the survivors say. It is no user of the library
 * itself. One world lives in one process of its own, whose LEND_TEST_RUN is its pid: memory.c then counts only what
 * this world's actors hold. */
#include "world.h"

#include "memory.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_MS = 20000, DEATH_MS = 3000, DRAIN_MS = 4000, EXTRA_MS = 2000 };

static const char *const actor_names[] = {"A", "B", "C"};

/* --- talking ------------------------------------------------------------------------------------------------------ */

static bool line_within(struct role *role, int ms) {
    if (memchr(role->buffer + role->n_used, '\n', role->n_buffered - role->n_used)) return true;
    struct pollfd p = {.fd = role->fd, .events = POLLIN};
    return poll(&p, 1, ms) > 0;
}

static struct role *victim_of(struct world *world) {
    return world->victim >= 0 && world->victim < N_ACTORS ? &world->actor[world->victim] : NULL;
}

static bool is_victim_stopped(struct world *world) {
    struct role *victim = victim_of(world);
    return world->action == ACTION_STOP && !world->was_hit && victim && !world->is_gone[world->victim] &&
           process_state(victim->pid) == 'T';
}

static bool is_typed(int code) {
    return code == -EOWNERDEAD || code == -ESTALE || code == -EPIPE || code == -ETIMEDOUT || code == -EAGAIN;
}

/* The others go on while one is stopped: within their deadlines they get an answer, good or typed. */
static void look_around(struct world *world) {
    for (int i = 0; i < N_ACTORS; i++) {
        if (!world->is_started[i] || world->is_gone[i] || i == world->victim) continue;
        struct role *role = &world->actor[i];
        role_send(role, "check");
        const char *line = role_line(role, (uint64_t)world->deadline_ms + EXTRA_MS);
        if (!line || strcmp(line, "ok"))
            FAIL("while %s is stopped, %s checks itself: %s", actor_names[world->victim], role->name, line);
        if (!world->last[0]) continue;
        role_send(role, "probe %d %s", world->last_fill, world->last);
        line = role_line(role, (uint64_t)world->deadline_ms + EXTRA_MS);
        int code = 0;
        if (line && sscanf(line, "error %d", &code) == 1 ? !is_typed(code) : !line || strcmp(line, "ok"))
            FAIL("while %s is stopped, %s rebuilds: %s", actor_names[world->victim], role->name, line);
    }
}

static void resume(struct world *world) {
    world->was_hit = true;
    if (kill(victim_of(world)->pid, SIGCONT)) FAIL("SIGCONT: %s", strerror(errno));
}

/* Waits for a line of `who`. A victim that stops in its own work holds up its answer; the others are looked after
 * first. When another actor waits for the victim, its own deadline must bring it back. */
static const char *await(struct world *world, int who) {
    struct role *role = &world->actor[who];
    uint64_t deadline = test_deadline_ms(ANSWER_MS);
    while (world->action == ACTION_STOP && !world->was_hit && !line_within(role, 5)) {
        if (who == world->victim && is_victim_stopped(world)) {
            look_around(world);
            resume(world);
        }
        if (test_now_ms() >= deadline) FAIL("%s does not answer", actor_names[who]);
    }
    return role_line(role, ANSWER_MS);
}

static void mark_dead(struct world *world) {
    int code = role_wait(&world->actor[world->victim]);
    if (code != 128 + SIGKILL) FAIL("%s ended with %d instead of its kill", actor_names[world->victim], code);
    world->is_gone[world->victim] = world->was_hit = true;
}

/* An actor's error is in order only when it tells, in one of the words for it, of a death that happened. */
static void expect_death(struct world *world, int who, int code, const char *line) {
    if (world->action != ACTION_KILL || !is_typed(code) || code == -EAGAIN || code == -ETIMEDOUT)
        FAIL("%s says: %s", actor_names[who], line);
    if (world->was_hit) return;
    struct role *victim = victim_of(world);
    if (!victim || who == world->victim) FAIL("%s says: %s", actor_names[who], line);
    uint64_t deadline = test_deadline_ms(DEATH_MS);
    for (char state; (state = process_state(victim->pid)) && state != 'Z'; test_pause())
        if (test_now_ms() >= deadline) FAIL("nobody died, and %s says: %s", actor_names[who], line);
    mark_dead(world);
}

static void read_points(struct world *world, int who) {
    for (const char *line; (line = role_line(&world->actor[who], ANSWER_MS));) {
        char label[96];
        unsigned count;
        if (!strcmp(line, "points end")) return;
        if (sscanf(line, "point %95s %u", label, &count) == 2 && world->on_point)
            world->on_point(world, who, label, count);
    }
    if (who != world->victim) FAIL("%s ended in the middle of its points", actor_names[who]);
}

/* Lines of a forked child may come before that of its parent. True: it was one. */
static bool is_childs(struct world *world, const char *line) {
    char label[96];
    unsigned count;
    if (strncmp(line, "child ", 6)) return false;
    if (!strncmp(line, "child bad", 9)) FAIL("the forked child says: %s", line);
    if (sscanf(line, "child point %95s %u", label, &count) == 2 && world->on_point)
        world->on_point(world, CHILD, label, count);
    return true;
}

static const char *ask_once(struct world *world, int who, const char *sent, bool *ret_again) {
    static char answer[ROLE_LINE_BYTES];
    role_send(&world->actor[who], "%s", sent);
    const char *line;
    do line = await(world, who);
    while (line && is_childs(world, line));
    *ret_again = false;
    if (!line) {
        if (who != world->victim || world->action != ACTION_KILL)
            FAIL("%s ended with %d at \"%.20s\"", actor_names[who], role_wait(&world->actor[who]), sent);
        mark_dead(world);
        return NULL;
    }
    if (!strncmp(line, "ok", 2)) {
        snprintf(answer, sizeof answer, "%s", line[2] ? line + 3 : "");
        return answer;
    }
    int code = 0;
    sscanf(line, "error %d", &code);
    if (is_victim_stopped(world) && is_typed(code)) {
        look_around(world);
        resume(world);
        *ret_again = true;
        return NULL;
    }
    expect_death(world, who, code, line);
    return NULL;
}

const char *ask(struct world *world, int who, const char *format, ...) {
    char sent[ROLE_LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(sent, sizeof sent, format, args);
    va_end(args);
    if (world->is_gone[who]) return NULL;
    bool again;
    const char *answer = ask_once(world, who, sent, &again);
    if (again) answer = ask_once(world, who, sent, &again);
    if (answer && !strcmp(sent, "quit")) {
        read_points(world, who);
        int code = role_wait(&world->actor[who]);
        world->is_gone[who] = true;
        if (code == 128 + SIGKILL && who == world->victim && world->action == ACTION_KILL)
            world->was_hit = true;
        else if (code)
            FAIL("%s ended with %d", actor_names[who], code);
    }
    return answer;
}

bool do_ask(struct world *world, int who, const char *format, ...) {
    char sent[ROLE_LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(sent, sizeof sent, format, args);
    va_end(args);
    return ask(world, who, "%s", sent) != NULL;
}

/* What `who` answers to a word that makes a handle. */
static bool take_handle(struct world *world, const char *handle, int fill, bool with_pin, char ret[HANDLE_BYTES]) {
    if (!handle) return false;
    snprintf(ret, HANDLE_BYTES, "%.*s", HANDLE_BYTES - 1, handle);
    if (!with_pin) { /* a probe would use up a pin */
        memcpy(world->last, ret, HANDLE_BYTES);
        world->last_fill = fill;
    }
    return true;
}

bool ask_reduce(struct world *world, int who, int tensor, bool with_pin, char ret_handle[HANDLE_BYTES]) {
    return take_handle(world, ask(world, who, "reduce %d %d", tensor, with_pin), 10 + tensor, with_pin, ret_handle);
}

bool ask_group_reduce(struct world *world, int who, int group, bool with_pin, char ret_handle[HANDLE_BYTES]) {
    return take_handle(world, ask(world, who, "greduce %d %d", group, with_pin), 0, with_pin, ret_handle);
}

bool ask_rebuild(struct world *world, int who, int tensor, const char *handle) {
    return do_ask(world, who, "rebuild %d %d %s", tensor, 10 + tensor, handle);
}

bool world_pause(struct world *world, int who) {
    struct role *role = &world->actor[who];
    if (world->is_gone[who] || world->action == ACTION_STOP || kill(role->pid, SIGSTOP)) return false;
    for (char state; (state = process_state(role->pid)) != 'T'; test_pause())
        if (!state || state == 'Z') return false;
    return true;
}

void world_go_on(struct world *world, int who) {
    if (!world->is_gone[who]) kill(world->actor[who].pid, SIGCONT);
}

bool ask_fork(struct world *world, int who) {
    const char *answer = world->victim == CHILD && world->action == ACTION_KILL
                             ? ask(world, who, "forkat %s %u", world->label, world->nth)
                             : ask(world, who, "fork %d", world->on_point != NULL);
    if (!answer) return false;
    int status = atoi(answer);
    if (status == 128 + SIGKILL && world->victim == CHILD)
        world->was_hit = true;
    else if (status)
        FAIL("the forked child ended with %d", status);
    return true;
}

/* --- the play ----------------------------------------------------------------------------------------------------- */

static void start(struct world *world, int who) {
    char at[128];
    const char *env[] = {at, NULL};
    struct role_opts opts = {.env = who == world->victim && world->action != ACTION_NONE ? env : NULL};
    snprintf(at, sizeof at, "LEND_POINT_AT=%s %u %s", world->label, world->nth,
             world->action == ACTION_STOP ? "stop" : "kill");
    ROLE_START(&world->actor[who], &opts, "actor");
    world->is_started[who] = true;
}

/* The victim comes to its end: by its point, or else in good order. */
static void finish_victim(struct world *world) {
    int who = world->victim;
    if (who < 0 || who >= N_ACTORS || world->is_gone[who]) return;
    do_ask(world, who, "dropall");
    do_ask(world, who, "quit");
    if (!world->is_gone[who]) FAIL("%s is still there", actor_names[who]);
}

/* Two processes that know nothing of what happened hand a tensor over, pinned, and end. */
static void play_fresh_pair(void) {
    struct world fresh = {.victim = NOBODY, .deadline_ms = 5000};
    char handle[HANDLE_BYTES];
    start(&fresh, A);
    start(&fresh, B);
    do_ask(&fresh, A, "open %ld", fresh.deadline_ms);
    do_ask(&fresh, B, "open %ld", fresh.deadline_ms);
    do_ask(&fresh, A, "new 0 3000 10");
    ask_reduce(&fresh, A, 0, true, handle);
    do_ask(&fresh, A, "drop 0");
    ask_rebuild(&fresh, B, 0, handle);
    do_ask(&fresh, B, "check");
    do_ask(&fresh, B, "drop 0");
    do_ask(&fresh, A, "drained %d", DRAIN_MS);
    do_ask(&fresh, A, "quit");
    do_ask(&fresh, B, "quit");
}

/* The survivors serve one another as before. An exporter that lives must take a newcomer's contact. */
static void survivors_go_on(struct world *world) {
    char handle[HANDLE_BYTES];
    bool has_exporter = !world->is_gone[A];
    if (has_exporter) {
        do_ask(world, A, "new 9 3000 19");
        ask_reduce(world, A, 9, false, handle);
    }
    for (int i = B; has_exporter && i < N_ACTORS; i++)
        if (world->is_started[i] && !world->is_gone[i]) ask_rebuild(world, i, 9, handle);
}

static void finish_survivors(struct world *world) {
    static const char *const words[] = {"dropall", "drained 4000", "empty", "quit"};
    for (int i = 0; i < N_ACTORS; i++)
        if (world->is_started[i] && !world->is_gone[i] && !ask(world, i, "check")) FAIL("a check came back empty");
    survivors_go_on(world);
    /* Importers let go first: what they held must come back to the exporter. */
    for (unsigned w = 0; w < 4; w++)
        for (int i = 0; i < N_ACTORS; i++)
            if (world->is_started[i] && !world->is_gone[i] && !ask(world, i, "%s", words[w]))
                FAIL("%s came back empty", words[w]);
}

static void expect_nothing_left(void) {
    struct memory_count count = memory_count();
    if (count.n_inodes)
        FAIL("%u shared memory files are left, of %llu bytes", count.n_inodes, (unsigned long long)count.bytes);
}

void world_play(struct world *world, const struct scenario *scenario) {
    char mark[16];
    snprintf(mark, sizeof mark, "%d", (int)getpid());
    setenv("LEND_TEST_RUN", mark, 1);
    for (unsigned i = 0; i < scenario->n_actors; i++) start(world, (int)i);
    scenario->run(world);
    finish_victim(world);
    if (world->action != ACTION_NONE) play_fresh_pair();
    finish_survivors(world);
    CHECK_EVENTUALLY(1000, memory_count().n_inodes == 0);
    expect_nothing_left();
}
