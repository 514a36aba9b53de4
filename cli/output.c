/* SPDX-License-Identifier: MIT */
/* What all subcommands print alike: errors, sizes, ages, shapes, and JSON. Text that comes from files or from other
 * processes may hold escape sequences; nothing of it reaches a terminal before format_safe. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <lend/layout.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fail_text(const char *command, const char *format, ...) {
    va_list args;
    char text[512], safe[512];
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);
    fprintf(stderr, "lend%s%s: %s\n", *command ? " " : "", command, format_safe(text, safe, sizeof safe));
    return CLI_FAILED;
}

int fail(const char *command, const struct lend_error *error) {
    return fail_text(command, "%s", *error->text ? error->text : lend_strerror(error->code));
}

int fail_usage(const char *command) {
    fprintf(stderr, "See 'lend help %s'.\n", command);
    return CLI_USAGE;
}

int finish_output(const char *command) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return CLI_OK;
    return fail_text(command, "writing to standard output failed: %s", strerror(errno));
}

struct style style_get(void) {
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    if (!isatty(STDOUT_FILENO) || (no_colour && *no_colour) || !term || !strcmp(term, "dumb"))
        return (struct style){"", "", "", ""};
    return (struct style){"\033[1m", "\033[2m", "\033[33m", "\033[0m"};
}

const char *format_bytes(uint64_t bytes, char buf[FORMAT_BYTES]) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes / 1024;
    size_t unit = 0;
    if (bytes < 1024) {
        snprintf(buf, FORMAT_BYTES, "%" PRIu64 " B", bytes);
        return buf;
    }
    for (; value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]; unit++) value /= 1024;
    snprintf(buf, FORMAT_BYTES, "%.1f %s", value, units[unit]);
    return buf;
}

const char *format_duration(uint64_t ns, char buf[FORMAT_BYTES]) {
    uint64_t s = ns / 1000000000;
    if (s < 60)
        snprintf(buf, FORMAT_BYTES, "%.1f s", (double)ns / 1e9);
    else if (s < 3600)
        snprintf(buf, FORMAT_BYTES, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buf, FORMAT_BYTES, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    else
        snprintf(buf, FORMAT_BYTES, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
    return buf;
}

/* `ragged`: what stands for LEND_RAGGED, or NULL where a number below 0 is one as any other. */
static const char *format_list(int32_t n, const int64_t *numbers, const char *ragged, char buf[FORMAT_DIMS_BYTES]) {
    size_t at = (size_t)snprintf(buf, FORMAT_DIMS_BYTES, "[");
    for (int32_t i = 0; i < n && at < FORMAT_DIMS_BYTES; i++) {
        const char *between = i ? ", " : "";
        if (ragged && numbers[i] == LEND_RAGGED)
            at += (size_t)snprintf(buf + at, FORMAT_DIMS_BYTES - at, "%s%s", between, ragged);
        else
            at += (size_t)snprintf(buf + at, FORMAT_DIMS_BYTES - at, "%s%" PRId64, between, numbers[i]);
    }
    if (at < FORMAT_DIMS_BYTES) snprintf(buf + at, FORMAT_DIMS_BYTES - at, "]");
    return buf;
}

const char *format_dims(int32_t ndim, const int64_t *dims, char buf[FORMAT_DIMS_BYTES]) {
    return format_list(ndim, dims, NULL, buf);
}

const char *format_shape(int32_t ndim, const int64_t *shape, char buf[FORMAT_DIMS_BYTES]) {
    return format_list(ndim, shape, "*", buf);
}

/* Bytes of the control character that begins here; 0: none does. Beside ASCII's these are U+0080 to U+009F, and those
 * that turn the direction of text and so could make a line look like another: U+202A to U+202E, U+2066 to U+2069. */
static size_t control_bytes(const char *text) {
    unsigned char a = (unsigned char)text[0];
    if (a < 0x20 || a == 0x7f) return 1;
    if (a != 0xc2 && a != 0xe2) return 0;
    unsigned char b = (unsigned char)text[1];
    if (a == 0xc2) return b >= 0x80 && b <= 0x9f ? 2 : 0;
    if (b != 0x80 && b != 0x81) return 0;
    unsigned char c = (unsigned char)text[2];
    return (b == 0x80 ? c >= 0xaa && c <= 0xae : c >= 0xa6 && c <= 0xa9) ? 3 : 0;
}

const char *format_safe(const char *text, char *buf, size_t buf_bytes) {
    size_t n = 0;
    while (text[n] && n + 1 < buf_bytes) {
        size_t bad = control_bytes(text + n);
        if (!bad) {
            buf[n] = text[n];
            n++;
        }
        for (; bad && n + 1 < buf_bytes; bad--) buf[n++] = '?';
    }
    if (text[n] && buf_bytes > 4) {
        n = buf_bytes - 4;
        while (n && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* no half of a UTF-8 character stays */
        memcpy(buf + n, "...", 3);
        n += 3;
    }
    buf[n] = 0;
    return buf;
}

json_t *json_size(uint64_t value) {
    /* JSON integers end at 2^63 - 1 here; no size or label that lend prints is above. */
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

json_t *json_dims(int32_t ndim, const int64_t *dims) {
    json_t *array = json_array();
    for (int32_t i = 0; i < ndim; i++) json_array_append_new(array, json_integer(dims[i]));
    return array;
}

json_t *json_text(const char *text) {
    json_t *value = json_string(text);
    if (value) return value;
    char buf[512];
    format_safe(text, buf, sizeof buf);
    for (char *c = buf; *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    return json_string(buf);
}

int json_print(const char *command, json_t *root) {
    int r = root ? json_dumpf(root, stdout, JSON_COMPACT) : -1;
    json_decref(root);
    if (r < 0) return fail_text(command, "no memory for the JSON output, or standard output is closed");
    putchar('\n');
    return finish_output(command);
}
