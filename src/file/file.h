/* SPDX-License-Identifier: MIT */
/* What the readers share: the table of tensors that a header becomes. Reading needs only public lend calls and
 * base/; nothing here knows pools or the protocol. */
#ifndef LEND_FILE_FILE_H_
#define LEND_FILE_FILE_H_

#include "base/error.h"

#include <lend/file.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LEND__FILE_MAGIC_BYTES 8 /* enough to tell the kinds apart */

struct lend__file_entry {
    char *name; /* owned */
    DLDataType dtype;
    int32_t ndim;
    int64_t *dims; /* owned: shape[ndim], then strides[ndim] */
    uint64_t offset, nbytes;
    bool is_fortran;
};

struct lend__file_text {
    char *key, *value; /* owned */
};

struct lend_file {
    int fd;
    uint64_t bytes;   /* when it was opened */
    const char *path; /* for sentences: of the caller, or its last part; only while opening */
    struct lend__file_entry *entries;
    size_t n_entries;
    struct lend__file_text *texts;
    size_t n_texts;
    struct lend_pool *in_place; /* atomic; maps the whole file. NULL before the first tensor was wanted in place */
};

/* Each fills entries (and texts) from the file's header. What was filled before a failure is freed by the caller. */
int lend__safetensors_read(struct lend_file *file, const uint8_t magic[LEND__FILE_MAGIC_BYTES],
                           struct lend_error *error);
int lend__npy_read(struct lend_file *file, const uint8_t magic[LEND__FILE_MAGIC_BYTES], struct lend_error *error);

/* Who is told after each piece that was read. NULL instead: nobody, and the file is just being opened. */
struct lend__file_listener {
    lend_file_progress_fn progress; /* NULL allowed */
    void *user;
};

/* Reads exactly [offset, offset + bytes), in pieces of at most 256 MiB.
 * Returns 0; -EBADMSG when the file ends before; -ECANCELED; a negative errno. */
int lend__file_read(const struct lend_file *file, void *buf, uint64_t bytes, uint64_t offset,
                    const struct lend__file_listener *listener, struct lend_error *error);

/* Gives an entry its dtype and shape; strides follow (C order, or Fortran order), and nbytes. The shape's sizes are at
 * least 0 and ndim is at most LEND_NDIM_MAX. Returns 0, -EOVERFLOW, -EBADMSG (not whole bytes) or -ENOMEM. */
int lend__file_entry_shape(struct lend__file_entry *entry, DLDataType dtype, int32_t ndim, const int64_t *shape);

/* A copy of a string of the caller's; NULL when there is no memory. */
char *lend__file_text_copy(const char *text, size_t bytes);

/* What follows the last slash. */
const char *lend__file_last_part(const char *path);

#endif
