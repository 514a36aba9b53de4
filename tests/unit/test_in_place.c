/* SPDX-License-Identifier: MIT */
/* lend_file_load with LEND_FILE_IN_PLACE: the tensors of a file, mapped where they lie. */
#include "fault.h"
#include "file.h"
#include "file_bytes.h"
#include "test.h"

#include <errno.h>
#include <lend/lend.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const struct lend_file_load_opts in_place = {.size = sizeof in_place, .flags = LEND_FILE_IN_PLACE};

#define PLAIN "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
/* Four bytes an element, and the first is at an odd one. */
#define ODD                                                           \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}," \
    "\"b\":{\"dtype\":\"U32\",\"shape\":[2],\"data_offsets\":[1,9]}}"

static int open_header(const char *header, size_t n_data, struct lend_file **ret, struct lend_error *error) {
    uint8_t bytes[256];
    return open_bytes(bytes, safetensors_bytes(header, n_data, bytes, sizeof bytes), ret, error);
}

static int open_plain(struct lend_file **ret, struct lend_error *error) {
    return open_header(PLAIN, 4, ret, error);
}

/* Every tensor lies where the file has it, all of them in one mapping. */
LEND_TEST(safetensors_in_place) {
    struct lend_file *file;
    struct lend_tensor *tensors[7], *again;
    struct lend_error error;
    struct lend_file_entry e = {.size = sizeof e};
    struct lend_tensor_info info = {.size = sizeof info}, first = {.size = sizeof first};
    struct stat st;
    const char *path = sample("examples/digits/digits.safetensors");
    CHECK_INT(stat(path, &st), 0);
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_file_open(path, &file, &error), &error);
    uint8_t *wanted = malloc((size_t)st.st_size);
    FILE *raw = fopen(path, "rb");
    CHECK(raw && wanted);
    CHECK_UINT(fread(wanted, 1, (size_t)st.st_size, raw), st.st_size);
    fclose(raw);
    for (size_t i = 0; i < 7; i++) {
        CHECK_OK(lend_file_load(file, i, NULL, &in_place, &tensors[i], &error), &error);
        CHECK_OK(lend_file_entry_get(file, i, &e), NULL);
        CHECK_OK(lend_tensor_info(tensors[i], &info), NULL);
        CHECK_UINT(info.allocation_inode, st.st_ino);
        CHECK_UINT(info.allocation_offset, e.offset);
        CHECK_UINT(info.allocation_bytes, st.st_size);
        CHECK_UINT(info.nbytes, e.nbytes);
        CHECK_INT(info.ndim, e.ndim);
        for (int32_t k = 0; k < e.ndim; k++) CHECK_INT(info.shape[k], e.shape[k]);
        CHECK(info.is_read_only && info.is_contiguous && !info.is_private);
        CHECK_MEM(info.data, wanted + e.offset, e.nbytes);
        if (i == 0) first = info;
        CHECK_PTR((uint8_t *)info.data - e.offset, (uint8_t *)first.data - first.allocation_offset);
    }
    CHECK_OK(lend_file_load(file, 6, NULL, &in_place, &again, &error), &error);
    CHECK_OK(lend_tensor_info(again, &first), NULL);
    CHECK_UINT(first.storage_id, info.storage_id);
    lend_tensor_unref(again);
    lend_file_close(file);
    CHECK_MEM(info.data, wanted + e.offset, e.nbytes); /* the tensors stay */
    for (size_t i = 0; i < 7; i++) lend_tensor_unref(tensors[i]);
    free(wanted);
    CHECK_OK(lend_close(&error), &error);
}

/* Elements of four bytes that begin at an odd one. */
LEND_TEST(in_place_at_an_odd_byte) {
    struct lend_file *file;
    struct lend_tensor *tensor;
    struct lend_error error;
    uint32_t value;
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(open_header(ODD, 9, &file, &error), &error);
    CHECK_OK(lend_file_load(file, 1, NULL, &in_place, &tensor, &error), &error);
    memcpy(&value, (uint8_t *)lend_tensor_data(tensor) + 4, sizeof value);
    CHECK_UINT(value, 0x08070605);
    lend_tensor_unref(tensor);
    lend_file_close(file);
    CHECK_OK(lend_close(&error), &error);
}

LEND_TEST(loading_with_wrong_options) {
    struct lend_file *file;
    struct lend_tensor *tensor = NULL;
    struct lend_error error;
    struct lend_file_load_opts opts = {.size = 8, .flags = LEND_FILE_IN_PLACE};
    CHECK_OK(open_plain(&file, &error), &error);
    CHECK_CODE(lend_file_load(file, 0, NULL, &opts, &tensor, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "opts.size is 8");
    opts = (struct lend_file_load_opts){.size = sizeof opts, .flags = 2};
    CHECK_CODE(lend_file_load(file, 0, NULL, &opts, &tensor, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "0x2");
    CHECK_CODE(lend_file_load(file, 1, NULL, &in_place, &tensor, &error), -ERANGE);
    CHECK_CODE(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), -ENOTCONN);
    CHECK_CODE(lend_file_load(file, 0, NULL, NULL, &tensor, &error), -EINVAL); /* to be read, it needs a pool */
    CHECK_PTR(tensor, NULL);
    lend_file_close(file);
}

/* The file keeps its mapping for the next tensor, and so the context open. */
LEND_TEST(a_file_in_place_keeps_the_context_until_it_is_closed) {
    struct lend_file *file;
    struct lend_tensor *tensor;
    struct lend_error error;
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(open_plain(&file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), &error);
    lend_tensor_unref(tensor);
    CHECK_CODE(lend_close(&error), -EBUSY);
    lend_file_close(file);
    CHECK_OK(lend_close(&error), &error);
}

/* A child has its own mapping of its parent's file: what it loads is its own to lend. */
LEND_TEST(a_forked_child_loads_from_its_parents_file) {
    struct lend_file *file;
    struct lend_tensor *tensor, *own = NULL;
    struct lend_error error;
    int status = -1;
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(open_plain(&file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), &error);
    pid_t pid = fork();
    if (!pid) {
        CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &own, &error), &error);
        CHECK_MEM(lend_tensor_data(own), "\0\1\2\3", 4);
        CHECK_MEM(lend_tensor_data(tensor), "\0\1\2\3", 4); /* held as an importer of the parent */
        CHECK(lend_tensor_data(own) != lend_tensor_data(tensor));
        lend_tensor_unref(own);
        CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &own, &error), &error);
        lend_tensor_unref(own);
        lend_tensor_unref(tensor);
        lend_file_close(file);
        CHECK_OK(lend_close(&error), &error);
        _exit(0);
    }
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK_INT(status, 0);
    CHECK_MEM(lend_tensor_data(tensor), "\0\1\2\3", 4);
    lend_tensor_unref(tensor);
    lend_file_close(file);
    CHECK_EVENTUALLY(2000, lend_close(&error) == 0);
}

struct loader {
    struct lend_file *file;
    struct lend_tensor **tensor;
};

static void *load_in_thread(void *arg) {
    const struct loader *me = arg;
    struct lend_error error;
    CHECK_OK(lend_file_load(me->file, 0, NULL, &in_place, me->tensor, &error), &error);
    return NULL;
}

LEND_TEST(threads_that_load_in_place_share_one_mapping) {
    struct lend_file *file;
    struct lend_error error;
    pthread_t threads[4];
    struct lend_tensor *tensors[4];
    struct loader loaders[4];
    struct lend_tensor_info info[4];
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(open_plain(&file, &error), &error);
    for (int i = 0; i < 4; i++) {
        loaders[i] = (struct loader){file, &tensors[i]};
        CHECK_INT(pthread_create(&threads[i], NULL, load_in_thread, &loaders[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) {
        info[i].size = sizeof info[i];
        CHECK_OK(lend_tensor_info(tensors[i], &info[i]), NULL);
        CHECK_UINT(info[i].storage_id, info[0].storage_id);
    }
    for (int i = 0; i < 4; i++) lend_tensor_unref(tensors[i]);
    lend_file_close(file);
    CHECK_OK(lend_close(&error), &error);
}

LEND_TEST(every_call_of_loading_in_place_fails_once) {
    struct lend_error error;
    CHECK_OK(lend_open(NULL, &error), &error);
    for (unsigned n = 0;; n++) {
        struct lend_file *file;
        struct lend_tensor *tensor = NULL;
        CHECK_OK(open_plain(&file, &error), &error);
        error = (struct lend_error){0};
        fault_arm_thread(n);
        int r = lend_file_load(file, 0, NULL, &in_place, &tensor, &error);
        const char *failed = fault_disarm();
        CHECK_INT(r < 0, failed != NULL);
        if (failed) {
            CHECK_INT(error.code, r);
            CHECK(error.text[0]);
            CHECK_PTR(tensor, NULL);
            CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), &error);
        }
        CHECK_MEM(lend_tensor_data(tensor), "\0\1\2\3", 4);
        lend_tensor_unref(tensor);
        lend_file_close(file);
        if (failed) continue;
        CHECK(n >= 10); /* the size, what a pool takes, what a tensor at a place takes */
        break;
    }
    CHECK_OK(lend_close(&error), &error);
}

LEND_TEST(a_file_cut_before_and_while_it_is_mapped) {
    struct lend_file *file;
    struct lend_tensor *tensor = NULL;
    struct lend_error error;
    char path[64], text[64];
    uint8_t bytes[256];
    off_t n = (off_t)safetensors_bytes(PLAIN, 4, bytes, sizeof bytes);
    int fd = test_file_make(bytes, (size_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_file_open(path, &file, &error), &error);
    CHECK_INT(ftruncate(fd, n - 3), 0);
    CHECK_CODE(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), -EBADMSG);
    snprintf(text, sizeof text, "has %d bytes and had %d", (int)n - 3, (int)n);
    CHECK_CONTAINS(error.text, text);
    CHECK_INT(ftruncate(fd, n), 0);
    CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), &error);
    lend_tensor_unref(tensor);
    tensor = NULL;
    CHECK_INT(ftruncate(fd, n - 1), 0);
    CHECK_CODE(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), -ESTALE);
    snprintf(text, sizeof text, "cut to %d bytes", (int)n - 1);
    CHECK_CONTAINS(error.text, text);
    CHECK_PTR(tensor, NULL);
    lend_file_close(file);
    close(fd);
    CHECK_OK(lend_close(&error), &error);
}
