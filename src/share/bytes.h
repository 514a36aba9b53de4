/* SPDX-License-Identifier: MIT */
/* Little-endian numbers at any address: what handles are made of. */
#ifndef LEND_SHARE_BYTES_H_
#define LEND_SHARE_BYTES_H_

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t lend__get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return le16toh(v);
}
static inline uint32_t lend__get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}
static inline uint64_t lend__get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}
static inline void lend__put16(uint8_t *p, uint16_t v) {
    v = htole16(v);
    memcpy(p, &v, sizeof v);
}
static inline void lend__put32(uint8_t *p, uint32_t v) {
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}
static inline void lend__put64(uint8_t *p, uint64_t v) {
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

/* Parts of a handle begin at multiples of 8. */
static inline uint32_t lend__padded8(uint32_t n) {
    return (n + 7u) & ~7u;
}

static inline bool lend__bytes_are_zero(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

#endif
