/* SPDX-License-Identifier: MIT */
/* The handle of one strided tensor, little-endian:
 *
 *   0 magic "LEND" | 4 major | 6 minor | 7 form | 8 total bytes | 12 CRC-32C of all bytes but these four
 *   16 boot id | 32 exporter id | 48 start | 56 uid | 60 pid
 *   64 device type | 68 allocation | 72 its generation | 76 slot | 80 slot generation | 88 allocation bytes
 *   96 storage offset | 104 storage bytes | 112 pin token | 120 tensor offset in bits
 *   128 dtype | 132 flags | 134 ndim | 135 number of sections
 *   136 shape, strides (4 or 8 bytes each), zeros to a multiple of 8, sections
 *
 * A section is {type u16, flags u16, bytes u32, payload, zeros to a multiple of 8}; unknown ones are skipped unless
 * their flags say critical. Hot: decoding is part of every rebuild. */
#include "share/wire.h"

#include "base/crc32c.h"
#include "share/wire_parts.h"

#include <errno.h>
#include <lend/group.h>
#include <string.h>

#define MAGIC 0x444e454cu /* "LEND" */

enum section { SECTION_SOCKET_PATH = 1, SECTION_USER = 2 };
#define SECTION_CRITICAL 1u

/* Decoding one tensor is counted in nanoseconds: what both forms have in common is inline. */
#define HOT static inline __attribute__((always_inline))

static uint32_t checksum(const uint8_t *p, size_t n) {
    return lend__crc32c(lend__crc32c(0, p, 12), p + 16, n - 16);
}

int lend__wire_bad(struct lend_error *error, const char *operation, const char *what) {
    return lend__fail(error, -EBADMSG, operation, "these bytes are not a handle of lend: %s", what);
}

/* --- what both forms have in common ---------------------------------------------------------------------------------- */

bool lend__wire_is_tree(const void *bytes, size_t n) {
    return n > 7 && ((const uint8_t *)bytes)[7] == LEND__WIRE_TREE;
}

static __attribute__((cold)) int refuse_form(uint8_t found, enum lend__wire_form form, const char *operation,
                                             struct lend_error *error) {
    if (found > LEND__WIRE_TREE)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has form %u, which this library (wire %d.%d) does not know; update lend", found,
                          LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    return lend__fail(error, -EINVAL, operation, "the handle is of %s",
                      form == LEND__WIRE_TREE ? "one strided tensor" : "more than one strided tensor");
}

HOT int open_form(const uint8_t *p, size_t n, enum lend__wire_form form, const char *operation,
                  struct lend_error *error) {
    size_t least = form == LEND__WIRE_TREE ? 48 : LEND__WIRE_FIXED_BYTES;
    size_t most = form == LEND__WIRE_TREE ? LEND_GROUP_BYTES_MAX : LEND_HANDLE_BYTES_MAX;
    if (n < 16) return lend__wire_bad(error, operation, "too short");
    if (lend__get32(p) != MAGIC) return lend__wire_bad(error, operation, "they do not begin with \"LEND\"");
    if (lend__get16(p + 4) != LEND_WIRE_MAJOR)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has wire version %u.%u and this library speaks %d.%d; use one version of lend",
                          lend__get16(p + 4), p[6], LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    if (lend__get32(p + 8) != n) return lend__wire_bad(error, operation, "the length is not what it says");
    if (n > LEND_GROUP_BYTES_MAX) return lend__wire_bad(error, operation, "too long");
    if (lend__get32(p + 12) != checksum(p, n))
        return lend__wire_bad(error, operation, "the checksum is wrong (damaged on its way?)");
    if (p[7] != form) return refuse_form(p[7], form, operation, error);
    if (n < least || n > most) return lend__wire_bad(error, operation, n < least ? "too short" : "too long");
    return 0;
}

void lend__wire_close(uint8_t *p, uint32_t total, enum lend__wire_form form) {
    lend__put32(p, MAGIC);
    lend__put16(p + 4, LEND_WIRE_MAJOR);
    p[6] = LEND_WIRE_MINOR;
    p[7] = (uint8_t)form;
    lend__put32(p + 8, total);
    lend__put32(p + 12, checksum(p, total));
}

/* Do all sizes and strides fit into 32 bits? */
static bool is_narrow(const struct lend__wire_tensor *t) {
    for (uint32_t i = 0, n = lend__wire_count_dims(t); i < n; i++)
        if (t->dims[i] < INT32_MIN || t->dims[i] > INT32_MAX) return false;
    return true;
}

HOT uint32_t flags_of(const struct lend__wire_tensor *t, bool narrow) {
    return (t->is_read_only ? LEND__WIRE_READ_ONLY : 0u) | (t->is_padded ? LEND__WIRE_PADDED : 0u) |
           (t->is_contiguous ? LEND__WIRE_CONTIGUOUS : 0u) | (narrow ? 0u : LEND__WIRE_WIDE) |
           (t->attrs & LEND__ATTRS_CARRIED) << LEND__WIRE_ATTRS_SHIFT;
}

HOT uint32_t dims_bytes_of(const struct lend__wire_tensor *t, bool narrow) {
    return lend__padded8(lend__wire_count_dims(t) * (narrow ? 4u : 8u));
}

HOT void put_dims(const struct lend__wire_tensor *t, bool narrow, uint8_t *at) {
    uint32_t n = lend__wire_count_dims(t);
    if (narrow)
        for (uint32_t i = 0; i < n; i++) lend__put32(at + 4 * (size_t)i, (uint32_t)t->dims[i]);
    else
        for (uint32_t i = 0; i < n; i++) lend__put64(at + 8 * (size_t)i, (uint64_t)t->dims[i]);
}

uint32_t lend__wire_flags(const struct lend__wire_tensor *t) {
    return flags_of(t, is_narrow(t));
}

uint32_t lend__wire_dims_bytes(const struct lend__wire_tensor *t) {
    return dims_bytes_of(t, is_narrow(t));
}

void lend__wire_put_dims(const struct lend__wire_tensor *t, uint8_t *at) {
    put_dims(t, is_narrow(t), at);
}

int lend__wire_open(const uint8_t *p, size_t n, enum lend__wire_form form, const char *operation,
                    struct lend_error *error) {
    return open_form(p, n, form, operation, error);
}

static int refuse_section(uint32_t type, const char *operation, struct lend_error *error) {
    return lend__fail(error, -EPROTONOSUPPORT, operation,
                      "the handle has a part of type %u that this library (wire %d.%d) must not skip; update lend",
                      type, LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
}

int lend__wire_take_sections(const uint8_t *at, const uint8_t *end, uint32_t n, lend__wire_section_fn take, void *user,
                             const char *operation, struct lend_error *error) {
    for (uint32_t i = 0; i < n; i++) {
        if (end - at < 8) return lend__wire_bad(error, operation, "a section is cut off");
        uint32_t type = lend__get16(at), flags = lend__get16(at + 2), bytes = lend__get32(at + 4);
        at += 8;
        size_t left = (size_t)(end - at);
        if (bytes > left || lend__padded8(bytes) > left)
            return lend__wire_bad(error, operation, "a section is cut off");
        int r = take(user, type, at, bytes, operation, error);
        if (r < 0) return r;
        if (r > 0 && (flags & SECTION_CRITICAL)) return refuse_section(type, operation, error);
        if (!lend__bytes_are_zero(at + bytes, lend__padded8(bytes) - bytes))
            return lend__wire_bad(error, operation, "its padding is not zero");
        at += lend__padded8(bytes);
    }
    return at == end ? 0 : lend__wire_bad(error, operation, "bytes follow its last section");
}

/* --- writing --------------------------------------------------------------------------------------------------------- */

static void put_exporter(const struct lend__wire_exporter *e, uint8_t *p) {
    memcpy(p + 16, e->identity.boot_id, 16);
    memcpy(p + 32, e->identity.id, 16);
    lend__put64(p + 48, e->identity.start_ns);
    lend__put32(p + 56, e->identity.uid);
    lend__put32(p + 60, e->identity.pid);
    lend__put64(p + 112, e->pin_token);
}

static void put_storage(const struct lend__wire_storage *s, uint8_t *p) {
    lend__put32(p + 64, (uint32_t)s->device_type);
    lend__put32(p + 68, s->allocation);
    lend__put32(p + 72, s->allocation_gen);
    lend__put32(p + 76, s->slot);
    lend__put64(p + 80, s->slot_gen);
    lend__put64(p + 88, s->allocation_bytes);
    lend__put64(p + 96, s->off);
    lend__put64(p + 104, s->bytes);
}

static uint8_t *put_section(uint8_t *at, uint32_t type, uint32_t flags, uint32_t bytes) {
    lend__put16(at, (uint16_t)type);
    lend__put16(at + 2, (uint16_t)flags);
    lend__put32(at + 4, bytes);
    return at + 8;
}

int lend__wire_encode(const struct lend__wire *w, void *buf, size_t buf_bytes, size_t *ret_bytes) {
    const struct lend__wire_tensor *t = &w->tensor;
    const struct lend__wire_exporter *e = &w->exporter;
    bool narrow = is_narrow(t);
    uint32_t body = LEND__WIRE_FIXED_BYTES + dims_bytes_of(t, narrow);
    uint32_t path_bytes = e->socket_path ? 8u + lend__padded8(e->socket_path_bytes) : 0u;
    uint32_t user_bytes = t->user ? 8u + lend__padded8(4u + t->user_bytes) : 0u;
    uint32_t total = body + path_bytes + user_bytes;
    *ret_bytes = total;
    if (buf_bytes < total) return -ERANGE;
    uint8_t *p = buf;
    memset(p, 0, total);
    put_exporter(e, p);
    put_storage(&w->storage, p);
    lend__put64(p + 120, t->offset_bits);
    p[128] = t->dtype.code;
    p[129] = t->dtype.bits;
    lend__put16(p + 130, t->dtype.lanes);
    lend__put16(p + 132, (uint16_t)flags_of(t, narrow));
    p[134] = (uint8_t)t->ndim;
    p[135] = (uint8_t)((e->socket_path ? 1 : 0) + (t->user ? 1 : 0));
    put_dims(t, narrow, p + LEND__WIRE_FIXED_BYTES);
    if (e->socket_path) /* critical: without it the exporter cannot be found */
        memcpy(put_section(p + body, SECTION_SOCKET_PATH, SECTION_CRITICAL, e->socket_path_bytes), e->socket_path,
               e->socket_path_bytes);
    if (t->user) {
        uint8_t *at = put_section(p + body + path_bytes, SECTION_USER, 0, 4u + t->user_bytes);
        lend__put32(at, t->user_tag);
        memcpy(at + 4, t->user, t->user_bytes);
    }
    lend__wire_close(p, total, LEND__WIRE_TENSOR);
    return 0;
}

/* --- reading --------------------------------------------------------------------------------------------------------- */

static int take_section(void *user, uint32_t type, const uint8_t *payload, uint32_t bytes, const char *operation,
                        struct lend_error *error) {
    struct lend__wire *ret = user;
    struct lend__wire_exporter *e = &ret->exporter;
    struct lend__wire_tensor *t = &ret->tensor;
    switch (type) {
    case SECTION_SOCKET_PATH:
        if (bytes == 0 || bytes > LEND__WIRE_PATH_MAX || memchr(payload, 0, bytes) || e->socket_path)
            return lend__wire_bad(error, operation, "its socket path is malformed");
        e->socket_path = (const char *)payload;
        e->socket_path_bytes = bytes;
        return 0;
    case SECTION_USER:
        if (bytes < 5 || bytes > 4 + LEND_USER_BYTES_MAX || t->user)
            return lend__wire_bad(error, operation, "its user attribute is malformed");
        t->user_tag = lend__get32(payload);
        t->user = payload + 4;
        t->user_bytes = bytes - 4;
        return 0;
    default: return 1;
    }
}

static void take_fixed(const uint8_t *p, struct lend__wire *ret) {
    ret->major = lend__get16(p + 4);
    ret->minor = p[6];
    struct lend__wire_exporter *e = &ret->exporter;
    memcpy(e->identity.boot_id, p + 16, 16);
    memcpy(e->identity.id, p + 32, 16);
    e->identity.start_ns = lend__get64(p + 48);
    e->identity.uid = lend__get32(p + 56);
    e->identity.pid = lend__get32(p + 60);
    e->pin_token = lend__get64(p + 112);
    e->socket_path = NULL;
    e->socket_path_bytes = 0;
    ret->storage = (struct lend__wire_storage){
        .device_type = (int32_t)lend__get32(p + 64),
        .allocation = lend__get32(p + 68),
        .allocation_gen = lend__get32(p + 72),
        .slot = lend__get32(p + 76),
        .slot_gen = lend__get64(p + 80),
        .allocation_bytes = lend__get64(p + 88),
        .off = lend__get64(p + 96),
        .bytes = lend__get64(p + 104),
    };
    struct lend__wire_tensor *t = &ret->tensor;
    t->offset_bits = lend__get64(p + 120);
    t->dtype = (DLDataType){p[128], p[129], lend__get16(p + 130)};
    t->ndim = p[134];
    t->user = NULL;
    t->user_tag = t->user_bytes = 0;
}

int lend__wire_decode(const void *bytes, size_t n, struct lend__wire *ret, const char *operation,
                      struct lend_error *error) {
    const uint8_t *p = bytes;
    bool is_wide = false;
    int r = open_form(p, n, LEND__WIRE_TENSOR, operation, error);
    if (r < 0) return r;
    take_fixed(p, ret);
    r = lend__wire_take_flags(&ret->tensor, lend__get16(p + 132), LEND__WIRE_FLAGS_KNOWN, &is_wide, operation, error);
    if (r >= 0)
        r = lend__wire_take_dims(&ret->tensor, is_wide, p + LEND__WIRE_FIXED_BYTES, n - LEND__WIRE_FIXED_BYTES,
                                 operation, error);
    if (r < 0) return r;
    uint32_t body = LEND__WIRE_FIXED_BYTES + (uint32_t)r;
    if (!p[135] && body == n) return 0;
    return lend__wire_take_sections(p + body, p + n, p[135], take_section, ret, operation, error);
}
