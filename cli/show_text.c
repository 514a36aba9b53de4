/* SPDX-License-Identifier: MIT */
/* How `lend show` prints for people: a tensor as rows, with its components as a tree below, or a group as a table. The
 * elements are read before the first row is printed, so an error leaves no half of an answer. */
#include "show.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME "show"

/* "shape       [3, 4]" */
static __attribute__((format(printf, 2, 3))) void print_row(const char *label, const char *format, ...) {
    struct style style = style_get();
    va_list args;
    printf("%s%-10s%s  ", style.dim, label, style.off);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

/* The shortest text that reads back as the same number of the dtype. */
static const char *format_number(double v, DLDataType dtype, char buf[FORMAT_BYTES]) {
    bool is_single = dtype.bits <= 32 && dtype.code != LEND_COMPLEX;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, FORMAT_BYTES, "%.*g", digits, v);
        double back = strtod(buf, NULL);
        if (is_single ? (float)back == (float)v : back == v) break;
    }
    return buf;
}

static const char *format_extreme(const struct stats *s, DLDataType dtype, bool is_max, char buf[FORMAT_BYTES]) {
    int64_t exact = is_max ? s->int_max : s->int_min;
    if (!s->is_integer) return format_number(is_max ? s->max : s->min, dtype, buf);
    if (dtype.code == LEND_UINT)
        snprintf(buf, FORMAT_BYTES, "%" PRIu64, (uint64_t)exact);
    else
        snprintf(buf, FORMAT_BYTES, "%" PRId64, exact);
    return buf;
}

static void print_stats(const struct stats *s, DLDataType dtype) {
    char a[FORMAT_BYTES];
    if (s->has_values) {
        const char *of = s->is_magnitude ? " (magnitude)" : "";
        print_row("min", "%s%s", format_extreme(s, dtype, false, a), of);
        print_row("max", "%s%s", format_extreme(s, dtype, true, a), of);
        if (isnan(s->mean)) /* of both infinities; printf would show its sign */
            print_row("mean", "nan%s", of);
        else
            print_row("mean", "%.9g%s", s->mean, of);
    }
    if (!s->is_integer) print_row("nan", "%" PRIu64, s->n_nan);
    print_row("sha256", "%s", s->sha256);
}

/* dtype, shape and strides, elements, attributes. */
static void print_head(const struct lend_tensor *tensor, const struct lend_tensor_info *t) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    char dtype[32], dims[FORMAT_DIMS_BYTES], bytes[FORMAT_BYTES], marks[MARKS_BYTES];
    lend_dtype_format(t->dtype, dtype, sizeof dtype);
    print_row("dtype", "%s", dtype);
    print_row("shape", "%s", format_shape(t->ndim, t->shape, dims));
    if (t->strides) print_row("strides", "%s", format_dims(t->ndim, t->strides, dims));
    print_row("elements", "%" PRId64 " (%s)", t->numel, format_bytes(t->nbytes, bytes));
    if (t->attrs) print_row("attributes", "%s", format_attributes(t->attrs, marks));
    if (lend_tensor_attrs(tensor, &attrs) == 0 && attrs.user)
        print_row("user", "%zu bytes, tag %" PRIu32, attrs.user_bytes, attrs.user_tag);
}

/* A line for each component, and below it those of its own. */
static void print_components(const struct lend_tensor *tensor, int indent) {
    struct lend_compound compound = {.size = sizeof compound};
    if (lend_tensor_components(tensor, &compound) < 0) return; /* a strided one */
    for (uint32_t i = 0; i < compound.n_components; i++) {
        struct lend_tensor_info t = {.size = sizeof t};
        char number[FORMAT_BYTES], dtype[32], dims[FORMAT_DIMS_BYTES], marks[MARKS_BYTES];
        if (lend_tensor_info(compound.components[i], &t) < 0) continue;
        lend_dtype_format(t.dtype, dtype, sizeof dtype);
        printf("%*s%-12s  %s %s, %" PRIu64 " bytes", indent, "", component_name(compound.layout, i, number), dtype,
               format_shape(t.ndim, t.shape, dims), t.nbytes);
        if (t.allocation_inode)
            printf(", inode %" PRIu64 ", storage at %" PRIu64, t.allocation_inode, t.allocation_offset);
        printf("%s\n", format_marks(&t, marks));
        print_components(compound.components[i], indent + 2);
    }
}

static void print_exporter(const struct lend_handle_info *handle) {
    if (handle->n_exporters > 1)
        print_row("exporters", "%" PRIu32 ", the first is pid %" PRIu32, handle->n_exporters, handle->exporter_pid);
    else if (handle->n_exporters)
        print_row("exporter", "pid %" PRIu32, handle->exporter_pid);
}

static const char *pin_text(const struct lend_handle_info *handle) {
    return handle->pin_token ? "the handle was pinned, its pin is now used up" : "not pinned";
}

static int show_strided(const struct shown *shown, const struct lend_tensor_info *t) {
    struct lend_error error = {0};
    struct stats stats = {.has_values = false};
    if (!is_meta(t) && stats_compute(shown->tensor, &stats, &error) < 0) return fail(NAME, &error);
    print_head(shown->tensor, t);
    if (!is_meta(t)) print_stats(&stats, t->dtype);
    print_exporter(&shown->handle);
    if (is_meta(t))
        print_row("memory", "none: a meta tensor has a shape and no values, %s", pin_text(&shown->handle));
    else
        print_row("memory", "inode %" PRIu64 ", storage at %" PRIu64 " of %" PRIu64 " bytes, %s%s, %s",
                  t->allocation_inode, t->allocation_offset, t->allocation_bytes,
                  t->is_file ? "file, not sealed, " : "", t->is_read_only ? "read-only" : "writable",
                  pin_text(&shown->handle));
    return finish_output(NAME);
}

static int show_compound(const struct shown *shown, const struct lend_tensor_info *t) {
    struct lend_compound compound = {.size = sizeof compound};
    char layout[LAYOUT_BYTES];
    lend_tensor_components(shown->tensor, &compound);
    print_row("layout", "%s", format_layout(&compound, layout));
    print_head(shown->tensor, t);
    print_row("components", "%" PRIu32, compound.n_components);
    print_components(shown->tensor, 2);
    print_exporter(&shown->handle);
    print_row("pin", "%s", pin_text(&shown->handle));
    return finish_output(NAME);
}

static int show_group(const struct shown *shown) {
    size_t n = lend_group_count(shown->group);
    print_row("group", "%zu tensor%s, %" PRIu32 " storage%s", n, n == 1 ? "" : "s", shown->handle.n_storages,
              shown->handle.n_storages == 1 ? "" : "s");
    print_exporter(&shown->handle);
    print_row("pin", "%s", pin_text(&shown->handle));
    putchar('\n');
    for (size_t i = 0; i < n; i++) {
        struct lend_tensor_info t = {.size = sizeof t};
        char dtype[32], dims[FORMAT_DIMS_BYTES], marks[MARKS_BYTES], safe[256];
        const char *name = NULL;
        if (lend_tensor_info(lend_group_get(shown->group, i, &name), &t) < 0) continue;
        lend_dtype_format(t.dtype, dtype, sizeof dtype);
        format_marks(&t, marks);
        printf("%-24s  %-14s %-16s %12" PRIu64 "%s%s\n", format_safe(name, safe, sizeof safe), dtype,
               format_shape(t.ndim, t.shape, dims), t.nbytes, *marks ? "  " : "", *marks ? marks + 2 : "");
    }
    return finish_output(NAME);
}

int show_text(const struct shown *shown) {
    struct lend_tensor_info t = {.size = sizeof t};
    if (!shown->tensor) return show_group(shown);
    int r = lend_tensor_info(shown->tensor, &t);
    if (r < 0) return fail_text(NAME, "%s", lend_strerror(r));
    return t.layout == LEND_LAYOUT_STRIDED ? show_strided(shown, &t) : show_compound(shown, &t);
}
