/* SPDX-License-Identifier: MIT */
/* Handles as things of their own: the text form and the description. Neither touches an exporter. */
#include "base/error.h"
#include "base/sys.h"
#include "share/tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "lend1:"
#define PREFIX_BYTES (sizeof PREFIX - 1)

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* Is it a whole handle, of either form? */
static int check(const void *handle, size_t bytes, const char *operation, struct lend_error *error) {
    struct lend__wire wire;
    struct lend__tree tree;
    if (!lend__wire_is_tree(handle, bytes)) return lend__wire_decode(handle, bytes, &wire, operation, error);
    int r = lend__tree_open(handle, bytes, &tree, operation, error);
    return r < 0 ? r : lend__tree_check(&tree, operation, error);
}

int lend_handle_format(const void *handle, size_t bytes, char *text, size_t text_bytes) {
    int r = check(handle, bytes, "lend_handle_format", NULL);
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
    size_t n = strnlen(text, LEND_HANDLE_TEXT_BYTES((size_t)LEND_GROUP_BYTES_MAX) + 64);
    while (n && is_space(text[n - 1])) n--;
    if (n < PREFIX_BYTES || memcmp(text, PREFIX, PREFIX_BYTES)) return -EBADMSG;
    size_t n_bytes = 0;
    int r = decode_text(text + PREFIX_BYTES, n - PREFIX_BYTES, buf, buf_bytes, &n_bytes);
    if (r >= 0) r = check(buf, n_bytes, "lend_handle_parse", NULL);
    if (r < 0) return r;
    *ret_bytes = n_bytes;
    return 0;
}

static void describe_strides(const struct lend__wire_tensor *tensor, struct lend_handle_info *info) {
    if (!tensor->is_contiguous) {
        memcpy(info->strides, tensor->dims + tensor->ndim, tensor->ndim * sizeof(int64_t));
        return;
    }
    /* Not checked yet: a forged shape may overflow, so the product wraps as unsigned. */
    uint64_t stride = 1;
    for (uint32_t i = tensor->ndim; i-- > 0;) {
        info->strides[i] = (int64_t)stride;
        stride *= tensor->dims[i] > 1 ? (uint64_t)tensor->dims[i] : 1;
    }
}

static void describe_exporter(const struct lend__wire_exporter *exporter, struct lend_handle_info *info) {
    memcpy(info->boot_id, exporter->identity.boot_id, sizeof info->boot_id);
    memcpy(info->exporter_id, exporter->identity.id, sizeof info->exporter_id);
    info->exporter_start_ns = exporter->identity.start_ns;
    info->exporter_uid = exporter->identity.uid;
    info->exporter_pid = exporter->identity.pid;
    info->pin_token = exporter->pin_token;
    if (exporter->socket_path) memcpy(info->socket_path, exporter->socket_path, exporter->socket_path_bytes);
}

static void describe_tensor(const struct lend__wire_tensor *tensor, struct lend_handle_info *info) {
    info->attrs = tensor->attrs;
    info->dtype = tensor->dtype;
    info->ndim = (int32_t)tensor->ndim;
    info->is_read_only = tensor->is_read_only;
    info->is_padded = tensor->is_padded;
    info->storage_offset_bits = tensor->offset_bits;
    memcpy(info->shape, tensor->dims, tensor->ndim * sizeof(int64_t));
}

static void describe_storage(const struct lend__wire_storage *storage, struct lend_handle_info *info) {
    info->device_type = storage->device_type;
    info->storage_offset_bytes = storage->off;
    info->storage_bytes = storage->bytes;
    info->allocation = storage->allocation;
    info->allocation_gen = storage->allocation_gen;
    info->allocation_bytes = storage->allocation_bytes;
    info->slot = storage->slot;
    info->slot_gen = storage->slot_gen;
}

static int describe_one(const void *handle, size_t bytes, struct lend_handle_info *info, struct lend_error *error) {
    struct lend__wire wire;
    int r = lend__wire_decode(handle, bytes, &wire, "lend_handle_describe", error);
    if (r < 0) return r;
    info->wire_major = wire.major;
    info->wire_minor = wire.minor;
    info->n_tensors = info->n_storages = info->n_exporters = 1;
    describe_exporter(&wire.exporter, info);
    describe_storage(&wire.storage, info);
    describe_tensor(&wire.tensor, info);
    describe_strides(&wire.tensor, info);
    return 0;
}

static int describe_tree(const void *handle, size_t bytes, struct lend_handle_info *info, struct lend_error *error) {
    struct lend__tree tree;
    struct lend__tree_node node;
    int r = lend__tree_open(handle, bytes, &tree, "lend_handle_describe", error);
    if (r >= 0) r = lend__tree_check(&tree, "lend_handle_describe", error);
    if (r < 0) return r;
    info->wire_major = tree.major;
    info->wire_minor = tree.minor;
    info->kind = tree.is_group ? LEND_HANDLE_GROUP : LEND_HANDLE_TENSOR;
    info->n_tensors = tree.n_entries;
    info->n_storages = tree.n_storages;
    info->n_exporters = tree.n_exporters;
    info->allocation = info->slot = UINT32_MAX;
    if (tree.n_exporters) {
        struct lend__wire_exporter *exporters = lend__zalloc(tree.n_exporters * sizeof *exporters);
        if (!exporters) return lend__fail(error, -ENOMEM, "lend_handle_describe", "no memory for a list of exporters");
        lend__tree_exporters(&tree, exporters);
        describe_exporter(exporters, info);
        for (uint32_t i = 1; i < tree.n_exporters && !info->pin_token; i++) info->pin_token = exporters[i].pin_token;
        free(exporters);
    }
    uint32_t at = tree.nodes_at;
    if (tree.is_group) return 0;
    lend__tree_next(&tree, &at, &node, "lend_handle_describe", NULL); /* checked above */
    info->layout = node.layout;
    describe_tensor(&node.tensor, info);
    return 0;
}

int lend_handle_describe(const void *handle, size_t bytes, struct lend_handle_info *ret_info,
                         struct lend_error *error) {
    size_t size = ret_info->size;
    if (size < sizeof ret_info->size || size > sizeof *ret_info)
        return lend__fail(error, -EINVAL, "lend_handle_describe",
                          "info.size is %zu; set it to sizeof(struct lend_handle_info) = %zu", size, sizeof *ret_info);
    struct lend_handle_info info = {.size = size};
    int r = lend__wire_is_tree(handle, bytes) ? describe_tree(handle, bytes, &info, error)
                                              : describe_one(handle, bytes, &info, error);
    if (r >= 0) memcpy(ret_info, &info, size);
    return r;
}
