/* SPDX-License-Identifier: MIT */
/* fork() in importers and exporters: a child holds what it sees, on its own account, from its first instruction on. */
#include "memory.h"
#include "peer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child that lends starts a thread, which ThreadSanitizer cannot follow into a child of a process with threads. */
static void skip_where_children_cannot_start_threads(void) {
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer cannot follow threads that a forked child starts");
#endif
}

/* Lets the actor fork; the child is an actor, too, that talks over a socket of its own. Call before_fork before the
 * parent is started, so that it inherits the child's end. */
struct birth {
    int pair[2];
};

static void before_fork(struct birth *birth) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, birth->pair)) FAIL("socketpair: %s", strerror(errno));
}

static void fork_actor(struct role *parent, struct birth *birth, struct role *child) {
    *child = (struct role){.name = "child", .fd = birth->pair[0], .is_detached = true};
    child->pid = (pid_t)actor_int(parent, "fork %d", birth->pair[1]);
    close(birth->pair[1]);
    role_expect(child, "ready");
}

/* Ends a child whose parent lives and takes its exit code. */
static void end_child(struct role *child, struct role *parent) {
    shutdown(child->fd, SHUT_WR);
    CHECK_INT(actor_int(parent, "wait %d", (int)child->pid), 0);
    close(child->fd);
}

struct trio {
    struct role a, b, child; /* exporter, importer, the child of one of them */
    char text[LEND_HANDLE_TEXT_MAX];
};

static void start(struct trio *t, const char *options, bool forks_exporter) {
    struct birth birth;
    if (!forks_exporter) actor_start(&t->a, NULL, NULL);
    before_fork(&birth);
    actor_start(forks_exporter ? &t->a : &t->b, NULL, options);
    if (forks_exporter) actor_start(&t->b, NULL, NULL);
    actor_ok(&t->a, "new 0 100000 7");
    snprintf(t->text, sizeof t->text, "%s", actor_ok(&t->a, "reduce 0"));
    actor_ok(&t->b, "rebuild 0 %s", t->text);
    fork_actor(forks_exporter ? &t->a : &t->b, &birth, &t->child);
}

/* Returns whether the block came back with the child's end. On a busy machine the exporter may not give a page for the
 * child within the few milliseconds that a fork waits; then the block stays until the parent has ended, too. */
static bool hold_in_a_child(void) {
    struct trio t;
    start(&t, NULL, false);
    actor_ok(&t.a, "drop 0");
    actor_ok(&t.b, "drop 0");
    usleep(300000); /* several ticks: the block must stay */
    CHECK(actor_int(&t.a, "count limbo") >= 100000);
    actor_ok(&t.a, "new 1 100000 99"); /* another place */
    CHECK_INT(actor_int(&t.child, "filled 0"), 7);
    /* The child is an importer in its own right. */
    actor_ok(&t.child, "rebuild 1 %s", t.text);
    CHECK_INT(actor_int(&t.child, "same 0 1"), 1);
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", actor_ok(&t.a, "reduce 1"));
    actor_ok(&t.child, "rebuild 2 %s", text);
    CHECK_INT(actor_int(&t.child, "filled 2"), 99);
    CHECK(actor_int(&t.a, "peers") >= 2);
    end_child(&t.child, &t.b);
    uint64_t deadline = test_deadline_ms(1000);
    while (actor_int(&t.a, "count limbo") != 0 && test_now_ms() < deadline) test_pause();
    bool is_back = actor_int(&t.a, "count limbo") == 0;
    if (is_back) CHECK_INT(actor_code(&t.b, "rebuild 0 %s", t.text), -ESTALE);
    role_end(&t.b);
    CHECK_EVENTUALLY(1000, actor_int(&t.a, "count limbo") == 0);
    role_end(&t.a);
    return is_back;
}

LEND_TEST(an_importers_child_holds_when_its_parent_gives_back) {
    for (int i = 0; i < 5; i++)
        if (hold_in_a_child()) return;
    FAIL("five children and none had a page of its own");
}

LEND_TEST(a_child_outlives_its_parent) {
    struct memory_count before = memory_count();
    struct trio t;
    start(&t, NULL, false);
    actor_ok(&t.a, "drop 0");
    role_kill(&t.b, SIGKILL);
    usleep(300000);
    CHECK_INT(actor_int(&t.a, "peers"), 1); /* its own page, or the parent's */
    CHECK(actor_int(&t.a, "count limbo") >= 100000);
    CHECK_INT(actor_int(&t.child, "filled 0"), 7);
    kill(t.child.pid, SIGKILL);
    close(t.child.fd);
    CHECK_EVENTUALLY(1000, actor_int(&t.a, "count limbo") == 0 && actor_int(&t.a, "peers") == 0);
    role_end(&t.a);
    CHECK_EVENTUALLY(1000, memory_count().n_inodes == before.n_inodes);
}

LEND_TEST(an_exporters_child_becomes_an_importer) {
    skip_where_children_cannot_start_threads();
    struct trio t;
    start(&t, NULL, true);
    CHECK_CONTAINS(actor_ok(&t.child, "info 0"), "imported 1 ");
    CHECK_INT(actor_int(&t.child, "filled 0"), 7);
    actor_ok(&t.child, "fill 0 8"); /* shared, as ever */
    CHECK_INT(actor_int(&t.a, "filled 0"), 8);
    CHECK_INT(actor_int(&t.b, "filled 0"), 8);
    actor_ok(&t.a, "drop 0");
    actor_ok(&t.b, "drop 0");
    usleep(300000);
    CHECK(actor_int(&t.a, "count limbo") >= 100000);
    actor_ok(&t.child, "rebuild 1 %s", t.text);
    CHECK_INT(actor_int(&t.child, "same 0 1"), 1);
    /* A pool, a service and an identity of its own. */
    actor_ok(&t.child, "new 2 5000 3");
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", actor_ok(&t.child, "reduce 2"));
    actor_ok(&t.b, "rebuild 2 %s", text);
    actor_ok(&t.a, "rebuild 2 %s", text);
    CHECK_INT(actor_int(&t.b, "filled 2"), 3);
    CHECK_INT(actor_int(&t.a, "filled 2"), 3);
    CHECK_INT(actor_int(&t.child, "peers"), 2);
    /* And it forwards what it inherited. */
    snprintf(text, sizeof text, "%s", actor_ok(&t.child, "reduce 0 pin"));
    actor_ok(&t.b, "rebuild 0 %s", text);
    CHECK_INT(actor_int(&t.b, "filled 0"), 8);
    actor_ok(&t.b, "drop 0");
    actor_ok(&t.b, "drop 2");
    actor_ok(&t.a, "drop 2");
    end_child(&t.child, &t.a);
    CHECK_EVENTUALLY(1500, actor_int(&t.a, "count limbo") == 0);
    role_end(&t.b);
    role_end(&t.a);
}

LEND_TEST(an_exporters_child_keeps_the_memory_of_a_killed_parent) {
    struct memory_count before = memory_count();
    struct trio t;
    start(&t, NULL, true);
    role_kill(&t.a, SIGKILL);
    CHECK_INT(actor_int(&t.child, "filled 0"), 7);
    actor_ok(&t.child, "fill 0 4");
    CHECK_INT(actor_int(&t.b, "filled 0"), 4);
    /* The parent is dead for the importer, whatever of it the child has inherited. */
    struct role c;
    actor_start(&c, NULL, NULL);
    CHECK_INT(actor_code(&c, "rebuild 0 %s ms=2000", t.text), -EOWNERDEAD);
    role_end(&c);
    kill(t.child.pid, SIGKILL);
    close(t.child.fd);
    role_end(&t.b);
    CHECK_EVENTUALLY(1000, memory_count().n_inodes == before.n_inodes);
}

LEND_TEST(a_policy_of_dropping_leaves_the_child_nothing) {
    skip_where_children_cannot_start_threads();
    for (int forks_exporter = 0; forks_exporter < 2; forks_exporter++) {
        struct trio t;
        start(&t, "fork_drop quiet", forks_exporter);
        struct role *parent = forks_exporter ? &t.a : &t.b;
        CHECK_INT(actor_code(&t.child, "info 0"), -ECHILD);
        CHECK_INT(actor_code(&t.child, "reduce 0"), -ECHILD);
        CHECK(actor_int(&t.child, "count lend_maps") <= !forks_exporter); /* the table, for what comes */
        CHECK_INT(actor_int(parent, "filled 0"), 7);
        actor_ok(&t.child, "drop 0");
        CHECK_INT(actor_int(&t.a, "filled 0"), 7);
        CHECK_INT(actor_int(&t.b, "filled 0"), 7);
        actor_ok(&t.a, "drop 0");
        actor_ok(&t.b, "drop 0");
        CHECK_EVENTUALLY(2000, actor_int(&t.a, "count limbo") == 0); /* while the child lives */
        actor_ok(&t.child, "new 1 1000 6");
        CHECK_INT(actor_int(&t.child, "filled 1"), 6);
        end_child(&t.child, parent);
        role_end(&t.a);
        role_end(&t.b);
    }
}

/* A process that has lent nothing yet lends to its child: what the child passes on must be found, and what it gives back
 * must come home. */
LEND_TEST(a_child_of_one_that_never_lent_passes_on_what_it_inherited) {
    skip_where_children_cannot_start_threads();
    struct birth birth;
    struct role a, child, c;
    char text[LEND_HANDLE_TEXT_MAX];
    before_fork(&birth);
    actor_start(&a, NULL, NULL);
    actor_start(&c, NULL, NULL);
    actor_ok(&a, "new 0 100000 7");
    fork_actor(&a, &birth, &child);
    actor_ok(&a, "drop 0");
    CHECK(actor_int(&a, "count limbo") >= 100000);
    snprintf(text, sizeof text, "%s", actor_ok(&child, "reduce 0 pin"));
    end_child(&child, &a);
    actor_ok(&c, "rebuild 0 %s", text);
    CHECK_INT(actor_int(&c, "filled 0"), 7);
    actor_ok(&c, "drop 0");
    CHECK_EVENTUALLY(2000, actor_int(&a, "count limbo") == 0 && actor_int(&a, "peers") == 1);
    role_end(&c);
    role_end(&a);
}

/* A stopped exporter gives no page for the child: fork goes on all the same, and the family shares the parent's. */
LEND_TEST(a_fork_beside_a_stopped_exporter_is_quick_and_safe) {
    struct birth birth;
    struct role a, b, child;
    char text[LEND_HANDLE_TEXT_MAX];
    actor_start(&a, NULL, NULL);
    before_fork(&birth);
    actor_start(&b, NULL, NULL);
    actor_ok(&a, "new 0 100000 7");
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
    actor_ok(&b, "rebuild 0 %s", text);
    role_kill(&a, SIGSTOP);
    uint64_t began = test_now_ms();
    fork_actor(&b, &birth, &child);
    uint64_t took = test_now_ms() - began;
    if (took > 50 + test_deadline_ms(200) - test_now_ms()) FAIL("fork took %d ms", (int)took);
    kill(a.pid, SIGCONT);
    CHECK_INT(actor_int(&child, "filled 0"), 7);
    actor_ok(&a, "drop 0");
    actor_ok(&b, "drop 0");
    usleep(300000);
    CHECK(actor_int(&a, "count limbo") >= 100000);
    CHECK_INT(actor_int(&child, "filled 0"), 7);
    /* It goes on as an importer of its own: also of what its parent had mapped, and now holds by itself. */
    actor_ok(&a, "new 1 100000 8");
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 1"));
    actor_ok(&child, "rebuild 1 %s", text);
    CHECK_INT(actor_int(&child, "filled 1"), 8);
    actor_ok(&a, "drop 1");
    actor_ok(&child, "drop 0");
    usleep(300000);
    CHECK(actor_int(&a, "count limbo") >= 200000);
    CHECK_INT(actor_int(&child, "filled 1"), 8);
    /* The inherited count is coarse: it ends when both have ended. */
    actor_ok(&child, "drop 1");
    CHECK_EVENTUALLY(2000, actor_int(&a, "count limbo") < 200000);
    end_child(&child, &b);
    role_end(&b);
    CHECK_EVENTUALLY(1500, actor_int(&a, "count limbo") == 0);
    role_end(&a);
}

/* --- without fork's handlers -------------------------------------------------------------------------------------------- */

/* argv: handle. A raw clone: every call says so, and destructors leave the parent's leases alone. */
LEND_ROLE(cloner) {
    struct lend_tensor *tensor = NULL, *second = NULL;
    struct lend_error error = {0};
    struct lend_tensor_info info = {.size = sizeof info};
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *own = new_bytes(pool, 1000, 3);
    reduce_text(own, NULL, 0);
    CHECK_OK(rebuild_text(argv[0], NULL, &tensor, &error), &error);
    fflush(NULL);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (!pid) {
        int failed = 0;
        failed += rebuild_text(argv[0], NULL, &second, NULL) != -ECHILD;
        failed += lend_reduce(own, NULL, bytes, sizeof bytes, &n, NULL) != -ECHILD;
        failed += lend_tensor_info(tensor, &info) != -ECHILD;
        failed += lend_check(NULL) != -ECHILD;
        failed += lend_open(NULL, NULL) != -ECHILD;
        failed += lend_close(NULL) != -ECHILD;
        failed += lend_pool_new(NULL, &pool, NULL) != -ECHILD;
        lend_tensor_unref(tensor);
        lend_tensor_unref(own);
        lend_pool_unref(pool);
        _exit(failed);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
    CHECK(is_filled(tensor, 7) && is_filled(own, 3));
    role_say("cloned");
    role_hear();
    CHECK(is_filled(tensor, 7) && is_filled(own, 3));
    lend_tensor_unref(tensor);
    lend_tensor_unref(own);
    close_all(pool);
    return 0;
}

LEND_TEST(a_raw_clone_is_refused_and_harms_nobody) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct role r;
    struct lend_tensor *tensor = new_bytes(pool, 5000, 7);
    ROLE_START(&r, NULL, "cloner", reduce_text(tensor, NULL, 0));
    role_expect(&r, "cloned");
    lend_tensor_unref(tensor);
    usleep(300000);
    CHECK(limbo_bytes(pool) >= 5000);
    struct lend_tensor *other = new_bytes(pool, 5000, 66);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    lend_tensor_unref(other);
    close_all(pool);
}

/* A daemon closes all descriptors: the mappings alone keep the lease, on both sides. */
LEND_ROLE(daemoniser) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    open_with(NULL);
    CHECK_OK(rebuild_text(argv[0], NULL, &tensor, &error), &error);
    for (int fd = 3; fd < 1024; fd++) close(fd);
    role_say("closed");
    role_hear();
    CHECK(is_filled(tensor, 7));
    _exit(0);
}

LEND_TEST(closed_descriptors_do_not_lose_the_lease) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct role r;
    struct lend_tensor *tensor = new_bytes(pool, 5000, 7);
    ROLE_START(&r, NULL, "daemoniser", reduce_text(tensor, NULL, 0));
    role_expect(&r, "closed");
    lend_tensor_unref(tensor);
    usleep(500000);
    CHECK(limbo_bytes(pool) >= 5000);
    struct lend_tensor *other = new_bytes(pool, 5000, 66);
    role_end(&r);
    CHECK_EVENTUALLY(1000, limbo_bytes(pool) == 0);
    lend_tensor_unref(other);
    close_all(pool);
}

LEND_ROLE(sleeper) {
    role_say("asleep");
    role_hear();
    return 0;
}

/* fork and exec: what the child held until then is given back, though it lives on. */
LEND_TEST(a_program_started_by_a_child_holds_nothing) {
    struct role a, r;
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *own = new_bytes(pool, 5000, 1);
    actor_start(&a, NULL, NULL);
    actor_ok(&a, "new 0 5000 7");
    CHECK_OK(rebuild_text(actor_ok(&a, "reduce 0"), NULL, &tensor, &error), &error);
    actor_ok(&a, "drop 0");
    reduce_text(own, NULL, 0);
    ROLE_START(&r, NULL, "sleeper"); /* by fork and exec of this process, which imports and exports */
    role_expect(&r, "asleep");
    lend_tensor_unref(tensor);
    lend_tensor_unref(own);
    CHECK_EVENTUALLY(1500, actor_int(&a, "count limbo") == 0);
    CHECK_EVENTUALLY(1500, limbo_bytes(pool) == 0);
    role_end(&r);
    role_end(&a);
    close_all(pool);
}

/* --- five hundred children, while other threads lend and release ---------------------------------------------------------- */

enum { N_THREADS = 3, N_CHILDREN = 500 };

struct work {
    struct lend_pool *pool;
    const char *text; /* a foreign tensor, of all 7; NULL: none */
    uint32_t is_over;
};

static void *lend_and_release(void *arg) {
    struct work *work = arg;
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    for (int i = 0; !__atomic_load_n(&work->is_over, __ATOMIC_ACQUIRE); i++) {
        struct lend_tensor *tensor = NULL, *again = NULL;
        struct lend_error error = {0};
        tensor = new_bytes(work->pool, 64 + i % 5000, i & 0xff);
        CHECK_OK(lend_reduce(tensor, NULL, bytes, sizeof bytes, &n, &error), &error);
        CHECK_OK(lend_rebuild(bytes, n, NULL, &again, &error), &error);
        lend_tensor_unref(tensor);
        CHECK(is_filled(again, i & 0xff));
        lend_tensor_unref(again);
        if (!work->text) continue;
        CHECK_OK(rebuild_text(work->text, NULL, &again, &error), &error);
        CHECK(is_filled(again, 7));
        lend_tensor_unref(again);
    }
    return NULL;
}

/* What a child does; returns what failed. */
static int live_briefly(struct work *work, struct lend_tensor *own, struct lend_tensor *foreign, unsigned i) {
    struct lend_tensor *tensor = NULL;
    if (!is_filled(own, 3)) return 1;
    if (foreign && !is_filled(foreign, 7)) return 2;
    struct lend_error error = {0};
    if (work->text && i % 4 == 0 && rebuild_text(work->text, NULL, &tensor, &error) < 0) {
        fprintf(stderr, "child %u: %d %s\n", i, error.code, error.text);
        return 3;
    }
    if (tensor && !is_filled(tensor, 7)) return 4;
    lend_tensor_unref(tensor);
    if (i % 16 == 0) {
        struct lend_pool *pool = NULL;
        uint8_t bytes[LEND_HANDLE_BYTES_MAX];
        size_t n = 0;
        int64_t shape = 10;
        if (lend_pool_new(NULL, &pool, NULL) < 0) return 5;
        if (lend_tensor_new(pool, uint8, 1, &shape, &tensor, NULL) < 0) return 6;
        if (lend_reduce(tensor, NULL, bytes, sizeof bytes, &n, NULL) < 0) return 7;
        lend_tensor_unref(tensor);
        lend_pool_unref(pool);
    }
    if (lend_check(NULL) < 0) return 8;
    if (i % 2) lend_tensor_unref(own);
    if (i % 3 && foreign) lend_tensor_unref(foreign);
    return 0;
}

/* argv: a handle, or nothing. */
LEND_ROLE(parent_of_many) {
    struct work work = {.text = argc ? argv[0] : NULL};
    struct lend_tensor *own, *foreign = NULL;
    struct lend_error error = {0};
    pthread_t threads[N_THREADS];
    open_with(NULL);
    work.pool = new_pool(NULL);
    own = new_bytes(work.pool, 3000, 3);
    reduce_text(own, NULL, 0);
    if (argc) CHECK_OK(rebuild_text(argv[0], NULL, &foreign, &error), &error);
    role_say("holding");
    for (int i = 0; i < N_THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, lend_and_release, &work));
    for (unsigned i = 0; i < N_CHILDREN; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) _exit(live_briefly(&work, own, foreign, i));
        if (i % 4 != 3) continue; /* up to four at a time */
        for (int status; waitpid(-1, &status, 0) > 0;) {
            CHECK(WIFEXITED(status));
            CHECK_INT(WEXITSTATUS(status), 0);
        }
    }
    __atomic_store_n(&work.is_over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(is_filled(own, 3));
    lend_tensor_unref(own);
    CHECK_EVENTUALLY(2000, limbo_bytes(work.pool) == 0);
    role_say("done");
    role_hear();
    lend_tensor_unref(foreign);
    close_all(work.pool);
    return 0;
}

static void many_children(bool is_importer_too) {
    skip_where_children_cannot_start_threads();
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 5000, 7);
    struct role r;
    if (is_importer_too)
        ROLE_START(&r, NULL, "parent_of_many", reduce_text(tensor, NULL, 0));
    else
        ROLE_START(&r, NULL, "parent_of_many");
    role_expect(&r, "holding");
    if (is_importer_too) lend_tensor_unref(tensor);
    const char *line = role_line(&r, 55000);
    CHECK_STR(line ? line : "(ended)", "done");
    if (is_importer_too) CHECK(limbo_bytes(pool) >= 5000);
    role_end(&r);
    if (!is_importer_too) lend_tensor_unref(tensor);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

LEND_TEST_TIMED(five_hundred_children_of_an_exporter, 90) {
    many_children(false);
}

LEND_TEST_TIMED(five_hundred_children_of_an_importer, 90) {
    many_children(true);
}
