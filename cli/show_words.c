/* SPDX-License-Identifier: MIT */
/* The words in which `lend show` tells what a tensor is: PyTorch's, as far as it has any. */
#include "show.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *name;
    const char *components[4];
} layouts[] = {
    [LEND_LAYOUT_STRIDED] = {"strided", {NULL}},
    [LEND_LAYOUT_COO] = {"coo", {"indices", "values"}},
    [LEND_LAYOUT_CSR] = {"csr", {"crow_indices", "col_indices", "values"}},
    [LEND_LAYOUT_CSC] = {"csc", {"ccol_indices", "row_indices", "values"}},
    [LEND_LAYOUT_BSR] = {"bsr", {"crow_indices", "col_indices", "values"}},
    [LEND_LAYOUT_BSC] = {"bsc", {"ccol_indices", "row_indices", "values"}},
    [LEND_LAYOUT_NESTED] = {"nested", {"values", "sizes", "strides", "offsets"}},
    [LEND_LAYOUT_JAGGED] = {"jagged", {"values", "offsets", "lengths"}},
    [LEND_LAYOUT_QUANTIZED] = {"quantized", {"values"}},
    [LEND_LAYOUT_QUANTIZED_PER_CHANNEL] = {"quantized_per_channel", {"values", "scales", "zero_points"}},
    [LEND_LAYOUT_WRAPPER] = {"wrapper", {NULL}},
};
#define N_LAYOUTS (sizeof layouts / sizeof layouts[0])

/* By bit; only those that travel can be seen here. */
static const char *const attributes[] = {"requires_grad", "non_leaf", "parameter", "buffer",
                                         "conj",          "neg",      "inference"};
#define N_ATTRIBUTES (sizeof attributes / sizeof attributes[0])

_Static_assert(LEND_ATTR_INFERENCE == 1u << (N_ATTRIBUTES - 1), "a name for each attribute");

const char *layout_name(uint32_t layout) {
    return layout < N_LAYOUTS ? layouts[layout].name : "unknown";
}

const char *component_name(uint32_t layout, uint32_t index, char buf[FORMAT_BYTES]) {
    if (layout < N_LAYOUTS && index < 4 && layouts[layout].components[index]) return layouts[layout].components[index];
    snprintf(buf, FORMAT_BYTES, "%" PRIu32, index);
    return buf;
}

const char *format_layout(const struct lend_compound *c, char buf[LAYOUT_BYTES]) {
    const char *name = layout_name(c->layout);
    switch (c->layout) {
    case LEND_LAYOUT_COO: snprintf(buf, LAYOUT_BYTES, "%s, %scoalesced", name, c->is_coalesced ? "" : "not "); break;
    case LEND_LAYOUT_JAGGED: snprintf(buf, LAYOUT_BYTES, "%s, ragged along dimension %" PRId32, name, c->dim); break;
    case LEND_LAYOUT_QUANTIZED:
        snprintf(buf, LAYOUT_BYTES, "%s, scale %.17g, zero point %" PRId64, name, c->scale, c->zero_point);
        break;
    case LEND_LAYOUT_QUANTIZED_PER_CHANNEL:
        snprintf(buf, LAYOUT_BYTES, "%s, along dimension %" PRId32, name, c->dim);
        break;
    default: snprintf(buf, LAYOUT_BYTES, "%s", name);
    }
    return buf;
}

const char *attribute_name(unsigned i) {
    return i < N_ATTRIBUTES ? attributes[i] : NULL;
}

bool is_meta(const struct lend_tensor_info *info) {
    return info->device.device_type == LEND_DEVICE_META;
}

static void append(char buf[MARKS_BYTES], size_t *n, const char *word) {
    if (*n < MARKS_BYTES) *n += (size_t)snprintf(buf + *n, MARKS_BYTES - *n, ", %s", word);
}

static void append_attributes(char buf[MARKS_BYTES], size_t *n, uint32_t attrs) {
    for (unsigned i = 0; i < N_ATTRIBUTES; i++)
        if (attrs >> i & 1) append(buf, n, attributes[i]);
}

const char *format_attributes(uint32_t attrs, char buf[MARKS_BYTES]) {
    size_t n = 0;
    append_attributes(buf, &n, attrs);
    return n ? buf + 2 : "none";
}

const char *format_marks(const struct lend_tensor_info *info, char buf[MARKS_BYTES]) {
    size_t n = 0;
    buf[0] = 0;
    if (info->layout != LEND_LAYOUT_STRIDED) append(buf, &n, layout_name(info->layout));
    append_attributes(buf, &n, info->attrs);
    if (is_meta(info)) append(buf, &n, "meta");
    if (info->is_file) append(buf, &n, "file, not sealed");
    if (info->is_read_only) append(buf, &n, "read-only");
    return buf;
}
