/* SPDX-License-Identifier: MIT */
/* The test harness. A program holds tests and, where it needs other processes, roles (role.h):
 *
 *     LEND_TEST(pool_gives_aligned_blocks) {
 *         CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
 *         CHECK_INT(address % 64, 0);
 *     }
 *
 * Each test runs in a process of its own under a time limit. When it returns, that process must have the descriptors,
 * shared mappings, children and threads that it began with; else the test fails and names what is left. A failed check
 * ends the test at once. The program prints TAP; what a failed test wrote to stdout and stderr follows its line.
 *
 * Command line: [-l] [-v] [NAME...]; -l lists, -v shows the output of passing tests too, NAME picks by prefix.
 * Environment: LEND_TEST_UID and LEND_TEST_NOFILE (run as that user, without capabilities, under that limit of
 * descriptors), LEND_TEST_SCALE (factor for every time limit: sanitizers, emulators). */
#ifndef LEND_TESTS_TEST_H_
#define LEND_TESTS_TEST_H_

#include <lend/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct test {
    const char *name;
    void (*run)(void);
    unsigned seconds_max;
    struct test *next;
};

void test_register(struct test *test);

#define LEND_TEST(name) LEND_TEST_TIMED(name, 60)
#define LEND_TEST_TIMED(name, seconds_max)                                    \
    static void test_##name(void);                                            \
    static struct test case_##name = {#name, test_##name, seconds_max, NULL}; \
    __attribute__((constructor)) static void register_##name(void) {          \
        test_register(&case_##name);                                          \
    }                                                                         \
    static void test_##name(void)

/* Ends the test as failed, with file, line and a sentence. Also from threads and from forked children of the test. */
void test_fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
/* Ends the test as skipped; `why` is shown and counted. */
void test_skip(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define SKIP(...) test_skip(__VA_ARGS__)

#define CHECK(expression)                                         \
    do {                                                          \
        if (!(expression)) FAIL("%s does not hold", #expression); \
    } while (0)

/* Each evaluates its arguments once and shows both values. */
#define CHECK_INT(actual, expected) test_check_int(__FILE__, __LINE__, #actual, (actual), #expected, (expected))
#define CHECK_UINT(actual, expected) test_check_uint(__FILE__, __LINE__, #actual, (actual), #expected, (expected))
#define CHECK_PTR(actual, expected) test_check_ptr(__FILE__, __LINE__, #actual, (actual), #expected, (expected))
#define CHECK_STR(actual, expected) test_check_str(__FILE__, __LINE__, #actual, (actual), (expected))
#define CHECK_CONTAINS(text, part) test_check_contains(__FILE__, __LINE__, #text, (text), (part))
#define CHECK_MEM(actual, expected, bytes) test_check_mem(__FILE__, __LINE__, #actual, (actual), (expected), (bytes))
/* A call of the library answers `code` exactly. */
#define CHECK_CODE(call, code) test_check_code(__FILE__, __LINE__, #call, (call), (code), NULL)
/* A call answers 0; else the sentence of `error` (may be NULL) is shown. */
#define CHECK_OK(call, error) test_check_code(__FILE__, __LINE__, #call, (call), 0, (error))

void test_check_int(const char *file, int line, const char *what, long long actual, const char *wanted,
                    long long expected);
void test_check_uint(const char *file, int line, const char *what, unsigned long long actual, const char *wanted,
                     unsigned long long expected);
void test_check_ptr(const char *file, int line, const char *what, const void *actual, const char *wanted,
                    const void *expected);
void test_check_str(const char *file, int line, const char *what, const char *actual, const char *expected);
void test_check_contains(const char *file, int line, const char *what, const char *text, const char *part);
void test_check_mem(const char *file, int line, const char *what, const void *actual, const void *expected,
                    size_t bytes);
void test_check_code(const char *file, int line, const char *what, int actual, int expected,
                     const struct lend_error *error);

/* Under an emulator of another machine a program cannot execute itself, so tests with roles are skipped there, and
 * the kernel's finer effects on mappings are not to be had. */
bool test_is_emulated(void);

/* Monotonic time, and `ms` from now stretched by LEND_TEST_SCALE. */
uint64_t test_now_ms(void);
uint64_t test_deadline_ms(uint64_t ms);
/* Gives the processor away between two looks at a condition. */
void test_pause(void);

/* Waits until the expression holds; fails at the deadline. The way to wait for what other processes do. */
#define CHECK_EVENTUALLY(ms, expression)                                                                  \
    do {                                                                                                  \
        uint64_t deadline_ = test_deadline_ms(ms);                                                        \
        while (!(expression)) {                                                                           \
            if (test_now_ms() >= deadline_) FAIL("%s does not hold after %d ms", #expression, (int)(ms)); \
            test_pause();                                                                                 \
        }                                                                                                 \
    } while (0)

#endif
