/* SPDX-License-Identifier: MIT */
/* Files of tensors, read straight into a pool or lent in place: .safetensors and .npy. Part of liblend-file, not of
 * liblend (which needs libc only), and so not included by lend.h.
 *
 * The whole header is checked when the file is opened: any bytes give a table of tensors or a typed error. Each
 * tensor is then loaded into the pool's memory without a buffer between: by one read, or by one for each 256 MiB of a
 * larger tensor, so that progress can be told and the load be ended. */
#ifndef LEND_FILE_H_
#define LEND_FILE_H_

#include <lend/dtype.h>
#include <lend/error.h>
#include <lend/pool.h>
#include <lend/tensor.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lend_file;

/* Opens a file and checks its header. The kind is told by the content, not by the name.
 *   path      borrowed. Its last part without ".npy" is the tensor's name in an .npy file.
 *   ret_file  returned: give it to lend_file_close. It keeps one descriptor open.
 *   error     borrowed, NULL allowed: names the tensor and the number that is wrong.
 * Return: 0; -ENOENT, -EACCES, -EISDIR, -EIO and other codes of open(2) and pread(2); -EINVAL (not a regular file);
 * -EBADMSG (neither kind of file, damaged, cut short, or against a rule of its format: a header above 100 MB, bytes
 * without or with two owners, sizes that do not agree); -EOPNOTSUPP (a dtype that lend does not carry, such as
 * NumPy's objects, records and big-endian numbers; more than LEND_NDIM_MAX dimensions); -ENOMEM; -EMFILE.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: https://github.com/huggingface/safetensors (Format), numpy.lib.format. */
LEND_API int lend_file_open(const char *path, struct lend_file **ret_file, struct lend_error *error);

/* Closes a file. Tensors that were loaded from it stay.
 *   file  consumed; NULL allowed.
 * Return: nothing; cannot fail.
 * Threads: any, when no other uses the file.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_file_open. */
LEND_API void lend_file_close(struct lend_file *file);

/* Tells how many tensors a file holds.
 *   file  borrowed.
 * Return: the number, 0 for a .safetensors file without tensors.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_file_entry_get. */
LEND_API size_t lend_file_count(const struct lend_file *file);

/* One tensor of a file. What the pointers show is borrowed from the file and lives as long as it does. */
struct lend_file_entry {
    size_t size;      /* in: sizeof(struct lend_file_entry) */
    const char *name; /* UTF-8, of any length; may hold control characters, but no NUL */
    DLDataType dtype;
    int32_t ndim;
    const int64_t *shape;
    const int64_t *strides; /* in elements: C order, or reversed for an .npy file in Fortran order */
    uint64_t offset;        /* of the first byte in the file */
    uint64_t nbytes;        /* sub-byte elements packed, as lend packs them */
};

/* Tells what tensor `index` is; a .safetensors file's are ordered by their place in the file.
 *   file       borrowed.
 *   index      below lend_file_count.
 *   ret_entry  its `size` is read first; only that many bytes are written.
 * Return: 0; -ERANGE (index); -EINVAL (size).
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_file_find. */
LEND_API int lend_file_entry_get(const struct lend_file *file, size_t index, struct lend_file_entry *ret_entry);

/* Finds a tensor by its name.
 *   file       borrowed.
 *   name       borrowed, NUL-terminated.
 *   ret_index  written on success.
 * Return: 0; -ENOENT.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_file_entry_get. */
LEND_API int lend_file_find(const struct lend_file *file, const char *name, size_t *ret_index);

/* Gives one string of a .safetensors file's "__metadata__".
 *   file   borrowed.
 *   index  counts from 0.
 *   ret_key, ret_value  borrowed from the file, NUL-terminated UTF-8; written on success.
 * Return: 0; -ERANGE: there are no more.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: https://github.com/huggingface/safetensors (Format). */
LEND_API int lend_file_metadata(const struct lend_file *file, size_t index, const char **ret_key,
                                const char **ret_value);

/* Called after each read with the bytes of this tensor that are there; up to 256 MiB are one read unless the kernel
 * stops short. Return 0 to go on; anything else ends the load with -ECANCELED. */
typedef int (*lend_file_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

enum lend_file_flags {
    LEND_FILE_IN_PLACE = 1u << 0 /* map the tensor where it lies instead of reading it: no copy, no memory of its own,
                                  * and it stays backed by the file. It is read-only. The kernel cannot protect it:
                                  * who cuts the file short makes every access in every process a SIGBUS */
};

struct lend_file_load_opts {
    size_t size;                    /* sizeof(struct lend_file_load_opts) */
    uint32_t flags;                 /* enum lend_file_flags */
    lend_file_progress_fn progress; /* NULL: nothing is called; not called with LEND_FILE_IN_PLACE */
    void *user;                     /* given back to progress */
};

/* Loads one tensor: reads it into a pool, or with LEND_FILE_IN_PLACE maps it. A file that was cut since it was opened
 * is an error here, never a signal.
 *   file        borrowed.
 *   index       below lend_file_count.
 *   pool        shared: the tensor keeps it alive. With LEND_FILE_IN_PLACE not used; NULL allowed.
 *   opts        borrowed; NULL: read, no progress.
 *   ret_tensor  returned: one reference. An .npy file in Fortran order gives a transposed view. Mapped tensors of one
 *               file share one mapping and one descriptor, also after lend_file_close; until then the file keeps them,
 *               so lend_close comes after it.
 *   error       borrowed, NULL allowed.
 * Return: 0; -ERANGE (index); -EINVAL (opts); -EBADMSG (the file is shorter now); -ECANCELED; codes of pread(2);
 * errors of lend_tensor_new; with LEND_FILE_IN_PLACE errors of lend_pool_new and lend_tensor_new_at.
 * Threads: any, also several on one file.  Crash: as the end of the process.  Since: 0.1.
 * See: pread(2), mmap(2). */
LEND_API int lend_file_load(struct lend_file *file, size_t index, struct lend_pool *pool,
                            const struct lend_file_load_opts *opts, struct lend_tensor **ret_tensor,
                            struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
