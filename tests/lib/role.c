/* SPDX-License-Identifier: MIT */
/* Roles: start by fork and exec of this program, lines over one socket pair (so that writing to a dead role gives
 * EPIPE and no signal), and waiting with deadlines. */
#include "role.h"

#include "drop.h"
#include "leftovers.h"
#include "runner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROLE_ARGS_MAX = 32, ROLE_WAIT_MS = 10000 };

static struct role_entry *roles;

void role_register(struct role_entry *entry) {
    entry->next = roles;
    roles = entry;
}

int test_role_main(int argc, char **argv) {
    for (struct role_entry *e = roles; e; e = e->next) {
        if (strcmp(e->name, argv[2])) continue;
        char *before = leftovers_snapshot();
        int r = e->run(argc - 3, argv + 3);
        if (!r) leftovers_check(before);
        free(before);
        return r;
    }
    fprintf(stderr, "%s has no role %s\n", argv[0], argv[2]);
    return 2;
}

static void become(const struct role_opts *opts, int fd, char **argv) __attribute__((noreturn));
static void become(const struct role_opts *opts, int fd, char **argv) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(fd, 0);
    dup2(fd, 1);
    for (const char *const *e = opts->env; e && *e; e++) {
        const char *value = strchr(*e, '=');
        char name[128];
        snprintf(name, sizeof name, "%.*s", value ? (int)(value - *e) : 0, *e);
        if (value) setenv(name, value + 1, 1);
    }
    int r = drop_to(opts->uid, opts->nofile_max);
    if (r < 0) {
        fprintf(stderr, "cannot become user %d: %s\n", (int)opts->uid, strerror(-r));
        _exit(126);
    }
    execv(opts->exe ? opts->exe : "/proc/self/exe", argv);
    fprintf(stderr, "cannot execute %s: %s\n", opts->exe ? opts->exe : "myself", strerror(errno));
    _exit(127);
}

/* Forks a second time in a new session; the one between ends, so that the grandchild gets another parent. */
static pid_t detach(const struct role_opts *opts, int fd, char **argv) {
    int tell[2];
    pid_t pid = -1;
    if (pipe(tell)) FAIL("pipe: %s", strerror(errno));
    pid_t between = fork();
    if (between < 0) FAIL("fork: %s", strerror(errno));
    if (!between) {
        setsid();
        pid = fork();
        if (!pid) {
            close(tell[0]);
            close(tell[1]);
            become(opts, fd, argv);
        }
        ssize_t n = write(tell[1], &pid, sizeof pid);
        _exit(n == sizeof pid ? 0 : 1);
    }
    close(tell[1]);
    ssize_t n = read(tell[0], &pid, sizeof pid);
    close(tell[0]);
    waitpid(between, NULL, 0);
    return n == sizeof pid ? pid : -1;
}

void role_start(struct role *role, const struct role_opts *opts, const char *name, ...) {
    static const struct role_opts defaults;
    static char program[] = "role", option[] = "--role";
    char *argv[ROLE_ARGS_MAX + 1] = {program, option};
    int pair[2], n = 2;
    if (test_is_emulated()) SKIP("needs a second process by exec, which the emulator cannot give");
    if (!opts) opts = &defaults;
    argv[n++] = strdup(name);
    va_list args;
    va_start(args, name);
    for (char *arg; (arg = va_arg(args, char *));) {
        if (n == ROLE_ARGS_MAX) FAIL("too many arguments for a role");
        argv[n++] = arg;
    }
    va_end(args);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) FAIL("socketpair: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = opts->is_detached ? detach(opts, pair[1], argv) : fork();
    if (!pid) become(opts, pair[1], argv);
    free(argv[2]);
    close(pair[1]);
    if (pid < 0) FAIL("cannot start role %s: %s", name, strerror(errno));
    role->name = name;
    role->pid = pid;
    role->fd = pair[0];
    role->is_detached = opts->is_detached;
    role->exit_code = -1;
    role->n_buffered = role->n_used = 0;
}

void role_send(struct role *role, const char *format, ...) {
    char line[ROLE_LINE_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof line - 1) FAIL("a line for role %s is too long", role->name);
    line[n++] = '\n';
    for (int sent = 0; sent < n;) {
        ssize_t r = send(role->fd, line + sent, (size_t)(n - sent), MSG_NOSIGNAL);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return;
        sent += (int)r;
    }
}

const char *role_line(struct role *role, uint64_t ms) {
    uint64_t deadline = test_deadline_ms(ms);
    memmove(role->buffer, role->buffer + role->n_used, role->n_buffered - role->n_used);
    role->n_buffered -= role->n_used;
    role->n_used = 0;
    for (;;) {
        char *end = memchr(role->buffer, '\n', role->n_buffered);
        if (end) {
            *end = '\0';
            role->n_used = (size_t)(end - role->buffer) + 1;
            return role->buffer;
        }
        if (role->n_buffered == sizeof role->buffer) FAIL("role %s wrote a line that is too long", role->name);
        uint64_t now = test_now_ms();
        struct pollfd p = {.fd = role->fd, .events = POLLIN};
        if (now >= deadline) FAIL("role %s (pid %d) said nothing for %d ms", role->name, (int)role->pid, (int)ms);
        if (poll(&p, 1, (int)(deadline - now)) <= 0) continue;
        ssize_t n = read(role->fd, role->buffer + role->n_buffered, sizeof role->buffer - role->n_buffered);
        if (n == 0 || (n < 0 && errno == ECONNRESET)) return NULL;
        if (n > 0) role->n_buffered += (size_t)n;
    }
}

const char *role_expect(struct role *role, const char *prefix) {
    const char *line = role_line(role, ROLE_WAIT_MS);
    if (!line) FAIL("role %s ended with %d; expected \"%s\"", role->name, role_wait(role), prefix);
    if (strncmp(line, prefix, strlen(prefix))) FAIL("role %s said \"%s\"; expected \"%s\"", role->name, line, prefix);
    return line + strlen(prefix);
}

/* Has it ended? Takes the exit code of a child of ours. */
static bool has_ended(struct role *role) {
    int status;
    if (role->is_detached) {
        if (process_state(role->pid)) return false;
        role->exit_code = 0;
        return true;
    }
    if (waitpid(role->pid, &status, WNOHANG) != role->pid) return false;
    role->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

int role_wait(struct role *role) {
    if (!role->pid) return role->exit_code;
    uint64_t deadline = test_deadline_ms(ROLE_WAIT_MS);
    while (!has_ended(role)) {
        if (test_now_ms() >= deadline) FAIL("role %s (pid %d) does not end", role->name, (int)role->pid);
        test_pause();
    }
    close(role->fd);
    role->fd = -1;
    role->pid = 0;
    return role->exit_code;
}

void role_end(struct role *role) {
    shutdown(role->fd, SHUT_WR);
    int code = role_wait(role);
    if (code) FAIL("role %s ended with %d", role->name, code);
}

void role_kill(struct role *role, int signal) {
    if (kill(role->pid, signal)) FAIL("kill of role %s: %s", role->name, strerror(errno));
    if (signal == SIGKILL) role_wait(role);
    if (signal == SIGSTOP) CHECK_EVENTUALLY(ROLE_WAIT_MS, process_state(role->pid) == 'T');
}

char process_state(pid_t pid) {
    char path[64], stat[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t bytes = fread(stat, 1, sizeof stat - 1, file);
    fclose(file);
    stat[bytes] = '\0';
    const char *close = strrchr(stat, ')');
    if (close) sscanf(close + 1, " %c", &state);
    return state;
}

void role_say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    fflush(stdout);
}

const char *role_hear(void) {
    static char line[ROLE_LINE_BYTES];
    if (!fgets(line, sizeof line, stdin)) return NULL;
    line[strcspn(line, "\n")] = '\0';
    return line;
}
