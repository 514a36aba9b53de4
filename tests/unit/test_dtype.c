/* SPDX-License-Identifier: MIT */
/* Element types: which exist, their bits, and their names in both directions. */
#include "naive.h"
#include "test.h"

#include <errno.h>
#include <lend/dtype.h>
#include <stdio.h>
#include <string.h>

LEND_TEST(dtype_names_both_ways) {
    static const struct {
        DLDataType dtype;
        uint32_t bits;
        const char *name;
    } rows[] = {
        {{LEND_INT, 2, 1}, 2, "int2"},
        {{LEND_INT, 4, 1}, 4, "int4"},
        {{LEND_INT, 8, 1}, 8, "int8"},
        {{LEND_INT, 16, 1}, 16, "int16"},
        {{LEND_INT, 32, 1}, 32, "int32"},
        {{LEND_INT, 64, 1}, 64, "int64"},
        {{LEND_UINT, 2, 1}, 2, "uint2"},
        {{LEND_UINT, 4, 1}, 4, "uint4"},
        {{LEND_UINT, 8, 1}, 8, "uint8"},
        {{LEND_UINT, 16, 1}, 16, "uint16"},
        {{LEND_UINT, 32, 1}, 32, "uint32"},
        {{LEND_UINT, 64, 1}, 64, "uint64"},
        {{LEND_FLOAT, 16, 1}, 16, "float16"},
        {{LEND_FLOAT, 32, 1}, 32, "float32"},
        {{LEND_FLOAT, 64, 1}, 64, "float64"},
        {{LEND_BFLOAT, 16, 1}, 16, "bfloat16"},
        {{LEND_COMPLEX, 32, 1}, 32, "complex32"},
        {{LEND_COMPLEX, 64, 1}, 64, "complex64"},
        {{LEND_COMPLEX, 128, 1}, 128, "complex128"},
        {{LEND_BOOL, 8, 1}, 8, "bool"},
        {{LEND_FLOAT8_E3M4, 8, 1}, 8, "float8_e3m4"},
        {{LEND_FLOAT8_E4M3, 8, 1}, 8, "float8_e4m3"},
        {{LEND_FLOAT8_E4M3B11FNUZ, 8, 1}, 8, "float8_e4m3b11fnuz"},
        {{LEND_FLOAT8_E4M3FN, 8, 1}, 8, "float8_e4m3fn"},
        {{LEND_FLOAT8_E4M3FNUZ, 8, 1}, 8, "float8_e4m3fnuz"},
        {{LEND_FLOAT8_E5M2, 8, 1}, 8, "float8_e5m2"},
        {{LEND_FLOAT8_E5M2FNUZ, 8, 1}, 8, "float8_e5m2fnuz"},
        {{LEND_FLOAT8_E8M0FNU, 8, 1}, 8, "float8_e8m0fnu"},
        {{LEND_FLOAT6_E2M3FN, 6, 1}, 6, "float6_e2m3fn"},
        {{LEND_FLOAT6_E3M2FN, 6, 1}, 6, "float6_e3m2fn"},
        {{LEND_FLOAT4_E2M1FN, 4, 1}, 4, "float4_e2m1fn"},
        {{LEND_FLOAT4_E2M1FN, 4, 2}, 8, "float4_e2m1fn_x2"},
        {{LEND_FLOAT, 32, 4}, 128, "float32_x4"},
        {{LEND_COMPLEX, 128, 65535}, 8388480, "complex128_x65535"},
        {{LEND_FLOAT8_E4M3B11FNUZ, 8, 65535}, 524280, "float8_e4m3b11fnuz_x65535"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[32];
        CHECK_INT(lend_dtype_is_valid(rows[i].dtype), 1);
        CHECK_UINT(lend_dtype_bits(rows[i].dtype), rows[i].bits);
        CHECK_CODE(lend_dtype_format(rows[i].dtype, name, sizeof name), 0);
        CHECK_STR(name, rows[i].name);
        DLDataType parsed;
        memset(&parsed, 0xff, sizeof parsed);
        CHECK_CODE(lend_dtype_parse(rows[i].name, &parsed), 0);
        CHECK_MEM(&parsed, &rows[i].dtype, sizeof parsed);
    }
}

/* All 65,536 pairs of code and bits: valid exactly when the tests' own table says so, and then the name comes back. */
LEND_TEST(dtype_every_code_and_width) {
    DLDataType known[NAIVE_N_DTYPES];
    CHECK_INT(naive_dtypes(known), NAIVE_N_DTYPES);
    for (unsigned pair = 0; pair < 65536; pair++) {
        bool is_known = false;
        for (int i = 0; i < NAIVE_N_DTYPES; i++)
            is_known |= known[i].code == pair >> 8 && known[i].bits == (pair & 255);
        DLDataType dtype = {.code = (uint8_t)(pair >> 8), .bits = (uint8_t)pair, .lanes = 3}, parsed;
        CHECK_INT(lend_dtype_is_valid(dtype), is_known);
        CHECK_UINT(lend_dtype_bits(dtype), is_known ? 3u * dtype.bits : 0u);
        char name[32];
        CHECK_CODE(lend_dtype_format(dtype, name, sizeof name), is_known ? 0 : -EINVAL);
        if (!is_known) continue;
        CHECK_CODE(lend_dtype_parse(name, &parsed), 0);
        CHECK_MEM(&parsed, &dtype, sizeof dtype);
        dtype.lanes = 0;
        CHECK_INT(lend_dtype_is_valid(dtype), 0);
        CHECK_UINT(lend_dtype_bits(dtype), 0);
    }
}

LEND_TEST(dtype_parse_refuses) {
    static const char *const texts[] = {
        "",
        "int",
        "int1",
        "int3",
        "int08",
        "int128",
        "int8 ",
        " int8",
        "Int8",
        "uint",
        "float",
        "float8",
        "float128",
        "bfloat",
        "bfloat32",
        "complex16",
        "bool8",
        "float8_e4m3f",
        "float8_e4m3fnx",
        "float8_e4m3_",
        "int8_x",
        "int8_x0",
        "int8_x1",
        "int8_x02",
        "int8_x65536",
        "int8_x2x",
        "int8x2",
        "int-8",
        "int8_x-2",
        "float6",
        "float4_e2m1fn4",
        "int4294967304",
        "int8_x4294967298",
        "opaque",
        "handle",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        DLDataType dtype = {.code = 77, .bits = 77, .lanes = 77};
        if (lend_dtype_parse(texts[i], &dtype) != -EINVAL) FAIL("'%s' was read as a dtype", texts[i]);
        CHECK_INT(dtype.code, 77); /* written on success only */
    }
    DLDataType dtype;
    CHECK_CODE(lend_dtype_parse(NULL, &dtype), -EINVAL);
}

LEND_TEST(dtype_format_cuts) {
    char buf[8] = "xxxxxxx";
    CHECK_CODE(lend_dtype_format((DLDataType){LEND_FLOAT8_E5M2, 8, 1}, buf, 7), 0);
    CHECK_STR(buf, "float8");
    CHECK_INT(buf[7], '\0');
    CHECK_CODE(lend_dtype_format((DLDataType){LEND_INT, 8, 1}, NULL, 0), 0);
    CHECK_CODE(lend_dtype_format((DLDataType){LEND_INT, 8, 1}, NULL, 4), -EINVAL);
}
