/* SPDX-License-Identifier: MIT */
/* The other process. It is started by exec, so it is no relative in the sense of lend: it shares no memory with us but
 * what is lent. Requests and answers go over a socket pair that is its descriptor 0. */
#include "bench.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void send_all(int fd, const void *bytes, size_t n) {
    for (const uint8_t *p = bytes; n;) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        MUST(sent > 0, "the other process is gone");
        p += sent;
        n -= (size_t)sent;
    }
}

void receive_all(int fd, void *bytes, size_t n) {
    for (uint8_t *p = bytes; n;) {
        ssize_t got = recv(fd, p, n, MSG_WAITALL);
        if (got < 0 && errno == EINTR) continue;
        MUST(got > 0, "the other process is gone");
        p += got;
        n -= (size_t)got;
    }
}

void peer_start(struct peer *peer, const char *role, const char *argument) {
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no socket pair");
    char *const argv[] = {(char[]){"lend-bench"}, (char[]){"--role"}, (char *)(uintptr_t)role,
                          (char *)(uintptr_t)argument, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], 0);
    MUST(posix_spawn(&peer->pid, "/proc/self/exe", &actions, NULL, argv, environ) == 0, "no process");
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    peer->fd = pair[0];
}

void peer_end(struct peer *peer) {
    int status = 0;
    close(peer->fd);
    MUST(waitpid(peer->pid, &status, 0) == peer->pid && status == 0, "the other process ended with status %d", status);
}

void peer_request(const struct peer *peer, enum peer_op op, uint64_t n, uint64_t bytes, const struct record *handle) {
    struct peer_request request = {.op = op, .n = n, .bytes = bytes};
    send_all(peer->fd, &request, sizeof request);
    if (handle) send_all(peer->fd, handle, sizeof *handle);
}

uint64_t peer_answer(const struct peer *peer) {
    uint64_t value;
    receive_all(peer->fd, &value, sizeof value);
    return value;
}

struct record *peer_records(const struct peer *peer, enum peer_op op, uint64_t n, uint64_t bytes, size_t *ret_bytes) {
    struct record *records = aligned_alloc(64, n * sizeof *records);
    MUST(records, "no memory for %llu handles", (unsigned long long)n);
    peer_request(peer, op, n, bytes, NULL);
    *ret_bytes = peer_answer(peer);
    receive_all(peer->fd, records, n * sizeof *records);
    return records;
}

uint8_t *peer_handle(const struct peer *peer, enum peer_op op, uint64_t n, size_t *ret_bytes) {
    peer_request(peer, op, n, 0, NULL);
    *ret_bytes = peer_answer(peer);
    uint8_t *handle = malloc(*ret_bytes);
    MUST(handle, "no memory for a handle");
    receive_all(peer->fd, handle, *ret_bytes);
    return handle;
}

/* --- the role -------------------------------------------------------------------------------------------------------- */

struct state {
    struct lend_pool *pool;
    struct lend_tensor **made;
    uint64_t n_made;
    struct lend_group *group;
    struct lend_tensor *held[64];
    unsigned n_held;
    size_t handle_bytes; /* of the last one received */
};

static void drop(struct state *s) {
    for (uint64_t i = 0; i < s->n_made; i++) lend_tensor_unref(s->made[i]);
    free(s->made);
    s->made = NULL;
    s->n_made = 0;
    lend_group_unref(s->group);
    s->group = NULL;
}

static void send_records(const struct record *records, uint64_t n, uint64_t handle_bytes) {
    send_all(0, &handle_bytes, sizeof handle_bytes);
    send_all(0, records, n * sizeof *records);
}

static void make(struct state *s, const struct peer_request *request) {
    drop(s);
    size_t handle_bytes = 0;
    struct record *records = aligned_alloc(64, request->n * sizeof *records);
    s->made = malloc(request->n * sizeof *s->made);
    MUST(records && s->made, "no memory");
    for (uint64_t i = 0; i < request->n; i++) {
        s->made[i] = tensor_of(s->pool, request->bytes);
        handle_of(s->made[i], 0, &records[i], &handle_bytes);
    }
    s->n_made = request->n;
    send_records(records, request->n, handle_bytes);
    free(records);
}

static void make_pinned(struct state *s, const struct peer_request *request) {
    size_t handle_bytes = 0;
    struct record *records = aligned_alloc(64, request->n * sizeof *records);
    MUST(records, "no memory");
    struct lend_tensor *tensor = tensor_of(s->pool, request->bytes);
    for (uint64_t i = 0; i < request->n; i++) handle_of(tensor, LEND_REDUCE_PIN, &records[i], &handle_bytes);
    lend_tensor_unref(tensor);
    send_records(records, request->n, handle_bytes);
    free(records);
}

static void send_handle(const void *handle, uint64_t bytes) {
    send_all(0, &bytes, sizeof bytes);
    send_all(0, handle, bytes);
}

static void make_group(struct state *s, uint64_t n) {
    void *handle = NULL;
    size_t bytes = 0;
    struct lend_error error;
    drop(s);
    s->group = group_of(s->pool, n);
    must(lend_group_reduce(s->group, NULL, &handle, &bytes, &error), &error, "lend_group_reduce");
    send_handle(handle, bytes);
    lend_free(handle);
}

/* Keeps the tensor. */
static void make_one(struct state *s, struct lend_tensor *tensor) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t bytes = 0;
    struct lend_error error;
    drop(s);
    s->made = malloc(sizeof *s->made);
    MUST(s->made, "no memory");
    s->made[s->n_made++] = tensor;
    must(lend_reduce(tensor, NULL, handle, sizeof handle, &bytes, &error), &error, "lend_reduce");
    send_handle(handle, bytes);
}

static struct lend_tensor *rebuild_next(void) {
    struct record handle;
    struct lend_error error;
    struct lend_tensor *tensor = NULL;
    uint32_t n;
    receive_all(0, &handle, sizeof handle);
    memcpy(&n, handle.bytes + 8, sizeof n); /* a handle says its own length (docs/wire.md) */
    must(lend_rebuild(handle.bytes, n, NULL, &tensor, &error), &error, "lend_rebuild");
    return tensor;
}

static uint64_t read_next(void) {
    struct lend_tensor *tensor = rebuild_next();
    struct lend_tensor_info info = {.size = sizeof info};
    must(lend_tensor_info(tensor, &info), NULL, "lend_tensor_info");
    const uint64_t *words = info.data;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < info.nbytes / 8; i++) sum += words[i];
    lend_tensor_unref(tensor);
    return sum;
}

static void receive_tensors(uint64_t n) {
    uint64_t answer = 0;
    struct lend_error error;
    for (uint64_t i = 0; i < n; i++) {
        struct lend_tensor *tensor = NULL;
        must(lend_recv(0, NULL, 0, &tensor, &error), &error, "lend_recv");
        lend_tensor_unref(tensor);
        send_all(0, &answer, sizeof answer);
    }
}

static void receive_groups(uint64_t n) {
    uint64_t answer = 0;
    struct lend_error error;
    for (uint64_t i = 0; i < n; i++) {
        struct lend_group *group = NULL;
        must(lend_group_recv(0, NULL, 0, &group, &error), &error, "lend_group_recv");
        answer = lend_group_count(group);
        lend_group_unref(group);
        send_all(0, &answer, sizeof answer);
    }
}

static void receive_raw(uint64_t n, uint64_t bytes) {
    uint64_t answer = 0;
    uint8_t *handle = malloc(bytes);
    MUST(handle, "no memory");
    for (uint64_t i = 0; i < n; i++) {
        int fds[2];
        raw_receive(0, handle, bytes, fds, 2);
        close(fds[0]);
        close(fds[1]);
        send_all(0, &answer, sizeof answer);
    }
    free(handle);
}

static void obey(struct state *s, const struct peer_request *request) {
    uint64_t answer = 0;
    switch ((enum peer_op)request->op) {
    case PEER_MAKE: make(s, request); return;
    case PEER_PINNED: make_pinned(s, request); return;
    case PEER_RECEIVE: receive_tensors(request->n); return;
    case PEER_RECEIVE_RAW: receive_raw(request->n, request->bytes); return;
    case PEER_RECEIVE_GROUP: receive_groups(request->n); return;
    case PEER_GROUP: make_group(s, request->n); return;
    case PEER_CSR: make_one(s, csr_of(s->pool)); return;
    case PEER_CONJUGATED: make_one(s, conjugated_of(s->pool)); return;
    case PEER_DROP: drop(s); break;
    case PEER_REBUILD: s->held[s->n_held++ % 64] = rebuild_next(); break;
    case PEER_RELEASE:
        while (s->n_held) lend_tensor_unref(s->held[--s->n_held]);
        break;
    case PEER_READ: answer = read_next(); break;
    }
    send_all(0, &answer, sizeof answer);
}

int peer_main(void) {
    struct state s = {.pool = NULL};
    struct peer_request request;
    struct lend_error error;
    must(lend_open(NULL, &error), &error, "lend_open");
    must(lend_pool_new(NULL, &s.pool, &error), &error, "lend_pool_new");
    while (recv(0, &request, sizeof request, MSG_WAITALL) == sizeof request) obey(&s, &request);
    drop(&s);
    while (s.n_held) lend_tensor_unref(s.held[--s.n_held]);
    lend_pool_unref(s.pool);
    must(lend_close(&error), &error, "lend_close");
    return 0;
}
