/* SPDX-License-Identifier: MIT */
/* Process 1: loads the file into a pool, lends the tensors, and tells how it went.
 *
 * Everything lies in one pool: what the file holds, the scores that the classifiers fill, the report that they write,
 * and a batch of 64 MiB (the images again and again), as large as a real batch, to measure the hand-over with. */
#include "digits.h"

#include <fcntl.h>
#include <inttypes.h>
#include <lend/file.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_BYTES (64 << 20)
#define CANARY INT64_C(0x0123456789abcdef)
/* More than the tables of a first contact, less than any of the data that matters. */
#define PRIVATE_BYTES_MAX (1 << 20)

enum { IMAGES, LABELS, IS_HELD_OUT, W1, B1, W2, B2, SCORES, REPORT, BATCH, N_TENSORS };

static const char *const names[N_TENSORS] = {"images", "labels", "is_held_out", "w1",     "b1",
                                             "w2",     "b2",     "scores",      "report", "batch"};
/* What the classifiers get; each one's first is the tensor whose hand-over it measures. */
static const int lent[] = {IMAGES, BATCH, W1, B1, W2, B2, SCORES, REPORT};
enum { N_LENT = sizeof lent / sizeof lent[0] };

struct lender {
    struct lend_pool *pool;
    struct lend_tensor *tensors[N_TENSORS];
    struct lend_tensor_info info[N_TENSORS];
    struct channel classifiers[N_CLASSIFIERS];
    int64_t io_bytes, pool_growth; /* of this process during the hand-over */
};

static void load(struct lender *l, const char *path) {
    struct lend_file *file;
    struct lend_error error;
    size_t index;
    must(lend_file_open(path, &file, &error), &error);
    for (int i = IMAGES; i <= B2; i++) {
        if (lend_file_find(file, names[i], &index)) die("%s has no tensor %s", path, names[i]);
        must(lend_file_load(file, index, l->pool, NULL, &l->tensors[i], &error), &error);
    }
    lend_file_close(file);
}

static void make(struct lender *l) {
    const DLDataType uint8 = {LEND_UINT, 8, 1}, int64 = {LEND_INT, 64, 1}, float32 = {LEND_FLOAT, 32, 1};
    struct lend_tensor_info images = {.size = sizeof images};
    struct lend_error error;
    must(lend_tensor_info(l->tensors[IMAGES], &images), NULL);
    if (images.ndim != 3 || images.nbytes != (uint64_t)images.shape[0] * N_PIXELS) die("images are not uint8 8x8");
    must(lend_tensor_new(l->pool, float32, 2, (int64_t[]){images.shape[0], N_DIGITS}, &l->tensors[SCORES], &error),
         &error);
    /* One number more: the canary. */
    must(lend_tensor_new(l->pool, int64, 1, (int64_t[]){N_CLASSIFIERS * REPORT_N + 1}, &l->tensors[REPORT], &error),
         &error);
    must(lend_tensor_new(l->pool, uint8, 2, (int64_t[]){BATCH_BYTES / N_PIXELS, N_PIXELS}, &l->tensors[BATCH], &error),
         &error);
    for (int i = 0; i < N_TENSORS; i++) {
        l->info[i].size = sizeof l->info[i];
        must(lend_tensor_info(l->tensors[i], &l->info[i]), NULL);
    }
    memset(l->info[SCORES].data, 0, l->info[SCORES].nbytes);
    memset(l->info[REPORT].data, 0, l->info[REPORT].nbytes);
    for (uint64_t at = 0; at < BATCH_BYTES; at += images.nbytes) {
        uint64_t n = BATCH_BYTES - at < images.nbytes ? BATCH_BYTES - at : images.nbytes;
        memcpy((uint8_t *)l->info[BATCH].data + at, images.data, n);
    }
}

/* The classifier's shell opens the same FIFOs in the same order: each open waits for the other side's. */
static void meet(struct channel *channel, const char *to, const char *from) {
    channel->out = fopen(to, "w");
    channel->in = fopen(from, "r");
    if (!channel->out || !channel->in) die("the FIFOs %s and %s cannot be opened", to, from);
    /* To be fair to the pipe: as large as any user may make it. */
    (void)fcntl(fileno(channel->out), F_SETPIPE_SZ, 1 << 20);
}

static void say_handle(struct channel *channel, const char *name, struct lend_tensor *tensor) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    char text[LEND_HANDLE_TEXT_MAX];
    size_t bytes;
    struct lend_error error;
    must(lend_reduce(tensor, NULL, handle, sizeof handle, &bytes, &error), &error);
    must(lend_handle_format(handle, bytes, text, sizeof text), NULL);
    channel_say(channel, "%s %s\n", name, text);
}

/* Only handles go through the channel, first the one that classifier `which` measures. */
static void hand_over(struct lender *l, int which) {
    struct channel *channel = &l->classifiers[which];
    int64_t pool_before = pool_bytes(l->pool);
    uint64_t text_before = channel->bytes;
    struct io before = io_now();
    for (int i = 0; i < N_LENT; i++) {
        int t = lent[(i + which) % N_LENT];
        say_handle(channel, names[t], l->tensors[t]);
    }
    channel_say(channel, "\n");
    channel_expect(channel, "ready");
    struct io after = io_now();
    l->io_bytes += (int64_t)(io_between(before, after) - (channel->bytes - text_before));
    l->pool_growth += pool_bytes(l->pool) - pool_before;
}

/* Lets a classifier measure, and serves it the bytes of its tensor through the pipe as often as it asks. */
static void serve(struct lender *l, int which) {
    struct channel *channel = &l->classifiers[which];
    const struct lend_tensor_info *info = &l->info[lent[which]];
    char word[64];
    channel_say(channel, "measure\n");
    for (;;) {
        channel_hear(channel, word, sizeof word);
        if (!strcmp(word, "measured")) return;
        if (strcmp(word, "send")) die("a classifier said '%s'", word);
        if (fwrite(info->data, 1, info->nbytes, channel->out) != info->nbytes || fflush(channel->out))
            die("a classifier has gone");
    }
}

static const int64_t *report_of(const struct lender *l, int which) {
    return (const int64_t *)l->info[REPORT].data + which * REPORT_N;
}

static bool is_right(const struct lender *l, int64_t i) {
    const float *scores = (const float *)l->info[SCORES].data + i * N_DIGITS;
    int best = 0;
    for (int d = 1; d < N_DIGITS; d++)
        if (scores[d] > scores[best]) best = d;
    return best == ((const uint8_t *)l->info[LABELS].data)[i];
}

static void tell_accuracy(const struct lender *l) {
    int64_t n = l->info[IMAGES].shape[0], n_held_out = 0, n_right = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!((const uint8_t *)l->info[IS_HELD_OUT].data)[i]) continue;
        n_held_out++;
        n_right += is_right(l, i);
    }
    printf("accuracy        %.2f %%: %" PRId64 " of %" PRId64 " held-out images are right\n",
           100.0 * (double)n_right / (double)n_held_out, n_right, n_held_out);
    if (n_right * 100 < n_held_out * 95) die("the accuracy is below 95 %%");
}

static void tell_copies(const struct lender *l) {
    const int64_t *a = report_of(l, 0), *b = report_of(l, 1);
    int64_t bytes = 0, io = l->io_bytes + a[REPORT_IO] + b[REPORT_IO];
    int64_t pools = l->pool_growth + a[REPORT_POOL] + b[REPORT_POOL];
    for (int i = 0; i < N_LENT; i++) bytes += (int64_t)l->info[lent[i]].nbytes;
    printf("bytes copied    %" PRId64
           " of %.1f MiB lent to two processes: beside the handles, the three of them read\n"
           "                and wrote %" PRId64
           " bytes (/proc/self/io, which leaves socket messages out), their pools\n"
           "                grew by %" PRId64 " bytes, and private memory, where copies would lie, by %" PRId64
           " and %" PRId64 " KiB\n",
           io + pools, (double)bytes / 1048576, io, pools, a[REPORT_PRIVATE] / 1024, b[REPORT_PRIVATE] / 1024);
    if (io || pools) die("bytes were copied");
    if (a[REPORT_PRIVATE] > PRIVATE_BYTES_MAX || b[REPORT_PRIVATE] > PRIVATE_BYTES_MAX)
        die("a classifier's private memory grew too much");
}

static void tell_memory(const struct lender *l) {
    const struct lend_tensor_info *images = &l->info[IMAGES];
    printf("same memory     inode %" PRIu64 ", offset %" PRIu64 " in process %ld", images->allocation_inode,
           images->allocation_offset, (long)getpid());
    for (int i = 0; i < N_CLASSIFIERS; i++) {
        const int64_t *r = report_of(l, i);
        printf("; %" PRId64 ", %" PRId64 " in %" PRId64, r[REPORT_INODE], r[REPORT_OFFSET], r[REPORT_PID]);
    }
    printf("\ncanary          %#" PRIx64 " written by %ld after the hand-over, read as %#" PRIx64 " and %#" PRIx64 "\n",
           CANARY, (long)getpid(), report_of(l, 0)[REPORT_CANARY], report_of(l, 1)[REPORT_CANARY]);
    for (int i = 0; i < N_CLASSIFIERS; i++) {
        const int64_t *r = report_of(l, i);
        if (r[REPORT_INODE] != (int64_t)images->allocation_inode) die("the inodes differ");
        if (r[REPORT_OFFSET] != (int64_t)images->allocation_offset) die("the offsets differ");
        if (r[REPORT_CANARY] != CANARY) die("the canary was not seen");
    }
}

static void tell_time(int64_t ns) {
    if (ns < 1000)
        printf("%13" PRId64 " ns", ns);
    else if (ns < 1000000)
        printf("%13.1f us", (double)ns / 1e3);
    else
        printf("%13.1f ms", (double)ns / 1e6);
}

static void tell_times(const struct lender *l) {
    static const struct {
        const char *what;
        enum report at;
    } rows[] = {{"first contact", REPORT_FIRST_NS}, {"warm", REPORT_WARM_NS}, {"through a pipe", REPORT_PIPE_NS}};
    printf("hand-over time %9s %.1f KiB %8s %.0f MiB\n", "digits,", (double)l->info[IMAGES].nbytes / 1024, "batch,",
           (double)l->info[BATCH].nbytes / 1048576);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        printf("  %-14s", rows[i].what);
        for (int which = 0; which < N_CLASSIFIERS; which++) tell_time(report_of(l, which)[rows[i].at]);
        putchar('\n');
    }
}

int lend_main(const char *path, char **fifos) {
    static struct lender l;
    struct lend_error error;
    signal(SIGPIPE, SIG_IGN); /* a classifier that died is an error of its channel */
    must(lend_open(NULL, &error), &error);
    must(lend_pool_new(NULL, &l.pool, &error), &error);
    load(&l, path);
    make(&l);
    for (int i = 0; i < N_CLASSIFIERS; i++) meet(&l.classifiers[i], fifos[2 * i], fifos[2 * i + 1]);
    for (int i = 0; i < N_CLASSIFIERS; i++) hand_over(&l, i);
    ((int64_t *)l.info[REPORT].data)[N_CLASSIFIERS * REPORT_N] = CANARY;
    for (int i = 0; i < N_CLASSIFIERS; i++) serve(&l, i);
    for (int i = 0; i < N_CLASSIFIERS; i++) channel_say(&l.classifiers[i], "classify\n");
    for (int i = 0; i < N_CLASSIFIERS; i++) channel_expect(&l.classifiers[i], "done");

    tell_accuracy(&l);
    tell_copies(&l);
    tell_memory(&l);
    tell_times(&l);
    int64_t n_images = l.info[IMAGES].shape[0];
    for (int i = 0; i < N_TENSORS; i++) lend_tensor_unref(l.tensors[i]);
    lend_pool_unref(l.pool);
    must(lend_close(&error), &error);
    printf("done: process %ld lent %" PRId64
           " images and a 64 MiB batch, two other processes classified them in place\n",
           (long)getpid(), n_images);
    return 0;
}
