/* SPDX-License-Identifier: MIT */
/* Processes 2 and 3: they are given handles, rebuild the tensors, and work on the lender's memory.
 *
 * `which` is 0 or 1: the half of the images to classify, and the row of the report. */
#include "digits.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_BORROWED_MAX = 16, N_WARM = 2000, N_PIPE = 3 };

struct borrowed {
    char name[32];
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t handle_bytes;
    struct lend_tensor *tensor;
};

struct classifier {
    int which;
    struct channel lender;
    struct borrowed borrowed[N_BORROWED_MAX]; /* the first is the tensor whose hand-over this process measures */
    int n_borrowed;
    int64_t *report;
};

/* Lines "NAME HANDLE" up to an empty one. */
static void hear_handles(struct classifier *c) {
    char line[LEND_HANDLE_TEXT_MAX + 64], text[LEND_HANDLE_TEXT_MAX];
    for (;; c->n_borrowed++) {
        channel_hear(&c->lender, line, sizeof line);
        if (!line[0]) return;
        if (c->n_borrowed == N_BORROWED_MAX) die("more than %d handles", N_BORROWED_MAX);
        struct borrowed *b = &c->borrowed[c->n_borrowed];
        if (sscanf(line, "%31s %2739s", b->name, text) != 2) die("this is no handle: %.40s", line);
        must(lend_handle_parse(text, b->handle, sizeof b->handle, &b->handle_bytes), NULL);
    }
}

/* Scores and report are written here; everything else is only read, and the library holds us to it. */
static struct lend_tensor *rebuild(const struct borrowed *b) {
    bool is_written = !strcmp(b->name, "scores") || !strcmp(b->name, "report");
    struct lend_rebuild_opts opts = {
        .size = sizeof opts,
        .flags = is_written ? LEND_REBUILD_WRITABLE : LEND_REBUILD_READ_ONLY,
    };
    struct lend_tensor *tensor;
    struct lend_error error;
    must(lend_rebuild(b->handle, b->handle_bytes, &opts, &tensor, &error), &error);
    return tensor;
}

static struct lend_tensor_info info_of(const struct classifier *c, const char *name) {
    struct lend_tensor_info info = {.size = sizeof info};
    for (int i = 0; i < c->n_borrowed; i++) {
        if (strcmp(c->borrowed[i].name, name)) continue;
        must(lend_tensor_info(c->borrowed[i].tensor, &info), NULL);
        return info;
    }
    die("no handle for %s was given", name);
}

/* The hand-over: handles in, tensors out. What it reads, writes and reserves is measured around it. */
static void take_over(struct classifier *c) {
    struct lend_pool *pool;
    struct lend_error error;
    must(lend_open(NULL, &error), &error);
    must(lend_pool_new(NULL, &pool, &error), &error);
    int64_t pool_before = pool_bytes(pool), private_before = private_bytes();
    uint64_t first_ns = 0;

    struct io before = io_now();
    hear_handles(c);
    for (int i = 0; i < c->n_borrowed; i++) {
        uint64_t start = now_ns();
        c->borrowed[i].tensor = rebuild(&c->borrowed[i]);
        if (i == 0) first_ns = now_ns() - start;
    }
    struct io after = io_now();

    struct lend_tensor_info images = info_of(c, "images");
    c->report = (int64_t *)info_of(c, "report").data + c->which * REPORT_N;
    c->report[REPORT_PID] = getpid();
    c->report[REPORT_INODE] = (int64_t)images.allocation_inode;
    c->report[REPORT_OFFSET] = (int64_t)images.allocation_offset;
    c->report[REPORT_IO] = (int64_t)(io_between(before, after) - c->lender.bytes);
    c->report[REPORT_POOL] = pool_bytes(pool) - pool_before;
    c->report[REPORT_PRIVATE] = private_bytes() - private_before;
    c->report[REPORT_FIRST_NS] = (int64_t)first_ns;
    lend_pool_unref(pool);
}

/* The same hand-over again, and the other way: the tensor's bytes through a pipe into memory that is warm too. */
static void measure(struct classifier *c) {
    const struct borrowed *mine = &c->borrowed[0];
    struct lend_tensor_info info = info_of(c, mine->name);
    uint64_t start = now_ns(), best = UINT64_MAX;
    for (int i = 0; i < N_WARM; i++) lend_tensor_unref(rebuild(mine));
    c->report[REPORT_WARM_NS] = (int64_t)((now_ns() - start) / N_WARM);

    uint8_t *copy = malloc(info.nbytes);
    if (!copy) die("no memory for the copy");
    memset(copy, 0xff, info.nbytes);
    for (int i = 0; i < N_PIPE; i++) {
        start = now_ns();
        channel_say(&c->lender, "send\n");
        if (fread(copy, 1, info.nbytes, c->lender.in) != info.nbytes) die("the pipe ended early");
        uint64_t took = now_ns() - start;
        if (took < best) best = took;
    }
    c->report[REPORT_PIPE_NS] = (int64_t)best;
    if (memcmp(copy, info.data, info.nbytes)) die("%s has other bytes than its copy through the pipe", mine->name);
    free(copy);
}

/* relu(image / 16 @ w1 + b1) @ w2 + b2 */
static void classify_one(const uint8_t *image, int64_t hidden, const float *w1, const float *b1, const float *w2,
                         const float *b2, float *scores) {
    memcpy(scores, b2, N_DIGITS * sizeof *scores);
    for (int64_t h = 0; h < hidden; h++) {
        float sum = b1[h];
        for (int p = 0; p < N_PIXELS; p++) sum += (float)image[p] / 16 * w1[p * hidden + h];
        for (int d = 0; d < N_DIGITS && sum > 0; d++) scores[d] += sum * w2[h * N_DIGITS + d];
    }
}

static void classify_half(const struct classifier *c) {
    struct lend_tensor_info images = info_of(c, "images"), w1 = info_of(c, "w1"), scores = info_of(c, "scores");
    const float *b1 = info_of(c, "b1").data, *w2 = info_of(c, "w2").data, *b2 = info_of(c, "b2").data;
    int64_t n = images.shape[0], begin = n * c->which / N_CLASSIFIERS, end = n * (c->which + 1) / N_CLASSIFIERS;
    for (int64_t i = begin; i < end; i++)
        classify_one((const uint8_t *)images.data + i * N_PIXELS, w1.shape[1], w1.data, b1, w2, b2,
                     (float *)scores.data + i * N_DIGITS);
}

int classify_main(int which) {
    static struct classifier c;
    struct lend_error error;
    c.which = which;
    c.lender = (struct channel){.in = stdin, .out = stdout};
    if (which < 0 || which >= N_CLASSIFIERS) die("there are %d halves", N_CLASSIFIERS);
    take_over(&c);
    channel_say(&c.lender, "ready\n");
    channel_expect(&c.lender, "measure");
    /* The lender wrote it after this process had rebuilt the tensor. */
    c.report[REPORT_CANARY] = ((int64_t *)info_of(&c, "report").data)[N_CLASSIFIERS * REPORT_N];
    measure(&c);
    channel_say(&c.lender, "measured\n");
    channel_expect(&c.lender, "classify");
    classify_half(&c);
    for (int i = 0; i < c.n_borrowed; i++) lend_tensor_unref(c.borrowed[i].tensor);
    must(lend_close(&error), &error);
    channel_say(&c.lender, "done\n");
    return 0;
}
