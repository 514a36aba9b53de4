/* SPDX-License-Identifier: MIT */
/* Handles of one strided tensor: any bytes, any text, bytes with a right checksum, and handles of this very process with
 * fields changed, among them attributes and user bytes. And the property decode(encode(wire)) == wire for wires made of
 * the input. Trees are fuzz_tree.c's. */
#include "base/crc32c.h"
#include "fuzz.h"
#include "share/context.h"
#include "share/wire.h"

#include <errno.h>
#include <lend/lend.h>

enum { RAW, TEXT, SUMMED, OWN, ROUND_TRIP, N_MODES };

static struct lend_pool *pool;
static struct lend_tensor *tensor;
static uint8_t own[2][LEND_HANDLE_BYTES_MAX]; /* of the tensor as it is, and with attributes */
static size_t own_bytes[2];

static void begin(void) {
    static const int64_t shape[2] = {10, 100};
    static const struct lend_tensor_attrs attrs = {.size = sizeof attrs,
                                                   .flags = LEND_ATTR_CONJ | LEND_ATTR_NEG | LEND_ATTR_PARAMETER,
                                                   .user_tag = 7,
                                                   .user = "0123456789",
                                                   .user_bytes = 10};
    struct lend_tensor *marked = NULL;
    if (pool) return;
    PROPERTY(lend_open(NULL, NULL) == 0 && lend_pool_new(NULL, &pool, NULL) == 0);
    PROPERTY(lend_tensor_new(pool, (DLDataType){kDLComplex, 64, 1}, 2, shape, &tensor, NULL) == 0);
    PROPERTY(lend_tensor_with_attrs(tensor, &attrs, &marked, NULL) == 0);
    PROPERTY(lend_reduce(tensor, NULL, own[0], sizeof own[0], &own_bytes[0], NULL) == 0);
    PROPERTY(lend_reduce(marked, NULL, own[1], sizeof own[1], &own_bytes[1], NULL) == 0);
    lend_tensor_unref(marked);
}

static bool is_known(int r) {
    return r == 0 || r == -EBADMSG || r == -EPROTONOSUPPORT;
}

static bool are_equal_exporters(const struct lend__wire_exporter *a, const struct lend__wire_exporter *b) {
    if (memcmp(&a->identity, &b->identity, sizeof a->identity) || a->pin_token != b->pin_token ||
        !a->socket_path != !b->socket_path || a->socket_path_bytes != b->socket_path_bytes)
        return false;
    return !a->socket_path || !memcmp(a->socket_path, b->socket_path, a->socket_path_bytes);
}

static bool are_equal_tensors(const struct lend__wire_tensor *a, const struct lend__wire_tensor *b) {
    if (memcmp(&a->dtype, &b->dtype, sizeof a->dtype) || a->is_read_only != b->is_read_only ||
        a->is_padded != b->is_padded || a->is_contiguous != b->is_contiguous || a->attrs != b->attrs ||
        a->ndim != b->ndim || a->offset_bits != b->offset_bits || a->user_tag != b->user_tag ||
        a->user_bytes != b->user_bytes || !a->user != !b->user)
        return false;
    if (a->user && memcmp(a->user, b->user, a->user_bytes)) return false;
    return !memcmp(a->dims, b->dims, (a->is_contiguous ? 1u : 2u) * a->ndim * sizeof a->dims[0]);
}

static bool are_equal(const struct lend__wire *a, const struct lend__wire *b) {
    const struct lend__wire_storage *s = &a->storage, *t = &b->storage;
    return are_equal_exporters(&a->exporter, &b->exporter) && are_equal_tensors(&a->tensor, &b->tensor) &&
           s->device_type == t->device_type && s->allocation == t->allocation &&
           s->allocation_gen == t->allocation_gen && s->allocation_bytes == t->allocation_bytes && s->slot == t->slot &&
           s->slot_gen == t->slot_gen && s->off == t->off && s->bytes == t->bytes;
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
    PROPERTY((is_known(r) || (r == -EINVAL && lend__wire_is_tree(bytes, n))) &&
             (r == 0 || (error.code == r && error.text[0])));
    if (lend__wire_is_tree(bytes, n)) return;
    PROPERTY(lend_handle_describe(bytes, n, &info, NULL) == r);
    if (r < 0) return;
    go_round(&wire);
    check_text(bytes, n);
}

/* They arrive exactly, and are ones that a tensor of this dtype may have. */
static void check_attributes(struct lend_tensor *got, const struct lend__wire_tensor *wire) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    struct lend_tensor *again = NULL;
    PROPERTY(lend_tensor_attrs(got, &attrs) == 0);
    PROPERTY(attrs.flags == wire->attrs && attrs.user_tag == wire->user_tag && attrs.user_bytes == wire->user_bytes);
    PROPERTY(!attrs.user_bytes || !memcmp(attrs.user, wire->user, attrs.user_bytes));
    PROPERTY(lend_tensor_with_attrs(got, &attrs, &again, NULL) == 0);
    lend_tensor_unref(again);
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
        PROPERTY(ours.storage_id == theirs.storage_id || theirs.device.device_type != kDLCPU);
        check_attributes(got, &wire.tensor);
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

/* One of our own handles with the input as changes: pairs of place and value. */
static void change_own(struct input *in) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    unsigned which = input_byte(in) % 2;
    size_t n = own_bytes[which];
    memcpy(bytes, own[which], n);
    while (in->left) {
        uint8_t at = input_byte(in);
        bytes[at % n] ^= input_byte(in);
    }
    put_sum(bytes, n);
    decode(bytes, n);
    rebuild(bytes, n);
}

static void make_wire(struct input *in) {
    static struct lend__wire wire;
    char path[108];
    uint8_t user[LEND_USER_BYTES_MAX];
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
    wire.tensor.attrs = flags & 32 ? input_byte(in) & 0x7f : 0;
    if (flags & 64) {
        wire.tensor.user_bytes = 1 + (uint32_t)input_u64(in) % sizeof user;
        wire.tensor.user_tag = (uint32_t)input_u64(in);
        input_take(in, user, wire.tensor.user_bytes);
        wire.tensor.user = user;
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
