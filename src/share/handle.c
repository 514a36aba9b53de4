/* SPDX-License-Identifier: MIT */
/* Handles as things of their own: the text form and the description. Neither touches an exporter. */
#include "base/error.h"
#include "share/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "lend1:"
#define PREFIX_BYTES (sizeof PREFIX - 1)

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

int lend_handle_format(const void *handle, size_t bytes, char *text, size_t text_bytes) {
    struct lend__wire wire;
    int r = lend__wire_decode(handle, bytes, &wire, "lend_handle_format", NULL);
    if (r < 0) return r;
    size_t n = PREFIX_BYTES + bytes / 3 * 4 + (bytes % 3 ? bytes % 3 + 1 : 0);
    if (text_bytes < n + 1) return -ERANGE;
    const uint8_t *p = handle;
    char *out = text + PREFIX_BYTES;
    memcpy(text, PREFIX, PREFIX_BYTES);
    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (left > 2 ? p[i + 2] : 0);
        *out++ = digits[v >> 18];
        *out++ = digits[v >> 12 & 63];
        if (left > 1) *out++ = digits[v >> 6 & 63];
        if (left > 2) *out++ = digits[v & 63];
    }
    *out = '\0';
    return 0;
}

static int digit_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '-') return 62;
    return c == '_' ? 63 : -1;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Decodes base64url without padding; bits left over must be zero, so that every handle has one text. */
static int decode_text(const char *text, size_t n, uint8_t *buf, size_t buf_bytes, size_t *ret_bytes) {
    if (n % 4 == 1) return -EBADMSG;
    size_t bytes = n / 4 * 3 + (n % 4 ? n % 4 - 1 : 0);
    if (bytes > buf_bytes) return -ERANGE;
    uint32_t v = 0;
    size_t out = 0;
    int bits = 0;
    for (size_t i = 0; i < n; i++) {
        int d = digit_value(text[i]);
        if (d < 0) return -EBADMSG;
        v = v << 6 | (uint32_t)d;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            buf[out++] = (uint8_t)(v >> bits);
            v &= (1u << bits) - 1;
        }
    }
    if (v) return -EBADMSG;
    *ret_bytes = bytes;
    return 0;
}

int lend_handle_parse(const char *text, void *buf, size_t buf_bytes, size_t *ret_bytes) {
    while (is_space(*text)) text++;
    size_t n = strnlen(text, LEND_HANDLE_TEXT_MAX + 64);
    while (n && is_space(text[n - 1])) n--;
    if (n < PREFIX_BYTES || memcmp(text, PREFIX, PREFIX_BYTES)) return -EBADMSG;
    /* Into a buffer of our own: on error nothing is written to the caller's. */
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n_bytes = 0;
    int r = decode_text(text + PREFIX_BYTES, n - PREFIX_BYTES, bytes, sizeof bytes, &n_bytes);
    if (r < 0) return -EBADMSG; /* longer than any handle is not a handle */
    struct lend__wire wire;
    r = lend__wire_decode(bytes, n_bytes, &wire, "lend_handle_parse", NULL);
    if (r < 0) return r;
    if (n_bytes > buf_bytes) return -ERANGE;
    memcpy(buf, bytes, n_bytes);
    *ret_bytes = n_bytes;
    return 0;
}

static void describe_strides(const struct lend__wire *wire, struct lend_handle_info *info) {
    if (!wire->is_contiguous) {
        memcpy(info->strides, wire->dims + wire->ndim, wire->ndim * sizeof(int64_t));
        return;
    }
    /* Not checked yet: a forged shape may overflow, so the product wraps as unsigned. */
    uint64_t stride = 1;
    for (uint32_t i = wire->ndim; i-- > 0;) {
        info->strides[i] = (int64_t)stride;
        stride *= wire->dims[i] > 1 ? (uint64_t)wire->dims[i] : 1;
    }
}

int lend_handle_describe(const void *handle, size_t bytes, struct lend_handle_info *ret_info,
                         struct lend_error *error) {
    size_t size = ret_info->size;
    if (size < sizeof ret_info->size || size > sizeof *ret_info)
        return lend__fail(error, -EINVAL, "lend_handle_describe",
                          "info.size is %zu; set it to sizeof(struct lend_handle_info) = %zu", size, sizeof *ret_info);
    struct lend__wire wire;
    int r = lend__wire_decode(handle, bytes, &wire, "lend_handle_describe", error);
    if (r < 0) return r;
    struct lend_handle_info info = {
        .size = size,
        .wire_major = wire.major,
        .wire_minor = wire.minor,
        .exporter_start_ns = wire.exporter.start_ns,
        .exporter_uid = wire.exporter.uid,
        .exporter_pid = wire.exporter.pid,
        .device_type = wire.device_type,
        .dtype = wire.dtype,
        .ndim = (int32_t)wire.ndim,
        .storage_offset_bits = wire.offset_bits,
        .storage_offset_bytes = wire.storage_off,
        .storage_bytes = wire.storage_bytes,
        .allocation = wire.allocation,
        .allocation_gen = wire.allocation_gen,
        .allocation_bytes = wire.allocation_bytes,
        .slot = wire.slot,
        .slot_gen = wire.slot_gen,
        .pin_token = wire.pin_token,
        .is_read_only = wire.is_read_only,
        .is_padded = wire.is_padded,
    };
    memcpy(info.boot_id, wire.exporter.boot_id, sizeof info.boot_id);
    memcpy(info.exporter_id, wire.exporter.id, sizeof info.exporter_id);
    memcpy(info.shape, wire.dims, wire.ndim * sizeof(int64_t));
    describe_strides(&wire, &info);
    if (wire.socket_path) memcpy(info.socket_path, wire.socket_path, wire.socket_path_bytes);
    memcpy(ret_info, &info, size);
    return 0;
}
