/* SPDX-License-Identifier: MIT */
/* Handles of one strided tensor and their text byte by byte, and every offset in shared memory and in messages. */
#include "golden.h"
#include "share/control.h"
#include "share/parcel.h"
#include "share/shm.h"
#include "share/wire.h"

#include <lend/lend.h>

/* --- handles ------------------------------------------------------------------------------------------------------- */

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
    CHECK_UINT(a->tensor.attrs, b->tensor.attrs);
    CHECK_UINT(a->tensor.user_tag, b->tensor.user_tag);
    CHECK_UINT(a->tensor.user_bytes, b->tensor.user_bytes);
    CHECK_INT(a->tensor.user != NULL, b->tensor.user != NULL);
    if (a->tensor.user) CHECK_MEM(a->tensor.user, b->tensor.user, a->tensor.user_bytes);
    CHECK_UINT(a->tensor.ndim, b->tensor.ndim);
    uint32_t n_dims = a->tensor.is_contiguous ? a->tensor.ndim : 2 * a->tensor.ndim;
    CHECK_MEM(a->tensor.dims, b->tensor.dims, n_dims * sizeof a->tensor.dims[0]);
    CHECK_UINT(a->exporter.socket_path_bytes, b->exporter.socket_path_bytes);
    if (a->exporter.socket_path_bytes)
        CHECK_MEM(a->exporter.socket_path, b->exporter.socket_path, a->exporter.socket_path_bytes);
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
    add_bytes(&golden, handle, n);
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
        .exporter.socket_path = socket_path,
        .exporter.socket_path_bytes = sizeof socket_path - 1,
    };
    check_handle("socket_path.hex", &wire, 216);
}

/* All marks that travel at once: whether they go together is not the wire's to say. */
LEND_TEST(handle_with_attributes_and_user_bytes) {
    static const char user[] = "{\"tp_rank\": 3}";
    const struct lend__wire wire = {
        .exporter.identity = exporter,
        .storage.device_type = kDLCPU,
        .storage.allocation = 4,
        .storage.allocation_gen = 1,
        .storage.allocation_bytes = 65536,
        .storage.slot = 5,
        .storage.slot_gen = 6,
        .storage.off = 128,
        .storage.bytes = 48,
        .tensor.dtype = {kDLComplex, 64, 1},
        .tensor.is_contiguous = true,
        .tensor.attrs = LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF | LEND_ATTR_PARAMETER | LEND_ATTR_BUFFER |
                        LEND_ATTR_CONJ | LEND_ATTR_NEG | LEND_ATTR_INFERENCE,
        .tensor.user_tag = 0x70746872,
        .tensor.user = user,
        .tensor.user_bytes = sizeof user - 1,
        .tensor.ndim = 2,
        .tensor.dims = {2, 3},
        .exporter.socket_path = socket_path,
        .exporter.socket_path_bytes = sizeof socket_path - 1,
    };
    check_handle("attributes_user.hex", &wire, 248);
}

LEND_TEST(handle_of_a_meta_tensor) {
    const struct lend__wire wire = {
        .exporter.identity = exporter,
        .storage.device_type = LEND_DEVICE_META,
        .storage.allocation = LEND__CONTROL_NONE,
        .storage.slot_gen = 17,
        .storage.bytes = 1ull << 42,
        .tensor.dtype = {kDLFloat, 16, 1},
        .tensor.is_contiguous = true,
        .tensor.ndim = 1,
        .tensor.dims = {1ll << 41},
    };
    check_handle("meta.hex", &wire, 144);
}

/* The longest handles that docs/wire.md names. */
LEND_TEST(handles_at_their_longest) {
    static uint8_t handle[LEND_HANDLE_BYTES_MAX], user[LEND_USER_BYTES_MAX];
    struct lend__wire wire = {
        .exporter.identity = exporter, .tensor.ndim = LEND_NDIM_MAX, .tensor.is_contiguous = true};
    for (int i = 0; i < 2 * LEND_NDIM_MAX; i++) wire.tensor.dims[i] = INT64_MAX;
    size_t n = 0;
    CHECK_OK(lend__wire_encode(&wire, handle, sizeof handle, &n), NULL);
    CHECK_UINT(n, 648);
    char path[LEND__WIRE_PATH_MAX];
    memset(path, 'p', sizeof path);
    wire.tensor.is_contiguous = false;
    wire.exporter.socket_path = path;
    wire.exporter.socket_path_bytes = sizeof path;
    CHECK_OK(lend__wire_encode(&wire, handle, sizeof handle, &n), NULL);
    CHECK_UINT(n, 1280);
    wire.tensor.user = user;
    wire.tensor.user_bytes = sizeof user;
    CHECK_OK(lend__wire_encode(&wire, handle, sizeof handle, &n), NULL);
    CHECK_UINT(n, 1808);
    struct lend__wire back;
    CHECK_OK(lend__wire_decode(handle, n, &back, "test", NULL), NULL);
    check_equal(&back, &wire);
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

LEND_TEST(offsets_in_messages) {
    static struct text golden;
    golden.n = 0;
    add(&golden, "bytes request %zu max %zu\n", sizeof(struct lend__control_request), LEND__CONTROL_REQUEST_BYTES_MAX);
    add(&golden, "bytes slot %zu max %u\n", sizeof(struct lend__control_slot), LEND__CONTROL_SLOTS_MAX);
    add(&golden, "bytes reply %zu max %u\n", sizeof(struct lend__control_reply), LEND__CONTROL_BYTES_MAX);
    add(&golden, "bytes header %zu item %zu max %u\n", sizeof(struct lend__parcel_header),
        sizeof(struct lend__parcel_item), LEND__PARCEL_FDS_MAX);
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
    MEMBER("slot_of_pin", lend__control_slot, slot);
    MEMBER("slot_of_pin", lend__control_slot, reserved);
    MEMBER("slot_of_pin", lend__control_slot, gen);
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
    MEMBER("message", lend__parcel_header, magic);
    MEMBER("message", lend__parcel_header, handle_bytes);
    MEMBER("message", lend__parcel_header, n_fds);
    MEMBER("message", lend__parcel_header, reserved);
    MEMBER("item", lend__parcel_item, kind);
    MEMBER("item", lend__parcel_item, index);
    check_golden("control.txt", &golden);
}
