/* SPDX-License-Identifier: MIT */
/* Handles: any bytes, any text, bytes with a right checksum, and handles of this very process with fields changed. And
 * the property decode(encode(wire)) == wire for wires made of the input. */
#include "base/crc32c.h"
#include "fuzz.h"
#include "share/context.h"
#include "share/wire.h"

#include <errno.h>
#include <lend/lend.h>

enum { RAW, TEXT, SUMMED, OWN, ROUND_TRIP, N_MODES };

static struct lend_pool *pool;
static struct lend_tensor *tensor;
static uint8_t own[LEND_HANDLE_BYTES_MAX];
static size_t own_bytes;

static void begin(void) {
    static const int64_t shape[2] = {10, 100};
    if (pool) return;
    PROPERTY(lend_open(NULL, NULL) == 0 && lend_pool_new(NULL, &pool, NULL) == 0);
    PROPERTY(lend_tensor_new(pool, (DLDataType){kDLFloat, 32, 1}, 2, shape, &tensor, NULL) == 0);
    PROPERTY(lend_reduce(tensor, NULL, own, sizeof own, &own_bytes, NULL) == 0);
}

static bool is_known(int r) {
    return r == 0 || r == -EBADMSG || r == -EPROTONOSUPPORT;
}

static bool are_equal(const struct lend__wire *a, const struct lend__wire *b) {
    if (memcmp(a->exporter.identity.boot_id, b->exporter.identity.boot_id, 16) || memcmp(a->exporter.identity.id, b->exporter.identity.id, 16) ||
        a->exporter.identity.start_ns != b->exporter.identity.start_ns || a->exporter.identity.uid != b->exporter.identity.uid ||
        a->exporter.identity.pid != b->exporter.identity.pid)
        return false;
    if (a->storage.device_type != b->storage.device_type || a->storage.allocation != b->storage.allocation || a->storage.allocation_gen != b->storage.allocation_gen ||
        a->storage.allocation_bytes != b->storage.allocation_bytes || a->storage.slot != b->storage.slot || a->storage.slot_gen != b->storage.slot_gen ||
        a->storage.off != b->storage.off || a->storage.bytes != b->storage.bytes || a->exporter.pin_token != b->exporter.pin_token)
        return false;
    if (a->tensor.offset_bits != b->tensor.offset_bits || memcmp(&a->tensor.dtype, &b->tensor.dtype, sizeof a->tensor.dtype) ||
        a->tensor.is_read_only != b->tensor.is_read_only || a->tensor.is_padded != b->tensor.is_padded || a->tensor.is_contiguous != b->tensor.is_contiguous ||
        a->tensor.ndim != b->tensor.ndim)
        return false;
    if (memcmp(a->tensor.dims, b->tensor.dims, (a->tensor.is_contiguous ? 1u : 2u) * a->tensor.ndim * sizeof a->tensor.dims[0])) return false;
    if (!a->exporter.socket_path != !b->exporter.socket_path || (a->exporter.socket_path && a->exporter.socket_path_bytes != b->exporter.socket_path_bytes))
        return false;
    return !a->exporter.socket_path || !memcmp(a->exporter.socket_path, b->exporter.socket_path, a->exporter.socket_path_bytes);
}

/* What was decoded is encoded again: the same wire, and from then on the same bytes. */
static void go_round(const struct lend__wire *wire) {
    uint8_t once[LEND_HANDLE_BYTES_MAX], twice[LEND_HANDLE_BYTES_MAX];
    size_t n_once = 0, n_twice = 0;
    struct lend__wire back;
    int r = lend__wire_encode(wire, once, sizeof once, &n_once);
    PROPERTY(r == 0);
    PROPERTY(lend__wire_decode(once, n_once, &back, "fuzz", NULL) == 0);
    PROPERTY(are_equal(wire, &back));
    PROPERTY(lend__wire_encode(&back, twice, sizeof twice, &n_twice) == 0);
    PROPERTY(n_once == n_twice && !memcmp(once, twice, n_once));
    for (size_t room = 0; room < n_once; room += 1 + room / 4)
        PROPERTY(lend__wire_encode(wire, twice, room, &n_twice) == -ERANGE);
}

static void check_text(const uint8_t *bytes, size_t n) {
    char text[LEND_HANDLE_TEXT_MAX];
    uint8_t back[LEND_HANDLE_BYTES_MAX];
    size_t n_back = 0;
    PROPERTY(lend_handle_format(bytes, n, text, sizeof text) == 0);
    PROPERTY(lend_handle_parse(text, back, sizeof back, &n_back) == 0);
    PROPERTY(n == n_back && !memcmp(bytes, back, n));
}

static void decode(const uint8_t *bytes, size_t n) {
    struct lend__wire wire;
    struct lend_error error = {0};
    struct lend_handle_info info = {.size = sizeof info};
    int r = lend__wire_decode(bytes, n, &wire, "fuzz", &error);
    PROPERTY(is_known(r) && (r == 0 || (error.code == r && error.text[0])));
    PROPERTY(lend_handle_describe(bytes, n, &info, NULL) == r);
    if (r < 0) return;
    go_round(&wire);
    check_text(bytes, n);
}

/* Only handles that name this process are rebuilt: nobody else is to be dialled. */
static void rebuild(const uint8_t *bytes, size_t n) {
    struct lend__wire wire;
    struct lend_tensor *got = NULL;
    struct lend_error error = {0};
    if (lend__wire_decode(bytes, n, &wire, "fuzz", NULL) < 0) return;
    if (memcmp(wire.exporter.identity.id, lend__context.identity.id, LEND__ID_BYTES)) return;
    int r = lend_rebuild(bytes, n, NULL, &got, &error);
    PROPERTY(r == 0 || (error.code == r && error.text[0] && !got));
    if (r == 0) {
        struct lend_tensor_info ours = {.size = sizeof ours}, theirs = {.size = sizeof theirs};
        PROPERTY(lend_tensor_info(tensor, &ours) == 0 && lend_tensor_info(got, &theirs) == 0);
        PROPERTY(ours.storage_id == theirs.storage_id);
        lend_tensor_unref(got);
    }
    if (wire.exporter.pin_token) lend_pin_cancel(bytes, n, 0, NULL);
    PROPERTY(lend_check(NULL) == 0);
}

static void put_sum(uint8_t *bytes, size_t n) {
    if (n < LEND__WIRE_FIXED_BYTES) return;
    uint32_t total = (uint32_t)n, sum;
    memcpy(bytes, "LEND\0\0\0\0", 8);
    memcpy(bytes + 8, &total, 4);
    sum = lend__crc32c(lend__crc32c(0, bytes, 12), bytes + 16, n - 16);
    memcpy(bytes + 12, &sum, 4);
}

/* Our own handle with the input as changes: pairs of place and value. */
static void change_own(struct input *in) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    memcpy(bytes, own, own_bytes);
    while (in->left) {
        uint8_t at = input_byte(in);
        bytes[at % own_bytes] ^= input_byte(in);
    }
    put_sum(bytes, own_bytes);
    decode(bytes, own_bytes);
    rebuild(bytes, own_bytes);
}

static void make_wire(struct input *in) {
    static struct lend__wire wire;
    char path[108];
    memset(&wire, 0, sizeof wire);
    unsigned flags = input_byte(in);
    input_take(in, &wire.exporter.identity.boot_id, 16);
    input_take(in, &wire.exporter.identity.id, 16);
    wire.exporter.identity.start_ns = input_u64(in);
    wire.exporter.identity.uid = (uint32_t)input_u64(in);
    wire.exporter.identity.pid = (uint32_t)input_u64(in);
    wire.storage.device_type = (int32_t)input_u64(in);
    wire.storage.allocation = (uint32_t)input_u64(in);
    wire.storage.allocation_gen = (uint32_t)input_u64(in);
    wire.storage.allocation_bytes = input_u64(in);
    wire.storage.slot = (uint32_t)input_u64(in);
    wire.storage.slot_gen = input_u64(in);
    wire.storage.off = input_u64(in);
    wire.storage.bytes = input_u64(in);
    wire.exporter.pin_token = input_u64(in);
    wire.tensor.offset_bits = input_u64(in);
    wire.tensor.dtype = (DLDataType){input_byte(in), input_byte(in), (uint16_t)input_u64(in)};
    wire.tensor.is_read_only = flags & 1;
    wire.tensor.is_padded = flags & 2;
    wire.tensor.is_contiguous = flags & 4;
    wire.tensor.ndim = input_byte(in) % (LEND_NDIM_MAX + 1);
    if (flags & 8) {
        wire.exporter.socket_path_bytes = 1 + input_byte(in) % 107;
        input_take(in, path, wire.exporter.socket_path_bytes);
        for (uint32_t i = 0; i < wire.exporter.socket_path_bytes; i++)
            if (!path[i]) path[i] = '/';
        wire.exporter.socket_path = path;
    }
    for (uint32_t i = 0; i < 2 * wire.tensor.ndim; i++)
        wire.tensor.dims[i] = flags & 16 ? (int64_t)input_u64(in) : (int8_t)input_byte(in); /* wide or narrow */
    go_round(&wire);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct input in = {data, bytes};
    static uint8_t copy[LEND_HANDLE_BYTES_MAX + 64];
    char text[LEND_HANDLE_TEXT_MAX + 64];
    begin();
    unsigned mode = input_byte(&in) % N_MODES;
    if (in.left > sizeof copy) return 0;
    if (in.left) memcpy(copy, in.at, in.left);
    size_t n = 0;
    switch (mode) {
    case RAW: decode(in.at, in.left); break;
    case TEXT:
        snprintf(text, sizeof text, "%.*s", (int)in.left, (const char *)copy);
        if (lend_handle_parse(text, copy, sizeof copy, &n) == 0) decode(copy, n);
        break;
    case SUMMED:
        n = in.left;
        put_sum(copy, n);
        decode(copy, n);
        break;
    case OWN: change_own(&in); break;
    default: make_wire(&in);
    }
    return 0;
}
