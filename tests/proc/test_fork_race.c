/* SPDX-License-Identifier: MIT */
/* fork() beside threads that drop tensors which were never lent, and beside another thread's fork(). */
#include "peer.h"

#include <lend/lend.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_CHILDREN = 200 };

struct work {
    struct lend_pool *pool;
    struct lend_tensor *own, *foreign;
    uint32_t is_over, n_bad;
};

static void *make_and_drop(void *arg) {
    struct work *work = arg;
    while (!__atomic_load_n(&work->is_over, __ATOMIC_ACQUIRE)) lend_tensor_unref(new_bytes(work->pool, 300, 5));
    return NULL;
}

/* The prepare handler lends what lives, also a tensor whose last reference is just being dropped without a lock: its
 * block must not go back to the pool while the child's page counts it (models/own.pml). */
LEND_TEST(tensors_that_were_never_lent_go_while_others_fork) {
    struct work work = {0};
    struct lend_error error = {0};
    pthread_t threads[2];
    open_with(NULL);
    work.pool = new_pool(NULL);
    reduce_text(work.own = new_bytes(work.pool, 3000, 3), NULL, 0); /* the service runs */
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, make_and_drop, &work));
    for (int i = 0; i < N_CHILDREN; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) _exit(is_filled(work.own, 3) ? 0 : 1);
        CHECK_OK(lend_check(&error), &error);
        int status = 0;
        CHECK_INT(waitpid(pid, &status, 0), pid);
        CHECK_INT(status, 0);
    }
    __atomic_store_n(&work.is_over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    lend_tensor_unref(work.own);
    CHECK_EVENTUALLY(2000, limbo_bytes(work.pool) == 0);
    CHECK_OK(lend_check(&error), &error);
    close_all(work.pool);
}

static void *fork_many(void *arg) {
    struct work *work = arg;
    for (int i = 0; i < N_CHILDREN / 2; i++) {
        pid_t pid = fork();
        if (!pid) _exit(is_filled(work->foreign, 7) && is_filled(work->own, 3) && lend_check(NULL) >= 0 ? 0 : 1);
        int status = 1;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status) __atomic_add_fetch(&work->n_bad, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* The spare pages and the plan for the child are one fork's: each child gets a page of its own, and nothing stays. */
LEND_TEST(two_threads_fork_at_once) {
    struct work work = {0};
    struct lend_error error = {0};
    struct role exporter;
    pthread_t threads[2];
    open_with(NULL);
    work.pool = new_pool(NULL);
    reduce_text(work.own = new_bytes(work.pool, 3000, 3), NULL, 0);
    actor_start(&exporter, NULL, NULL);
    actor_ok(&exporter, "new 0 5000 7");
    CHECK_OK(rebuild_text(actor_ok(&exporter, "reduce 0"), NULL, &work.foreign, &error), &error);
    actor_ok(&exporter, "drop 0");
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, fork_many, &work));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK_UINT(work.n_bad, 0);
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(work.own);
    lend_tensor_unref(work.foreign);
    CHECK_EVENTUALLY(2000, limbo_bytes(work.pool) == 0);
    role_end(&exporter);
    close_all(work.pool);
}
