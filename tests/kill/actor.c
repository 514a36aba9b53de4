/* SPDX-License-Identifier: MIT */
/* The process that the kill tests play with: exporter, importer and forwarder in one. It does what the lines on its
 * input say and answers each with one line: "ok ..." or "error CODE TEXT". Every tensor is filled with one byte, so
 * that "wrong bytes" is seen at once. A forked child answers for itself with a line that begins with "child". */
#include "actor.h"

#include "base/sys.h"
#include "points.h"
#include "role.h"
#include "share/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct actor me = {.listener = -1, .connection = -1, .child_end = -1};

/* NULL when everything is as it must be. */
static const char *what_is_wrong(void) {
    for (int i = 0; i < TENSORS; i++)
        if (me.tensor[i] && !is_filled(me.tensor[i], me.fill[i])) return "wrong bytes";
    for (int i = 0; i < GROUPS; i++)
        if (me.group[i] && !is_group_filled(me.group[i])) return "wrong bytes in a group";
    return lend_check(&me.error) < 0 ? me.error.text : NULL;
}

void answer(int code) {
    if (code < 0)
        role_say("error %d %s", code, me.error.text);
    else
        role_say("ok");
}

void answer_handle(const void *handle, size_t bytes, bool with_pin) {
    char *text = malloc(LEND_HANDLE_TEXT_BYTES(bytes));
    int r = text ? lend_handle_format(handle, bytes, text, LEND_HANDLE_TEXT_BYTES(bytes)) : -ENOMEM;
    if (r < 0)
        answer(r);
    else
        role_say("ok %s", text);
    if (r >= 0 && with_pin && me.n_pinned < PINS)
        me.pinned[me.n_pinned++] = text;
    else
        free(text);
}

static void answer_wrong(const char *wrong) {
    if (wrong)
        role_say("error -1 %s", wrong);
    else
        role_say("ok");
}

/* --- words of the script ---------------------------------------------------------------------------------------- */

static int do_open(long deadline_ms) {
    struct lend_opts opts = {.size = sizeof opts, .deadline_ns = deadline_ms * 1000000, .pin_orphan_ns = 300000000};
    int r = lend_open(&opts, &me.error);
    return r < 0 ? r : lend_pool_new(NULL, &me.pool, &me.error);
}

static int do_new(int i, int64_t bytes, int fill) {
    int r = lend_tensor_new(me.pool, (DLDataType){kDLUInt, 8, 1}, 1, &bytes, &me.tensor[i], &me.error);
    if (r < 0) return r;
    memset(lend_tensor_data(me.tensor[i]), fill, (size_t)bytes);
    me.fill[i] = (uint8_t)fill;
    return 0;
}

static void do_reduce(int i, bool with_pin) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = with_pin ? LEND_REDUCE_PIN : 0};
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    int r = lend_reduce(me.tensor[i], &opts, handle, sizeof handle, &n, &me.error);
    if (r < 0)
        answer(r);
    else
        answer_handle(handle, n, with_pin);
}

static int do_rebuild(int i, int fill, const char *text) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    int r = lend_handle_parse(text, handle, sizeof handle, &n);
    if (r >= 0) r = lend_rebuild(handle, n, NULL, &me.tensor[i], &me.error);
    if (r < 0) return r;
    me.fill[i] = (uint8_t)fill;
    return 0;
}

static void do_drop(int i) {
    lend_tensor_unref(me.tensor[i]);
    me.tensor[i] = NULL;
}

/* The handle must be stale. */
static int do_stale(const char *text) {
    int r = do_rebuild(TENSORS - 1, 0, text);
    if (r >= 0) do_drop(TENSORS - 1);
    return r == -ESTALE ? 0 : r < 0 ? r : -1;
}

static int do_cancel(const char *text) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    int r = lend_handle_parse(text, handle, sizeof handle, &n);
    return r < 0 ? r : lend_pin_cancel(handle, n, 0, &me.error);
}

static void do_drop_tensors(void) {
    for (int i = 0; i < TENSORS; i++) do_drop(i);
    for (int i = 0; i < GROUPS; i++) {
        lend_group_unref(me.group[i]);
        me.group[i] = NULL;
    }
}

/* Lets go of everything, pins included; whoever is dead by now needs no cancel. */
static void do_drop_all(void) {
    do_drop_tensors();
    for (int i = 0; i < me.n_pinned; i++) {
        do_cancel(me.pinned[i]);
        free(me.pinned[i]);
    }
    me.n_pinned = 0;
}

static int do_probe(int fill, const char *text) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    struct lend_handle_info info = {.size = sizeof info};
    size_t n = 0;
    int r = lend_handle_parse(text, handle, sizeof handle, &n);
    if (r >= 0) r = lend_handle_describe(handle, n, &info, &me.error);
    if (r >= 0 && info.kind == LEND_HANDLE_GROUP) return probe_group(handle, n);
    if (r >= 0) r = do_rebuild(TENSORS - 1, fill, text);
    if (r < 0) return r;
    bool good = is_filled(me.tensor[TENSORS - 1], (uint8_t)fill);
    do_drop(TENSORS - 1);
    return good ? 0 : -1;
}

static bool is_drained(void) {
    lend__ledger_lock();
    bool yes = !lend__ledger.n_limbo && !lend__ledger.n_pins;
    lend__ledger_unlock();
    struct lend_pool_stats stats = {.size = sizeof stats};
    return yes && lend_pool_stats(me.pool, &stats) >= 0 && !stats.limbo_bytes;
}

/* Whatever we dropped is reusable within that time. */
static void do_drained(long ms) {
    uint64_t deadline = test_deadline_ms((uint64_t)ms);
    while (!is_drained()) {
        if (test_now_ms() >= deadline) {
            role_say("error %d limbo %u, pins %u, pages %u", -ETIMEDOUT, lend__ledger.n_limbo, lend__ledger.n_pins,
                     lend__ledger.n_pages);
            return;
        }
        test_pause();
    }
    answer_wrong(what_is_wrong());
}

/* Everything is dropped and drained: no storage is lent and no block is in use, as soon as the service thread has
 * brought back what it holds in its hands. */
static void do_empty(void) {
    struct lend_pool_stats stats = {.size = sizeof stats};
    uint64_t deadline = test_deadline_ms(1000);
    do {
        test_pause();
        lend_pool_stats(me.pool, &stats);
    } while ((lend__ledger.n_lent || stats.allocated_bytes) && test_now_ms() < deadline);
    if (lend__ledger.n_lent || stats.allocated_bytes)
        role_say("error -1 %llu storages lent, %llu bytes in use", (unsigned long long)lend__ledger.n_lent,
                 (unsigned long long)stats.allocated_bytes);
    else
        role_say("ok");
}

static int do_trim(void) {
    uint64_t bytes;
    return lend_pool_trim(me.pool, 0, &bytes);
}

static socklen_t name_of(const char *name, struct sockaddr_un *ret) {
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "kill-test-%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int do_listen(const char *name) {
    struct sockaddr_un address;
    socklen_t bytes = name_of(name, &address);
    me.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return bind(me.listener, (struct sockaddr *)&address, bytes) || listen(me.listener, 4) ? -errno : 0;
}

static int do_connect(const char *name) {
    struct sockaddr_un address;
    socklen_t bytes = name_of(name, &address);
    me.connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(me.connection, (struct sockaddr *)&address, bytes) ? -errno : 0;
}

static int do_accept(void) {
    me.connection = accept4(me.listener, NULL, NULL, SOCK_CLOEXEC);
    return me.connection < 0 ? -errno : 0;
}

static int do_send(int i) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .pin_ns_max = SEND_PIN_MS * 1000000ull};
    return lend_send(me.connection, me.tensor[i], &opts, 0, &me.error);
}

static int do_recv(int i, int fill) {
    int r = lend_recv(me.connection, NULL, 0, &me.tensor[i], &me.error);
    me.fill[i] = (uint8_t)fill;
    return r;
}

static void hang_up(void) {
    if (me.listener >= 0) close(me.listener);
    if (me.connection >= 0) close(me.connection);
    me.listener = me.connection = -1;
}

static int do_close(void) {
    do_drop_all();
    hang_up();
    lend_pool_unref(me.pool);
    me.pool = NULL;
    return lend_close(&me.error);
}

static int do_report(void) {
    struct lend_exporter *exporters = NULL;
    size_t n = 0;
    int r = lend_exporters_find(&exporters, &n, &me.error);
    lend_free(exporters);
    struct lend_report_peer *peers = NULL;
    if (r >= 0) r = lend_peers_list(&peers, &n, &me.error);
    lend_free(peers);
    return r;
}

/* --- fork ------------------------------------------------------------------------------------------------------- */

/* Registered before the library's own handlers, so it is the first to run in the child. */
static void in_child(void) {
    if (me.child_label[0])
        points_at(me.child_label, me.child_nth, POINT_KILL);
    else
        points_reset();
}

static void be_child(bool counts) __attribute__((noreturn));
static void be_child(bool counts) {
    const char *wrong = what_is_wrong();
    int r = wrong ? 0 : do_close();
    for (int i = 0; counts && points_label((unsigned)i); i++)
        if (points_count(points_label((unsigned)i)))
            role_say("child point %s %u", points_label((unsigned)i), points_count(points_label((unsigned)i)));
    if (wrong)
        role_say("child bad %s", wrong);
    else if (r < 0)
        role_say("child bad %s", me.error.text);
    else
        role_say("child ok");
    _exit(0);
}

/* The child's own handles with pins are the parent's to cancel. */
static void do_fork(const char *label, unsigned nth, bool counts) {
    snprintf(me.child_label, sizeof me.child_label, "%s", label ? label : "");
    me.child_nth = nth;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        me.n_pinned = 0;
        be_child(counts);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    me.child_label[0] = '\0';
    const char *wrong = what_is_wrong();
    if (wrong)
        role_say("error -1 %s", wrong);
    else
        role_say("ok %d", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

/* The child holds what it has until "join". */
static void do_fork_and_wait(void) {
    int ends[2];
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC)) abort();
    me.child = fork();
    if (!me.child) {
        char byte;
        close(ends[1]);
        while (read(ends[0], &byte, 1) > 0) continue;
        close(ends[0]);
        be_child(false);
    }
    close(ends[0]);
    me.child_end = ends[1];
    answer(me.child < 0 ? -errno : 0);
}

static void do_join(void) {
    int status = 0;
    close(me.child_end);
    waitpid(me.child, &status, 0);
    role_say("ok %d", status);
}

/* --- the loop --------------------------------------------------------------------------------------------------- */

char *next(char **rest) {
    char *word = strtok_r(NULL, " ", rest);
    return word ? word : (char *)(uintptr_t) "";
}

int number(char **rest) {
    return atoi(next(rest));
}

static bool obey_more(const char *word, char **rest) {
    if (!strcmp(word, "listen")) {
        answer(do_listen(next(rest)));
    } else if (!strcmp(word, "connect")) {
        answer(do_connect(next(rest)));
    } else if (!strcmp(word, "accept")) {
        answer(do_accept());
    } else if (!strcmp(word, "send")) {
        answer(do_send(number(rest)));
    } else if (!strcmp(word, "recv")) {
        int i = number(rest);
        answer(do_recv(i, number(rest)));
    } else if (!strcmp(word, "fork")) {
        do_fork(NULL, 0, number(rest));
    } else if (!strcmp(word, "forkat")) {
        char *label = next(rest);
        do_fork(label, (unsigned)number(rest), false);
    } else if (!strcmp(word, "forkwait")) {
        do_fork_and_wait();
    } else if (!strcmp(word, "join")) {
        do_join();
    } else if (!strcmp(word, "report")) {
        answer(do_report());
    } else if (!strcmp(word, "hangup")) {
        hang_up();
        answer(0);
    } else if (!strcmp(word, "quit")) {
        answer(do_close());
        return false;
    } else if (!obey_many(word, rest)) {
        role_say("error -1 unknown word %s", word);
    }
    return true;
}

static bool obey(char *line) {
    char *rest, *word = strtok_r(line, " ", &rest);
    if (!strcmp(word, "open")) {
        answer(do_open(number(&rest)));
    } else if (!strcmp(word, "new")) {
        int i = number(&rest), bytes = number(&rest);
        answer(do_new(i, bytes, number(&rest)));
    } else if (!strcmp(word, "reduce")) {
        int i = number(&rest);
        do_reduce(i, number(&rest));
    } else if (!strcmp(word, "rebuild")) {
        int i = number(&rest), fill = number(&rest);
        answer(do_rebuild(i, fill, next(&rest)));
    } else if (!strcmp(word, "probe")) {
        int fill = number(&rest);
        answer(do_probe(fill, next(&rest)));
    } else if (!strcmp(word, "stale")) {
        answer(do_stale(next(&rest)));
    } else if (!strcmp(word, "cancel")) {
        answer(do_cancel(next(&rest)));
    } else if (!strcmp(word, "drop")) {
        do_drop(number(&rest));
        answer(0);
    } else if (!strcmp(word, "dropall")) {
        do_drop_all();
        answer(0);
    } else if (!strcmp(word, "droptensors")) {
        do_drop_tensors();
        answer(0);
    } else if (!strcmp(word, "drained")) {
        do_drained(number(&rest));
    } else if (!strcmp(word, "empty")) {
        do_empty();
    } else if (!strcmp(word, "trim")) {
        answer(do_trim());
    } else if (!strcmp(word, "check")) {
        answer_wrong(what_is_wrong());
    } else {
        return obey_more(word, &rest);
    }
    return true;
}

LEND_ROLE(actor) {
    pthread_atfork(NULL, NULL, in_child);
    for (const char *line; (line = role_hear());) {
        char copy[ROLE_LINE_BYTES];
        snprintf(copy, sizeof copy, "%s", line);
        if (!obey(copy)) break;
    }
    points_say();
    if (me.pool) do_close();
    return 0;
}
