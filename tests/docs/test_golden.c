/* SPDX-License-Identifier: MIT */
/* The bytes that processes exchange, against reviewed files in tests/golden: handles and their text, every offset in
 * shared memory and in control messages, and the message of lend_send. Whoever changes the format on purpose writes
 * the files anew (LEND_GOLDEN_UPDATE=1), reads the difference, and changes docs/wire.md or docs/shm-layout.md. */
#include "share/control.h"
#include "share/shm.h"
#include "share/wire.h"
#include "test.h"

#include <errno.h>
#include <lend/lend.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- golden files -------------------------------------------------------------------------------------------------- */

struct text {
    char bytes[32768];
    size_t n;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->bytes + text->n, sizeof text->bytes - text->n, format, args);
    va_end(args);
    CHECK(n >= 0 && text->n + (size_t)n < sizeof text->bytes);
    text->n += (size_t)n;
}

static FILE *open_golden(const char *name, const char *mode) {
    char path[512];
    const char *root = getenv("LEND_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/tests/golden/%s", root ? root : ".", name);
    FILE *file = fopen(path, mode);
    if (!file) FAIL("cannot open %s: %s", path, strerror(errno));
    return file;
}

static void check_golden(const char *name, const struct text *actual) {
    if (getenv("LEND_GOLDEN_UPDATE")) {
        FILE *file = open_golden(name, "w");
        CHECK_UINT(fwrite(actual->bytes, 1, actual->n, file), actual->n);
        CHECK_INT(fclose(file), 0);
    }
    static struct text expected;
    FILE *file = open_golden(name, "r");
    expected.n = fread(expected.bytes, 1, sizeof expected.bytes - 1, file);
    expected.bytes[expected.n] = '\0';
    fclose(file);
    CHECK_STR(actual->bytes, expected.bytes);
}

/* --- handles ------------------------------------------------------------------------------------------------------- */

static const struct lend__identity exporter = {
    .boot_id = {0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd, 0xbe, 0xbf},
    .id = {0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xeb, 0xec, 0xed, 0xee, 0xef},
    .start_ns = 0x1122334455667788u,
    .uid = 1000,
    .pid = 4321,
};

static void check_equal(const struct lend__wire *a, const struct lend__wire *b) {
    CHECK_MEM(a->exporter.identity.boot_id, b->exporter.identity.boot_id, 16);
    CHECK_MEM(a->exporter.identity.id, b->exporter.identity.id, 16);
    CHECK_UINT(a->exporter.identity.start_ns, b->exporter.identity.start_ns);
    CHECK_UINT(a->exporter.identity.uid, b->exporter.identity.uid);
    CHECK_UINT(a->exporter.identity.pid, b->exporter.identity.pid);
    CHECK_INT(a->storage.device_type, b->storage.device_type);
    CHECK_UINT(a->storage.allocation, b->storage.allocation);
    CHECK_UINT(a->storage.allocation_gen, b->storage.allocation_gen);
    CHECK_UINT(a->storage.allocation_bytes, b->storage.allocation_bytes);
    CHECK_UINT(a->storage.slot, b->storage.slot);
    CHECK_UINT(a->storage.slot_gen, b->storage.slot_gen);
    CHECK_UINT(a->storage.off, b->storage.off);
    CHECK_UINT(a->storage.bytes, b->storage.bytes);
    CHECK_UINT(a->exporter.pin_token, b->exporter.pin_token);
    CHECK_UINT(a->tensor.offset_bits, b->tensor.offset_bits);
    CHECK_MEM(&a->tensor.dtype, &b->tensor.dtype, sizeof a->tensor.dtype);
    CHECK_INT(a->tensor.is_read_only, b->tensor.is_read_only);
    CHECK_INT(a->tensor.is_padded, b->tensor.is_padded);
    CHECK_INT(a->tensor.is_contiguous, b->tensor.is_contiguous);
    CHECK_UINT(a->tensor.ndim, b->tensor.ndim);
    uint32_t n_dims = a->tensor.is_contiguous ? a->tensor.ndim : 2 * a->tensor.ndim;
    CHECK_MEM(a->tensor.dims, b->tensor.dims, n_dims * sizeof a->tensor.dims[0]);
    CHECK_UINT(a->exporter.socket_path_bytes, b->exporter.socket_path_bytes);
    if (a->exporter.socket_path_bytes) CHECK_MEM(a->exporter.socket_path, b->exporter.socket_path, a->exporter.socket_path_bytes);
}

/* Encodes, compares bytes and text with the file, and reads both back. */
static void check_handle(const char *name, const struct lend__wire *wire, size_t bytes) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX], again[LEND_HANDLE_BYTES_MAX];
    char text[LEND_HANDLE_TEXT_MAX];
    size_t n = 0, n_again = 0;
    CHECK_OK(lend__wire_encode(wire, handle, sizeof handle, &n), NULL);
    CHECK_UINT(n, bytes);
    CHECK_OK(lend_handle_format(handle, n, text, sizeof text), NULL);
    static struct text golden;
    golden.n = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % 16 == 0) add(&golden, "%4zu ", i);
        add(&golden, i % 16 == 15 || i == n - 1 ? " %02x\n" : " %02x", handle[i]);
    }
    add(&golden, "\n%s\n", text);
    check_golden(name, &golden);

    CHECK_OK(lend_handle_parse(text, again, sizeof again, &n_again), NULL);
    CHECK_UINT(n_again, n);
    CHECK_MEM(again, handle, n);
    struct lend__wire decoded;
    struct lend_error error = {0};
    CHECK_OK(lend__wire_decode(handle, n, &decoded, "test", &error), &error);
    CHECK_INT(decoded.major, LEND_WIRE_MAJOR);
    CHECK_INT(decoded.minor, LEND_WIRE_MINOR);
    check_equal(&decoded, wire);
}

LEND_TEST(handle_of_a_contiguous_tensor) {
    const struct lend__wire wire = {
        .exporter.identity = exporter,
        .storage.device_type = kDLCPU,
        .storage.allocation = 3,
        .storage.allocation_gen = 2,
        .storage.allocation_bytes = 2u << 20,
        .storage.slot = 7,
        .storage.slot_gen = 9,
        .storage.off = 4096,
        .storage.bytes = 24,
        .tensor.dtype = {kDLFloat, 32, 1},
        .tensor.is_contiguous = true,
        .tensor.ndim = 2,
        .tensor.dims = {2, 3, 3, 1},
    };
    check_handle("contiguous.hex", &wire, 144);
}

LEND_TEST(handle_of_a_pinned_strided_tensor) {
    const struct lend__wire wire = {
        .exporter.identity = exporter,
        .storage.device_type = kDLCPU,
        .storage.allocation = 0,
        .storage.allocation_gen = 1,
        .storage.allocation_bytes = 1ull << 40,
        .storage.slot = 0xabcdef,
        .storage.slot_gen = 0x0123456789abcdefu,
        .storage.off = 1ull << 32,
        .storage.bytes = 1ull << 39,
        .exporter.pin_token = 0xfedcba9876543210u,
        .tensor.offset_bits = 8 * ((1ull << 38) + 16),
        .tensor.dtype = {kDLBfloat, 16, 1},
        .tensor.ndim = 3,
        .tensor.dims = {2, 5, 1, 1ll << 33, -7, 0},
    };
    check_handle("pinned_strided.hex", &wire, 184);
}

LEND_TEST(handle_with_a_socket_path) {
    static const char path[] = "/run/user/1000/lend-1000-e0e1e2e3e4e5e6e7e8e9eaebecedeeef";
    const struct lend__wire wire = {
        .exporter.identity = exporter,
        .storage.device_type = kDLCPU,
        .storage.allocation = 1,
        .storage.allocation_gen = 1,
        .storage.allocation_bytes = 65536,
        .storage.slot = 1,
        .storage.slot_gen = 1,
        .storage.off = 64,
        .storage.bytes = 3,
        .tensor.offset_bits = 4,
        .tensor.dtype = {kDLInt, 4, 1},
        .tensor.is_read_only = true,
        .tensor.is_contiguous = true,
        .tensor.ndim = 1,
        .tensor.dims = {5, 1},
        .exporter.socket_path = path,
        .exporter.socket_path_bytes = sizeof path - 1,
    };
    check_handle("socket_path.hex", &wire, 216);
}

LEND_TEST(handle_of_a_tensor_without_bytes) {
    const struct lend__wire wire = {
        .exporter.identity = exporter,
        .storage.device_type = kDLCPU,
        .storage.allocation = LEND__CONTROL_NONE,
        .storage.slot = 2,
        .storage.slot_gen = 1,
        .tensor.dtype = {kDLFloat8_e4m3fn, 8, 1},
        .tensor.is_padded = true,
        .tensor.is_contiguous = true,
        .tensor.ndim = 1,
        .tensor.dims = {0, 1},
    };
    check_handle("no_bytes.hex", &wire, 144);
}

/* --- offsets ------------------------------------------------------------------------------------------------------- */

#define MEMBER(group, type, member) \
    add(&golden, "%s %zu %zu %s\n", group, offsetof(struct type, member), sizeof(((struct type *)0)->member), #member)

LEND_TEST(offsets_in_shared_memory) {
    static struct text golden;
    golden.n = 0;
    add(&golden, "fingerprint %016llx\n", (unsigned long long)lend__shm_layout());
    add(&golden, "bytes table %llu page %llu\n", (unsigned long long)LEND_SHM_TABLE_BYTES,
        (unsigned long long)LEND_SHM_PAGE_BYTES);
    add(&golden, "part table %u acks\n", LEND_SHM_ACKS_OFF);
    add(&golden, "part table %u allocations\n", LEND_SHM_ALLOCATIONS_OFF);
    add(&golden, "part table %u slots\n", LEND_SHM_SLOTS_OFF);
    add(&golden, "part page %u held\n", LEND_SHM_HELD_OFF);
    MEMBER("table", lend_shm_table, magic);
    MEMBER("table", lend_shm_table, layout);
    MEMBER("table", lend_shm_table, boot_id);
    MEMBER("table", lend_shm_table, exporter_id);
    MEMBER("table", lend_shm_table, start_ns);
    MEMBER("table", lend_shm_table, uid);
    MEMBER("table", lend_shm_table, pid);
    MEMBER("table", lend_shm_table, has_lock);
    MEMBER("table", lend_shm_table, n_slots);
    MEMBER("table", lend_shm_table, n_retired);
    MEMBER("slot", lend_shm_slot, word);
    MEMBER("slot", lend_shm_slot, allocation);
    MEMBER("slot", lend_shm_slot, allocation_gen);
    MEMBER("slot", lend_shm_slot, offset);
    MEMBER("slot", lend_shm_slot, bytes);
    MEMBER("allocation", lend_shm_allocation, state);
    MEMBER("allocation", lend_shm_allocation, bytes);
    MEMBER("allocation", lend_shm_allocation, fd_offset);
    MEMBER("allocation", lend_shm_allocation, flags);
    MEMBER("page", lend_shm_page, magic);
    MEMBER("page", lend_shm_page, layout);
    MEMBER("page", lend_shm_page, nonce);
    MEMBER("page", lend_shm_page, index);
    MEMBER("page", lend_shm_page, exporter_id);
    MEMBER("page", lend_shm_page, pid);
    MEMBER("page", lend_shm_page, ring_head);
    MEMBER("page", lend_shm_page, chunks);
    MEMBER("page", lend_shm_page, ring);
    MEMBER("page", lend_shm_page, cells);
    MEMBER("cell", lend_shm_cell, intent);
    MEMBER("cell", lend_shm_cell, used);
    check_golden("layout.txt", &golden);
}

LEND_TEST(offsets_in_control_messages) {
    static struct text golden;
    golden.n = 0;
    add(&golden, "bytes request %zu reply %zu max %u\n", sizeof(struct lend__control_request),
        sizeof(struct lend__control_reply), LEND__CONTROL_BYTES_MAX);
    MEMBER("request", lend__control_request, magic);
    MEMBER("request", lend__control_request, type);
    MEMBER("request", lend__control_request, major);
    MEMBER("request", lend__control_request, sequence);
    MEMBER("request", lend__control_request, bytes);
    MEMBER("request", lend__control_request, layout);
    MEMBER("request", lend__control_request, exporter_id);
    MEMBER("request", lend__control_request, pid);
    MEMBER("request", lend__control_request, allocation);
    MEMBER("request", lend__control_request, allocation_gen);
    MEMBER("request", lend__control_request, page_index);
    MEMBER("request", lend__control_request, page_nonce);
    MEMBER("request", lend__control_request, token);
    MEMBER("request", lend__control_request, pin_ns_max);
    MEMBER("request", lend__control_request, report_part);
    MEMBER("request", lend__control_request, with_all);
    MEMBER("request", lend__control_request, report_from);
    MEMBER("reply", lend__control_reply, magic);
    MEMBER("reply", lend__control_reply, type);
    MEMBER("reply", lend__control_reply, major);
    MEMBER("reply", lend__control_reply, sequence);
    MEMBER("reply", lend__control_reply, bytes);
    MEMBER("reply", lend__control_reply, code);
    MEMBER("reply", lend__control_reply, n_fds);
    MEMBER("reply", lend__control_reply, limit);
    MEMBER("reply", lend__control_reply, exporter_id);
    MEMBER("reply", lend__control_reply, has_table);
    MEMBER("reply", lend__control_reply, has_page);
    MEMBER("reply", lend__control_reply, has_allocation);
    MEMBER("reply", lend__control_reply, page_index);
    MEMBER("reply", lend__control_reply, page_nonce);
    MEMBER("reply", lend__control_reply, oldest_pin_pid);
    MEMBER("reply", lend__control_reply, token);
    MEMBER("reply", lend__control_reply, oldest_pin_age_ns);
    MEMBER("reply", lend__control_reply, n_records);
    MEMBER("reply", lend__control_reply, report_next);
    check_golden("control.txt", &golden);
}

/* --- the message of lend_send -------------------------------------------------------------------------------------- */

static uint32_t word_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

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
    uint8_t bytes[4096];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec iov = {bytes, sizeof bytes};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(sockets[1], &msg, MSG_CMSG_CLOEXEC);
    CHECK(n > 16);
    CHECK_UINT(word_at(bytes), 0x47534d4c); /* "LMSG" */
    CHECK_UINT(word_at(bytes + 4), (size_t)n - 16);
    CHECK_UINT(word_at(bytes + 8), 3); /* table and allocation */
    CHECK_UINT(word_at(bytes + 12), 0);
    struct lend_handle_info info = {.size = sizeof info};
    CHECK_OK(lend_handle_describe(bytes + 16, (size_t)n - 16, &info, &error), &error);
    CHECK(info.pin_token != 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    CHECK(c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(2 * sizeof(int)));
    int fds[2];
    memcpy(fds, CMSG_DATA(c), sizeof fds);
    uint64_t magic = 0;
    CHECK_INT(pread(fds[0], &magic, sizeof magic, 0), (long long)sizeof magic);
    CHECK_UINT(magic, LEND_SHM_TABLE_MAGIC);
    CHECK_INT(lseek(fds[1], 0, SEEK_END), (long long)info.allocation_bytes);
    for (int i = 0; i < 2; i++) {
        close(fds[i]);
        close(sockets[i]);
    }
    lend_tensor_unref(tensor);
    CHECK_OK(lend_pin_cancel(bytes + 16, (size_t)n - 16, 0, &error), &error);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}
