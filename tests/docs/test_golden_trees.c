/* SPDX-License-Identifier: MIT */
/* Trees byte by byte, one of each shape, and what lend__tree reads of them; and the message of lend_send. */
#include "golden.h"
#include "share/control.h"
#include "share/parcel.h"
#include "share/shm.h"
#include "share/tree.h"

#include <fcntl.h>
#include <lend/lend.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- trees --------------------------------------------------------------------------------------------------------- */

static const struct lend__identity other = {
    .boot_id = {0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd, 0xbe, 0xbf},
    .id = {0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff},
    .start_ns = 5,
    .uid = 1001,
    .pid = 99,
};

static const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1}, int8 = {kDLInt, 8, 1},
                        float64 = {kDLFloat, 64, 1};

/* A strided, contiguous node. */
#define STRIDED(row, type, n, ...)                                                                                \
    {                                                                                                             \
        .storage = (row), .tensor = {.dtype = (type), .is_contiguous = true, .ndim = (n), .dims = {__VA_ARGS__} } \
    }
/* The head of a layout. */
#define HEAD(kind, parts, type, n, ...)                                    \
    .layout = (kind), .n_components = (parts), .storage = LEND__TREE_NONE, \
    .tensor = {.dtype = (type), .is_contiguous = true, .ndim = (n), .dims = {__VA_ARGS__}}

static void give_node(void *user, uint32_t i, struct lend__tree_node *ret) {
    *ret = ((const struct lend__tree_node *)user)[i];
}

static void check_exporters(const struct lend__tree *tree, const struct lend__tree_source *source) {
    struct lend__wire_exporter found[4];
    CHECK_UINT(tree->n_exporters, source->n_exporters);
    lend__tree_exporters(tree, found);
    for (uint32_t i = 0; i < tree->n_exporters; i++) {
        const struct lend__wire_exporter *wanted = &source->exporters[i];
        CHECK_MEM(&found[i].identity, &wanted->identity, sizeof wanted->identity);
        CHECK_UINT(found[i].pin_token, wanted->pin_token);
        CHECK_UINT(found[i].socket_path_bytes, wanted->socket_path_bytes);
        CHECK_INT(found[i].socket_path != NULL, wanted->socket_path != NULL);
        if (wanted->socket_path) CHECK_MEM(found[i].socket_path, wanted->socket_path, wanted->socket_path_bytes);
    }
}

static void check_storages(const struct lend__tree *tree, const struct lend__tree_source *source) {
    CHECK_UINT(tree->n_allocations, source->n_allocations);
    CHECK_UINT(tree->n_storages, source->n_storages);
    for (uint32_t i = 0; i < tree->n_allocations; i++) {
        struct lend__tree_allocation found;
        lend__tree_allocation(tree, i, &found);
        CHECK_MEM(&found, &source->allocations[i], sizeof found);
    }
    for (uint32_t i = 0; i < tree->n_storages; i++) {
        struct lend__tree_storage found;
        lend__tree_storage(tree, i, &found);
        CHECK_MEM(&found, &source->storages[i], sizeof found);
    }
}

static void check_node(const struct lend__tree_node *found, const struct lend__tree_node *wanted) {
    const struct lend__wire_tensor *a = &found->tensor, *b = &wanted->tensor;
    CHECK_UINT(found->layout, wanted->layout);
    CHECK_UINT(found->n_components, wanted->n_components);
    CHECK_UINT(found->storage, wanted->storage);
    CHECK_INT(found->is_coalesced, wanted->is_coalesced);
    if (wanted->layout != LEND_LAYOUT_STRIDED) {
        CHECK_INT(found->dim, wanted->dim);
        CHECK(found->scale == wanted->scale);
        CHECK_INT(found->zero_point, wanted->zero_point);
    }
    CHECK_MEM(&a->dtype, &b->dtype, sizeof a->dtype);
    CHECK_INT(a->is_read_only, b->is_read_only);
    CHECK_INT(a->is_padded, b->is_padded);
    CHECK_INT(a->is_contiguous, b->is_contiguous);
    CHECK_UINT(a->attrs, b->attrs);
    CHECK_UINT(a->offset_bits, b->offset_bits);
    CHECK_UINT(a->user_tag, b->user_tag);
    CHECK_UINT(a->user_bytes, b->user_bytes);
    if (b->user_bytes) CHECK_MEM(a->user, b->user, b->user_bytes);
    CHECK_UINT(a->ndim, b->ndim);
    CHECK_MEM(a->dims, b->dims, (b->is_contiguous ? 1 : 2) * b->ndim * sizeof b->dims[0]);
}

/* What the library reads of the bytes is what was written. */
static void read_back(const void *handle, size_t n, const struct lend__tree_source *source) {
    struct lend__tree tree;
    struct lend_error error = {0};
    CHECK_OK(lend__tree_open(handle, n, &tree, "test", &error), &error);
    CHECK_OK(lend__tree_check(&tree, "test", &error), &error);
    CHECK_INT(tree.major, LEND_WIRE_MAJOR);
    CHECK_INT(tree.minor, LEND_WIRE_MINOR);
    CHECK_INT(tree.is_group, source->is_group);
    CHECK_UINT(tree.n_nodes, source->n_nodes);
    CHECK_UINT(tree.n_entries, source->n_entries);
    check_exporters(&tree, source);
    check_storages(&tree, source);
    uint32_t at = tree.nodes_at;
    for (uint32_t i = 0; i < source->n_nodes; i++) {
        struct lend__tree_node found, wanted;
        CHECK_OK(lend__tree_next(&tree, &at, &found, "test", &error), &error);
        source->node(source->user, i, &wanted);
        check_node(&found, &wanted);
    }
    CHECK_UINT(at, tree.nodes_end);
    const char *name = tree.names;
    for (uint32_t i = 0; source->is_group && i < source->n_entries; i++, name += strlen(name) + 1)
        CHECK_STR(name, source->names[i]);
    CHECK_PTR(name, tree.names + tree.names_bytes);
}

static void check_tree(const char *name, const struct lend__tree_source *source, size_t bytes) {
    static struct text golden;
    static char text[LEND_HANDLE_TEXT_MAX];
    static uint8_t again[LEND_HANDLE_BYTES_MAX];
    void *handle = NULL;
    size_t n = 0, n_again = 0;
    CHECK_OK(lend__tree_write(source, &handle, &n), NULL);
    CHECK_UINT(n, bytes);
    CHECK_OK(lend_handle_format(handle, n, text, sizeof text), NULL);
    golden.n = 0;
    add_bytes(&golden, handle, n);
    add(&golden, "\n%s\n", text);
    check_golden(name, &golden);
    read_back(handle, n, source);
    CHECK_OK(lend_handle_parse(text, again, sizeof again, &n_again), NULL);
    CHECK_UINT(n_again, n);
    CHECK_MEM(again, handle, n);
    struct lend_handle_info info = {.size = sizeof info};
    CHECK_OK(lend_handle_describe(handle, n, &info, NULL), NULL);
    CHECK_UINT(info.kind, source->is_group ? LEND_HANDLE_GROUP : LEND_HANDLE_TENSOR);
    CHECK_UINT(info.n_tensors, source->n_entries);
    CHECK_UINT(info.n_storages, source->n_storages);
    CHECK_UINT(info.n_exporters, source->n_exporters);
    lend_free(handle);
}

static const struct lend__tree_allocation one_allocation = {
    .device_type = kDLCPU, .index = 3, .gen = 2, .bytes = 2u << 20};

LEND_TEST(tree_of_a_csr_tensor) {
    const struct lend__wire_exporter exporters[] = {{.identity = exporter}};
    const struct lend__tree_storage storages[] = {{0, 7, 9, 4096, 40}, {0, 8, 1, 4160, 24}, {0, 9, 1, 4224, 12}};
    struct lend__tree_node nodes[] = {{HEAD(LEND_LAYOUT_CSR, 3, float32, 2, 4, 5)},
                                      STRIDED(0, int64, 1, 5),
                                      STRIDED(1, int64, 1, 3),
                                      STRIDED(2, float32, 1, 3)};
    nodes[0].tensor.attrs = LEND_ATTR_REQUIRES_GRAD;
    const struct lend__tree_source source = {.n_exporters = 1,
                                             .n_allocations = 1,
                                             .n_storages = 3,
                                             .n_nodes = 4,
                                             .n_entries = 1,
                                             .exporters = exporters,
                                             .allocations = &one_allocation,
                                             .storages = storages,
                                             .node = give_node,
                                             .user = nodes};
    check_tree("tree_csr.hex", &source, 48 + 64 + 32 + 3 * 32 + (32 + 16 + 8) + 3 * (32 + 8));
}

/* A wrapper of what has members of its own: coalesced, ragged, scale and zero point, axis. One storage for all. */
LEND_TEST(tree_of_a_wrapper) {
    const struct lend__wire_exporter exporters[] = {{.identity = exporter, .pin_token = 0x0102030405060708u}};
    const struct lend__tree_storage storages[] = {{0, 7, 9, 4096, 4096}};
    struct lend__tree_node nodes[] = {
        {HEAD(LEND_LAYOUT_WRAPPER, 4, float64, 0, 0)},
        {HEAD(LEND_LAYOUT_COO, 2, float32, 2, 3, 4), .is_coalesced = true},
        STRIDED(0, int64, 2, 2, 3),
        STRIDED(0, float32, 1, 3),
        {HEAD(LEND_LAYOUT_JAGGED, 2, float32, 3, 2, LEND_RAGGED, 4), .dim = 1},
        STRIDED(0, float32, 2, 5, 4),
        STRIDED(0, int64, 1, 3),
        {HEAD(LEND_LAYOUT_QUANTIZED, 1, int8, 1, 6), .scale = 0.125, .zero_point = -3},
        STRIDED(0, int8, 1, 6),
        {HEAD(LEND_LAYOUT_QUANTIZED_PER_CHANNEL, 3, int8, 2, 2, 3), .dim = 1},
        STRIDED(0, int8, 2, 2, 3),
        STRIDED(0, float32, 1, 3),
        STRIDED(0, int64, 1, 3),
    };
    nodes[0].tensor.user = "tag";
    nodes[0].tensor.user_bytes = 3;
    nodes[0].tensor.user_tag = 0xabcd;
    nodes[3].tensor.offset_bits = 8 * 64;
    const struct lend__tree_source source = {.n_exporters = 1,
                                             .n_allocations = 1,
                                             .n_storages = 1,
                                             .n_nodes = 13,
                                             .n_entries = 1,
                                             .exporters = exporters,
                                             .allocations = &one_allocation,
                                             .storages = storages,
                                             .node = give_node,
                                             .user = nodes};
    /* The tensors with two sizes or one take 8 bytes for them; the jagged one 16, and the wrapper 0 and its user's 8. */
    check_tree("tree_wrapper.hex", &source, 48 + 64 + 32 + 32 + 5 * 16 + 13 * 32 + 12 * 8 + 8 + 8);
}

/* Two exporters, one with a path and both with pins; tied tensors, wide strides, marks, user bytes, and odd names. */
LEND_TEST(tree_of_a_group) {
    const struct lend__wire_exporter exporters[] = {
        {exporter, 0xfedcba9876543210u, socket_path, sizeof socket_path - 1}, {other, 1, NULL, 0}};
    const struct lend__tree_allocation allocations[] = {
        one_allocation,
        {.exporter = 1, .device_type = kDLCPU, .index = 0, .gen = 1, .bytes = 1ull << 40},
        {.exporter = 1, .device_type = kDLCPU, .index = LEND__CONTROL_NONE}};
    const struct lend__tree_storage storages[] = {
        {0, 7, 9, 4096, 24}, {1, 0xabcdef, 0x0123456789abcdefu, 1ull << 32, 1ull << 39}, {2, 3, 4, 0, 0}};
    struct lend__tree_node nodes[] = {STRIDED(0, float32, 2, 2, 3), STRIDED(0, float32, 1, 6),
                                      STRIDED(1, float32, 2, 2, 5, 1ll << 33, -7), STRIDED(2, int8, 1, 0)};
    nodes[0].tensor.attrs = LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD;
    nodes[0].tensor.user = "\x01\x02\x03\x04\x05\x06\x07\x08\x09";
    nodes[0].tensor.user_bytes = 9;
    nodes[0].tensor.user_tag = 1;
    nodes[2].tensor.is_contiguous = false;
    nodes[2].tensor.is_read_only = true;
    nodes[2].tensor.offset_bits = 8 * ((1ull << 38) + 16);
    nodes[3].tensor.is_padded = true;
    static const char *const names[] = {"layers.0.weight", "", "gr\xc3\xb6\xc3\x9f\x65", "\x1b[2J"};
    const struct lend__tree_source source = {.is_group = true,
                                             .n_exporters = 2,
                                             .n_allocations = 3,
                                             .n_storages = 3,
                                             .n_nodes = 4,
                                             .n_entries = 4,
                                             .exporters = exporters,
                                             .allocations = allocations,
                                             .storages = storages,
                                             .names = names,
                                             .node = give_node,
                                             .user = nodes};
    check_tree("tree_group.hex", &source,
               48 + 2 * 64 + 3 * 32 + 3 * 32 + (32 + 8 + 16) + (32 + 8) + (32 + 32) + (32 + 8) + 64 + 32);
}

LEND_TEST(tree_of_an_empty_group) {
    const struct lend__tree_source source = {.is_group = true};
    check_tree("tree_empty_group.hex", &source, 48);
}

/* Two views of one meta storage. */
LEND_TEST(tree_of_a_meta_pair) {
    const struct lend__wire_exporter exporters[] = {{.identity = exporter}};
    const struct lend__tree_allocation allocations[] = {{.device_type = LEND_DEVICE_META, .index = LEND__CONTROL_NONE}};
    const struct lend__tree_storage storages[] = {{.slot_gen = 17, .bytes = 4096}};
    struct lend__tree_node nodes[] = {STRIDED(0, float32, 1, 1024), STRIDED(0, float32, 2, 8, 16)};
    nodes[1].tensor.offset_bits = 32 * 512;
    static const char *const names[] = {"a", "b"};
    const struct lend__tree_source source = {.is_group = true,
                                             .n_exporters = 1,
                                             .n_allocations = 1,
                                             .n_storages = 1,
                                             .n_nodes = 2,
                                             .n_entries = 2,
                                             .exporters = exporters,
                                             .allocations = allocations,
                                             .storages = storages,
                                             .names = names,
                                             .node = give_node,
                                             .user = nodes};
    check_tree("tree_meta_pair.hex", &source, 48 + 64 + 32 + 32 + 2 * (32 + 8) + 8);
}

/* --- the message of lend_send -------------------------------------------------------------------------------------- */

struct packet {
    uint8_t bytes[8192];
    size_t n;
    int fds[8];
    size_t n_fds;
};

static void receive(int fd, struct packet *ret) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof ret->fds)];
    } control;
    struct iovec iov = {ret->bytes, sizeof ret->bytes};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    CHECK(n >= 16 && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)));
    ret->n = (size_t)n;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    CHECK(c && c->cmsg_type == SCM_RIGHTS);
    ret->n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(ret->fds, CMSG_DATA(c), ret->n_fds * sizeof(int));
}

static void close_all(const int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) close(fds[i]);
}

static uint32_t word_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Puts a handle and two descriptors on a socket and compares what lies there. */
static void check_message(const char *name, const void *handle, size_t n, struct packet *ret) {
    static struct text golden;
    int sockets[2], zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    struct lend__parcel parcel = {.handle = handle, .handle_bytes = n};
    CHECK(lend__parcel_add(&parcel, LEND__PARCEL_TABLE, 0, zero));
    CHECK(lend__parcel_add(&parcel, LEND__PARCEL_ALLOCATION, 5, zero));
    CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    CHECK_OK(lend__parcel_send(sockets[0], &parcel, UINT64_MAX), NULL);
    receive(sockets[1], ret);
    golden.n = 0;
    add_bytes(&golden, ret->bytes, ret->n);
    check_golden(name, &golden);
    close_all(sockets, 2);
    close(zero);
}

LEND_TEST(message_with_a_short_handle) {
    struct packet packet;
    check_message("message.hex", "a handle", 8, &packet);
    CHECK_UINT(packet.n_fds, 2);
    close_all(packet.fds, 2);
}

/* What would make the message longer than 2,048 bytes comes as a memfd that nobody can change. */
LEND_TEST(message_with_a_long_handle) {
    uint8_t handle[2048 - 16 - 2 * 8 + 1], found[sizeof handle];
    struct packet packet;
    for (size_t i = 0; i < sizeof handle; i++) handle[i] = (uint8_t)(i * 7);
    check_message("message_long.hex", handle, sizeof handle, &packet);
    CHECK_UINT(packet.n_fds, 3);
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL; /* newer kernels have one more */
    CHECK_INT(fcntl(packet.fds[2], F_GET_SEALS) & seals, seals);
    CHECK_INT(lseek(packet.fds[2], 0, SEEK_END), (long long)sizeof handle);
    CHECK_INT(pread(packet.fds[2], found, sizeof found, 0), (long long)sizeof found);
    CHECK_MEM(found, handle, sizeof handle);
    close_all(packet.fds, 3);
    struct lend__parcel parcel = {.handle = handle, .handle_bytes = sizeof handle - 1};
    int sockets[2], zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    CHECK(lend__parcel_add(&parcel, LEND__PARCEL_TABLE, 0, zero) &&
          lend__parcel_add(&parcel, LEND__PARCEL_TABLE, 1, zero));
    CHECK_INT(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, sockets), 0);
    CHECK_OK(lend__parcel_send(sockets[0], &parcel, UINT64_MAX), NULL);
    receive(sockets[1], &packet);
    CHECK_UINT(packet.n, 2048);
    CHECK_UINT(packet.n_fds, 2);
    CHECK_MEM(packet.bytes + 32, handle, sizeof handle - 1);
    close_all(packet.fds, 2);
    close_all(sockets, 2);
    close(zero);
}

/* The items of a tensor that was sent: its table, then its allocation. */
LEND_TEST(message_of_lend_send) {
    struct lend_error error = {0};
    struct lend_pool *pool = NULL;
    struct lend_tensor *tensor = NULL;
    const int64_t shape[] = {10};
    int sockets[2];
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    CHECK_OK(lend_tensor_new(pool, (DLDataType){kDLUInt, 8, 1}, 1, shape, &tensor, &error), &error);
    CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    CHECK_OK(lend_send(sockets[0], tensor, NULL, 0, &error), &error);
    struct packet packet;
    receive(sockets[1], &packet);
    static const uint32_t items[] = {2, 0, LEND__PARCEL_TABLE, 0, LEND__PARCEL_ALLOCATION, 0};
    CHECK_UINT(word_at(packet.bytes), 0x47534d4c); /* "LMSG" */
    CHECK_UINT(word_at(packet.bytes + 4), packet.n - 32);
    for (size_t i = 0; i < 6; i++) CHECK_UINT(word_at(packet.bytes + 8 + 4 * i), items[i]);
    struct lend_handle_info info = {.size = sizeof info};
    CHECK_OK(lend_handle_describe(packet.bytes + 32, packet.n - 32, &info, &error), &error);
    CHECK(info.pin_token != 0);
    uint64_t magic = 0;
    CHECK_UINT(packet.n_fds, 2);
    CHECK_INT(pread(packet.fds[0], &magic, sizeof magic, 0), (long long)sizeof magic);
    CHECK_UINT(magic, LEND_SHM_TABLE_MAGIC);
    CHECK_INT(lseek(packet.fds[1], 0, SEEK_END), (long long)info.allocation_bytes);
    close_all(packet.fds, 2);
    close_all(sockets, 2);
    lend_tensor_unref(tensor);
    CHECK_OK(lend_pin_cancel(packet.bytes + 32, packet.n - 32, 0, &error), &error);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}
