/* SPDX-License-Identifier: MIT */
/* Checks and waits. A failed check writes "file:line: sentence" to stderr, which the runner keeps, marks the test as
 * failed in memory that it shares with its forked children, and ends the process. */
#include "runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void end(int code) __attribute__((noreturn));
static void end(int code) {
    fflush(NULL);
    _exit(code);
}

void test_fail(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    if (test_outcome) __atomic_store_n(&test_outcome->has_failed, true, __ATOMIC_RELAXED);
    end(TEST_EXIT_FAILED);
}

void test_skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (test_outcome) vsnprintf(test_outcome->skip, sizeof test_outcome->skip, format, args);
    va_end(args);
    end(TEST_EXIT_SKIPPED);
}

void test_check_int(const char *file, int line, const char *what, long long actual, const char *wanted,
                    long long expected) {
    if (actual != expected) test_fail(file, line, "%s is %lld, not %lld (%s)", what, actual, expected, wanted);
}

void test_check_uint(const char *file, int line, const char *what, unsigned long long actual, const char *wanted,
                     unsigned long long expected) {
    if (actual != expected)
        test_fail(file, line, "%s is %llu (0x%llx), not %llu (0x%llx, %s)", what, actual, actual, expected, expected,
                  wanted);
}

void test_check_ptr(const char *file, int line, const char *what, const void *actual, const char *wanted,
                    const void *expected) {
    if (actual != expected) test_fail(file, line, "%s is %p, not %p (%s)", what, actual, expected, wanted);
}

void test_check_str(const char *file, int line, const char *what, const char *actual, const char *expected) {
    if (!actual || strcmp(actual, expected))
        test_fail(file, line, "%s is \"%s\", not \"%s\"", what, actual ? actual : "(null)", expected);
}

void test_check_contains(const char *file, int line, const char *what, const char *text, const char *part) {
    if (!text || !strstr(text, part))
        test_fail(file, line, "%s is \"%s\", which lacks \"%s\"", what, text ? text : "(null)", part);
}

void test_check_mem(const char *file, int line, const char *what, const void *actual, const void *expected,
                    size_t bytes) {
    const unsigned char *a = actual, *e = expected;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != e[i])
            test_fail(file, line, "%s differs first at byte %zu of %zu: 0x%02x, not 0x%02x", what, i, bytes, a[i],
                      e[i]);
}

void test_check_code(const char *file, int line, const char *what, int actual, int expected,
                     const struct lend_error *error) {
    if (actual == expected) return;
    test_fail(file, line, "%s answers %d (%s), not %d (%s)%s%s", what, actual, lend_strerror(actual), expected,
              lend_strerror(expected), error && actual < 0 ? ": " : "", error && actual < 0 ? error->text : "");
}

uint64_t test_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t test_scale(void) {
    const char *scale = getenv("LEND_TEST_SCALE");
    unsigned long n = scale ? strtoul(scale, NULL, 10) : 1;
    return n ? n : 1;
}

uint64_t test_deadline_ms(uint64_t ms) {
    return test_now_ms() + ms * test_scale();
}

void test_pause(void) {
    nanosleep(&(struct timespec){0, 500000}, NULL);
}
