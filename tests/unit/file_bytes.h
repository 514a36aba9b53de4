/* SPDX-License-Identifier: MIT */
/* For the tests of the file readers: a file of given bytes without a name on any disk, and the samples. */
#ifndef LEND_TESTS_FILE_BYTES_H_
#define LEND_TESTS_FILE_BYTES_H_

#include "test.h"

#include <lend/file.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* lend_file_open of a file with these bytes. */
static inline int open_bytes(const void *bytes, size_t n, struct lend_file **ret, struct lend_error *error) {
    char path[64];
    int fd = memfd_create("lend-test", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_INT(write(fd, bytes, n), (long long)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    memset(error, 0, sizeof *error);
    int r = lend_file_open(path, ret, error);
    close(fd);
    if (r < 0) {
        CHECK_INT(error->code, r);
        CHECK(error->text[0]);
    }
    return r;
}

/* What a .safetensors file of this header and `n_data` bytes 0, 1, 2... is. Returns its length. */
static inline size_t safetensors_bytes(const char *header, size_t n_data, uint8_t *bytes, size_t room) {
    size_t n = strlen(header);
    CHECK(8 + n + n_data <= room);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++) bytes[8 + n + i] = (uint8_t)i;
    return 8 + n + n_data;
}

/* The path of a file of the checkout; the build says where that is. */
static inline const char *sample(const char *name) {
    static char path[512];
    const char *root = getenv("LEND_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    return path;
}

/* A small generator of numbers: the same ones in every run. */
static inline uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

#endif
