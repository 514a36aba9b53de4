/* SPDX-License-Identifier: MIT */
/* lend_send and lend_recv over sockets that the caller made: what was sent survives its sender. */
#include "memory.h"
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
static const char *const type_names[] = {"stream", "seqpacket", "datagram"};

/* Both ends are inherited by the roles that are started from now on. */
static void make_pair(int type, int pair[2]) {
    if (socketpair(AF_UNIX, type, 0, pair)) FAIL("socketpair: %s", strerror(errno));
}

static void close_pair(const int pair[2]) {
    close(pair[0]);
    close(pair[1]);
}

/* The sender has ended by `end` and was waited for; then the receiver begins. */
static void receive_from_the_dead(void (*end)(struct role *)) {
    struct memory_count before = memory_count();
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int pair[2];
        make_pair(types[i], pair);
        struct role a, c;
        actor_start(&a, &(struct role_opts){.is_detached = i == 1}, NULL);
        actor_start(&c, NULL, NULL);
        actor_ok(&a, "new 0 4194304 77");
        actor_ok(&a, "send 0 %d", pair[0]);
        actor_ok(&a, "drop 0");
        end(&a);
        CHECK_INT(actor_code(&c, "recv 0 %d", pair[1]), 0);
        if (actor_int(&c, "filled 0") != 77) FAIL("%s: other bytes came", type_names[i]);
        actor_ok(&c, "fill 0 3");
        CHECK_INT(actor_int(&c, "filled 0"), 3);
        role_end(&c);
        close_pair(pair);
        CHECK_UINT(memory_count().n_inodes, before.n_inodes);
    }
}

static void kill_it(struct role *role) {
    role_kill(role, SIGKILL);
}

LEND_TEST(the_sender_exits_before_the_receiver_reads) {
    receive_from_the_dead(role_end);
}

LEND_TEST(the_sender_is_killed_before_the_receiver_reads) {
    receive_from_the_dead(kill_it);
}

/* Two tensors of one dead sender: one peer, one mapping, one storage for two messages of one tensor. */
LEND_TEST(several_messages_of_a_dead_sender_share_what_they_share) {
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    struct role a, c;
    actor_start(&a, NULL, NULL);
    actor_start(&c, NULL, NULL);
    actor_ok(&a, "new 0 1000 1");
    actor_ok(&a, "new 1 1000 2");
    for (int i = 0; i < 4; i++) actor_ok(&a, "send %d %d", i % 2, pair[0]);
    role_kill(&a, SIGKILL);
    long long maps = actor_int(&c, "count lend_maps");
    for (int i = 0; i < 4; i++) actor_ok(&c, "recv %d %d", i, pair[1]);
    CHECK_INT(actor_int(&c, "count lend_maps"), maps + 2); /* table and allocation */
    CHECK_INT(actor_int(&c, "same 0 2"), 1);
    CHECK_INT(actor_int(&c, "same 1 3"), 1);
    CHECK_INT(actor_int(&c, "same 0 1"), 0);
    CHECK_INT(actor_int(&c, "filled 0"), 1);
    CHECK_INT(actor_int(&c, "filled 3"), 2);
    for (int i = 0; i < 4; i++) actor_ok(&c, "drop %d", i);
    CHECK_INT(actor_int(&c, "count lend_maps"), maps);
    role_end(&c);
    close_pair(pair);
}

LEND_TEST(a_borrowed_tensor_is_sent_on_and_both_others_die) {
    int pair[2];
    make_pair(SOCK_SEQPACKET, pair);
    char text[LEND_HANDLE_TEXT_MAX];
    struct role a, b, c;
    actor_start(&a, NULL, NULL);
    actor_start(&b, NULL, NULL);
    actor_ok(&a, "new 0 50000 12");
    snprintf(text, sizeof text, "%s", actor_ok(&a, "reduce 0"));
    actor_ok(&b, "rebuild 0 %s", text);
    actor_ok(&b, "send 0 %d", pair[0]);
    actor_ok(&a, "drop 0");
    actor_ok(&b, "drop 0");
    role_kill(&b, SIGKILL);
    CHECK(actor_int(&a, "count limbo") >= 50000); /* the pin of the message */
    role_kill(&a, SIGKILL);
    actor_start(&c, NULL, NULL);
    actor_ok(&c, "recv 0 %d", pair[1]);
    CHECK_INT(actor_int(&c, "filled 0"), 12);
    CHECK_CONTAINS(actor_ok(&c, "info 0"), "imported 1 ");
    /* And on: from a holder of a dead exporter's memory. */
    struct role d;
    actor_start(&d, NULL, NULL);
    actor_ok(&c, "send 0 %d", pair[0]);
    role_end(&c);
    actor_ok(&d, "recv 0 %d", pair[1]);
    CHECK_INT(actor_int(&d, "filled 0"), 12);
    role_end(&d);
    close_pair(pair);
}

LEND_TEST(a_living_senders_pin_ends_with_the_receipt) {
    int pair[2];
    make_pair(SOCK_DGRAM, pair);
    struct role a, c;
    actor_start(&a, NULL, NULL);
    actor_start(&c, NULL, NULL);
    actor_ok(&a, "new 0 5000 1");
    actor_ok(&a, "send 0 %d", pair[0]);
    actor_ok(&a, "drop 0");
    CHECK_INT(actor_int(&a, "pins"), 1);
    CHECK(actor_int(&a, "count limbo") >= 5000);
    actor_ok(&c, "recv 0 %d", pair[1]);
    CHECK_EVENTUALLY(1500, actor_int(&a, "pins") == 0);
    CHECK_INT(actor_int(&c, "filled 0"), 1);
    actor_ok(&c, "drop 0");
    CHECK_EVENTUALLY(2000, actor_int(&a, "count limbo") == 0);
    role_end(&a);
    role_end(&c);
    close_pair(pair);
}

/* No free descriptor: the message stays, and comes when there is room. */
LEND_TEST(a_full_table_of_descriptors_keeps_the_message) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int pair[2];
        make_pair(types[i], pair);
        struct role a, c;
        actor_start(&a, NULL, NULL);
        actor_start(&c, NULL, NULL);
        actor_ok(&a, "new 0 5000 31");
        actor_ok(&a, "send 0 %d", pair[0]);
        if (i % 2) role_kill(&a, SIGKILL);
        /* Descriptors in use are the lowest ones: no new one below this limit. */
        actor_ok(&c, "limit_fds 5");
        for (int n = 0; n < 3; n++) {
            CHECK_INT(actor_code(&c, "recv 0 %d 300", pair[1]), -EMFILE);
            CHECK_CONTAINS(actor_sentence, "kept");
        }
        actor_ok(&c, "limit_fds 256");
        actor_ok(&c, "recv 0 %d", pair[1]);
        CHECK_INT(actor_int(&c, "filled 0"), 31);
        role_end(&c);
        if (!(i % 2)) role_end(&a);
        close_pair(pair);
    }
}

LEND_TEST(garbage_is_taken_off_and_what_follows_is_received) {
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL, *got = NULL;
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    tensor = new_bytes(pool, 100, 5);
    reduce_text(tensor, NULL, 0);                                 /* the service runs from here on */
    for (size_t i = 1; i < sizeof types / sizeof types[0]; i++) { /* messages keep their bounds */
        int pair[2];
        make_pair(types[i], pair);
        unsigned fds = count_fds();
        uint8_t noise[3000];
        for (size_t n = 0; n < sizeof noise; n++) noise[n] = (uint8_t)(n * 37 + 11);
        size_t sizes[] = {1, 3, 15, 16, 17, 200, 2064, 3000};
        for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
            CHECK_INT(send(pair[0], noise, sizes[n], 0), (long long)sizes[n]);
            CHECK_CODE(lend_recv(pair[1], NULL, 1000000000, &got, &error), -EBADMSG);
        }
        CHECK_OK(lend_send(pair[0], tensor, NULL, 0, &error), &error);
        CHECK_OK(lend_recv(pair[1], NULL, 0, &got, &error), &error);
        CHECK_UINT(info_of(got).storage_id, info_of(tensor).storage_id);
        lend_tensor_unref(got);
        CHECK_UINT(count_fds(), fds);
        close_pair(pair);
    }
    lend_tensor_unref(tensor);
    close_all(pool);
}

/* Garbage with descriptors, a header that lies about them, and a damaged handle: nothing stays open. */
LEND_TEST(unwanted_descriptors_are_closed) {
    struct lend_error error = {0};
    struct lend_tensor *got = NULL;
    struct {
        uint32_t magic, handle_bytes, has, reserved;
        uint8_t handle[200];
    } message = {0x47534d4cu, 200, 3, 0, {0}};
    open_with(NULL);
    for (int n_fds = 0; n_fds <= 8; n_fds++) {
        int pair[2], fds[8];
        make_pair(SOCK_SEQPACKET, pair);
        unsigned before = count_fds();
        for (int i = 0; i < n_fds; i++) fds[i] = pair[0];
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof fds)];
        } control = {.bytes = {0}};
        struct iovec iov = {&message, sizeof message};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        if (n_fds) {
            msg.msg_control = control.bytes;
            msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
            struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
            memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
        }
        CHECK(sendmsg(pair[0], &msg, 0) == sizeof message);
        int r = lend_recv(pair[1], NULL, 1000000000, &got, &error);
        if (r != -EBADMSG && r != -EMFILE) FAIL("%d descriptors: %d (%s)", n_fds, r, error.text);
        CHECK_UINT(count_fds(), before);
        close_pair(pair);
    }
    close_all(NULL);
}

LEND_TEST(nothing_to_receive_and_nowhere_to_send) {
    struct lend_error error = {0};
    struct lend_tensor *got = NULL;
    int pair[2], file = open("/dev/null", O_RDWR | O_CLOEXEC);
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 100, 5);
    make_pair(SOCK_STREAM, pair);
    uint64_t began = test_now_ms();
    CHECK_CODE(lend_recv(pair[1], NULL, 200000000, &got, &error), -ETIMEDOUT);
    CHECK(test_now_ms() - began >= 200 && test_now_ms() - began < 2000);
    CHECK_CODE(lend_send(file, tensor, NULL, 0, &error), -ENOTSOCK);
    CHECK_CODE(lend_recv(file, NULL, 0, &got, &error), -ENOTSOCK);
    /* A part of a message, then nothing: the deadline; then the other end closes. */
    CHECK_INT(send(pair[0], "LM", 2, 0), 2);
    CHECK_CODE(lend_recv(pair[1], NULL, 100000000, &got, &error), -ETIMEDOUT);
    close(pair[0]);
    signal(SIGPIPE, SIG_IGN);
    CHECK_CODE(lend_send(pair[1], tensor, NULL, 0, &error), -EPIPE);
    close(pair[1]);
    make_pair(SOCK_STREAM, pair);
    close(pair[0]);
    CHECK_CODE(lend_recv(pair[1], NULL, 100000000, &got, &error), -EPIPE);
    close(pair[1]);
    /* Full: nothing was sent, and no pin is left. */
    make_pair(SOCK_SEQPACKET, pair);
    uint64_t n = 0;
    while (lend_send(pair[0], tensor, NULL, 50000000, &error) == 0) n++;
    CHECK_INT(error.code, -ETIMEDOUT);
    struct lend_report *report = NULL;
    CHECK_OK(lend_report_get(NULL, 0, 0, &report, NULL), NULL);
    CHECK(n > 0);
    CHECK_UINT(report->totals.n_pins, n); /* those in the socket, and none of the sends that failed */
    lend_report_free(report);
    close_pair(pair);
    close(file);
    lend_tensor_unref(tensor);
    close_all(pool);
}

/* The modes travel: move ends the sender's tensor only when the message has gone. */
LEND_TEST(modes_over_a_socket) {
    struct lend_reduce_opts move = {.size = sizeof move, .mode = LEND_MODE_MOVE};
    struct lend_error error = {0};
    struct lend_tensor *got = NULL, *copy = NULL;
    int pair[2];
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 100, 5);
    make_pair(SOCK_STREAM, pair);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    CHECK_CODE(lend_send(pair[0], copy, NULL, 0, &error), LEND_COPIED);
    CHECK_OK(lend_recv(pair[1], NULL, 0, &got, &error), &error);
    CHECK(is_filled(got, 5));
    lend_tensor_unref(got);
    CHECK_OK(lend_send(pair[0], tensor, &move, 0, &error), &error);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
    CHECK_OK(lend_recv(pair[1], NULL, 0, &got, &error), &error);
    CHECK(is_filled(got, 5));
    lend_tensor_unref(got);
    close(pair[1]);
    signal(SIGPIPE, SIG_IGN);
    struct lend_tensor *second = new_bytes(pool, 100, 6);
    CHECK_CODE(lend_send(pair[0], second, &move, 0, &error), -EPIPE);
    CHECK(is_filled(second, 6));
    close(pair[0]);
    lend_tensor_unref(second);
    lend_tensor_unref(copy);
    lend_tensor_unref(tensor);
    close_all(pool);
}

/* --- messages without descriptors, other control messages, and sockets that will not do ----------------------------- */

static struct lend_tensor *new_meta(int64_t n) {
    struct lend_tensor *ret = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_new_meta(float32, 1, &n, &ret, &error), &error);
    return ret;
}

/* n tensors of 16 bytes each, all `fill`. */
static struct lend_group *new_group(struct lend_pool *pool, int n, int fill) {
    struct lend_group *ret = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_group_new(&ret, &error), &error);
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        struct lend_tensor *tensor = new_bytes(pool, 16, fill);
        CHECK_OK(lend_group_add(ret, name, tensor, &error), &error);
        lend_tensor_unref(tensor);
    }
    return ret;
}

/* The descriptors of a message that lies behind are not those of the one in front. */
LEND_TEST(messages_without_descriptors_lie_in_front_of_others) {
    struct lend_error error = {0};
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *meta = new_meta(4), *tensor = new_bytes(pool, 100, 5), *got = NULL;
    struct lend_group *empty = new_group(pool, 0, 0), *got_group = NULL;
    reduce_text(tensor, NULL, 0); /* the service runs from here on */
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int pair[2];
        make_pair(types[i], pair);
        unsigned fds = count_fds();
        CHECK_OK(lend_send(pair[0], meta, NULL, 0, &error), &error);
        CHECK_OK(lend_group_send(pair[0], empty, NULL, 0, &error), &error);
        CHECK_OK(lend_send(pair[0], meta, NULL, 0, &error), &error);
        for (int n = 0; n < 2; n++) CHECK_OK(lend_send(pair[0], tensor, NULL, 0, &error), &error);
        CHECK_OK(lend_group_send(pair[0], empty, NULL, 0, &error), &error);
        CHECK_OK(lend_send(pair[0], tensor, NULL, 0, &error), &error);
        for (int n = 0; n < 7; n++) {
            if (n == 1 || n == 5) {
                CHECK_OK(lend_group_recv(pair[1], NULL, 1000000000, &got_group, &error), &error);
                CHECK_UINT(lend_group_count(got_group), 0);
                lend_group_unref(got_group);
                continue;
            }
            CHECK_OK(lend_recv(pair[1], NULL, 1000000000, &got, &error), &error);
            CHECK_UINT(info_of(got).storage_id, info_of(n == 0 || n == 2 ? meta : tensor).storage_id);
            if (n > 2) CHECK(is_filled(got, 5));
            lend_tensor_unref(got);
        }
        CHECK_CODE(lend_recv(pair[1], NULL, 20000000, &got, &error), -ETIMEDOUT);
        CHECK_UINT(count_fds(), fds);
        close_pair(pair);
    }
    lend_group_unref(empty);
    lend_tensor_unref(meta);
    lend_tensor_unref(tensor);
    close_all(pool);
}

/* The caller's socket tells more than descriptors: as many of them come as without. */
LEND_TEST(other_control_messages_are_passed_over) {
    const int options[] = {SO_PASSCRED, SO_PASSSEC, SO_TIMESTAMPNS, 76 /* SO_PASSPIDFD, since Linux 6.5 */};
    const struct lend_pool_opts isolated = {.size = sizeof isolated, .flags = LEND_POOL_ISOLATE};
    struct lend_error error = {0};
    open_with(NULL);
    struct lend_pool *pool = new_pool(&isolated); /* an allocation for each tensor */
    struct lend_group *group = new_group(pool, 250, 9), *got = NULL;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int pair[2], on = 1;
        make_pair(types[i], pair);
        unsigned n_set = 0;
        for (size_t n = 0; n < sizeof options / sizeof options[0]; n++)
            n_set += setsockopt(pair[1], SOL_SOCKET, options[n], &on, sizeof on) == 0;
        CHECK(n_set >= 2); /* not every kernel has each */
        CHECK_OK(lend_group_send(pair[0], group, NULL, 0, &error), &error);
        unsigned fds = count_fds();
        CHECK_OK(lend_group_recv(pair[1], NULL, 1000000000, &got, &error), &error);
        CHECK_UINT(count_fds(), fds);
        CHECK_UINT(lend_group_count(got), 250);
        CHECK(is_filled(lend_group_get(got, 249, NULL), 9));
        lend_group_unref(got);
        close_pair(pair);
    }
    lend_group_unref(group);
    close_all(pool);
}

LEND_TEST(the_sentences_name_the_way_out) {
    struct lend_error error = {0};
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 100, 5), *got = NULL;
    struct lend_group *group = new_group(pool, 2, 6), *got_group = NULL;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int alone = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0);
        CHECK_CODE(lend_send(alone, tensor, NULL, 0, &error), -EINVAL);
        CHECK_CONTAINS(error.text, "connect(2) it first");
        if (types[i] != SOCK_DGRAM) { /* which needs no connection to receive */
            CHECK_CODE(lend_recv(alone, NULL, 1000000000, &got, &error), -EINVAL);
            CHECK_CONTAINS(error.text, "connect(2) it first");
        }
        close(alone);
    }
    int inet = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(inet >= 0);
    CHECK_CODE(lend_send(inet, tensor, NULL, 0, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "AF_UNIX");
    CHECK_CODE(lend_group_send(inet, group, NULL, 0, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "AF_UNIX");
    CHECK_CODE(lend_recv(inet, NULL, 0, &got, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "AF_UNIX");
    close(inet);
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    CHECK_OK(lend_group_send(pair[0], group, NULL, 0, &error), &error);
    CHECK_OK(lend_send(pair[0], tensor, NULL, 0, &error), &error);
    CHECK_CODE(lend_recv(pair[1], NULL, 0, &got, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "a group of 2 tensors (it is kept); use lend_group_recv");
    CHECK_OK(lend_group_recv(pair[1], NULL, 0, &got_group, &error), &error);
    CHECK_UINT(lend_group_count(got_group), 2);
    CHECK_CODE(lend_group_recv(pair[1], NULL, 0, &got_group, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "of one tensor (it is kept); use lend_recv");
    CHECK_OK(lend_recv(pair[1], NULL, 0, &got, &error), &error);
    CHECK(is_filled(got, 5));
    lend_tensor_unref(got);
    lend_group_unref(got_group);
    close_pair(pair);
    lend_group_unref(group);
    lend_tensor_unref(tensor);
    close_all(pool);
}
