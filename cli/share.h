/* SPDX-License-Identifier: MIT */
/* Between loading files (share.c), handing out handles of what was loaded (share_lend.c), and the file for the handle
 * (share_output.c). */
#ifndef LEND_CLI_SHARE_H_
#define LEND_CLI_SHARE_H_

#include <lend/file.h>
#include <lend/lend.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    char *output_target;     /* the same with links followed; NULL: a pipe or a device, which is written as it is */
    bool is_output_written;  /* output_target is this command's */
    bool is_open, is_json, is_read_only, is_in_place, is_group;
    struct lend_error error;
};

/* Finds the names that several files have, and refuses a file that is given twice, under whatever names. Each of these
 * returns an exit code. */
int share_find_clashes(struct share *s);

/* Reduce what was loaded, print the lines, and close the files. */
int share_lend_each(struct share *s);
int share_lend_group(struct share *s);

/* Whether --output, if it was given, could be written now without a loss; says why not. */
int share_output_check(struct share *s);
/* Writes the one handle that --output is for; the file is whole as soon as it is there. */
int share_output_write(struct share *s, const char *text);
/* Removes what was written, because the handle will be good for nothing. */
void share_output_drop(struct share *s);

#endif
