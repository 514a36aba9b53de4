/* SPDX-License-Identifier: MIT */
/* Many tensors, many importers, few descriptors, little memory: what the limits of users do and do not stop. */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void limit_fds(rlim_t n) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = n;
    if (setrlimit(RLIMIT_NOFILE, &limit)) FAIL("setrlimit: %s", strerror(errno));
}

/* Rebuilds `count` handles that come one a line, keeps all, and checks what each says of itself. */
LEND_ROLE(keeper_of_many) {
    int n = atoi(argv[0]);
    struct lend_tensor **tensors = calloc((size_t)n, sizeof *tensors);
    unsigned before = count_fds(), maps = count_lend_maps();
    open_with(NULL);
    for (int i = 0; i < n; i++) {
        const char *text = role_hear();
        struct lend_error error = {0};
        CHECK(text != NULL);
        CHECK_OK(rebuild_text(text, NULL, &tensors[i], &error), &error);
        CHECK_INT(*(int *)lend_tensor_data(tensors[i]), i);
    }
    CHECK(count_fds() <= before + 4);
    CHECK(count_lend_maps() <= maps + 10);
    role_say("has all");
    role_hear();
    for (int i = 0; i < n; i++) lend_tensor_unref(tensors[i]);
    free(tensors);
    close_all(NULL);
    return 0;
}

LEND_TEST(ten_thousand_tensors_with_thirty_two_descriptors) {
    enum { N = 10000 };
    static struct lend_tensor *tensors[N];
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_error error = {0};
    struct role r;
    ROLE_START(&r, &(struct role_opts){.nofile_max = 32}, "keeper_of_many", "10000");
    for (int i = 0; i < N; i++) {
        tensors[i] = new_bytes(pool, 64, 0);
        *(int *)lend_tensor_data(tensors[i]) = i;
        role_send(&r, "%s", reduce_text(tensors[i], NULL, 0));
    }
    role_expect(&r, "has all");
    CHECK_OK(lend_check(&error), &error);
    for (int i = 0; i < N; i++) lend_tensor_unref(tensors[i]);
    CHECK(limbo_bytes(pool) >= (uint64_t)N * 64);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

/* No descriptor at all is free: a typed error that names the limit; with more, a retry succeeds. */
LEND_TEST(a_contact_without_descriptors_fails_and_succeeds_later) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 64, 3);
    char text[LEND_HANDLE_TEXT_MAX];
    struct role r;
    snprintf(text, sizeof text, "%s", reduce_text(tensor, NULL, 0));
    actor_start(&r, NULL, NULL);
    long long maps = actor_int(&r, "count lend_maps"), fds = actor_int(&r, "count fds");
    bool has_failed = false;
    /* Descriptors in use are the lowest: with each limit one more step of contact finds room. */
    for (long long limit = fds; limit < fds + 6; limit++) {
        actor_ok(&r, "limit_fds %lld", limit);
        int code = actor_code(&r, "rebuild 0 %s", text);
        char sentence[LEND_ERROR_TEXT_BYTES];
        snprintf(sentence, sizeof sentence, "%s", actor_sentence);
        actor_ok(&r, "limit_fds 256");
        if (!code) break;
        if (code != -EMFILE) FAIL("with a limit of %lld: %d %s", limit, code, sentence);
        has_failed = true;
        CHECK_CONTAINS(sentence, "RLIMIT_NOFILE");
        CHECK_INT(actor_int(&r, "count lend_maps"), maps);
    }
    CHECK(has_failed);
    actor_ok(&r, "rebuild 1 %s", text);
    CHECK_INT(actor_int(&r, "filled 1"), 3);
    lend_tensor_unref(tensor);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

/* Says "holding CODE" and holds until its input ends. */
LEND_ROLE(one_of_many) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    struct lend_rebuild_opts opts = {.size = sizeof opts, .deadline_ns = 60000000000};
    open_with(NULL);
    int r = rebuild_text(argv[0], &opts, &tensor, &error);
    if (r >= 0) CHECK(is_filled(tensor, 44));
    role_say("holding %d %s", r, error.text);
    for (const char *line; (line = role_hear());) {
        lend_tensor_unref(tensor);
        tensor = NULL;
        r = rebuild_text(line, NULL, &tensor, &error);
        role_say("again %d", r);
    }
    lend_tensor_unref(tensor);
    close_all(NULL);
    return 0;
}

static size_t n_peers(void) {
    struct lend_report_peer *peers = NULL;
    size_t n = 0;
    CHECK_OK(lend_peers_list(&peers, &n, NULL), NULL);
    lend_free(peers);
    return n;
}

/* The exporter of this test needs two descriptors an importer, and the test itself one to talk to each. */
LEND_TEST_TIMED(two_hundred_and_fifty_six_importers_under_a_limit_of_1024, 120) {
    enum { N = 256 };
    static struct role roles[N];
    limit_fds(1024);
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 4096, 44);
    struct lend_error error = {0};
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", reduce_text(tensor, NULL, 0));
    unsigned fds = count_fds();
    for (int i = 0; i < N; i++) ROLE_START(&roles[i], NULL, "one_of_many", text);
    for (int i = 0; i < N; i++) {
        const char *line = role_line(&roles[i], 60000);
        CHECK_STR(line ? line : "(ended)", "holding 0 ");
    }
    CHECK_UINT(n_peers(), N);
    CHECK(count_fds() <= fds + 3 * N);
    lend_tensor_unref(tensor);
    CHECK(limbo_bytes(pool) >= 4096);
    CHECK_OK(lend_check(&error), &error);
    for (int i = 0; i < N; i++) role_end(&roles[i]);
    CHECK_EVENTUALLY(3000, limbo_bytes(pool) == 0);
    CHECK_EVENTUALLY(1000, n_peers() == 0);
    CHECK_UINT(count_fds(), fds);
    close_all(pool);
}

/* An exporter with room for a few: the others get -EMFILE that names its limit, and those it has go on. */
LEND_TEST(over_the_exporters_limit_new_ones_are_refused_and_old_ones_go_on) {
    enum { N = 12 };
    struct role a, r[N];
    char text[LEND_HANDLE_TEXT_MAX], second[LEND_HANDLE_TEXT_MAX];
    actor_start(&a, NULL, NULL);
    actor_ok(&a, "new 0 4096 44");
    actor_ok(&a, "new 1 4096 44");
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
    snprintf(second, sizeof second, "%s", actor_ok(&a, "reduce 1"));
    long long limit = actor_int(&a, "count fds") + 13;
    actor_ok(&a, "limit_fds %lld", limit);
    int n_good = 0;
    for (int i = 0; i < N; i++) {
        ROLE_START(&r[i], NULL, "one_of_many", text);
        int code = 1, at = 0;
        const char *line = role_expect(&r[i], "holding ");
        CHECK(sscanf(line, "%d %n", &code, &at) == 1);
        if (code == 0) {
            CHECK_INT(n_good, i); /* once full, it stays full */
            n_good++;
            continue;
        }
        CHECK_INT(code, -EMFILE);
        char part[32];
        snprintf(part, sizeof part, "limit of %lld ", limit);
        CHECK_CONTAINS(line + at, part);
    }
    CHECK(n_good >= 4 && n_good < N);
    for (int i = 0; i < n_good; i++) {
        role_send(&r[i], "%s", second);
        CHECK_STR(role_expect(&r[i], "again "), "0");
    }
    /* One leaves: there is room for one. */
    role_end(&r[0]);
    CHECK_EVENTUALLY(2000, actor_int(&a, "peers") == n_good - 1);
    role_send(&r[N - 1], "%s", text);
    CHECK_STR(role_expect(&r[N - 1], "again "), "0");
    for (int i = 1; i < N; i++) role_end(&r[i]);
    CHECK_EVENTUALLY(2000, actor_int(&a, "peers") == 0);
    role_end(&a);
}

LEND_TEST_TIMED(two_hundred_thousand_tensors_alive, 120) {
    enum { N = 200000 };
    struct lend_tensor **tensors = calloc(N, sizeof *tensors);
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    struct lend_error error = {0};
    int64_t one = 1;
    size_t n = 0;
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    unsigned maps = count_maps(), fds = count_fds();
    for (int i = 0; i < N; i++) {
        CHECK_OK(lend_tensor_new(pool, uint8, 1, &one, &tensors[i], &error), &error);
        *(uint8_t *)lend_tensor_data(tensors[i]) = (uint8_t)(i % 251);
        CHECK_OK(lend_reduce(tensors[i], NULL, bytes, sizeof bytes, &n, &error), &error);
    }
#ifndef __SANITIZE_THREAD__ /* whose shadow takes mappings of its own */
    CHECK(count_maps() < maps + 100);
#endif
    (void)maps;
    CHECK(count_fds() < fds + 100);
    for (int i = 0; i < N; i++) CHECK_INT(*(uint8_t *)lend_tensor_data(tensors[i]), i % 251);
    CHECK_OK(lend_check(&error), &error);
    for (int i = 0; i < N; i++) lend_tensor_unref(tensors[i]);
    CHECK_UINT(limbo_bytes(pool), 0);
    free(tensors);
    close_all(pool);
}

/* A sanitizer keeps what was freed for a while (256 MiB). */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GROWTH_MAX (512u << 20)
#else
#define GROWTH_MAX (1u << 20)
#endif

/* Argument: how often. */
LEND_ROLE(repeater) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    size_t n = 0;
    long count = atol(argv[0]);
    uint64_t resident = 0;
    unsigned fds = 0, maps = 0;
    open_with(NULL);
    CHECK_OK(lend_handle_parse(role_hear(), bytes, sizeof bytes, &n), NULL);
    for (long i = 0; i < count; i++) {
        CHECK_OK(lend_rebuild(bytes, n, NULL, &tensor, &error), &error);
        lend_tensor_unref(tensor);
        if (i != 1000) continue;
        resident = resident_bytes();
        fds = count_fds();
        maps = count_maps();
    }
    CHECK_UINT(count_fds(), fds);
    CHECK(count_maps() <= maps + 1); /* the heap may end elsewhere */
    CHECK(resident_bytes() <= resident + GROWTH_MAX);
    role_say("done");
    close_all(NULL);
    return 0;
}

LEND_TEST_TIMED(a_million_rebuilds_leave_no_growth, 120) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 4096, 1);
    struct role r;
    ROLE_START(&r, NULL, "repeater", "1000000");
    role_send(&r, "%s", reduce_text(tensor, NULL, 0));
    const char *line = role_line(&r, 100000);
    CHECK_STR(line ? line : "(ended)", "done");
    role_end(&r);
    lend_tensor_unref(tensor);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

LEND_TEST(a_budget_that_is_too_small_says_so_and_serves_less) {
    struct lend_pool_opts opts = {.size = sizeof opts, .budget_bytes = 4 << 20};
    int64_t large = 8 << 20, small = 512 << 10;
    struct lend_error error = {0};
    struct lend_pool_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    struct lend_tensor *tensor = NULL;
    open_with(NULL);
    struct lend_pool *pool = new_pool(&opts);
    CHECK_OK(lend_pool_stats(pool, &before), NULL);
    unsigned fds = count_fds(), maps = count_lend_maps();
    CHECK_CODE(lend_tensor_new(pool, uint8, 1, &large, &tensor, &error), -ENOSPC);
    CHECK_UINT(error.asked, 8 << 20);
    CHECK_UINT(error.available, 4 << 20);
    CHECK_CONTAINS(error.text, "8388608");
    CHECK_CONTAINS(error.text, "4194304");
    CHECK_OK(lend_pool_stats(pool, &after), NULL);
    CHECK_UINT(after.reserved_bytes, before.reserved_bytes);
    CHECK_UINT(count_fds(), fds);
    CHECK_UINT(count_lend_maps(), maps);
    CHECK_OK(lend_tensor_new(pool, uint8, 1, &small, &tensor, &error), &error);
    struct role r;
    memset(lend_tensor_data(tensor), 4, (size_t)small);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
    CHECK_INT(actor_int(&r, "filled 0"), 4);
    role_end(&r);
    lend_tensor_unref(tensor);
    close_all(pool);
}

/* --- limits and habits of the process that lends ------------------------------------------------------------------- */

/* Runs fn in a child that has not opened the library yet; its return is the exit code. */
static int in_child(int (*fn)(void)) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) _exit(fn());
    int status = 0;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status)) FAIL("ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static int lend_one(struct lend_error *error) {
    static uint8_t handle[LEND_HANDLE_BYTES_MAX];
    struct lend_pool *pool = NULL;
    struct lend_tensor *tensor = NULL;
    int64_t n = 10;
    size_t bytes = 0;
    int r = lend_open(NULL, error);
    if (r >= 0) r = lend_pool_new(NULL, &pool, error);
    if (r >= 0) r = lend_tensor_new(pool, uint8, 1, &n, &tensor, error);
    return r < 0 ? r : lend_reduce(tensor, NULL, handle, sizeof handle, &bytes, error);
}

static int lend_with_small_files(void) {
    struct lend_error error = {0};
    const struct rlimit limit = {64 << 20, 64 << 20}; /* enough for the pool, not for the slot table */
    if (setrlimit(RLIMIT_FSIZE, &limit) || lend_one(&error) != -EFBIG) return 1;
    return strstr(error.text, "RLIMIT_FSIZE") && error.available == 64 << 20 ? 0 : 2;
}

LEND_TEST(a_limit_of_file_sizes_is_an_error_and_no_signal) {
    CHECK_INT(in_child(lend_with_small_files), 0);
}

static int lend_without_standard_streams(void) {
    struct lend_error error = {0};
    for (int fd = 0; fd < 3; fd++) close(fd);
    if (lend_one(&error) < 0) return 1;
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) >= 0) return 2 + fd; /* what the program prints would go into a tensor */
    return 0;
}

LEND_TEST(no_descriptor_of_ours_is_a_standard_stream) {
    CHECK_INT(in_child(lend_without_standard_streams), 0);
}
