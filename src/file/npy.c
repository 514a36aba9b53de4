/* SPDX-License-Identifier: MIT */
/* The header of an .npy file: magic, version (1.0, 2.0, 3.0), its length, and a Python dict literal with exactly the
 * keys descr, fortran_order and shape, padded by spaces and ended by a newline; then the elements to the end.
 *
 * The literal is read by a small parser without recursion that knows only what numpy.lib.format writes: strings without
 * escapes, True, False, and a tuple of plain numbers. Everything else is an error, nothing is evaluated. */
#include "file/file.h"

#include "base/checked.h"
#include "base/sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Structured dtypes, which are refused anyway, are the only reason for longer headers. */
#define HEADER_BYTES_MAX 65535u
#define OPERATION "lend_file_open"

struct cursor {
    const char *at; /* the header is NUL-terminated, so one byte may always be looked at */
};

enum { KEY_DESCR = 1, KEY_FORTRAN = 2, KEY_SHAPE = 4, KEYS_ALL = 7 };

struct literal {
    char descr[16];
    bool is_structured; /* descr is a list: a record */
    bool is_fortran;
    bool has_negative; /* a size of the shape is below 0: NumPy writes none, but the sentence should name it */
    int32_t ndim;      /* LEND_NDIM_MAX + 1: more than can be carried */
    int64_t shape[LEND_NDIM_MAX];
};

static void skip_space(struct cursor *c) {
    while (*c->at == ' ' || *c->at == '\t' || *c->at == '\n') c->at++;
}

/* Takes one character after white space. */
static bool take(struct cursor *c, char wanted) {
    skip_space(c);
    if (*c->at != wanted) return false;
    c->at++;
    return true;
}

/* A quoted string without escapes. Cut to the buffer: what does not fit is no name that is known here. */
static bool take_string(struct cursor *c, char *buf, size_t buf_bytes) {
    skip_space(c);
    char quote = *c->at;
    if (quote != '\'' && quote != '"') return false;
    const char *begin = ++c->at;
    while (*c->at && *c->at != quote && *c->at != '\\' && *c->at != '\n') c->at++;
    if (*c->at != quote) return false;
    size_t bytes = (size_t)(c->at++ - begin);
    if (bytes >= buf_bytes) bytes = buf_bytes - 1;
    memcpy(buf, begin, bytes);
    buf[bytes] = 0;
    return true;
}

static bool take_word(struct cursor *c, const char *word) {
    skip_space(c);
    size_t bytes = strlen(word);
    if (strncmp(c->at, word, bytes)) return false;
    c->at += bytes;
    return true;
}

/* Digits without sign; Python 2 wrote some with an L behind. */
static bool take_size(struct cursor *c, int64_t *ret) {
    skip_space(c);
    const char *begin = c->at;
    int64_t value = 0;
    for (; *c->at >= '0' && *c->at <= '9'; c->at++)
        if (lend__mul_overflows(value, 10, &value) || lend__add_overflows(value, *c->at - '0', &value)) return false;
    if (c->at == begin || (*begin == '0' && c->at - begin > 1)) return false;
    if (*c->at == 'L') c->at++;
    *ret = value;
    return true;
}

/* (), (3,), (3, 4), (3, 4,); "(3)" is a number in Python, not a tuple. */
static bool take_shape(struct cursor *c, struct literal *ret) {
    bool has_comma = false;
    int32_t n = 0;
    if (!take(c, '(')) return false;
    while (!take(c, ')')) {
        int64_t size;
        if (n && !has_comma) return false;
        bool is_negative = take(c, '-');
        if (!take_size(c, &size)) return false;
        if (is_negative) size = -size;
        ret->has_negative |= is_negative;
        if (n < LEND_NDIM_MAX) ret->shape[n] = size;
        if (n <= LEND_NDIM_MAX) n++;
        has_comma = take(c, ',');
    }
    ret->ndim = n;
    return n != 1 || has_comma;
}

static bool take_value(struct cursor *c, int key, struct literal *ret) {
    if (key == KEY_SHAPE) return take_shape(c, ret);
    if (key == KEY_FORTRAN) {
        ret->is_fortran = take_word(c, "True");
        return ret->is_fortran || take_word(c, "False");
    }
    skip_space(c);
    ret->is_structured = *c->at == '[';
    return !ret->is_structured && take_string(c, ret->descr, sizeof ret->descr);
}

static int key_of(const char *name) {
    if (!strcmp(name, "descr")) return KEY_DESCR;
    if (!strcmp(name, "fortran_order")) return KEY_FORTRAN;
    return strcmp(name, "shape") ? 0 : KEY_SHAPE;
}

/* The whole header; false also for a record, with is_structured set. */
static bool take_literal(struct cursor *c, struct literal *ret) {
    int seen = 0;
    if (!take(c, '{')) return false;
    while (!take(c, '}')) {
        char name[16];
        if (!take_string(c, name, sizeof name) || !take(c, ':')) return false;
        int key = key_of(name);
        if (!key || seen & key || !take_value(c, key, ret)) return false;
        seen |= key;
        if (take(c, ',')) continue;
        if (!take(c, '}')) return false;
        break;
    }
    skip_space(c);
    return seen == KEYS_ALL && !*c->at;
}

/* descr is an optional byte order and a kind with its bytes: "<f4", "|b1", "=i8", "u2". */
static int read_dtype(const struct lend_file *file, const char *descr, DLDataType *ret, struct lend_error *error) {
    static const struct {
        const char *name;
        uint8_t code, bits;
    } kinds[] = {
        {"b1", LEND_BOOL, 8},   {"?", LEND_BOOL, 8},      {"i1", LEND_INT, 8},        {"i2", LEND_INT, 16},
        {"i4", LEND_INT, 32},   {"i8", LEND_INT, 64},     {"u1", LEND_UINT, 8},       {"u2", LEND_UINT, 16},
        {"u4", LEND_UINT, 32},  {"u8", LEND_UINT, 64},    {"f2", LEND_FLOAT, 16},     {"f4", LEND_FLOAT, 32},
        {"f8", LEND_FLOAT, 64}, {"c8", LEND_COMPLEX, 64}, {"c16", LEND_COMPLEX, 128},
    };
    char order = strchr("<>=|", *descr) && *descr ? *descr : '=';
    const char *kind = descr + (strchr("<>=|", *descr) && *descr);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, kind)) continue;
        if (order == '>' && kinds[i].bits > 8)
            return lend__fail(error, -EOPNOTSUPP, OPERATION,
                              "%.80s holds big-endian numbers (%s); save array.astype(array.dtype.newbyteorder('<'))",
                              file->path, descr);
        *ret = (DLDataType){.code = kinds[i].code, .bits = kinds[i].bits, .lanes = 1};
        return 0;
    }
    return lend__fail(error, -EOPNOTSUPP, OPERATION,
                      "%.80s has dtype '%s'; lend carries bool, int, uint, float and complex, no objects, texts or "
                      "dates",
                      file->path, descr);
}

static int bad(const struct lend_file *file, const char *what, struct lend_error *error) {
    return lend__fail(error, -EBADMSG, OPERATION, "%s: %s", file->path, what);
}

static int bad_shape(const struct lend_file *file, const struct literal *literal, struct lend_error *error) {
    char text[128] = "";
    size_t n = 0;
    for (int32_t i = 0; i < literal->ndim && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i ? ", " : "", (long long)literal->shape[i]);
    return lend__fail(error, -EBADMSG, OPERATION, "%s: the header has shape (%s%s): a size is below 0", file->path,
                      text, n < sizeof text ? "" : "...");
}

/* The one entry, from the literal. */
static int read_entry(struct lend_file *file, const struct literal *literal, uint64_t data_offset,
                      struct lend_error *error) {
    DLDataType dtype;
    int r = read_dtype(file, literal->descr, &dtype, error);
    if (r < 0) return r;
    if (literal->ndim > LEND_NDIM_MAX)
        return lend__fail(error, -EOPNOTSUPP, OPERATION, "%s has more than the %d dimensions that lend carries",
                          file->path, LEND_NDIM_MAX);
    if (literal->has_negative) return bad_shape(file, literal, error);
    struct lend__file_entry *e = lend__zalloc(sizeof *e);
    if (!e) return lend__fail(error, -ENOMEM, OPERATION, "no memory for the table of tensors of %s", file->path);
    file->entries = e;
    file->n_entries = 1;
    const char *name = lend__file_last_part(file->path);
    size_t name_bytes = strlen(name);
    if (name_bytes > 4 && !strcmp(name + name_bytes - 4, ".npy")) name_bytes -= 4;
    e->name = lend__file_text_copy(name, name_bytes);
    e->is_fortran = literal->is_fortran;
    e->offset = data_offset;
    r = lend__file_entry_shape(e, dtype, literal->ndim, literal->shape);
    if (r == -EOVERFLOW) return bad(file, "shape times dtype does not fit 64 bits", error);
    if (r < 0 || !e->name)
        return lend__fail(error, -ENOMEM, OPERATION, "no memory for the table of tensors of %s", file->path);

    uint64_t rest = file->bytes - data_offset;
    if (e->nbytes != rest)
        return lend__fail_bytes(error, -EBADMSG, OPERATION, e->nbytes, rest,
                                "%s: its shape needs %llu bytes, %llu follow the header: %s", file->path,
                                (unsigned long long)e->nbytes, (unsigned long long)rest,
                                e->nbytes > rest ? "the file was cut short" : "save one array in a file");
    return 0;
}

int lend__npy_read(struct lend_file *file, const uint8_t magic[LEND__FILE_MAGIC_BYTES], struct lend_error *error) {
    uint8_t major = magic[6], minor = magic[7], length[4] = {0};
    size_t length_bytes = major == 1 ? 2 : 4;
    if (major < 1 || major > 3 || minor)
        return lend__fail(error, -EBADMSG, OPERATION, "%s: .npy version %u.%u; 1.0, 2.0 and 3.0 are known", file->path,
                          major, minor);
    int r = lend__file_read(file, length, length_bytes, LEND__FILE_MAGIC_BYTES, NULL, error);
    if (r < 0) return r;
    uint32_t bytes =
        (uint32_t)length[0] | (uint32_t)length[1] << 8 | (uint32_t)length[2] << 16 | (uint32_t)length[3] << 24;
    uint64_t header_offset = LEND__FILE_MAGIC_BYTES + length_bytes;
    if (bytes > HEADER_BYTES_MAX || !lend__range_fits(header_offset, bytes, file->bytes))
        return lend__fail_bytes(error, -EBADMSG, OPERATION, bytes, HEADER_BYTES_MAX,
                                "%s: a header of %u bytes in a file of %llu; at most %u are allowed", file->path, bytes,
                                (unsigned long long)file->bytes, HEADER_BYTES_MAX);
    char *header = lend__zalloc((size_t)bytes + 1);
    if (!header) return lend__fail(error, -ENOMEM, OPERATION, "no memory for the header of %s", file->path);
    r = lend__file_read(file, header, bytes, header_offset, NULL, error);
    struct literal literal = {.ndim = 0};
    struct cursor cursor = {header};
    if (r == 0 && (!bytes || header[bytes - 1] != '\n' || strlen(header) != bytes)) {
        r = bad(file, "the header does not end with a newline", error);
    } else if (r == 0 && !take_literal(&cursor, &literal)) {
        r = literal.is_structured
                ? lend__fail(error, -EOPNOTSUPP, OPERATION, "%s holds records; save each field as an array of its own",
                             file->path)
                : lend__fail(error, -EBADMSG, OPERATION, "%s: the header is not what NumPy writes, from byte %zu on",
                             file->path, (size_t)(cursor.at - header));
    }
    free(header);
    return r < 0 ? r : read_entry(file, &literal, header_offset + bytes, error);
}
