/* SPDX-License-Identifier: MIT */
/* docs/kinds.md, memory that lend did not make: private memory of whatever origin is copied, and the outcome says so;
 * a file is mapped where it lies, or read. */
#include "kind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 100000 };

static const struct lend_reduce_opts no_copy = {.size = sizeof no_copy, .flags = LEND_REDUCE_NO_COPY};

/* Sent by copy: the copy is the receiver's, pinned until it is there, and the source stays what it was. */
static void expect_copied(struct fixture *f, struct lend_tensor *tensor, const uint8_t *source, int fill) {
    CHECK_INT(info_of(tensor).is_private, 1);
    expect_refused(tensor, &no_copy, -EOPNOTSUPP, "LEND_REDUCE_NO_COPY forbids a copy");
    struct books before = books_now();
    give(f, 0, tensor, NULL, LEND_COPIED);
    CHECK_INT(actor_int(&f->peer, "filled 0"), fill);
    CHECK_CONTAINS(actor_ok(&f->peer, "info 0"), "read_only 0 imported 1 ");
    actor_ok(&f->peer, "fill 0 250");
    CHECK_INT(source[0], fill);
    CHECK_PTR(lend_tensor_data(tensor), source);
    actor_ok(&f->peer, "drop 0");
    expect_books(before);
}

/* NumPy, bytearray, another library's tensor: memory of malloc. */
LEND_TEST(numpy_array_or_bytearray) {
    struct fixture f;
    begin(&f);
    uint8_t *array = malloc(BYTES);
    memset(array, 7, BYTES);
    struct lend_tensor *tensor = take(array, BYTES, 0);
    expect_copied(&f, tensor, array, 7);
    /* The array and the tensor are still one: PyTorch cuts them. */
    array[5] = 99;
    CHECK_INT(((uint8_t *)lend_tensor_data(tensor))[5], 99);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_given_back, 1);
    free(array);
    end(&f);
}

/* A view of what was lent already, by way of another library: the storage is found by its address. */
LEND_TEST(dlpack_of_a_lent_tensor) {
    struct fixture f;
    begin(&f);
    struct lend_tensor *tensor = new_bytes(f.pool, BYTES, 7);
    give(&f, 0, tensor, NULL, 0);
    struct lend_tensor *view = take((uint8_t *)lend_tensor_data(tensor) + 100, 50, 0);
    CHECK_UINT(n_given_back, 1);
    CHECK_UINT(info_of(view).storage_id, info_of(tensor).storage_id);
    give(&f, 1, view, &no_copy, 0);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    lend_tensor_unref(view);
    lend_tensor_unref(tensor);
    end(&f);
}

/* PyTorch's pinned memory is memory of the CPU for DLPack. As memory of a device it has no back end here. */
LEND_TEST(pinned_memory) {
    static int64_t shape = BYTES;
    struct DLManagedTensorVersioned managed = {.version = {LEND_DLPACK_MAJOR, 0}};
    struct lend_tensor *none = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    uint8_t *pinned = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pinned != MAP_FAILED);
    int is_locked = mlock(pinned, BYTES); /* the limit may forbid it, and nothing here depends on it */
    memset(pinned, 8, BYTES);
    struct lend_tensor *tensor = take(pinned, BYTES, 0);
    expect_copied(&f, tensor, pinned, 8);
    lend_tensor_unref(tensor);
    managed.dl_tensor =
        (DLTensor){.data = pinned, .device = {.device_type = kDLCUDAHost}, .ndim = 1, .dtype = uint8, .shape = &shape};
    CHECK_CODE(lend_tensor_from_dlpack(&managed, &none, &error), -ENODEV);
    CHECK_CONTAINS(error.text, "there is no back end for device type 3 in this build");
    if (!is_locked) munlock(pinned, BYTES);
    munmap(pinned, BYTES);
    end(&f);
}

/* Two lazy clones are two tensors of one memory until one is written: lend reads, and copies. */
LEND_TEST(copy_on_write_clone) {
    struct fixture f;
    begin(&f);
    uint8_t *memory = malloc(BYTES);
    memset(memory, 9, BYTES);
    struct lend_tensor *first = take(memory, BYTES, 0);
    struct lend_tensor *second = take(memory, BYTES, DLPACK_FLAG_BITMASK_READ_ONLY);
    expect_copied(&f, first, memory, 9);
    expect_copied(&f, second, memory, 9);
    give(&f, 0, first, NULL, LEND_COPIED);
    give(&f, 1, second, NULL, LEND_COPIED);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 0);
    actor_ok(&f.peer, "fill 0 1");
    CHECK_INT(actor_int(&f.peer, "filled 1"), 9);
    lend_tensor_unref(first);
    lend_tensor_unref(second);
    free(memory);
    end(&f);
}

/* An open file of one page and a bit, filled with 5; removed at once. */
static int new_file(void) {
    char path[] = "/tmp/lend-file-XXXXXX";
    uint8_t bytes[BYTES];
    int fd = mkostemp(path, O_CLOEXEC);
    CHECK(fd >= 0);
    unlink(path);
    memset(bytes, 5, sizeof bytes);
    CHECK_INT(write(fd, bytes, sizeof bytes), BYTES);
    return fd;
}

/* torch.load(mmap=True): a private mapping, which no other process could follow. */
LEND_TEST(mapped_checkpoint) {
    struct fixture f;
    begin(&f);
    int fd = new_file();
    uint8_t *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(mapped != MAP_FAILED);
    struct lend_tensor *tensor = take(mapped, BYTES, 0);
    expect_copied(&f, tensor, mapped, 5);
    lend_tensor_unref(tensor);
    munmap(mapped, BYTES);
    close(fd);
    end(&f);
}

static struct lend_pool *new_file_pool(int fd) {
    struct lend_pool_opts opts = {
        .size = sizeof opts, .flags = LEND_POOL_FILE_IN_PLACE, .adopt_fd = fd, .adopt_bytes = BYTES};
    return new_pool(&opts);
}

/* torch.from_file: not copied, and still the file. */
LEND_TEST(file_in_place) {
    int64_t shape[] = {100, 10};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    int fd = new_file();
    struct lend_pool *pool = new_file_pool(fd);
    CHECK_OK(lend_tensor_new_at(pool, 4001, uint8, 2, shape, &tensor, &error), &error);
    struct lend_tensor_info info = info_of(tensor);
    CHECK_INT(info.is_file, 1);
    CHECK_INT(info.is_read_only, 1);
    CHECK_INT(info.is_private, 0);
    const char *text = reduce_text(tensor, &no_copy, 0);
    /* The receiver has to want it: a file can be cut under it. */
    CHECK_INT(actor_code(&f.peer, "rebuild 0 %s", text), -EACCES);
    CHECK_CONTAINS(actor_sentence, "LEND_REBUILD_FILE_IN_PLACE");
    actor_ok(&f.peer, "rebuild 0 %s file", text);
    expect_equal(&f.peer, 0, tensor);
    CHECK_CONTAINS(actor_ok(&f.peer, "info 0"), "read_only 1 imported 1 ");
    CHECK_INT(actor_int(&f.peer, "filled 0"), 5);
    uint8_t byte = 66;
    CHECK_INT(pwrite(fd, &byte, 1, 4001 + 999), 1);
    CHECK_INT(actor_int(&f.peer, "byte 0 999"), 66);
    lend_tensor_unref(tensor);
    actor_ok(&f.peer, "drop 0");
    lend_pool_unref(pool);
    close(fd);
    end(&f);
}

/* The size of the file is looked at in every rebuild, also by who has it mapped. */
LEND_TEST(file_that_was_cut) {
    int64_t shape[] = {100, 10};
    struct lend_tensor *tensor = NULL, *none = NULL;
    struct lend_error error = {0};
    struct fixture f;
    begin(&f);
    int fd = new_file();
    struct lend_pool *pool = new_file_pool(fd);
    CHECK_OK(lend_tensor_new_at(pool, 90000, uint8, 2, shape, &tensor, &error), &error);
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", reduce_text(tensor, NULL, 0));
    actor_ok(&f.peer, "rebuild 0 %s file", text);
    CHECK(!ftruncate(fd, 90500));
    CHECK_INT(actor_code(&f.peer, "rebuild 1 %s file", text), -ESTALE);
    CHECK_CONTAINS(actor_sentence, "has been cut");
    CHECK_CODE(lend_tensor_new_at(pool, 90000, uint8, 2, shape, &none, &error), -ESTALE);
    CHECK(!ftruncate(fd, BYTES));
    actor_ok(&f.peer, "rebuild 1 %s file", text);
    CHECK_INT(actor_int(&f.peer, "same 0 1"), 1);
    lend_tensor_unref(tensor);
    actor_ok(&f.peer, "drop 0");
    actor_ok(&f.peer, "drop 1");
    lend_pool_unref(pool);
    close(fd);
    end(&f);
}

/* A generator, a size or a dtype is no tensor; a generator's state is one, of bytes. */
LEND_TEST(generator_state) {
    enum { STATE = 5056 };
    uint8_t state[STATE];
    struct fixture f;
    begin(&f);
    memset(state, 3, sizeof state);
    struct lend_tensor *tensor = take(state, STATE, DLPACK_FLAG_BITMASK_READ_ONLY);
    expect_copied(&f, tensor, state, 3);
    lend_tensor_unref(tensor);
    end(&f);
}
