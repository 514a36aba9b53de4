/* SPDX-License-Identifier: MIT */
/* Eight threads of one process lend to eight of another and get back, at random; the books are checked all along. */
#include "peer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_THREADS = 8, N_ROUNDS = 400, N_KEPT = 6 };

/* What goes over each thread's own socket. */
struct letter {
    uint64_t n; /* 0: the end */
    uint8_t fill;
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
};

struct lane {
    pthread_t thread;
    int fd;
    unsigned seed;
    struct lend_pool *pool;
};

static void post(int fd, const struct letter *letter) {
    CHECK(send(fd, letter, sizeof *letter, MSG_NOSIGNAL) == sizeof *letter);
}

static bool fetch(int fd, struct letter *ret) {
    ssize_t n = recv(fd, ret, sizeof *ret, 0);
    return n == sizeof *ret && ret->n;
}

static void reduce_letter(struct lend_tensor *tensor, bool is_pinned, uint8_t fill, struct letter *ret) {
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = is_pinned ? LEND_REDUCE_PIN : 0};
    struct lend_error error = {0};
    size_t n = 0;
    memset(ret, 0, sizeof *ret);
    CHECK_OK(lend_reduce(tensor, &opts, ret->bytes, sizeof ret->bytes, &n, &error), &error);
    ret->n = n;
    ret->fill = fill;
}

static struct lend_tensor *rebuild_letter(const struct letter *letter) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_rebuild(letter->bytes, letter->n, NULL, &tensor, &error), &error);
    CHECK(is_filled(tensor, letter->fill));
    return tensor;
}

/* Puts a tensor into a random place; what was there is checked once more and dropped. */
static void keep(struct lane *lane, struct lend_tensor *kept[N_KEPT], uint8_t fills[N_KEPT], struct lend_tensor *tensor,
                 uint8_t fill) {
    int k = rand_r(&lane->seed) % N_KEPT;
    if (kept[k]) CHECK(is_filled(kept[k], fills[k]));
    lend_tensor_unref(kept[k]);
    kept[k] = tensor;
    fills[k] = fill;
}

/* Lends a new tensor, gets one of the other's in return, and keeps some of each. */
static void *lender(void *arg) {
    struct lane *lane = arg;
    struct lend_tensor *kept[N_KEPT] = {NULL};
    uint8_t fills[N_KEPT] = {0};
    for (int i = 0; i < N_ROUNDS; i++) {
        uint8_t fill = (uint8_t)rand_r(&lane->seed);
        bool is_pinned = rand_r(&lane->seed) % 2;
        struct lend_tensor *tensor = new_bytes(lane->pool, 1 + rand_r(&lane->seed) % 20000, fill);
        struct letter letter;
        reduce_letter(tensor, is_pinned, fill, &letter);
        if (is_pinned) {
            lend_tensor_unref(tensor); /* the pin holds it */
            tensor = NULL;
        }
        post(lane->fd, &letter);
        CHECK(fetch(lane->fd, &letter)); /* and so the other has ours */
        keep(lane, kept, fills, rebuild_letter(&letter), letter.fill);
        if (tensor) keep(lane, kept, fills, tensor, fill);
        post(lane->fd, &letter); /* we have it */
        if (i % 100 == 99) CHECK_OK(lend_check(NULL), NULL);
    }
    for (int i = 0; i < N_KEPT; i++) lend_tensor_unref(kept[i]);
    post(lane->fd, &(struct letter){.n = 0});
    return NULL;
}

static void *borrower(void *arg) {
    struct lane *lane = arg;
    struct lend_tensor *kept[N_KEPT] = {NULL};
    uint8_t fills[N_KEPT] = {0};
    struct letter letter;
    for (int i = 0; fetch(lane->fd, &letter); i++) {
        struct lend_tensor *tensor = rebuild_letter(&letter), *mine = NULL;
        uint8_t fill = letter.fill;
        /* In return: the same storage, or a new one of ours. */
        if (rand_r(&lane->seed) % 2) {
            reduce_letter(tensor, rand_r(&lane->seed) % 2, fill, &letter);
        } else {
            uint8_t other = (uint8_t)rand_r(&lane->seed);
            mine = new_bytes(lane->pool, 1 + rand_r(&lane->seed) % 20000, other);
            reduce_letter(mine, rand_r(&lane->seed) % 2, other, &letter);
        }
        post(lane->fd, &letter);
        CHECK(fetch(lane->fd, &letter));
        lend_tensor_unref(mine);
        keep(lane, kept, fills, tensor, fill);
        if (i % 100 == 99) CHECK_OK(lend_check(NULL), NULL);
    }
    for (int i = 0; i < N_KEPT; i++) lend_tensor_unref(kept[i]);
    return NULL;
}

static void run_lanes(const int fds[N_THREADS], void *(*fn)(void *), struct lend_pool *pool) {
    struct lane lanes[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        lanes[i] = (struct lane){.fd = fds[i], .seed = (unsigned)(i + 1) * 7919, .pool = pool};
        CHECK(!pthread_create(&lanes[i].thread, NULL, fn, &lanes[i]));
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(lanes[i].thread, NULL);
}

/* argv: eight descriptors. */
LEND_ROLE(borrowers) {
    int fds[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) fds[i] = atoi(argv[i]);
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    run_lanes(fds, borrower, pool);
    CHECK_EVENTUALLY(3000, limbo_bytes(pool) == 0);
    role_say("done");
    role_hear();
    close_all(pool);
    return 0;
}

LEND_TEST_TIMED(eight_threads_on_each_side, 120) {
    int fds[N_THREADS], theirs[N_THREADS];
    char words[N_THREADS][12];
    struct role r;
    for (int i = 0; i < N_THREADS; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair)) FAIL("socketpair: %s", strerror(errno));
        fds[i] = pair[0];
        theirs[i] = pair[1];
        snprintf(words[i], sizeof words[i], "%d", pair[1]);
    }
    ROLE_START(&r, NULL, "borrowers", words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]);
    for (int i = 0; i < N_THREADS; i++) close(theirs[i]);
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    run_lanes(fds, lender, pool);
    const char *line = role_line(&r, 60000);
    CHECK_STR(line ? line : "(ended)", "done");
    CHECK_EVENTUALLY(3000, limbo_bytes(pool) == 0);
    struct lend_report *report = NULL;
    CHECK_EVENTUALLY(3000, (lend_report_free(report), report = NULL, lend_report_get(NULL, 0, 0, &report, NULL) == 0) &&
                               report->totals.n_pins == 0 && report->totals.n_storages == 0);
    lend_report_free(report);
    role_end(&r);
    for (int i = 0; i < N_THREADS; i++) close(fds[i]);
    close_all(pool);
}

/* One process, many threads on one handle: rebuilt and dropped at once, it is one storage or another, never half of one. */
static void *race(void *arg) {
    const char *text = arg;
    for (int i = 0; i < 20000; i++) {
        struct lend_tensor *tensor = NULL;
        struct lend_error error = {0};
        CHECK_OK(rebuild_text(text, NULL, &tensor, &error), &error);
        CHECK_INT(((uint8_t *)lend_tensor_data(tensor))[500], 7);
        lend_tensor_unref(tensor);
    }
    return NULL;
}

LEND_TEST(eight_threads_on_one_handle) {
    struct role a;
    char text[LEND_HANDLE_TEXT_MAX];
    pthread_t threads[8];
    open_with(NULL);
    actor_start(&a, NULL, NULL);
    actor_ok(&a, "new 0 1000 7");
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
    for (int i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, race, text));
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    CHECK_OK(lend_check(NULL), NULL);
    actor_ok(&a, "drop 0");
    CHECK_EVENTUALLY(2000, actor_int(&a, "count limbo") == 0);
    role_end(&a);
    close_all(NULL);
}
