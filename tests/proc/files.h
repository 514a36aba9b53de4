/* SPDX-License-Identifier: MIT */
/* What the tests of files between processes share: a patterned file, its pool, and what a process has of it. */
#ifndef LEND_TESTS_PROC_FILES_H_
#define LEND_TESTS_PROC_FILES_H_

#include "file.h"
#include "peer.h"

#include <stdio.h>
#include <sys/stat.h>

enum { FILE_BYTES = 100000 };

static const struct lend_rebuild_opts in_place = {.size = sizeof in_place, .flags = LEND_REBUILD_FILE_IN_PLACE};

static inline struct lend_pool *file_pool(int fd) {
    return new_pool(&(struct lend_pool_opts){.size = sizeof(struct lend_pool_opts),
                                             .flags = LEND_POOL_FILE_IN_PLACE,
                                             .adopt_fd = fd,
                                             .adopt_bytes = FILE_BYTES});
}

static inline struct lend_tensor *tensor_at(struct lend_pool *pool, uint64_t offset, int64_t bytes) {
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_tensor_new_at(pool, offset, uint8, 1, &bytes, &tensor, &error), &error);
    return tensor;
}

/* Is it what the file had from there on? */
static inline bool is_patterned(struct lend_tensor *tensor, uint64_t offset) {
    struct lend_tensor_info info = info_of(tensor);
    for (uint64_t i = 0; i < info.nbytes; i++)
        if (((volatile uint8_t *)info.data)[i] != test_file_byte(offset + i)) return false;
    return info.nbytes > 0;
}

/* The descriptors of this process for that inode; the last of them in ret_fd. */
static inline unsigned descriptors_of(uint64_t inode, int *ret_fd) {
    unsigned n = 0;
    for (int fd = 3; fd < 1024; fd++) {
        struct stat st;
        if (fstat(fd, &st) || st.st_ino != inode || !S_ISREG(st.st_mode)) continue;
        n++;
        if (ret_fd) *ret_fd = fd;
    }
    return n;
}

static inline unsigned mappings_of(uint64_t inode) {
    char line[512];
    unsigned n = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) FAIL("cannot read /proc/self/maps");
    while (fgets(line, sizeof line, maps)) {
        unsigned long long found = 0;
        n += sscanf(line, "%*s %*s %*s %*s %llu", &found) == 1 && found == inode;
    }
    fclose(maps);
    return n;
}

static inline void end_exporter(struct lend_tensor *tensor, struct lend_pool *pool, int fd) {
    lend_tensor_unref(tensor);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
    close(fd);
}

#endif
