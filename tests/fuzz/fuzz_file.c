/* SPDX-License-Identifier: MIT */
/* The readers of .safetensors and .npy files: any bytes are a file. */
#include "fuzz.h"

#include <errno.h>
#include <lend/file.h>
#include <lend/lend.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOAD_BYTES_MAX = 1 << 20 };

static struct lend_pool *pool;

static void load(struct lend_file *file, size_t i, size_t file_bytes) {
    struct lend_file_entry entry = {.size = sizeof entry};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    size_t found;
    PROPERTY(lend_file_entry_get(file, i, &entry) == 0);
    PROPERTY(entry.ndim >= 0 && entry.ndim <= LEND_NDIM_MAX && entry.name);
    PROPERTY(entry.offset <= file_bytes && entry.nbytes <= file_bytes - entry.offset);
    PROPERTY(lend_file_find(file, entry.name, &found) == 0);
    int r = lend_file_load(file, i, pool, NULL, &tensor, &error);
    PROPERTY(r == 0 || (error.code == r && error.text[0]));
    if (r < 0) return;
    struct lend_tensor_info info = {.size = sizeof info};
    PROPERTY(lend_tensor_info(tensor, &info) == 0 && info.ndim == entry.ndim && info.nbytes == entry.nbytes);
    PROPERTY(!memcmp(info.shape, entry.shape, (size_t)entry.ndim * sizeof *entry.shape));
    /* In place it is the same tensor. */
    const struct lend_file_load_opts opts = {.size = sizeof opts, .flags = LEND_FILE_IN_PLACE};
    struct lend_tensor *mapped = NULL;
    r = lend_file_load(file, i, NULL, &opts, &mapped, &error);
    PROPERTY(r == 0 || (error.code == r && error.text[0]));
    if (r == 0) {
        PROPERTY(lend_tensor_info(mapped, &info) == 0 && info.nbytes == entry.nbytes);
        PROPERTY(!entry.nbytes || !memcmp(lend_tensor_data(mapped), lend_tensor_data(tensor), entry.nbytes));
        lend_tensor_unref(mapped);
    }
    lend_tensor_unref(tensor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char path[64];
    struct lend_file *file = NULL;
    struct lend_error error = {0};
    if (!pool) PROPERTY(lend_open(NULL, NULL) == 0 && lend_pool_new(NULL, &pool, NULL) == 0);
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    PROPERTY(fd >= 0 && (!bytes || write(fd, data, bytes) == (ssize_t)bytes));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int r = lend_file_open(path, &file, &error);
    PROPERTY(r == 0 || (error.code == r && error.text[0] && !file));
    if (r == 0) {
        const char *key, *value;
        for (size_t i = 0; i < lend_file_count(file); i++) load(file, i, bytes);
        for (size_t i = 0; lend_file_metadata(file, i, &key, &value) == 0; i++) PROPERTY(key && value);
        lend_file_close(file);
    }
    close(fd);
    return 0;
}
