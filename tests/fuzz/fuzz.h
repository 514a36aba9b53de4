/* SPDX-License-Identifier: MIT */
/* What the targets share. A target is libFuzzer's entry; driver.c calls the same function in `make test`. An input's
 * first byte picks what is done with the rest, so that one target reaches behind checksums and magic numbers. */
#ifndef LEND_TESTS_FUZZ_H_
#define LEND_TESTS_FUZZ_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A property that must hold whatever the input: what fails here is a finding, like a crash. */
#define PROPERTY(expression)                                                               \
    do {                                                                                   \
        if (!(expression)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #expression); \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

/* Bytes of the input, taken from the front; zeros when it has come to its end. */
struct input {
    const uint8_t *at;
    size_t left;
};

static inline void input_take(struct input *input, void *to, size_t bytes) {
    size_t n = bytes < input->left ? bytes : input->left;
    memset(to, 0, bytes);
    if (n) memcpy(to, input->at, n);
    input->at += n;
    input->left -= n;
}

static inline uint8_t input_byte(struct input *input) {
    uint8_t byte;
    input_take(input, &byte, 1);
    return byte;
}

static inline uint64_t input_u64(struct input *input) {
    uint64_t value;
    input_take(input, &value, sizeof value);
    return value;
}

#endif
