/* SPDX-License-Identifier: MIT */
/* Files on a disk, without a name, so that nothing is left of them. */
#ifndef LEND_TESTS_FILE_H_
#define LEND_TESTS_FILE_H_

#include "test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* A file with these bytes, open for reading and writing at its end. */
static inline int test_file_make(const void *bytes, size_t n) {
    char path[] = "/tmp/lend-file-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0 || unlink(path)) FAIL("no file can be made in /tmp");
    CHECK_INT(write(fd, bytes, n), (long long)n);
    return fd;
}

/* What byte i of a patterned file is. */
static inline uint8_t test_file_byte(uint64_t i) {
    return (uint8_t)(i * 7 % 251);
}

static inline int test_file_patterned(size_t n) {
    uint8_t *bytes = malloc(n);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < n; i++) bytes[i] = test_file_byte(i);
    int fd = test_file_make(bytes, n);
    free(bytes);
    return fd;
}

#endif
