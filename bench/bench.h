/* SPDX-License-Identifier: MIT */
/* What the benches share. A figure is nanoseconds per operation: the best of many short rounds, since the machine may
 * be busy with other things, and their median. Each stands beside a floor that was measured in the same run, in rounds
 * that alternate with it. Any failure ends the program: a bench has nothing to recover. */
#ifndef LEND_BENCH_BENCH_H_
#define LEND_BENCH_BENCH_H_

#include <lend/lend.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct figure {
    double best, median;
};

enum aim_kind {
    AIM_NONE = 0,
    AIM_VALUE = 1, /* best <= aim */
    AIM_RATIO = 2  /* best / floor.best <= aim */
};

struct result {
    const char *group;
    char name[80];
    const char *unit; /* NULL: "ns" */
    struct figure ours, floor;
    const char *floor_name; /* NULL: no floor */
    enum aim_kind aim_kind;
    double aim;
};

/* --- measure.c ------------------------------------------------------------------------------------------------------ */

uint64_t now_ns(void);

/* Does the operation n times. */
typedef void (*round_fn)(void *arg, uint64_t n);

/* Rounds of `ours` and `floor` in turn, each of about 1 ms, at most n_max operations long; both share `arg`. floor NULL:
 * none. Writes ours and floor into the result. */
void measure(struct result *result, round_fn ours, round_fn floor, void *arg, uint64_t n_max);

/* The figure of samples that were timed one by one; sorts them. */
struct figure figure_of(double *samples, size_t n);
/* The same in another unit, or for one of the many that an operation is about. */
struct figure figure_per(struct figure figure, double n);

/* --- report.c ------------------------------------------------------------------------------------------------------- */

void report(const struct result *result);
void report_note(const char *text);
/* Prints the legend and, with a path, writes everything as JSON. */
void report_end(const char *json_path);
/* Ends the program with a sentence when ok is false. */
#define MUST(ok, ...)                                    \
    do {                                                 \
        if (!(ok)) die(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)
void die(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
/* The same for a call of lend: r must be 0 or more. */
void must(int r, const struct lend_error *error, const char *what);

/* --- floors.c ------------------------------------------------------------------------------------------------------- */

/* What no rebuild + release by these means can do without: the handle's bytes copied once, one object allocated and
 * freed, one count raised and lowered. */
#define FLOOR_REBUILD "copy handle, 2 lock xadd, malloc+free"
void floor_rebuild(void *arg, uint64_t n);
/* What no rebuild + release of many tensors under one handle can do without. All memory of it lasts. */
struct floor_many {
    const uint8_t *handle; /* borrowed */
    size_t bytes;          /* of it: all are checked */
    uint32_t n_tensors, n_storages;
    struct floor_record *tensors, *storages;
    uint32_t *counts; /* of the storages */
    uint8_t *copy;    /* of the handle */
};
void floor_many_begin(struct floor_many *floor, const uint8_t *handle, size_t bytes, uint32_t n_tensors,
                      uint32_t n_storages);
void floor_many_end(struct floor_many *floor);
/* CRC-32C of the handle; for each tensor 90 of its bytes copied, which is what one takes there, and a record of 64 bytes
 * written; for each storage such a record written and a count raised, and lowered in the end. */
void floor_many(void *arg, uint64_t n);
/* What no reduce of many can do without: 90 bytes for each tensor written, and their CRC-32C. */
void floor_reduce(void *arg, uint64_t n);
/* An uncontended mutex locked and unlocked. */
void floor_mutex(void *arg, uint64_t n);
/* malloc + free of *arg (uint64_t) bytes. */
void floor_malloc(void *arg, uint64_t n);
/* 250 turns of seven instructions that wait for nothing. Twice the usual time means that the processor is a hyperthread
 * whose core is shared at the moment: paths of many instructions then take twice as long, too, and latencies do not. */
void floor_instructions(void *arg, uint64_t n);
/* Cost of a load that depends on the one before, at a random line of `bytes` of shared memory in small pages. */
struct figure floor_miss(uint64_t bytes);

/* --- peer.c, raw.c --------------------------------------------------------------------------------------------------------- */

/* A second process of this program, started by exec, on the other end of a socket. */
struct peer {
    int fd, pid;
};

enum peer_op {
    PEER_MAKE = 1,          /* n tensors of `bytes` each: sends their handles */
    PEER_PINNED = 2,        /* one tensor of `bytes`, n pinned handles of it; the tensor is dropped */
    PEER_DROP = 3,          /* drops all it made: sends 8 bytes */
    PEER_REBUILD = 4,       /* a handle follows: rebuilds and keeps; sends 8 bytes */
    PEER_RELEASE = 5,       /* drops what it rebuilt: sends 8 bytes */
    PEER_READ = 6,          /* a handle follows: rebuilds, adds all words up, releases; sends the sum */
    PEER_RECEIVE = 7,       /* n times: lend_recv, release, send 8 bytes */
    PEER_RECEIVE_RAW = 8,   /* n times: recvmsg of `bytes` with two descriptors, close them, send 8 bytes */
    PEER_RECEIVE_GROUP = 9, /* n times: lend_group_recv, release, send its count in 8 bytes */
    PEER_GROUP = 10,        /* a group of n matrices: sends its handle */
    PEER_CSR = 11,          /* a CSR tensor: sends its handle */
    PEER_CONJUGATED = 12    /* a conjugated tensor: sends its handle */
};

struct peer_request {
    uint32_t op, handle_bytes;
    uint64_t n, bytes;
};

/* The handle of a strided tensor travels in one record of this size; those of the benches fit. */
#define HANDLE_ROOM 192
struct record {
    _Alignas(64) uint8_t bytes[HANDLE_ROOM];
};

void peer_start(struct peer *peer, const char *role, const char *argument);
void peer_end(struct peer *peer);
void peer_request(const struct peer *peer, enum peer_op op, uint64_t n, uint64_t bytes, const struct record *handle);
uint64_t peer_answer(const struct peer *peer);
/* n records, in the order of their slots; malloc'd. ret_bytes: length of each handle. */
struct record *peer_records(const struct peer *peer, enum peer_op op, uint64_t n, uint64_t bytes, size_t *ret_bytes);
/* One handle of any kind; malloc'd. */
uint8_t *peer_handle(const struct peer *peer, enum peer_op op, uint64_t n, size_t *ret_bytes);
void send_all(int fd, const void *bytes, size_t n);
void receive_all(int fd, void *bytes, size_t n);

/* The role that obeys the requests, on descriptor 0. */
int peer_main(void);

/* The raw counterpart of first contact: a socket whose server sends three descriptors to each caller. */
int raw_server_main(void);
void raw_server_stop(const char *name);
uint64_t raw_contact_ns(const char *name);

/* A message with descriptors attached, by hand. */
void raw_send(int fd, const void *bytes, size_t n, const int *fds, int n_fds);
void raw_receive(int fd, void *bytes, size_t n, int *ret_fds, int n_fds);

/* --- the groups ----------------------------------------------------------------------------------------------------- */

void bench_group(void);
void bench_rebuild(void);
void bench_pool(void);
void bench_contact(void);
void bench_message(void);
void bench_fork(void);
int contact_main(const char *which, const char *argument);
/* A row under this heading: it makes this process an exporter, with a thread. */
void bench_group_reduce(const char *heading);

extern bool is_quick; /* fewer rounds and at most 1,000 live tensors */

/* --- tensors.c -------------------------------------------------------------------------------------------------- */

extern const DLDataType uint8;
struct lend_tensor *tensor_of(struct lend_pool *pool, uint64_t bytes);
void handle_of(struct lend_tensor *tensor, uint32_t flags, struct record *ret, size_t *ret_bytes);

/* Matrices have numbers below 100,000. With names of 17 bytes each takes 90 in the handle of a group. */
#define MATRIX_NAME_ROOM 18
void matrix_name(uint64_t number, char ret[MATRIX_NAME_ROOM]);
bool is_matrix(const struct lend_tensor *tensor, uint64_t number);
/* n matrices of 4 x 8 float32, each with a storage of its own. */
struct lend_group *group_of(struct lend_pool *pool, uint64_t n);

/* Values 0, 1, ... of so many stored elements. */
#define CSR_STORED 16
struct lend_tensor *csr_of(struct lend_pool *pool);
struct lend_tensor *conjugated_of(struct lend_pool *pool);

#endif
