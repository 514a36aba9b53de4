/* SPDX-License-Identifier: MIT */
/* Between loading files (share.c) and handing out handles of what was loaded (share_lend.c). */
#ifndef LEND_CLI_SHARE_H_
#define LEND_CLI_SHARE_H_

#include <lend/file.h>
#include <lend/lend.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What runs through the command; every member is released at its end, in whatever state. */
struct share {
    char **paths;
    struct lend_file **files;
    size_t n_files;
    size_t n_entries;             /* tensors of all files */
    uint64_t bytes;               /* of these */
    struct lend_tensor **tensors; /* in the order of the files */
    size_t n_tensors;             /* loaded so far */
    bool *is_clash;               /* of a group: for each tensor, whether another file has its name */
    struct lend_pool *pool;       /* NULL: in place */
    struct lend_group *group;
    const char *output_path; /* NULL: handles go to standard output */
    FILE *output;
    bool is_open, is_json, is_read_only, is_in_place, is_group;
    struct lend_error error;
};

/* Finds the names that several files have, and refuses a file that is given twice. Each of these returns an exit
 * code. */
int share_find_clashes(struct share *s);

/* Reduce what was loaded, print the lines, and close the files. */
int share_lend_each(struct share *s);
int share_lend_group(struct share *s);

#endif
