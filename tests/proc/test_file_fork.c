/* SPDX-License-Identifier: MIT */
/* A process that lends tensors of a file and forks: its child holds them as an importer, or drops them. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs in the child: what it inherited is its parent's, held as by an importer; it goes on when the parent is gone. */
static void be_child(struct lend_tensor *tensor, struct lend_tensor *never_lent, struct lend_pool *pool,
                     int from_parent) __attribute__((noreturn));
static void be_child(struct lend_tensor *tensor, struct lend_tensor *never_lent, struct lend_pool *pool,
                     int from_parent) {
    char byte;
    int64_t n = 10;
    struct lend_tensor *more = NULL;
    struct lend_error error = {0};
    uint64_t inode = info_of(tensor).allocation_inode;
    CHECK(info_of(tensor).is_imported && info_of(never_lent).is_imported && info_of(tensor).is_file);
    CHECK_UINT(mappings_of(inode), 1);
    CHECK_CODE(lend_tensor_new_at(pool, 0, uint8, 1, &n, &more, &error), -ECHILD);
    while (read(from_parent, &byte, 1) > 0) continue;
    CHECK(is_patterned(tensor, 5));
    CHECK(is_patterned(never_lent, 99000));
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(tensor);
    lend_tensor_unref(never_lent);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
    CHECK_UINT(mappings_of(inode), 0);
    _exit(0);
}

/* Forks, and says what the child's end was when it has ended: its exit code comes over the pipe that it leaves. */
LEND_ROLE(parent) {
    int fd = test_file_patterned(FILE_BYTES), ends[2];
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *tensor = tensor_at(pool, 5, 90000), *never_lent = tensor_at(pool, 99000, 1000);
    reduce_text(tensor, NULL, 0);
    CHECK_INT(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (!pid) {
        close(ends[1]);
        close(fd);
        be_child(tensor, never_lent, pool, ends[0]);
    }
    close(ends[0]);
    if (!strcmp(argv[0], "ends first")) { /* dropped here, alive there */
        lend_tensor_unref(tensor);
        lend_tensor_unref(never_lent);
        CHECK_UINT(limbo_bytes(pool), 91000);
    }
    int status = -1;
    close(ends[1]);
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK_INT(status, 0);
    if (strcmp(argv[0], "ends first")) {
        CHECK(is_patterned(tensor, 5));
        lend_tensor_unref(tensor);
        lend_tensor_unref(never_lent);
    }
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
    close(fd);
    return 0;
}

LEND_TEST(a_forked_child_keeps_the_tensors_of_a_file) {
    static const char *const orders[] = {"ends first", "stays"};
    for (unsigned i = 0; i < 2; i++) {
        struct role r;
        ROLE_START(&r, NULL, "parent", orders[i]);
        role_end(&r);
    }
}

/* Under LEND_FORK_DROP the child keeps nothing, and the parent everything. */
LEND_TEST(a_child_that_drops_leaves_the_file_to_its_parent) {
    struct lend_opts opts = {.size = sizeof opts, .fork = LEND_FORK_DROP};
    int fd = test_file_patterned(FILE_BYTES), status = -1;
    open_with(&opts);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *tensor = tensor_at(pool, 5, 90000);
    uint64_t inode = info_of(tensor).allocation_inode;
    reduce_text(tensor, NULL, 0);
    pid_t pid = fork();
    if (!pid) {
        struct lend_tensor_info info = {.size = sizeof info};
        CHECK_CODE(lend_tensor_info(tensor, &info), -ECHILD);
        CHECK_UINT(mappings_of(inode), 0);
        CHECK_UINT(descriptors_of(inode, NULL), 1); /* the caller's */
        _exit(0);
    }
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK_INT(status, 0);
    CHECK(is_patterned(tensor, 5));
    end_exporter(tensor, pool, fd);
}
