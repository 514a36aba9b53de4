/* SPDX-License-Identifier: MIT */
/* Element types: which (code, bits, lanes) exist, and their names. One row per code; a row whose name is followed by
 * a width in digits ("int" + "4") has is_numbered set. Pure functions, no state. */
#include "tensor/dtype.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const uint8_t lend__dtype_widths[LEND__N_DTYPE_CODES] = {
    [LEND_INT] = 2 | 4 | 8 | 16 | 32 | 64,
    [LEND_UINT] = 2 | 4 | 8 | 16 | 32 | 64,
    [LEND_FLOAT] = 16 | 32 | 64,
    [LEND_BFLOAT] = 16,
    [LEND_COMPLEX] = 32 | 64 | 128,
    [LEND_BOOL] = 8,
    [LEND_FLOAT8_E3M4] = 8,
    [LEND_FLOAT8_E4M3] = 8,
    [LEND_FLOAT8_E4M3B11FNUZ] = 8,
    [LEND_FLOAT8_E4M3FN] = 8,
    [LEND_FLOAT8_E4M3FNUZ] = 8,
    [LEND_FLOAT8_E5M2] = 8,
    [LEND_FLOAT8_E5M2FNUZ] = 8,
    [LEND_FLOAT8_E8M0FNU] = 8,
    [LEND_FLOAT6_E2M3FN] = 6,
    [LEND_FLOAT6_E3M2FN] = 6,
    [LEND_FLOAT4_E2M1FN] = 4,
};

static const struct {
    const char *name; /* NULL: lend does not carry the code */
    bool is_numbered;
} names[LEND__N_DTYPE_CODES] = {
    [LEND_INT] = {"int", true},
    [LEND_UINT] = {"uint", true},
    [LEND_FLOAT] = {"float", true},
    [LEND_BFLOAT] = {"bfloat", true},
    [LEND_COMPLEX] = {"complex", true},
    [LEND_BOOL] = {"bool", false},
    [LEND_FLOAT8_E3M4] = {"float8_e3m4", false},
    [LEND_FLOAT8_E4M3] = {"float8_e4m3", false},
    [LEND_FLOAT8_E4M3B11FNUZ] = {"float8_e4m3b11fnuz", false},
    [LEND_FLOAT8_E4M3FN] = {"float8_e4m3fn", false},
    [LEND_FLOAT8_E4M3FNUZ] = {"float8_e4m3fnuz", false},
    [LEND_FLOAT8_E5M2] = {"float8_e5m2", false},
    [LEND_FLOAT8_E5M2FNUZ] = {"float8_e5m2fnuz", false},
    [LEND_FLOAT8_E8M0FNU] = {"float8_e8m0fnu", false},
    [LEND_FLOAT6_E2M3FN] = {"float6_e2m3fn", false},
    [LEND_FLOAT6_E3M2FN] = {"float6_e3m2fn", false},
    [LEND_FLOAT4_E2M1FN] = {"float4_e2m1fn", false},
};

int lend_dtype_is_valid(DLDataType dtype) {
    return lend__dtype_item_bits(dtype, false) != 0;
}

uint32_t lend_dtype_bits(DLDataType dtype) {
    return lend__dtype_item_bits(dtype, false);
}

int lend_dtype_format(DLDataType dtype, char *buf, size_t buf_bytes) {
    if (!lend_dtype_is_valid(dtype) || (!buf && buf_bytes)) return -EINVAL;
    char width[4] = "", lanes[8] = "";
    if (names[dtype.code].is_numbered) snprintf(width, sizeof width, "%u", dtype.bits);
    if (dtype.lanes > 1) snprintf(lanes, sizeof lanes, "_x%u", dtype.lanes);
    snprintf(buf, buf_bytes, "%s%s%s", names[dtype.code].name, width, lanes);
    return 0;
}

/* Reads a decimal number from 1 to max without sign or leading zeros and moves *text behind it; 0: there is none. */
static uint32_t read_number(const char **text, uint32_t max) {
    uint32_t value = 0;
    if (**text == '0') return 0;
    for (; **text >= '0' && **text <= '9'; ++*text) {
        value = value * 10 + (uint32_t)(**text - '0');
        if (value > max) return 0;
    }
    return value;
}

/* Is `text` the name of a dtype with this code? Several rows may begin alike ("float", "float8_e4m3",
 * "float8_e4m3fn"), but only one explains the text to its end. */
static bool matches(const char *text, uint8_t code, DLDataType *ret) {
    size_t n = strlen(names[code].name);
    if (strncmp(text, names[code].name, n)) return false;
    text += n;
    uint32_t bits = names[code].is_numbered ? read_number(&text, UINT8_MAX) : lend__dtype_widths[code];
    uint32_t lanes = 1;
    if (text[0] == '_' && text[1] == 'x') {
        text += 2;
        lanes = read_number(&text, UINT16_MAX);
        if (lanes < 2) return false;
    }
    if (*text || !lend__dtype_has_width(code, (uint8_t)bits)) return false;
    *ret = (DLDataType){.code = code, .bits = (uint8_t)bits, .lanes = (uint16_t)lanes};
    return true;
}

int lend_dtype_parse(const char *text, DLDataType *ret_dtype) {
    if (!text || !ret_dtype) return -EINVAL;
    for (unsigned code = 0; code < LEND__N_DTYPE_CODES; code++)
        if (names[code].name && matches(text, (uint8_t)code, ret_dtype)) return 0;
    return -EINVAL;
}
