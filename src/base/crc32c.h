/* SPDX-License-Identifier: MIT */
/* CRC-32C (Castagnoli; RFC 3720 appendix B.4): the checksum of handles. By the processor's instruction where it has
 * one (SSE 4.2, ARMv8 CRC), otherwise by table. */
#ifndef LEND_BASE_CRC32C_H_
#define LEND_BASE_CRC32C_H_

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 to begin) over bytes. */
uint32_t lend__crc32c(uint32_t crc, const void *bytes, size_t n);

/* The table-driven form, for processors without the instruction; the tests compare both. */
uint32_t lend__crc32c_portable(uint32_t crc, const void *bytes, size_t n);

#endif
