/* SPDX-License-Identifier: MIT */
/* The actor: a process that uses the library on command, one command a line, one answer a line ("ok ..." or
 * "error CODE SENTENCE"). After every command its books are checked (not when "quiet"). At the end of its input it gives
 * back what it has and closes; it must leave nothing. */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 64, WORDS = 16 };

static struct {
    struct lend_tensor *tensor[N];
    struct lend_group *group;
    struct lend_pool *pool, *parents;
    struct handle handle;
    struct lend_error error;
    bool is_quiet, is_child;
} me;

static struct lend_opts opts = {.size = sizeof opts};
static struct lend_pool_opts pool_opts = {.size = sizeof pool_opts};

static void answer_error(int code) {
    role_say("error %d %s", code, me.error.text);
}

/* "ok" with a text, or the error. */
static void answer(int code, const char *text) {
    if (code < 0)
        answer_error(code);
    else
        role_say("ok %s", text);
}

static void answer_int(long long value) {
    role_say("ok %lld", value);
}

static struct lend_pool *pool(void) {
    if (!me.pool) me.pool = new_pool(&pool_opts);
    return me.pool;
}

static struct lend_tensor **at(const char *index) {
    int i = index ? atoi(index) : -1;
    if (i < 0 || i >= N) FAIL("an actor has no tensor %s", index ? index : "");
    return &me.tensor[i];
}

static void parse_option(const char *word) {
    unsigned long long value = strchr(word, '=') ? strtoull(strchr(word, '=') + 1, NULL, 10) : 0;
    if (!strncmp(word, "deadline_ms=", 12))
        opts.deadline_ns = (int64_t)value * 1000000;
    else if (!strncmp(word, "pin_bytes=", 10))
        opts.pin_bytes_max = value;
    else if (!strncmp(word, "orphan_ms=", 10))
        opts.pin_orphan_ns = value * 1000000;
    else if (!strncmp(word, "limbo_bytes=", 12))
        opts.limbo_bytes_max = value;
    else if (!strncmp(word, "socket_dir=", 11))
        opts.socket_dir = strdup(word + 11);
    else if (!strcmp(word, "group"))
        opts.peers = LEND_PEERS_GROUP;
    else if (!strcmp(word, "fork_drop"))
        opts.fork = LEND_FORK_DROP;
    else if (!strcmp(word, "isolate"))
        pool_opts.flags |= LEND_POOL_ISOLATE;
    else if (!strcmp(word, "read_only"))
        pool_opts.flags |= LEND_POOL_PEERS_READ_ONLY;
    else if (!strncmp(word, "budget=", 7))
        pool_opts.budget_bytes = value;
    else if (!strcmp(word, "quiet"))
        me.is_quiet = true;
    else
        FAIL("an actor knows no option %s", word);
}

static struct lend_reduce_opts reduce_opts(char **words) {
    struct lend_reduce_opts o = {.size = sizeof o};
    for (; *words; words++) {
        if (!strcmp(*words, "pin"))
            o.flags |= LEND_REDUCE_PIN;
        else if (!strcmp(*words, "no_copy"))
            o.flags |= LEND_REDUCE_NO_COPY;
        else if (!strcmp(*words, "read_only"))
            o.flags |= LEND_REDUCE_READ_ONLY;
        else if (!strcmp(*words, "materialize"))
            o.flags |= LEND_REDUCE_MATERIALIZE;
        else if (!strcmp(*words, "move"))
            o.mode = LEND_MODE_MOVE;
        else if (!strcmp(*words, "snapshot"))
            o.mode = LEND_MODE_SNAPSHOT;
        else if (!strncmp(*words, "ns=", 3))
            o.pin_ns_max = strtoull(*words + 3, NULL, 10);
        else if (!strncmp(*words, "ms=", 3))
            o.deadline_ns = strtoll(*words + 3, NULL, 10) * 1000000;
        else
            FAIL("no such reduce option: %s", *words);
    }
    return o;
}

/* Words "name=..." are for cmd_grebuild. */
static struct lend_rebuild_opts rebuild_opts(char **words) {
    struct lend_rebuild_opts o = {.size = sizeof o};
    for (; *words; words++) {
        if (!strncmp(*words, "ms=", 3))
            o.deadline_ns = strtoll(*words + 3, NULL, 10) * 1000000;
        else if (!strcmp(*words, "writable"))
            o.flags |= LEND_REBUILD_WRITABLE;
        else if (!strcmp(*words, "read_only"))
            o.flags |= LEND_REBUILD_READ_ONLY;
        else if (!strcmp(*words, "file"))
            o.flags |= LEND_REBUILD_FILE_IN_PLACE;
        else if (!strcmp(*words, "check"))
            o.flags |= LEND_REBUILD_CHECK;
        else if (strncmp(*words, "name=", 5))
            FAIL("no such rebuild option: %s", *words);
    }
    return o;
}

/* --- commands: words[1] is the tensor's number ---------------------------------------------------------------------- */

static void cmd_new(char **words) {
    int64_t n = strtoll(words[2], NULL, 10);
    struct lend_tensor **t = at(words[1]);
    int r = lend_tensor_new(pool(), uint8, 1, &n, t, &me.error);
    if (r >= 0 && n) memset(lend_tensor_data(*t), words[3] ? atoi(words[3]) : 0, (size_t)n);
    answer(r, "");
}

static void cmd_reduce(char **words) {
    struct lend_reduce_opts o = reduce_opts(words + 2);
    int r = lend_reduce(*at(words[1]), &o, me.handle.bytes, sizeof me.handle.bytes, &me.handle.n, &me.error);
    if (r >= 0) lend_handle_format(me.handle.bytes, me.handle.n, me.handle.text, sizeof me.handle.text);
    answer(r, me.handle.text);
}

/* What a call made takes the place of what was there. */
static void put(const char *index, int r, struct lend_tensor *tensor) {
    if (r >= 0) {
        lend_tensor_unref(*at(index));
        *at(index) = tensor;
    }
    answer(r, "");
}

static void cmd_rebuild(char **words) {
    struct lend_rebuild_opts o = rebuild_opts(words + 3);
    struct lend_tensor *tensor = NULL;
    int r = rebuild_text(words[2], &o, &tensor, &me.error);
    put(words[1], r, tensor);
}

static void cmd_drop(char **words) {
    lend_tensor_unref(*at(words[1]));
    *at(words[1]) = NULL;
    role_say("ok");
}

static void cmd_byte(char **words) {
    answer_int(((uint8_t *)lend_tensor_data(*at(words[1])))[atoll(words[2])]);
}

static void cmd_poke(char **words) {
    ((volatile uint8_t *)lend_tensor_data(*at(words[1])))[atoll(words[2])] = (uint8_t)atoi(words[3]);
    role_say("ok");
}

/* The value of every byte, -1 when they differ. */
static void cmd_filled(char **words) {
    struct lend_tensor *t = *at(words[1]);
    int value = *(uint8_t *)lend_tensor_data(t);
    answer_int(is_filled(t, value) ? value : -1);
}

static void cmd_fill(char **words) {
    struct lend_tensor_info info = info_of(*at(words[1]));
    memset(info.data, atoi(words[2]), info.nbytes);
    role_say("ok");
}

static void cmd_describe(char **words) {
    char *text = describe(*at(words[1]));
    role_say("ok %s", text);
    free(text);
}

static void cmd_same(char **words) {
    answer_int(info_of(*at(words[1])).storage_id == info_of(*at(words[2])).storage_id);
}

static void cmd_info(char **words) {
    struct lend_tensor_info i = {.size = sizeof i};
    int r = lend_tensor_info(*at(words[1]), &i);
    if (r < 0)
        answer_error(r);
    else
        role_say("ok read_only %d imported %d inode %llu offset %llu bytes %llu", i.is_read_only, i.is_imported,
                 (unsigned long long)i.allocation_inode, (unsigned long long)i.allocation_offset,
                 (unsigned long long)i.nbytes);
}

static void cmd_resize(char **words) {
    answer(lend_tensor_resize(*at(words[1]), strtoull(words[2], NULL, 10), &me.error), "");
}

static void cmd_cancel(char **words) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    int r = lend_handle_parse(words[1], bytes, sizeof bytes, &n);
    answer(r < 0 ? r : lend_pin_cancel(bytes, n, words[2] ? atoll(words[2]) * 1000000 : 0, &me.error), "");
}

static void cmd_send(char **words) {
    struct lend_reduce_opts o = reduce_opts(words + 3);
    answer(lend_send(atoi(words[2]), *at(words[1]), &o, 0, &me.error), "");
}

static void cmd_recv(char **words) {
    struct lend_tensor *tensor = NULL;
    int r = lend_recv(atoi(words[2]), NULL, words[3] ? atoll(words[3]) * 1000000 : 0, &tensor, &me.error);
    put(words[1], r, tensor);
}

static void cmd_count(char **words) {
    if (!strcmp(words[1], "fds"))
        answer_int(count_fds());
    else if (!strcmp(words[1], "lend_maps"))
        answer_int(count_lend_maps());
    else if (!strcmp(words[1], "maps"))
        answer_int(count_maps());
    else if (!strcmp(words[1], "limbo"))
        answer_int((long long)limbo_bytes(pool()));
    else
        FAIL("no such count: %s", words[1]);
}

static void cmd_peers(char **words) {
    (void)words;
    struct lend_report_peer *peers = NULL;
    size_t n = 0;
    int r = lend_peers_list(&peers, &n, &me.error);
    lend_free(peers);
    if (r < 0)
        answer_error(r);
    else
        answer_int((long long)n);
}

static void cmd_pins(char **words) {
    (void)words;
    struct lend_report *report = NULL;
    int r = lend_report_get(NULL, 0, 0, &report, &me.error);
    if (r < 0) {
        answer_error(r);
        return;
    }
    answer_int((long long)report->totals.n_pins);
    lend_report_free(report);
}

static void cmd_limit_fds(char **words) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = strtoul(words[1], NULL, 10);
    answer(setrlimit(RLIMIT_NOFILE, &limit) ? -errno : 0, "");
}

/* The child goes on as an actor of its own, which talks over that descriptor; "ok PID" is the parent's answer. */
static void cmd_fork(char **words) {
    int fd = atoi(words[1]);
    fflush(stdout);
    pid_t pid = fork();
    if (pid) {
        if (pid < 0)
            answer_error(-errno);
        else
            answer_int(pid);
        return;
    }
    me.is_child = true;
    dup2(fd, 0);
    dup2(fd, 1);
    close(fd);
    me.parents = me.pool; /* of no use here */
    me.pool = NULL;
    role_say("ready");
}

static void cmd_wait(char **words) {
    int status = 0;
    pid_t pid = waitpid((pid_t)atoi(words[1]), &status, 0);
    if (pid < 0)
        answer_error(-errno);
    else
        answer_int(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void cmd_trim(char **words) {
    (void)words;
    uint64_t bytes = 0;
    int r = lend_pool_trim(pool(), 0, &bytes);
    if (r < 0)
        answer_error(r);
    else
        answer_int((long long)bytes);
}

/* Does new memory of this size get the place that a handle named? Gives its offset. */
static void cmd_offset(char **words) {
    answer_int((long long)info_of(*at(words[1])).allocation_offset);
}

/* The n-th float of the memory, as it lies there. */
static void cmd_float(char **words) {
    role_say("ok %.9g", (double)((float *)lend_tensor_data(*at(words[1])))[atoll(words[2])]);
}

static void cmd_poke64(char **words) {
    ((volatile int64_t *)lend_tensor_data(*at(words[1])))[atoll(words[2])] = atoll(words[3]);
    role_say("ok");
}

/* words[1] gets something made of words[2]: */
static void cmd_component(char **words) {
    struct lend_compound c = {.size = sizeof c};
    int r = lend_tensor_components(*at(words[2]), &c);
    uint32_t i = (uint32_t)atoi(words[3]);
    if (r >= 0 && i >= c.n_components) FAIL("no component %u of %u", i, c.n_components);
    put(words[1], r, r >= 0 ? lend_tensor_ref(c.components[i]) : NULL);
}

static void cmd_resolve(char **words) {
    struct lend_tensor *tensor = NULL;
    int r = lend_tensor_resolve(*at(words[2]), NULL, &tensor, &me.error);
    put(words[1], r, tensor);
}

static void cmd_bytes(char **words) {
    struct lend_tensor *tensor = NULL;
    int r = lend_tensor_as_bytes(*at(words[2]), &tensor, &me.error);
    put(words[1], r, tensor);
}

static void cmd_slice(char **words) {
    struct lend_tensor *tensor = NULL;
    int r = lend_tensor_slice(*at(words[2]), 0, atoll(words[3]), atoll(words[4]), 1, &tensor, &me.error);
    put(words[1], r, tensor);
}

static void cmd_meta(char **words) {
    int64_t n = atoll(words[2]);
    struct lend_tensor *tensor = NULL;
    int r = lend_tensor_new_meta(float32, 1, &n, &tensor, &me.error);
    put(words[1], r, tensor);
}

static void cmd_check(char **words) {
    answer(lend_tensor_check(*at(words[1]), &me.error), "");
}

/* --- groups: there is one; handles lie in files --------------------------------------------------------------------- */

static void cmd_grebuild(char **words) {
    struct lend_rebuild_opts o = rebuild_opts(words + 2);
    const char *names[WORDS];
    struct lend_group *group = NULL;
    size_t n_names = 0, n = 0;
    for (char **word = words + 2; *word; word++)
        if (!strncmp(*word, "name=", 5)) names[n_names++] = *word + 5;
    void *bytes = handle_get(words[1], &n);
    int r = lend_group_rebuild(bytes, n, n_names ? names : NULL, n_names, &o, &group, &me.error);
    free(bytes);
    if (r >= 0) {
        lend_group_unref(me.group);
        me.group = group;
    }
    answer(r, "");
}

/* The answer is the path of a file, which the asker removes. */
static void cmd_greduce(char **words) {
    struct lend_reduce_opts o = reduce_opts(words + 1);
    void *bytes = NULL;
    size_t n = 0;
    int r = lend_group_reduce(me.group, &o, &bytes, &n, &me.error);
    char *path = r < 0 ? NULL : handle_put(bytes, n);
    lend_free(r < 0 ? NULL : bytes);
    answer(r, path);
    free(path);
}

static void cmd_gcount(char **words) {
    (void)words;
    answer_int((long long)lend_group_count(me.group));
}

/* Takes tensor words[2] out into words[1]; the answer is its name. */
static void cmd_gget(char **words) {
    const char *name = NULL;
    struct lend_tensor *tensor = lend_group_get(me.group, (size_t)atoll(words[2]), &name);
    if (!tensor) {
        answer_error(-ERANGE);
        return;
    }
    lend_tensor_unref(*at(words[1]));
    *at(words[1]) = lend_tensor_ref(tensor);
    role_say("ok %s", name);
}

static void cmd_gfind(char **words) {
    struct lend_tensor *tensor = lend_group_find(me.group, words[2]);
    put(words[1], tensor ? 0 : -ENOENT, tensor ? lend_tensor_ref(tensor) : NULL);
}

static void cmd_gdrop(char **words) {
    (void)words;
    lend_group_unref(me.group);
    me.group = NULL;
    role_say("ok");
}

static const struct {
    const char *name;
    void (*run)(char **words);
} commands[] = {
    {"new", cmd_new},           {"reduce", cmd_reduce},       {"rebuild", cmd_rebuild},     {"drop", cmd_drop},
    {"byte", cmd_byte},         {"poke", cmd_poke},           {"filled", cmd_filled},       {"fill", cmd_fill},
    {"describe", cmd_describe}, {"same", cmd_same},           {"info", cmd_info},           {"resize", cmd_resize},
    {"cancel", cmd_cancel},     {"send", cmd_send},           {"recv", cmd_recv},           {"count", cmd_count},
    {"peers", cmd_peers},       {"pins", cmd_pins},           {"limit_fds", cmd_limit_fds}, {"fork", cmd_fork},
    {"wait", cmd_wait},         {"trim", cmd_trim},           {"offset", cmd_offset},       {"float", cmd_float},
    {"poke64", cmd_poke64},     {"component", cmd_component}, {"resolve", cmd_resolve},     {"bytes", cmd_bytes},
    {"slice", cmd_slice},       {"meta", cmd_meta},           {"check", cmd_check},         {"grebuild", cmd_grebuild},
    {"greduce", cmd_greduce},   {"gcount", cmd_gcount},       {"gget", cmd_gget},           {"gfind", cmd_gfind},
    {"gdrop", cmd_gdrop},
};

static void run(char *line) {
    char *words[WORDS + 1] = {NULL};
    int n = 0;
    for (char *word = strtok(line, " "); word && n < WORDS; word = strtok(NULL, " ")) words[n++] = word;
    memset(&me.error, 0, sizeof me.error);
    for (size_t i = 0; n && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, words[0])) continue;
        commands[i].run(words);
        if (!me.is_quiet) CHECK_OK(lend_check(&me.error), &me.error);
        return;
    }
    FAIL("no such command: %s", n ? words[0] : "");
}

LEND_ROLE(actor) {
    char *options = strdup(argc ? argv[0] : "");
    for (char *word = strtok(options, " "); word; word = strtok(NULL, " ")) parse_option(word);
    free(options);
    open_with(&opts);
    role_say("ready");
    for (const char *line; (line = role_hear());) {
        char copy[ROLE_LINE_BYTES];
        snprintf(copy, sizeof copy, "%s", line);
        run(copy);
    }
    for (int i = 0; i < N; i++) lend_tensor_unref(me.tensor[i]);
    lend_group_unref(me.group);
    lend_pool_unref(me.parents);
    close_all(me.pool);
    free((char *)(uintptr_t)opts.socket_dir);
    if (me.is_child) _exit(0); /* a child's descriptors are not those that its parent's role began with */
    return 0;
}
