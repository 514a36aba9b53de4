/* SPDX-License-Identifier: MIT */
/* The header of a .safetensors file: u64 length, that many bytes of JSON, then the tensors' bytes to the end.
 *
 * Checked as the reference implementation does: the header has at most 100 MB and begins with '{'; names are unique;
 * "__metadata__" maps strings to strings; every tensor has dtype, shape and data_offsets (other members are ignored);
 * ordered by offset, each tensor begins where the one before ends, the first at 0 and the last ends with the file, so
 * no byte has two owners or none; and a tensor's bytes are exactly shape times dtype. */
#include "file/file.h"

#include "base/checked.h"
#include "base/sys.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES_MAX 100000000u
#define OPERATION "lend_file_open"

static const struct {
    const char *name;
    uint8_t code, bits;
} dtypes[] = {
    {"BOOL", LEND_BOOL, 8},
    {"F4", LEND_FLOAT4_E2M1FN, 4},
    {"F6_E2M3", LEND_FLOAT6_E2M3FN, 6},
    {"F6_E3M2", LEND_FLOAT6_E3M2FN, 6},
    {"U8", LEND_UINT, 8},
    {"I8", LEND_INT, 8},
    {"F8_E5M2", LEND_FLOAT8_E5M2, 8},
    {"F8_E4M3", LEND_FLOAT8_E4M3FN, 8},
    {"F8_E8M0", LEND_FLOAT8_E8M0FNU, 8},
    {"F8_E4M3FNUZ", LEND_FLOAT8_E4M3FNUZ, 8},
    {"F8_E5M2FNUZ", LEND_FLOAT8_E5M2FNUZ, 8},
    {"I16", LEND_INT, 16},
    {"U16", LEND_UINT, 16},
    {"F16", LEND_FLOAT, 16},
    {"BF16", LEND_BFLOAT, 16},
    {"I32", LEND_INT, 32},
    {"U32", LEND_UINT, 32},
    {"F32", LEND_FLOAT, 32},
    {"C64", LEND_COMPLEX, 64},
    {"F64", LEND_FLOAT, 64},
    {"I64", LEND_INT, 64},
    {"U64", LEND_UINT, 64},
};

static int find_dtype(const char *name, DLDataType *ret) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name)) continue;
        *ret = (DLDataType){.code = dtypes[i].code, .bits = dtypes[i].bits, .lanes = 1};
        return 0;
    }
    return -EOPNOTSUPP;
}

static int bad(const struct lend_file *file, const char *name, const char *what, struct lend_error *error) {
    return lend__fail(error, -EBADMSG, OPERATION, "%s: tensor \"%.80s\": %s", file->path, name, what);
}

/* A JSON integer that is not negative. */
static bool is_size(const json_t *value, int64_t *ret) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *ret = json_integer_value(value);
    return true;
}

static int read_shape(const struct lend_file *file, struct lend__file_entry *e, const json_t *info,
                      struct lend_error *error) {
    const json_t *dtype_json = json_object_get(info, "dtype"), *shape_json = json_object_get(info, "shape");
    if (!json_is_string(dtype_json)) return bad(file, e->name, "dtype is missing or not a string", error);
    if (!json_is_array(shape_json)) return bad(file, e->name, "shape is missing or not an array", error);

    DLDataType dtype;
    if (find_dtype(json_string_value(dtype_json), &dtype) < 0)
        return lend__fail(error, -EOPNOTSUPP, OPERATION, "%s: tensor \"%.80s\" has dtype \"%.20s\", unknown here",
                          file->path, e->name, json_string_value(dtype_json));
    size_t ndim = json_array_size(shape_json);
    if (ndim > LEND_NDIM_MAX)
        return lend__fail(error, -EOPNOTSUPP, OPERATION, "%s: tensor \"%.80s\" has %zu dimensions; lend carries %d",
                          file->path, e->name, ndim, LEND_NDIM_MAX);
    int64_t shape[LEND_NDIM_MAX];
    for (size_t i = 0; i < ndim; i++)
        if (!is_size(json_array_get(shape_json, i), &shape[i]))
            return bad(file, e->name, "shape holds something other than sizes", error);
    switch (lend__file_entry_shape(e, dtype, (int32_t)ndim, shape)) {
    case 0: return 0;
    case -EOVERFLOW: return bad(file, e->name, "shape times dtype does not fit 64 bits", error);
    case -EBADMSG: return bad(file, e->name, "its packed elements do not fill whole bytes", error);
    default: return lend__fail(error, -ENOMEM, OPERATION, "no memory for the table of tensors of %s", file->path);
    }
}

/* data_offsets count from the end of the header. */
static int read_entry(const struct lend_file *file, struct lend__file_entry *e, const char *name, const json_t *info,
                      struct lend_error *error) {
    int64_t begin, end;
    e->name = lend__file_text_copy(name, strlen(name));
    if (!e->name) return lend__fail(error, -ENOMEM, OPERATION, "no memory for the names in %s", file->path);
    if (!json_is_object(info)) return bad(file, name, "its description is not an object", error);
    int r = read_shape(file, e, info, error);
    if (r < 0) return r;

    const json_t *offsets = json_object_get(info, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !is_size(json_array_get(offsets, 0), &begin) ||
        !is_size(json_array_get(offsets, 1), &end) || begin > end)
        return bad(file, name, "data_offsets is missing or not [begin, end]", error);
    if ((uint64_t)(end - begin) != e->nbytes)
        return lend__fail_bytes(error, -EBADMSG, OPERATION, e->nbytes, (uint64_t)(end - begin),
                                "%s: tensor \"%.80s\": its shape needs %llu bytes, data_offsets give it %llu",
                                file->path, name, (unsigned long long)e->nbytes, (unsigned long long)(end - begin));
    e->offset = (uint64_t)begin;
    return 0;
}

static int read_metadata(struct lend_file *file, json_t *metadata, struct lend_error *error) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return lend__fail(error, -EBADMSG, OPERATION, "%s: __metadata__ is not an object", file->path);
    file->texts = lend__zalloc((json_object_size(metadata) + 1) * sizeof *file->texts);
    if (!file->texts) return lend__fail(error, -ENOMEM, OPERATION, "no memory for __metadata__ of %s", file->path);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return lend__fail(error, -EBADMSG, OPERATION, "%s: __metadata__ \"%.80s\" is not a string", file->path,
                              key);
        struct lend__file_text *text = &file->texts[file->n_texts++];
        text->key = lend__file_text_copy(key, strlen(key));
        text->value = lend__file_text_copy(json_string_value(value), json_string_length(value));
        if (!text->key || !text->value)
            return lend__fail(error, -ENOMEM, OPERATION, "no memory for __metadata__ of %s", file->path);
    }
    return 0;
}

static int by_offset(const void *left, const void *right) {
    const struct lend__file_entry *a = left, *b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    /* Tensors without bytes come before the one that begins where they lie. */
    if (a->nbytes != b->nbytes) return a->nbytes < b->nbytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Every byte after the header belongs to exactly one tensor. Offsets become offsets in the file. */
static int check_layout(struct lend_file *file, uint64_t data_offset, struct lend_error *error) {
    uint64_t next = 0, data_bytes = file->bytes - data_offset;
    if (file->n_entries) qsort(file->entries, file->n_entries, sizeof *file->entries, by_offset);
    for (size_t i = 0; i < file->n_entries; i++) {
        struct lend__file_entry *e = &file->entries[i];
        if (e->offset != next)
            return lend__fail(error, -EBADMSG, OPERATION,
                              "%s: tensor \"%.80s\" begins at %llu, %s: the one before ends at %llu", file->path,
                              e->name, (unsigned long long)e->offset,
                              e->offset < next ? "inside another" : "after a hole", (unsigned long long)next);
        uint64_t end = next + e->nbytes; /* both came from int64_t */
        if (end > data_bytes)
            return lend__fail_bytes(error, -EBADMSG, OPERATION, end, data_bytes,
                                    "%s: tensor \"%.80s\" ends at %llu, but only %llu bytes follow the header: the "
                                    "file was cut short",
                                    file->path, e->name, (unsigned long long)end, (unsigned long long)data_bytes);
        next = end;
        e->offset += data_offset;
    }
    if (next != data_bytes)
        return lend__fail_bytes(error, -EBADMSG, OPERATION, next, data_bytes,
                                "%s: the tensors end at %llu, but %llu bytes follow the header", file->path,
                                (unsigned long long)next, (unsigned long long)data_bytes);
    return 0;
}

static int read_root(struct lend_file *file, json_t *root, struct lend_error *error) {
    const char *name;
    json_t *info;
    file->entries = lend__zalloc((json_object_size(root) + 1) * sizeof *file->entries);
    if (!file->entries)
        return lend__fail(error, -ENOMEM, OPERATION, "no memory for the table of tensors of %s", file->path);
    json_object_foreach(root, name, info) {
        int r = strcmp(name, "__metadata__") ? read_entry(file, &file->entries[file->n_entries++], name, info, error)
                                             : read_metadata(file, info, error);
        if (r < 0) return r;
    }
    return 0;
}

static int parse_header(struct lend_file *file, const char *header, uint64_t bytes, struct lend_error *error) {
    if (header[0] != '{')
        return lend__fail(error, -EBADMSG, OPERATION, "%s: the header does not begin with '{'", file->path);
    json_error_t where;
    json_t *root = json_loadb(header, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root && json_error_code(&where) == json_error_out_of_memory)
        return lend__fail(error, -ENOMEM, OPERATION, "no memory for the header of %s", file->path);
    if (!root)
        return lend__fail(error, -EBADMSG, OPERATION, "%s: the header is not JSON: %.100s at byte %d", file->path,
                          where.text, where.position);
    int r = read_root(file, root, error);
    json_decref(root);
    return r;
}

int lend__safetensors_read(struct lend_file *file, const uint8_t magic[LEND__FILE_MAGIC_BYTES],
                           struct lend_error *error) {
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; i--) bytes = bytes << 8 | magic[i];
    if (bytes > HEADER_BYTES_MAX) {
        uint8_t first = 0;
        int r =
            lend__file_read(file, &first, file->bytes > LEND__FILE_MAGIC_BYTES, LEND__FILE_MAGIC_BYTES, NULL, error);
        if (r < 0) return r;
        if (first != '{')
            return lend__fail(error, -EBADMSG, OPERATION, "%s is neither .npy nor .safetensors", file->path);
        return lend__fail_bytes(error, -EBADMSG, OPERATION, bytes, HEADER_BYTES_MAX,
                                "%s: a header of %llu bytes; at most %u are allowed", file->path,
                                (unsigned long long)bytes, HEADER_BYTES_MAX);
    }
    if (bytes < 2 || !lend__range_fits(LEND__FILE_MAGIC_BYTES, bytes, file->bytes))
        return lend__fail_bytes(error, -EBADMSG, OPERATION, bytes, file->bytes - LEND__FILE_MAGIC_BYTES,
                                "%s: a header of %llu bytes in a file of %llu", file->path, (unsigned long long)bytes,
                                (unsigned long long)file->bytes);
    char *header = lend__zalloc(bytes);
    if (!header)
        return lend__fail_bytes(error, -ENOMEM, OPERATION, bytes, 0, "no memory for the header of %s: %llu bytes",
                                file->path, (unsigned long long)bytes);
    int r = lend__file_read(file, header, bytes, LEND__FILE_MAGIC_BYTES, NULL, error);
    if (r == 0) r = parse_header(file, header, bytes, error);
    free(header);
    return r < 0 ? r : check_layout(file, LEND__FILE_MAGIC_BYTES + bytes, error);
}
