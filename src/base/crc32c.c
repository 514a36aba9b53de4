/* SPDX-License-Identifier: MIT */
/* CRC-32C. Which form is used is decided once, at the first call; the decision is idempotent, so racing threads do
 * no harm. */
#include "base/crc32c.h"

#include "base/atomic.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t table[256]; /* filled before has_table is set */
static uint32_t has_table;

static void make_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ POLYNOMIAL : c >> 1;
        lend__store_relaxed(&table[i], c);
    }
    lend__store_release(&has_table, 1u);
}

uint32_t lend__crc32c_portable(uint32_t crc, const void *bytes, size_t n) {
    if (!lend__load_acquire(&has_table)) make_table();
    const uint8_t *p = bytes;
    crc = ~crc;
    for (size_t i = 0; i < n; i++) crc = crc >> 8 ^ lend__load_relaxed(&table[(crc ^ p[i]) & 0xff]);
    return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

/* The instruction gives its result after three cycles and takes a new one each: three runs side by side. Then the first
 * two are moved over what follows them, which is a multiplication by a power of x, bytewise by table. */
#define RUN_BYTES 256u

static uint32_t shift_table[4][256]; /* filled before has_shift is set */
static uint32_t has_shift;

static void make_shift_table(void) {
    for (uint32_t byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t c = value << 8 * byte;
            for (uint32_t i = 0; i < RUN_BYTES; i++) c = c >> 8 ^ lend__load_relaxed(&table[c & 0xff]);
            lend__store_relaxed(&shift_table[byte][value], c);
        }
    lend__store_release(&has_shift, 1u);
}

/* What a state becomes by RUN_BYTES of zeros. */
static uint32_t shift(uint32_t c) {
    return lend__load_relaxed(&shift_table[0][c & 0xff]) ^ lend__load_relaxed(&shift_table[1][c >> 8 & 0xff]) ^
           lend__load_relaxed(&shift_table[2][c >> 16 & 0xff]) ^ lend__load_relaxed(&shift_table[3][c >> 24]);
}

__attribute__((target("sse4.2"))) static uint64_t three_runs(uint64_t c0, const uint8_t *p) {
    uint64_t c1 = 0, c2 = 0;
    for (uint32_t i = 0; i < RUN_BYTES; i += 8) {
        uint64_t v0, v1, v2;
        memcpy(&v0, p + i, 8);
        memcpy(&v1, p + RUN_BYTES + i, 8);
        memcpy(&v2, p + 2 * RUN_BYTES + i, 8);
        c0 = _mm_crc32_u64(c0, v0);
        c1 = _mm_crc32_u64(c1, v1);
        c2 = _mm_crc32_u64(c2, v2);
    }
    return shift(shift((uint32_t)c0) ^ (uint32_t)c1) ^ (uint32_t)c2;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint64_t c = (uint32_t)~crc;
    if (n >= 3 * RUN_BYTES) {
        if (!lend__load_acquire(&has_table)) make_table();
        if (!lend__load_acquire(&has_shift)) make_shift_table();
        for (; n >= 3 * RUN_BYTES; n -= 3 * RUN_BYTES, p += 3 * RUN_BYTES) c = three_runs(c, p);
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = _mm_crc32_u64(c, v);
    }
    for (; n; n--, p++) c = _mm_crc32_u8((uint32_t)c, *p);
    return ~(uint32_t)c;
}

static int has_instruction(void) {
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

__attribute__((target("+crc"))) static uint32_t by_instruction(uint32_t crc, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint32_t c = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        __asm__("crc32cx %w0, %w0, %x1" : "+r"(c) : "r"(v));
    }
    for (; n; n--, p++) __asm__("crc32cb %w0, %w0, %w1" : "+r"(c) : "r"((uint32_t)*p));
    return ~c;
}

static int has_instruction(void) {
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#else
static uint32_t by_instruction(uint32_t crc, const void *bytes, size_t n) {
    return lend__crc32c_portable(crc, bytes, n);
}

static int has_instruction(void) {
    return 0;
}
#endif

uint32_t lend__crc32c(uint32_t crc, const void *bytes, size_t n) {
    static uint32_t way; /* 0: not decided, 1: instruction, 2: table */
    uint32_t w = lend__load_relaxed(&way);
    if (__builtin_expect(!w, 0)) {
        w = has_instruction() ? 1 : 2;
        lend__store_relaxed(&way, w);
    }
    return w == 1 ? by_instruction(crc, bytes, n) : lend__crc32c_portable(crc, bytes, n);
}
