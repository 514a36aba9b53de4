/* SPDX-License-Identifier: MIT */
/* Opening a file of tensors, telling what is in it, and loading one: into a pool, or in place.
 *
 * The header is checked completely while opening, so that loading has only the file's length to fear: a file that
 * was cut meanwhile ends a read early and is an error. The descriptor is read by offset only, so any number of threads
 * may load from one file. Nothing changes after lend_file_open but the pool that maps the file, which comes with the
 * first tensor in place, by compare-and-swap; there is no lock. */
#include "file/file.h"

#include "base/atomic.h"
#include "base/checked.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* A read of more than this is several, so that whoever waits can be told how far it is, and can end it. */
#define PIECE_BYTES (256ull << 20)
/* Longer paths would leave no room for what is wrong with the file. */
#define PATH_BYTES_MAX 80
#define OPERATION "lend_file_load"

char *lend__file_text_copy(const char *text, size_t bytes) {
    char *copy = lend__zalloc(bytes + 1);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

const char *lend__file_last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Elements of a shape. The sizes beside a 0 must fit too, because strides are made of them. */
static bool count_overflows(int32_t ndim, const int64_t *shape, int64_t *ret_numel) {
    int64_t product = 1;
    bool is_empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            is_empty = true;
            continue;
        }
        if (lend__mul_overflows(product, shape[i], &product)) return true;
    }
    *ret_numel = is_empty ? 0 : product;
    return false;
}

int lend__file_entry_shape(struct lend__file_entry *entry, DLDataType dtype, int32_t ndim, const int64_t *shape) {
    int64_t numel;
    uint64_t bits;
    if (count_overflows(ndim, shape, &numel)) return -EOVERFLOW;
    if (lend__mul_overflows((uint64_t)numel, lend_dtype_bits(dtype), &bits)) return -EOVERFLOW;
    if (bits % 8) return -EBADMSG;

    int64_t *dims = lend__zalloc(((size_t)ndim * 2 + 1) * sizeof *dims);
    if (!dims) return -ENOMEM;
    /* The products stay below the checked one; sizes of 0 count as 1, as NumPy and PyTorch do. */
    int64_t stride = 1;
    for (int32_t i = 0; i < ndim; i++) {
        int32_t at = entry->is_fortran ? i : ndim - 1 - i;
        dims[at] = shape[at];
        dims[ndim + at] = stride;
        stride *= shape[at] ? shape[at] : 1;
    }
    entry->dtype = dtype;
    entry->ndim = ndim;
    entry->dims = dims;
    entry->nbytes = bits / 8;
    return 0;
}

int lend__file_read(const struct lend_file *file, void *buf, uint64_t bytes, uint64_t offset,
                    const struct lend__file_listener *listener, struct lend_error *error) {
    const char *operation = listener ? OPERATION : "lend_file_open";
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        long r = lend__sys.pread(file->fd, (uint8_t *)buf + done, piece, offset + done);
        if (r < 0) return lend__fail_sys(error, (int)r, operation, "pread", "the file");
        if (r == 0)
            return lend__fail_bytes(error, -EBADMSG, operation, bytes, done,
                                    "the file ends after %llu of the %llu bytes at offset %llu; it was cut short",
                                    (unsigned long long)done, (unsigned long long)bytes, (unsigned long long)offset);
        done += (uint64_t)r;
        if (listener && listener->progress && listener->progress(listener->user, done, bytes))
            return lend__fail(error, -ECANCELED, operation, "the caller's progress function ended the load");
    }
    return 0;
}

/* The descriptor and its length. O_NONBLOCK, or else opening a FIFO would wait for its writer. */
static int open_regular(struct lend_file *file, struct lend_error *error) {
    struct stat st;
    long r = lend__sys.open(file->path, O_RDONLY | O_NONBLOCK);
    if (r < 0) {
        errno = (int)-r; /* for %m: the words of open(2), not those that lend's codes have */
        lend__fail(error, (int)r, "lend_file_open", "%s cannot be opened: %m", file->path);
        if (error) error->os_code = (int)-r;
        return (int)r;
    }
    file->fd = (int)r;
    r = lend__sys.fstat(file->fd, &st);
    if (r < 0) return lend__fail_sys(error, (int)r, "lend_file_open", "fstat", file->path);
    if (S_ISDIR(st.st_mode)) return lend__fail(error, -EISDIR, "lend_file_open", "%s is a directory", file->path);
    if (!S_ISREG(st.st_mode))
        return lend__fail(error, -EINVAL, "lend_file_open", "%s is not a regular file; copy it into one", file->path);
    file->bytes = (uint64_t)st.st_size;
    return 0;
}

static int open_and_read(struct lend_file *file, struct lend_error *error) {
    static const uint8_t npy_magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    uint8_t magic[LEND__FILE_MAGIC_BYTES];
    int r = open_regular(file, error);
    if (r < 0) return r;
    if (strlen(file->path) > PATH_BYTES_MAX) file->path = lend__file_last_part(file->path);
    if (file->bytes < sizeof magic)
        return lend__fail(error, -EBADMSG, "lend_file_open",
                          "%s has %llu bytes, too few for a .safetensors or .npy file", file->path,
                          (unsigned long long)file->bytes);
    r = lend__file_read(file, magic, sizeof magic, 0, NULL, error);
    if (r < 0) return r;
    /* Read as the length of a .safetensors header, NumPy's magic would be far above the limit: no file is both. */
    if (!memcmp(magic, npy_magic, sizeof npy_magic)) return lend__npy_read(file, magic, error);
    return lend__safetensors_read(file, magic, error);
}

int lend_file_open(const char *path, struct lend_file **ret_file, struct lend_error *error) {
    if (!path || !ret_file) return lend__fail(error, -EINVAL, "lend_file_open", "path and ret_file must not be NULL");
    struct lend_file *file = lend__zalloc(sizeof *file);
    if (!file) return lend__fail(error, -ENOMEM, "lend_file_open", "no memory to open %s", path);
    file->fd = -1;
    file->path = path;
    int r = open_and_read(file, error);
    if (r < 0) {
        lend_file_close(file);
        return r;
    }
    file->path = NULL;
    *ret_file = file;
    return 0;
}

void lend_file_close(struct lend_file *file) {
    if (!file) return;
    for (size_t i = 0; i < file->n_entries; i++) {
        free(file->entries[i].name);
        free(file->entries[i].dims);
    }
    for (size_t i = 0; i < file->n_texts; i++) {
        free(file->texts[i].key);
        free(file->texts[i].value);
    }
    free(file->entries);
    free(file->texts);
    lend_pool_unref(file->in_place);
    lend__fd_close(&file->fd);
    free(file);
}

size_t lend_file_count(const struct lend_file *file) {
    return file->n_entries;
}

int lend_file_entry_get(const struct lend_file *file, size_t index, struct lend_file_entry *ret_entry) {
    if (index >= file->n_entries) return -ERANGE;
    size_t size = ret_entry->size;
    if (size < offsetof(struct lend_file_entry, nbytes) + sizeof ret_entry->nbytes) return -EINVAL;
    const struct lend__file_entry *e = &file->entries[index];
    const struct lend_file_entry filled = {
        .size = size,
        .name = e->name,
        .dtype = e->dtype,
        .ndim = e->ndim,
        .shape = e->dims,
        .strides = e->dims + e->ndim,
        .offset = e->offset,
        .nbytes = e->nbytes,
    };
    memcpy(ret_entry, &filled, size < sizeof filled ? size : sizeof filled);
    return 0;
}

int lend_file_find(const struct lend_file *file, const char *name, size_t *ret_index) {
    for (size_t i = 0; i < file->n_entries; i++) {
        if (strcmp(file->entries[i].name, name)) continue;
        *ret_index = i;
        return 0;
    }
    return -ENOENT;
}

int lend_file_metadata(const struct lend_file *file, size_t index, const char **ret_key, const char **ret_value) {
    if (index >= file->n_texts) return -ERANGE;
    *ret_key = file->texts[index].key;
    *ret_value = file->texts[index].value;
    return 0;
}

/* The bytes in file order are a C-ordered tensor; Fortran order is that tensor with its dimensions reversed. */
static void file_order(const struct lend__file_entry *e, int64_t ret_shape[LEND_NDIM_MAX + 1]) {
    for (int32_t i = 0; i < e->ndim; i++) ret_shape[i] = e->dims[e->is_fortran ? e->ndim - 1 - i : i];
}

static int load_copy(const struct lend_file *file, const struct lend__file_entry *e, struct lend_pool *pool,
                     const struct lend_file_load_opts *opts, struct lend_tensor **ret, struct lend_error *error) {
    const struct lend__file_listener listener = {.progress = opts->progress, .user = opts->user};
    int64_t shape[LEND_NDIM_MAX + 1] = {0};
    struct lend_tensor *tensor = NULL;
    file_order(e, shape);
    int r = lend_tensor_new(pool, e->dtype, e->ndim, shape, &tensor, error);
    if (r < 0) return r;
    r = lend__file_read(file, lend_tensor_data(tensor), e->nbytes, e->offset, &listener, error);
    if (r < 0) {
        lend_tensor_unref(tensor);
        return r;
    }
    *ret = tensor;
    return 0;
}

/* A pool over the whole file, as it was when its header was checked. */
static int pool_in_place(const struct lend_file *file, struct lend_pool **ret, struct lend_error *error) {
    const struct lend_pool_opts opts = {
        .size = sizeof opts,
        .flags = LEND_POOL_FILE_IN_PLACE,
        .adopt_fd = file->fd,
        .adopt_bytes = file->bytes,
    };
    struct stat st;
    long r = lend__sys.fstat(file->fd, &st);
    if (r < 0) return lend__fail_sys(error, (int)r, OPERATION, "fstat", "the file");
    if ((uint64_t)st.st_size < file->bytes)
        return lend__fail_bytes(error, -EBADMSG, OPERATION, file->bytes, (uint64_t)st.st_size,
                                "the file has %lld bytes and had %llu when it was opened; it was cut short",
                                (long long)st.st_size, (unsigned long long)file->bytes);
    return lend_pool_new(&opts, ret, error);
}

/* One pool for all tensors of the file. It is made when there is none, and again in a forked child, where the parent's
 * answers -ECHILD; of two threads that make one the second drops its own. */
static int load_in_place(struct lend_file *file, const struct lend__file_entry *e, struct lend_tensor **ret,
                         struct lend_error *error) {
    struct lend_pool *pool = lend__load_acquire(&file->in_place), *fresh = NULL;
    int64_t shape[LEND_NDIM_MAX + 1] = {0};
    file_order(e, shape);
    for (;;) {
        int r = pool ? lend_tensor_new_at(pool, e->offset, e->dtype, e->ndim, shape, ret, error) : -ECHILD;
        if (r != -ECHILD) return r;
        r = pool_in_place(file, &fresh, error);
        if (r < 0) return r;
        if (lend__cas_acq_rel(&file->in_place, &pool, fresh)) {
            lend_pool_unref(pool); /* the parent's: nothing happens */
            pool = fresh;
        } else {
            lend_pool_unref(fresh);
        }
    }
}

static const struct lend_file_load_opts defaults = {.size = sizeof defaults};

static int check_opts(const struct lend_file_load_opts *opts, struct lend_error *error) {
    if (opts->size != sizeof *opts)
        return lend__fail(error, -EINVAL, OPERATION,
                          "opts.size is %zu; set it to sizeof(struct lend_file_load_opts) = %zu", opts->size,
                          sizeof *opts);
    if (opts->flags & ~(uint32_t)LEND_FILE_IN_PLACE)
        return lend__fail(error, -EINVAL, OPERATION, "opts.flags 0x%x has bits that are not in lend_file_flags",
                          opts->flags);
    return 0;
}

int lend_file_load(struct lend_file *file, size_t index, struct lend_pool *pool, const struct lend_file_load_opts *opts,
                   struct lend_tensor **ret_tensor, struct lend_error *error) {
    if (!opts) opts = &defaults;
    if (index >= file->n_entries)
        return lend__fail(error, -ERANGE, OPERATION, "tensor %zu was asked for, the file has %zu", index,
                          file->n_entries);
    const struct lend__file_entry *e = &file->entries[index];
    struct lend_tensor *tensor = NULL, *view = NULL;
    int r = check_opts(opts, error);
    if (r < 0) return r;
    if (opts->flags & LEND_FILE_IN_PLACE)
        r = load_in_place(file, e, &tensor, error);
    else
        r = load_copy(file, e, pool, opts, &tensor, error);
    if (r < 0) return r;
    if (e->is_fortran && e->ndim > 1) {
        r = lend_tensor_as_strided(tensor, e->ndim, e->dims, e->dims + e->ndim, 0, &view, error);
        lend_tensor_unref(tensor);
        if (r < 0) return r;
        tensor = view;
    }
    *ret_tensor = tensor;
    return 0;
}
