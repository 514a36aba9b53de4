/* SPDX-License-Identifier: MIT */
/* What fuzz_tree.c and fuzz_message.c begin with: a group with a tensor of each kind, tensors of components, and another
 * process that lends the same. */
#ifndef LEND_TESTS_FUZZ_TREES_H_
#define LEND_TESTS_FUZZ_TREES_H_

#include "base/crc32c.h"
#include "fuzz.h"

#include <lend/lend.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

static const DLDataType sample_float32 = {kDLFloat, 32, 1}, sample_int64 = {kDLInt, 64, 1},
                        sample_uint8 = {kDLUInt, 8, 1};

/* The list, and how long it is. */
#define SIZES(...)                                                                   \
    (int32_t)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                  \
    }

static inline struct lend_tensor *sample_floats(struct lend_pool *pool, int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = NULL;
    PROPERTY(lend_tensor_new(pool, sample_float32, ndim, shape, &tensor, NULL) == 0);
    struct lend_tensor_info info = {.size = sizeof info};
    PROPERTY(lend_tensor_info(tensor, &info) == 0);
    memset(info.data, 1, info.nbytes);
    return tensor;
}

static inline struct lend_tensor *sample_ints(struct lend_pool *pool, int32_t n_rows, int32_t n,
                                              const int64_t *values) {
    const int64_t shape[2] = {n_rows, n / (n_rows ? n_rows : 1)};
    struct lend_tensor *tensor = NULL;
    PROPERTY(lend_tensor_new(pool, sample_int64, n_rows ? 2 : 1, shape + (n_rows ? 0 : 1), &tensor, NULL) == 0);
    memcpy(lend_tensor_data(tensor), values, (size_t)n * sizeof *values);
    return tensor;
}

/* Takes the components over. */
static inline struct lend_tensor *sample_compound(struct lend_compound compound, int32_t ndim, const int64_t *shape) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    compound.size = sizeof compound;
    compound.ndim = ndim;
    compound.shape = shape;
    int r = lend_tensor_new_compound(&compound, &tensor, &error);
    if (r < 0) fprintf(stderr, "%s\n", error.text);
    PROPERTY(r == 0);
    for (uint32_t i = 0; i < compound.n_components; i++) lend_tensor_unref(compound.components[i]);
    return tensor;
}

#define PARTS(...)                                                                                \
    .n_components = sizeof((struct lend_tensor *[]){__VA_ARGS__}) / sizeof(struct lend_tensor *), \
    .components = (struct lend_tensor *[]) {                                                      \
        __VA_ARGS__                                                                               \
    }

enum { SAMPLE_CSR, SAMPLE_COO, SAMPLE_NESTED, SAMPLE_JAGGED, SAMPLE_CHANNELS, SAMPLE_WRAPPER, N_SAMPLES };

static inline struct lend_tensor *sample_coo(struct lend_pool *pool) {
    struct lend_tensor *parts[] = {sample_ints(pool, 2, SIZES(0, 1, 1, 1, 0, 3)), sample_floats(pool, SIZES(3, 2))};
    return sample_compound(
        (struct lend_compound){.layout = LEND_LAYOUT_COO, .n_components = 2, .components = parts, .is_coalesced = 1},
        SIZES(3, 4, 2));
}

static inline struct lend_tensor *sample_wrapper(struct lend_pool *pool) {
    struct lend_tensor *values = NULL;
    PROPERTY(lend_tensor_new(pool, sample_uint8, SIZES(6), &values, NULL) == 0);
    struct lend_tensor *quantized = sample_compound(
        (struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED, PARTS(values), .scale = 0.5, .zero_point = -3},
        SIZES(6));
    struct lend_tensor *inner = sample_compound(
        (struct lend_compound){.layout = LEND_LAYOUT_WRAPPER, PARTS(sample_coo(pool)), .dtype = sample_float32},
        SIZES(7));
    return sample_compound(
        (struct lend_compound){.layout = LEND_LAYOUT_WRAPPER, PARTS(quantized, inner), .dtype = sample_float32},
        SIZES(7, 1));
}

static inline struct lend_tensor *sample_channels(struct lend_pool *pool) {
    struct lend_tensor *values = NULL;
    PROPERTY(lend_tensor_new(pool, sample_uint8, SIZES(2, 3), &values, NULL) == 0);
    return sample_compound(
        (struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED_PER_CHANNEL,
                               PARTS(values, sample_floats(pool, SIZES(3)), sample_ints(pool, 0, SIZES(4, 5, 6))),
                               .dim = 1},
        SIZES(2, 3));
}

static inline struct lend_tensor *sample(struct lend_pool *pool, int which) {
    switch (which) {
    case SAMPLE_CSR:
        return sample_compound(
            (struct lend_compound){.layout = LEND_LAYOUT_CSR,
                                   PARTS(sample_ints(pool, 0, SIZES(0, 1, 3)), sample_ints(pool, 0, SIZES(1, 0, 2)),
                                         sample_floats(pool, SIZES(3)))},
            SIZES(2, 3));
    case SAMPLE_COO: return sample_coo(pool);
    case SAMPLE_NESTED:
        return sample_compound(
            (struct lend_compound){.layout = LEND_LAYOUT_NESTED,
                                   PARTS(sample_floats(pool, SIZES(10)), sample_ints(pool, 2, SIZES(2, 3, 2, 2)),
                                         sample_ints(pool, 2, SIZES(3, 1, -2, 1)), sample_ints(pool, 0, SIZES(0, 8)))},
            SIZES(2, 2, LEND_RAGGED));
    case SAMPLE_JAGGED:
        return sample_compound(
            (struct lend_compound){.layout = LEND_LAYOUT_JAGGED,
                                   PARTS(sample_floats(pool, SIZES(5, 4)), sample_ints(pool, 0, SIZES(0, 2, 5)),
                                         sample_ints(pool, 0, SIZES(1, 3))),
                                   .dim = 1},
            SIZES(2, LEND_RAGGED, 4));
    case SAMPLE_CHANNELS: return sample_channels(pool);
    default: return sample_wrapper(pool);
    }
}

/* Takes the tensor over. */
static inline void sample_add(struct lend_group *group, const char *name, struct lend_tensor *tensor) {
    PROPERTY(lend_group_add(group, name, tensor, NULL) == 0);
    lend_tensor_unref(tensor);
}

/* All of them, tied tensors, marks with user bytes, and two views of one meta storage. */
static inline struct lend_group *sample_group(struct lend_pool *pool) {
    static const char *const names[N_SAMPLES] = {"csr", "", "nested", "jagged", "channels", "gr\xc3\xb6\xc3\x9f\x65"};
    struct lend_group *group = NULL;
    struct lend_tensor *plain = sample_floats(pool, SIZES(6, 7)), *tied = NULL, *view = NULL, *marked = NULL,
                       *meta = NULL;
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs,
                                            .flags = LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_PARAMETER | LEND_ATTR_NEG,
                                            .user_tag = 7,
                                            .user = "0123456789",
                                            .user_bytes = 10};
    PROPERTY(lend_group_new(&group, NULL) == 0);
    for (int i = 0; i < N_SAMPLES; i++) sample_add(group, names[i], sample(pool, i));
    PROPERTY(lend_tensor_slice(plain, 1, -1, INT64_MIN, -2, &tied, NULL) == 0);
    PROPERTY(lend_tensor_with_attrs(plain, &attrs, &marked, NULL) == 0);
    PROPERTY(lend_tensor_new_meta(sample_float32, SIZES(1024), &meta, NULL) == 0);
    PROPERTY(lend_tensor_select(meta, 0, 9, &view, NULL) == 0);
    sample_add(group, "plain", plain);
    sample_add(group, "tied", tied);
    sample_add(group, "marked", marked);
    sample_add(group, "meta", meta);
    sample_add(group, "view", view);
    return group;
}

/* --- handles --------------------------------------------------------------------------------------------------------- */

/* The length and the checksum that these bytes should have, so that what lies behind them is looked at. */
static inline void put_sum(uint8_t *bytes, size_t n, uint8_t form) {
    if (n < 48) return;
    uint32_t total = (uint32_t)n, sum;
    memcpy(bytes, "LEND\0\0\0", 7);
    bytes[7] = form;
    memcpy(bytes + 8, &total, 4);
    sum = lend__crc32c(lend__crc32c(0, bytes, 12), bytes + 16, n - 16);
    memcpy(bytes + 12, &sum, 4);
}

/* --- another process ------------------------------------------------------------------------------------------------- */

struct stranger {
    uint8_t *handle; /* of its group */
    size_t n;
    int fd; /* it ends when this is closed */
};

static inline void put_all(int fd, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t r = write(fd, (const uint8_t *)bytes + done, n - done);
        if (r <= 0) _exit(1);
        done += (size_t)r;
    }
}

/* It lends a group until its input ends. Before anything of lend is open here. */
static inline struct stranger start_stranger(void) {
    struct stranger ret = {.n = 0};
    int pair[2];
    PROPERTY(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    pid_t pid = fork();
    PROPERTY(pid >= 0);
    if (!pid) {
        struct lend_pool *pool = NULL;
        void *handle = NULL;
        size_t n = 0;
        char byte;
        close(pair[0]);
        if (lend_open(NULL, NULL) < 0 || lend_pool_new(NULL, &pool, NULL) < 0) _exit(1);
        if (lend_group_reduce(sample_group(pool), NULL, &handle, &n, NULL) < 0) _exit(1);
        put_all(pair[1], &n, sizeof n);
        put_all(pair[1], handle, n);
        while (read(pair[1], &byte, 1) > 0) {
        }
        _exit(0);
    }
    close(pair[1]);
    PROPERTY(recv(pair[0], &ret.n, sizeof ret.n, MSG_WAITALL) == sizeof ret.n);
    ret.handle = malloc(ret.n);
    PROPERTY(ret.handle && recv(pair[0], ret.handle, ret.n, MSG_WAITALL) == (ssize_t)ret.n);
    ret.fd = pair[0];
    return ret;
}

#endif
