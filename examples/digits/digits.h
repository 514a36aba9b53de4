/* SPDX-License-Identifier: MIT */
/* What the two roles of the example share: their conversation over two FIFOs, what they measure, and errors.
 *
 * The conversation is lines of text: handles, then one word at a time in turns. The tensors themselves never go through
 * it, except when the pipe is measured as the other way to hand them over. */
#ifndef DIGITS_H_
#define DIGITS_H_

#include <lend/lend.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { N_CLASSIFIERS = 2, N_DIGITS = 10, N_PIXELS = 64 };

/* What a classifier reports, in its row of the tensor "report", int64[N_CLASSIFIERS][REPORT_N]. */
enum report {
    REPORT_PID,
    REPORT_INODE, /* of the images' memory, as seen there */
    REPORT_OFFSET,
    REPORT_IO,       /* bytes read and written during the hand-over, less the handles */
    REPORT_POOL,     /* growth of its own pool */
    REPORT_PRIVATE,  /* growth of its private memory */
    REPORT_CANARY,   /* what it read there */
    REPORT_FIRST_NS, /* hand-over of its tensor: first contact, */
    REPORT_WARM_NS,  /* warm (rebuild and release), */
    REPORT_PIPE_NS,  /* and its bytes through a pipe */
    REPORT_N
};

/* Ends the program with exit status 1 and the error's sentence unless `r` is 0 or an outcome above 0. */
void must(int r, const struct lend_error *error);
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* One end of a conversation. `bytes` counts what went through as text, in both directions. */
struct channel {
    FILE *in, *out;
    uint64_t bytes;
};
void channel_say(struct channel *channel, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line without its end. Whoever stops to answer is ended by demo.sh's time limit, whoever dies by the end of the FIFO. */
void channel_hear(struct channel *channel, char *line, int line_bytes);
void channel_expect(struct channel *channel, const char *word);

/* rchar + wchar of /proc/self/io: what this process has read and written by read(2), write(2) and their relatives.
 * Socket messages are not in it. `own_bytes` is the length of that text itself, which the next reading counts. */
struct io {
    uint64_t bytes, own_bytes;
};
struct io io_now(void);
uint64_t io_between(struct io before, struct io after);

/* RssAnon of /proc/self/status in bytes: the process's private memory. Whatever is received by copying, socket messages
 * included, must lie there or in a pool. */
int64_t private_bytes(void);
/* Bytes that the pool has reserved from the system. */
int64_t pool_bytes(struct lend_pool *pool);

uint64_t now_ns(void);

int lend_main(const char *path, char **fifos);
int classify_main(int which);

#endif
