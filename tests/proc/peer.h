/* SPDX-License-Identifier: MIT */
/* What the proc tests share: tensors filled with a pattern, handles as text, counts of what a process has, and the
 * actor (actor.c): a role that does on command what a user of the library does.
 *
 *     struct role b;
 *     actor_start(&b, NULL, "deadline_ms=500");
 *     CHECK_INT(actor_code(&b, "rebuild 0 %s", text), -ESTALE);
 *     CHECK_INT(actor_int(&b, "byte 0 17"), 7); */
#ifndef LEND_TESTS_PROC_PEER_H_
#define LEND_TESTS_PROC_PEER_H_

#include "role.h"
#include "test.h"

#include <lend/lend.h>
#include <string.h>

static const DLDataType float32 = {kDLFloat, 32, 1};
static const DLDataType uint8 = {kDLUInt, 8, 1};
static const DLDataType int64 = {kDLInt, 64, 1};

/* A handle in both forms. */
struct handle {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n;
    char text[LEND_HANDLE_TEXT_MAX];
};

/* Opens the context with options, or fails the test. */
void open_with(const struct lend_opts *opts);
struct lend_pool *new_pool(const struct lend_pool_opts *opts);
/* Closes what open_with and new_pool opened. NULL allowed. */
void close_all(struct lend_pool *pool);

/* A tensor of n bytes, all `fill`. */
struct lend_tensor *new_bytes(struct lend_pool *pool, int64_t n, int fill);
struct lend_tensor_info info_of(const struct lend_tensor *tensor);
uint64_t limbo_bytes(struct lend_pool *pool);

/* Reduces and expects `code`; the handle is empty when that is negative. opts NULL: share. */
void reduce_to(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code, struct handle *ret);
/* The text of reduce_to; static, one at a time. */
const char *reduce_text(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code);
int rebuild_text(const char *text, const struct lend_rebuild_opts *opts, struct lend_tensor **ret,
                 struct lend_error *error);

/* All of what a tensor is that must be equal on both sides: lend_tensor_info, attributes, components, and checksums of
 * the elements; of a text that is too long for a line, its checksum. Freed by the caller. */
char *describe(struct lend_tensor *tensor);
/* CRC-32C of the elements in C order, as they are meant: conjugates are conjugates. */
uint32_t sum_of(struct lend_tensor *tensor);

/* A handle in a file, since a group's is too long for a line. The path is freed, and the file removed, by handle_drop. */
char *handle_put(const void *bytes, size_t n);
/* The bytes of such a file; freed by the caller. */
void *handle_get(const char *path, size_t *ret_n);
void handle_drop(char *path);

/* Does every byte have this value? */
bool is_filled(struct lend_tensor *tensor, int value);

/* What this process has. */
unsigned count_fds(void);
unsigned count_maps(void);      /* lines of /proc/self/maps */
unsigned count_lend_maps(void); /* of these: memfds of lend */
uint64_t resident_bytes(void);
/* Is there a listening socket of this exporter in this network namespace? */
bool has_socket(const uint8_t exporter_id[16]);
/* Entries of /dev/shm that lend made: none, ever. */
unsigned count_dev_shm(void);

/* Starts an actor. `options`: words "deadline_ms=500 pin_bytes=1000 orphan_ms=200 limbo_bytes=N socket_dir=PATH group
 * fork_drop isolate read_only budget=N quiet", or NULL. */
void actor_start(struct role *actor, const struct role_opts *opts, const char *options);
/* Sends a command. Its answer "ok ..." gives the rest (valid until the next command); anything else fails the test. */
const char *actor_ok(struct role *actor, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, when the rest is a number. */
long long actor_int(struct role *actor, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends a command and returns 0 (or the outcome) or the negative code of its "error CODE SENTENCE"; the sentence is in
 * actor_sentence. */
int actor_code(struct role *actor, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern char actor_sentence[LEND_ERROR_TEXT_BYTES];

#endif
