/* SPDX-License-Identifier: MIT */
/* Other processes. A role is a function of the test program that runs in a process of its own, started by exec, so
 * that it shares no memory with the test; with is_detached it is not even a descendant. Test and role talk in lines:
 *
 *     LEND_ROLE(holder) { ...; role_say("holding %s", handle); role_hear(); return 0; }
 *
 *     struct role r;
 *     ROLE_START(&r, NULL, "holder", "3");
 *     const char *handle = role_expect(&r, "holding ");
 *     role_end(&r);
 *
 * A role that returns 0 must have left nothing behind, as a test. Checks work in it; a failed one ends it with 1. */
#ifndef LEND_TESTS_ROLE_H_
#define LEND_TESTS_ROLE_H_

#include "test.h"

#include <sys/types.h>

struct role_entry {
    const char *name;
    int (*run)(int argc, char **argv);
    struct role_entry *next;
};

void role_register(struct role_entry *entry);

/* argv[0] is the first argument given to ROLE_START after the name. */
#define LEND_ROLE(name)                                                   \
    static int role_##name(int argc, char **argv);                        \
    static struct role_entry entry_##name = {#name, role_##name, NULL};   \
    __attribute__((constructor)) static void register_role_##name(void) { \
        role_register(&entry_##name);                                     \
    }                                                                     \
    static int role_##name(__attribute__((unused)) int argc, __attribute__((unused)) char **argv)

#define ROLE_LINE_BYTES 16384

struct role {
    const char *name;
    pid_t pid; /* 0 when it has ended and was waited for */
    int fd;    /* both directions */
    bool is_detached;
    int exit_code; /* as role_wait gives it */
    size_t n_buffered, n_used;
    char buffer[ROLE_LINE_BYTES];
};

struct role_opts {
    bool is_detached;         /* forked twice and in a session of its own: its parent is the runner */
    uid_t uid;                /* 0: as the test */
    unsigned long nofile_max; /* 0: as the test */
    const char *exe;          /* another test program, or NULL for this one */
    const char *const *env;   /* "NAME=VALUE"... added to the environment, NULL-terminated; NULL: none */
};

/* Starts a role; the arguments are strings. Fails the test if it cannot. */
#define ROLE_START(role, opts, ...) role_start((role), (opts), __VA_ARGS__, (char *)NULL)
void role_start(struct role *role, const struct role_opts *opts, const char *name, ...) __attribute__((sentinel));

/* Sends one line. A role that has ended already is no failure here: the next expect tells. */
void role_send(struct role *role, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Next line of the role, without its end; NULL at the end of its output. Fails the test after `ms`. Valid until the
 * next call. */
const char *role_line(struct role *role, uint64_t ms);
/* Next line, within 10 s; it must begin with `prefix`. Returns the rest. */
const char *role_expect(struct role *role, const char *prefix);

/* Ends it by end of input and expects exit code 0. */
void role_end(struct role *role);
/* Waits for its end, 10 s at most, and closes the connection. Returns the exit code or 128 + signal; of a detached
 * role always 0, since only its parent learns it. */
int role_wait(struct role *role);
/* Sends a signal and waits for the end (SIGKILL) or until it is stopped (SIGSTOP). */
void role_kill(struct role *role, int signal);

/* Process state letter as in /proc/PID/stat; 0 when there is no such process. */
char process_state(pid_t pid);

/* For the role's side. Both act on standard input and output. role_hear gives NULL at end of input. */
void role_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *role_hear(void);

#endif
