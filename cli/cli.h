/* SPDX-License-Identifier: MIT */
/* The `lend` command: one function per subcommand, and what they share. It uses public lend calls only. */
#ifndef LEND_CLI_CLI_H_
#define LEND_CLI_CLI_H_

#include <jansson.h>
#include <lend/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Each gets argv from its own name on and returns an exit code. */
int share_main(int argc, char **argv);
int show_main(int argc, char **argv);
int ls_main(int argc, char **argv);

/* Help texts: at most a screen of 80 x 24. */
extern const char share_help[], show_help[], ls_help[];

/* "lend CMD: SENTENCE" on stderr. Each returns the exit code. */
int fail(const char *command, const struct lend_error *error);
int fail_text(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* After getopt_long has said what is wrong: where help is. */
int fail_usage(const char *command);

/* stdout was written in full, or the exit code that says it was not. */
int finish_output(const char *command);

/* Escape sequences when stdout is a terminal that wants them, otherwise "". */
struct style {
    const char *bold, *dim, *warn, *off;
};
struct style style_get(void);

/* Texts into a caller's buffer, which is returned. */
#define FORMAT_BYTES 32
/* 64 numbers of 20 characters and their commas. */
#define FORMAT_DIMS_BYTES 1408

const char *format_bytes(uint64_t bytes, char buf[FORMAT_BYTES]);                        /* "64.0 MiB" */
const char *format_duration(uint64_t ns, char buf[FORMAT_BYTES]);                        /* "3 h 20 min" */
const char *format_dims(int32_t ndim, const int64_t *dims, char buf[FORMAT_DIMS_BYTES]); /* "[3, 4]" */
/* Also of a nested tensor: "[3, *, 4]". */
const char *format_shape(int32_t ndim, const int64_t *shape, char buf[FORMAT_DIMS_BYTES]);
/* Text from others for a terminal: each byte of a control character becomes '?'; what does not fit ends in "...". */
const char *format_safe(const char *text, char *buf, size_t buf_bytes);

/* JSON of numbers and texts; a text that is no UTF-8 is made safe first. */
json_t *json_size(uint64_t value);
json_t *json_dims(int32_t ndim, const int64_t *dims);
json_t *json_text(const char *text);
/* Prints it in one line and drops it: one reference is consumed. Flushes. Returns an exit code. */
int json_print(const char *command, json_t *root);

#endif
