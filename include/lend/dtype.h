/* SPDX-License-Identifier: MIT */
/* Element types: DLPack's (code, bits, lanes), by value. */
#ifndef LEND_DTYPE_H_
#define LEND_DTYPE_H_

#include <lend/dlpack.h>
#include <lend/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The same values as DLPack's DLDataTypeCode (1.3); kept as our own names because older dlpack.h lack some. */
enum lend_dtype_code {
    LEND_INT = 0,
    LEND_UINT = 1,
    LEND_FLOAT = 2,
    LEND_BFLOAT = 4,
    LEND_COMPLEX = 5,
    LEND_BOOL = 6,
    LEND_FLOAT8_E3M4 = 7,
    LEND_FLOAT8_E4M3 = 8,
    LEND_FLOAT8_E4M3B11FNUZ = 9,
    LEND_FLOAT8_E4M3FN = 10,
    LEND_FLOAT8_E4M3FNUZ = 11,
    LEND_FLOAT8_E5M2 = 12,
    LEND_FLOAT8_E5M2FNUZ = 13,
    LEND_FLOAT8_E8M0FNU = 14,
    LEND_FLOAT6_E2M3FN = 15,
    LEND_FLOAT6_E3M2FN = 16,
    LEND_FLOAT4_E2M1FN = 17
};

/* Says whether (code, bits, lanes) is one that lend carries: int and uint of 2, 4, 8, 16, 32, 64 bits
 * (int 1 is not a type), float 16/32/64, bfloat 16, complex 32/64/128, bool 8, the float8, float6 and float4
 * families, each with 1 to 65535 lanes. Opaque handles (code 3) are refused: a pointer means nothing elsewhere.
 * Return: 1 or 0.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: DLPack 1.3, DLDataTypeCode. */
LEND_API int lend_dtype_is_valid(DLDataType dtype);

/* Bits of one element: bits * lanes.
 * Return: the bits, at least 1; 0 for a dtype that is not valid.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: DLPack 1.3, DLDataType. */
LEND_API uint32_t lend_dtype_bits(DLDataType dtype);

/* Writes the name, as NumPy and PyTorch spell it: "float32", "bfloat16", "uint4", "complex64", "float8_e4m3fn";
 * with lanes "float4_e2m1fn_x2".
 *   buf, buf_bytes  returned text, NUL-terminated, cut if too small; 32 bytes are enough.
 * Return: 0; -EINVAL: not valid.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: numpy.dtype.name. */
LEND_API int lend_dtype_format(DLDataType dtype, char *buf, size_t buf_bytes);

/* Reads such a name.
 *   text       borrowed, NUL-terminated.
 *   ret_dtype  written on success.
 * Return: 0; -EINVAL: no such name.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_dtype_format. */
LEND_API int lend_dtype_parse(const char *text, DLDataType *ret_dtype);

#ifdef __cplusplus
}
#endif
#endif
