/* SPDX-License-Identifier: MIT */
/* The handle's bytes, little-endian:
 *
 *   0 magic "LEND" | 4 major | 6 minor | 8 total bytes | 12 CRC-32C of all bytes but these four
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
#include "base/error.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#define MAGIC 0x444e454cu /* "LEND" */

enum flag { READ_ONLY = 1, PADDED = 2, CONTIGUOUS = 4, WIDE = 8, FLAGS_KNOWN = 15 };
enum section { SECTION_SOCKET_PATH = 1 };
#define SECTION_CRITICAL 1u
#define SOCKET_PATH_MAX 107u /* sun_path without its NUL */

static inline uint16_t get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return le16toh(v);
}
static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return le32toh(v);
}
static inline uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return le64toh(v);
}
static inline void put16(uint8_t *p, uint16_t v) {
    v = htole16(v);
    memcpy(p, &v, 2);
}
static inline void put32(uint8_t *p, uint32_t v) {
    v = htole32(v);
    memcpy(p, &v, 4);
}
static inline void put64(uint8_t *p, uint64_t v) {
    v = htole64(v);
    memcpy(p, &v, 8);
}

static uint32_t checksum(const uint8_t *p, size_t n) {
    return lend__crc32c(lend__crc32c(0, p, 12), p + 16, n - 16);
}

static uint32_t padded8(uint32_t n) {
    return (n + 7u) & ~7u;
}

/* Do all sizes and strides fit into 32 bits? */
static bool is_narrow(const int64_t *dims, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (dims[i] < INT32_MIN || dims[i] > INT32_MAX) return false;
    return true;
}

static void put_fixed(const struct lend__wire *w, uint8_t *p, uint32_t total, unsigned flags) {
    put32(p, MAGIC);
    put16(p + 4, LEND_WIRE_MAJOR);
    put16(p + 6, LEND_WIRE_MINOR);
    put32(p + 8, total);
    memcpy(p + 16, w->exporter.boot_id, 16);
    memcpy(p + 32, w->exporter.id, 16);
    put64(p + 48, w->exporter.start_ns);
    put32(p + 56, w->exporter.uid);
    put32(p + 60, w->exporter.pid);
    put32(p + 64, (uint32_t)w->device_type);
    put32(p + 68, w->allocation);
    put32(p + 72, w->allocation_gen);
    put32(p + 76, w->slot);
    put64(p + 80, w->slot_gen);
    put64(p + 88, w->allocation_bytes);
    put64(p + 96, w->storage_off);
    put64(p + 104, w->storage_bytes);
    put64(p + 112, w->pin_token);
    put64(p + 120, w->offset_bits);
    p[128] = w->dtype.code;
    p[129] = w->dtype.bits;
    put16(p + 130, w->dtype.lanes);
    put16(p + 132, (uint16_t)flags);
    p[134] = (uint8_t)w->ndim;
    p[135] = w->socket_path ? 1 : 0;
}

int lend__wire_encode(const struct lend__wire *w, void *buf, size_t buf_bytes, size_t *ret_bytes) {
    uint32_t n_dims = w->is_contiguous ? w->ndim : 2 * w->ndim;
    bool narrow = is_narrow(w->dims, n_dims);
    unsigned flags = (w->is_read_only ? READ_ONLY : 0u) | (w->is_padded ? PADDED : 0u) |
                     (w->is_contiguous ? CONTIGUOUS : 0u) | (narrow ? 0u : WIDE);
    uint32_t body = LEND__WIRE_FIXED_BYTES + padded8(n_dims * (narrow ? 4u : 8u));
    uint32_t total = body + (w->socket_path ? 8u + padded8(w->socket_path_bytes) : 0u);
    *ret_bytes = total;
    if (buf_bytes < total) return -ERANGE;
    uint8_t *p = buf;
    memset(p, 0, total);
    put_fixed(w, p, total, flags);
    uint8_t *d = p + LEND__WIRE_FIXED_BYTES;
    for (uint32_t i = 0; i < n_dims; i++) {
        if (narrow)
            put32(d + 4 * (size_t)i, (uint32_t)w->dims[i]);
        else
            put64(d + 8 * (size_t)i, (uint64_t)w->dims[i]);
    }
    if (w->socket_path) {
        put16(p + body, SECTION_SOCKET_PATH);
        put16(p + body + 2, SECTION_CRITICAL); /* without it the exporter cannot be found */
        put32(p + body + 4, w->socket_path_bytes);
        memcpy(p + body + 8, w->socket_path, w->socket_path_bytes);
    }
    put32(p + 12, checksum(p, total));
    return 0;
}

static int bad(struct lend_error *error, const char *operation, const char *what) {
    return lend__fail(error, -EBADMSG, operation, "these bytes are not a handle of lend: %s", what);
}

static bool is_zero(const uint8_t *p, uint32_t n) {
    uint8_t any = 0;
    for (uint32_t i = 0; i < n; i++) any |= p[i];
    return !any;
}

static int decode_section(const uint8_t *p, uint32_t type, uint32_t flags, uint32_t bytes, struct lend__wire *ret,
                          const char *operation, struct lend_error *error) {
    if (type == SECTION_SOCKET_PATH) {
        if (bytes == 0 || bytes > SOCKET_PATH_MAX || memchr(p, 0, bytes) || ret->socket_path)
            return bad(error, operation, "its socket path is malformed");
        ret->socket_path = (const char *)p;
        ret->socket_path_bytes = bytes;
        return 0;
    }
    if (flags & SECTION_CRITICAL)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has a part of type %u that this library (wire %d.%d) must not skip; update lend",
                          type, LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    return 0;
}

static int decode_sections(const uint8_t *p, uint32_t at, uint32_t total, uint32_t n, struct lend__wire *ret,
                           const char *operation, struct lend_error *error) {
    for (uint32_t i = 0; i < n; i++) {
        if (total - at < 8) return bad(error, operation, "a section is cut off");
        uint32_t type = get16(p + at), flags = get16(p + at + 2), bytes = get32(p + at + 4);
        at += 8;
        if (bytes > total - at || padded8(bytes) > total - at) return bad(error, operation, "a section is cut off");
        int r = decode_section(p + at, type, flags, bytes, ret, operation, error);
        if (r < 0) return r;
        if (!is_zero(p + at + bytes, padded8(bytes) - bytes)) return bad(error, operation, "its padding is not zero");
        at += padded8(bytes);
    }
    return at == total ? 0 : bad(error, operation, "bytes follow its last section");
}

/* Length, magic, version, checksum: what must hold before anything else is read. */
static int decode_envelope(const uint8_t *p, size_t n, const char *operation, struct lend_error *error) {
    if (n < LEND__WIRE_FIXED_BYTES || n > LEND_HANDLE_BYTES_MAX)
        return bad(error, operation, n < LEND__WIRE_FIXED_BYTES ? "too short" : "too long");
    if (get32(p) != MAGIC) return bad(error, operation, "they do not begin with \"LEND\"");
    if (get16(p + 4) != LEND_WIRE_MAJOR)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has wire version %u.%u and this library speaks %d.%d; use one version of lend",
                          get16(p + 4), get16(p + 6), LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    if (get32(p + 8) != n) return bad(error, operation, "the length is not what it says");
    if (get32(p + 12) != checksum(p, n)) return bad(error, operation, "the checksum is wrong (damaged on its way?)");
    return 0;
}

static void decode_fixed(const uint8_t *p, struct lend__wire *ret) {
    ret->major = get16(p + 4);
    ret->minor = get16(p + 6);
    memcpy(ret->exporter.boot_id, p + 16, 16);
    memcpy(ret->exporter.id, p + 32, 16);
    ret->exporter.start_ns = get64(p + 48);
    ret->exporter.uid = get32(p + 56);
    ret->exporter.pid = get32(p + 60);
    ret->device_type = (int32_t)get32(p + 64);
    ret->allocation = get32(p + 68);
    ret->allocation_gen = get32(p + 72);
    ret->slot = get32(p + 76);
    ret->slot_gen = get64(p + 80);
    ret->allocation_bytes = get64(p + 88);
    ret->storage_off = get64(p + 96);
    ret->storage_bytes = get64(p + 104);
    ret->pin_token = get64(p + 112);
    ret->offset_bits = get64(p + 120);
    ret->dtype = (DLDataType){p[128], p[129], get16(p + 130)};
    ret->socket_path = NULL;
    ret->socket_path_bytes = 0;
}

int lend__wire_decode(const void *bytes, size_t n, struct lend__wire *ret, const char *operation,
                      struct lend_error *error) {
    const uint8_t *p = bytes;
    int r = decode_envelope(p, n, operation, error);
    if (r < 0) return r;
    decode_fixed(p, ret);
    unsigned flags = get16(p + 132);
    if (flags & ~(unsigned)FLAGS_KNOWN)
        return lend__fail(error, -EPROTONOSUPPORT, operation,
                          "the handle has flags 0x%x that this library (wire %d.%d) does not know; update lend",
                          flags & ~(unsigned)FLAGS_KNOWN, LEND_WIRE_MAJOR, LEND_WIRE_MINOR);
    ret->is_read_only = flags & READ_ONLY;
    ret->is_padded = flags & PADDED;
    ret->is_contiguous = flags & CONTIGUOUS;
    ret->ndim = p[134];
    if (ret->ndim > LEND_NDIM_MAX) return bad(error, operation, "it has more than 64 dimensions");
    uint32_t n_dims = ret->is_contiguous ? ret->ndim : 2 * ret->ndim, width = flags & WIDE ? 8 : 4;
    uint32_t dims_bytes = n_dims * width, body = LEND__WIRE_FIXED_BYTES + padded8(dims_bytes);
    if (body > n) return bad(error, operation, "its shape is cut off");
    const uint8_t *d = p + LEND__WIRE_FIXED_BYTES;
    if (width == 4)
        for (uint32_t i = 0; i < n_dims; i++) ret->dims[i] = (int32_t)get32(d + 4 * (size_t)i);
    else
        for (uint32_t i = 0; i < n_dims; i++) ret->dims[i] = (int64_t)get64(d + 8 * (size_t)i);
    if (!is_zero(d + dims_bytes, padded8(dims_bytes) - dims_bytes))
        return bad(error, operation, "its padding is not zero");
    if (!p[135] && body == n) return 0;
    return decode_sections(p, body, (uint32_t)n, p[135], ret, operation, error);
}
