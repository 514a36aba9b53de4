/* SPDX-License-Identifier: MIT */
/* Reviewed files in tests/golden, and what the handles in them have in common. Whoever changes a format on purpose
 * writes the files anew (LEND_GOLDEN_UPDATE=1), reads the difference, and changes docs/wire.md or docs/shm-layout.md. */
#ifndef LEND_TESTS_DOCS_GOLDEN_H_
#define LEND_TESTS_DOCS_GOLDEN_H_

#include "share/identity.h"
#include "test.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
    char bytes[32768];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static inline void add(struct text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->bytes + text->n, sizeof text->bytes - text->n, format, args);
    va_end(args);
    CHECK(n >= 0 && text->n + (size_t)n < sizeof text->bytes);
    text->n += (size_t)n;
}

/* Lines of 16 bytes, each with its offset. */
static inline void add_bytes(struct text *text, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) {
        if (i % 16 == 0) add(text, "%4zu ", i);
        add(text, i % 16 == 15 || i == n - 1 ? " %02x\n" : " %02x", p[i]);
    }
}

static inline FILE *open_golden(const char *name, const char *mode) {
    char path[512];
    const char *root = getenv("LEND_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/tests/golden/%s", root ? root : ".", name);
    FILE *file = fopen(path, mode);
    if (!file) FAIL("cannot open %s: %s", path, strerror(errno));
    return file;
}

static inline void check_golden(const char *name, const struct text *actual) {
    if (getenv("LEND_GOLDEN_UPDATE")) {
        FILE *file = open_golden(name, "w");
        CHECK_UINT(fwrite(actual->bytes, 1, actual->n, file), actual->n);
        CHECK_INT(fclose(file), 0);
    }
    static struct text expected;
    FILE *file = open_golden(name, "r");
    expected.n = fread(expected.bytes, 1, sizeof expected.bytes - 1, file);
    expected.bytes[expected.n] = '\0';
    fclose(file);
    CHECK_STR(actual->bytes, expected.bytes);
}

static const struct lend__identity exporter = {
    .boot_id = {0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd, 0xbe, 0xbf},
    .id = {0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xeb, 0xec, 0xed, 0xee, 0xef},
    .start_ns = 0x1122334455667788u,
    .uid = 1000,
    .pid = 4321,
};
static const char socket_path[] = "/run/user/1000/lend-1000-e0e1e2e3e4e5e6e7e8e9eaebecedeeef";

#endif
