/* SPDX-License-Identifier: MIT */
/* `lend show`: rebuilds a tensor from its handle in this process and tells what is in it and where it lies. */
#include "cli.h"
#include "stats.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <lend/lend.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "show"

const char show_help[] =
    "Usage: lend show HANDLE [--timeout SECONDS] [--json]\n"
    "Rebuild a tensor in this process and tell what is in it; '-' reads the handle\n"
    "from standard input.\n"
    "\n"
    "Printed are dtype, shape, strides (in elements), min, max and mean (of complex\n"
    "numbers: of their magnitude; NaNs are counted and left out), a SHA-256 of the\n"
    "elements in C order (sub-byte elements packed), and where the memory is: its\n"
    "exporter, the inode of the shared memory, the offset of the storage in it,\n"
    "whether it can be written, and whether the handle holds a pin. Showing a pinned\n"
    "handle uses the pin up.\n"
    "\n"
    "  -t, --timeout SECONDS  how long to wait for an exporter that does not answer\n"
    "                         (5)\n"
    "  -j, --json             one JSON object\n"
    "  -h, --help             this text\n"
    "\n"
    "Example: awk 'NR == 1 {print $NF}' handles.txt | lend show -\n"
    "after    lend share a.npy > handles.txt &\n";

struct shown {
    struct lend_handle_info handle;
    struct lend_tensor_info tensor;
    struct stats stats;
};

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

static const char *format_extreme(const struct shown *s, bool is_max, char buf[FORMAT_BYTES]) {
    int64_t exact = is_max ? s->stats.int_max : s->stats.int_min;
    if (!s->stats.is_integer) return format_number(is_max ? s->stats.max : s->stats.min, s->tensor.dtype, buf);
    if (s->tensor.dtype.code == LEND_UINT)
        snprintf(buf, FORMAT_BYTES, "%" PRIu64, (uint64_t)exact);
    else
        snprintf(buf, FORMAT_BYTES, "%" PRId64, exact);
    return buf;
}

static int print_text(const struct shown *s) {
    const struct lend_tensor_info *t = &s->tensor;
    struct style style = style_get();
    char dtype[32], dims[FORMAT_DIMS_BYTES], a[FORMAT_BYTES];
    lend_dtype_format(t->dtype, dtype, sizeof dtype);
    printf("%sdtype%s     %s\n", style.dim, style.off, dtype);
    printf("%sshape%s     %s\n", style.dim, style.off, format_dims(t->ndim, t->shape, dims));
    printf("%sstrides%s   %s\n", style.dim, style.off, format_dims(t->ndim, t->strides, dims));
    printf("%selements%s  %" PRId64 " (%s)\n", style.dim, style.off, t->numel, format_bytes(t->nbytes, a));
    if (s->stats.has_values) {
        const char *of = s->stats.is_magnitude ? " (magnitude)" : "";
        printf("%smin%s       %s%s\n", style.dim, style.off, format_extreme(s, false, a), of);
        printf("%smax%s       %s%s\n", style.dim, style.off, format_extreme(s, true, a), of);
        if (isnan(s->stats.mean)) /* of both infinities; printf would show its sign */
            printf("%smean%s      nan%s\n", style.dim, style.off, of);
        else
            printf("%smean%s      %.9g%s\n", style.dim, style.off, s->stats.mean, of);
    }
    if (!s->stats.is_integer) printf("%snan%s       %" PRIu64 "\n", style.dim, style.off, s->stats.n_nan);
    printf("%ssha256%s    %s\n", style.dim, style.off, s->stats.sha256);
    printf("%sexporter%s  pid %" PRIu32 "\n", style.dim, style.off, s->handle.exporter_pid);
    printf("%smemory%s    inode %" PRIu64 ", storage at %" PRIu64 " of %" PRIu64 " bytes, %s, %s\n", style.dim,
           style.off, t->allocation_inode, t->allocation_offset, t->allocation_bytes,
           t->is_read_only ? "read-only" : "writable",
           s->handle.pin_token ? "the handle was pinned, its pin is now used up" : "not pinned");
    return finish_output(NAME);
}

/* JSON has neither infinities nor NaNs (the mean of both infinities): they become texts. */
static json_t *json_number(double v) {
    if (isfinite(v)) return json_real(v);
    return json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

static json_t *json_extreme(const struct shown *s, bool is_max) {
    int64_t exact = is_max ? s->stats.int_max : s->stats.int_min;
    double v = is_max ? s->stats.max : s->stats.min;
    if (!s->stats.has_values) return json_null();
    /* Above 2^63 - 1 jansson has no integers. */
    if (s->stats.is_integer && (s->tensor.dtype.code != LEND_UINT || exact >= 0)) return json_integer(exact);
    return json_number(v);
}

static int print_json(const struct shown *s) {
    const struct lend_tensor_info *t = &s->tensor;
    char dtype[32];
    json_t *root = json_object();
    lend_dtype_format(t->dtype, dtype, sizeof dtype);
    json_object_set_new(root, "dtype", json_string(dtype));
    json_object_set_new(root, "shape", json_dims(t->ndim, t->shape));
    json_object_set_new(root, "strides", json_dims(t->ndim, t->strides));
    json_object_set_new(root, "elements", json_integer(t->numel));
    json_object_set_new(root, "bytes", json_size(t->nbytes));
    json_object_set_new(root, "min", json_extreme(s, false));
    json_object_set_new(root, "max", json_extreme(s, true));
    json_object_set_new(root, "mean", s->stats.has_values ? json_number(s->stats.mean) : json_null());
    json_object_set_new(root, "is_magnitude", json_boolean(s->stats.is_magnitude));
    json_object_set_new(root, "nan", json_size(s->stats.n_nan));
    json_object_set_new(root, "sha256", json_string(s->stats.sha256));
    json_object_set_new(root, "exporter_pid", json_size(s->handle.exporter_pid));
    json_object_set_new(root, "inode", json_size(t->allocation_inode));
    json_object_set_new(root, "allocation_offset", json_size(t->allocation_offset));
    json_object_set_new(root, "allocation_bytes", json_size(t->allocation_bytes));
    json_object_set_new(root, "storage_bytes", json_size(t->storage_bytes));
    json_object_set_new(root, "is_read_only", json_boolean(t->is_read_only));
    json_object_set_new(root, "is_pinned", json_boolean(s->handle.pin_token != 0));
    return json_print(NAME, root);
}

/* Why there was no tensor, with what only the handle knows: whose it is, and that it had a pin. */
static int fail_rebuild(const struct lend_handle_info *handle, double timeout, const struct lend_error *error) {
    const char *pin = "";
    if (error->code == -ETIMEDOUT)
        return fail_text(NAME,
                         "the exporter, pid %" PRIu32
                         ", did not answer within %g s (is it stopped?); try again or raise --timeout",
                         handle->exporter_pid, timeout);
    if (error->code == -ESTALE && handle->pin_token) pin = "; the handle's pin may have been used already";
    return fail_text(NAME, "%s%s (exporter: pid %" PRIu32 ")", *error->text ? error->text : lend_strerror(error->code),
                     pin, handle->exporter_pid);
}

static int rebuild_and_print(const char *text, double timeout, bool is_json) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t bytes = 0;
    struct shown s = {.handle = {.size = sizeof s.handle}, .tensor = {.size = sizeof s.tensor}};
    const struct lend_rebuild_opts opts = {.size = sizeof opts, .deadline_ns = (int64_t)(timeout * 1e9)};
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    int r = lend_handle_parse(text, handle, sizeof handle, &bytes);
    if (r == -EPROTONOSUPPORT) return fail_text(NAME, "the handle was made by another version of lend");
    if (r < 0) return fail_text(NAME, "this is not a whole handle: it begins with 'lend1:' and every character counts");
    if (lend_handle_describe(handle, bytes, &s.handle, &error) < 0) return fail(NAME, &error);
    if (lend_open(NULL, &error) < 0) return fail(NAME, &error);

    int code = CLI_FAILED;
    if (lend_rebuild(handle, bytes, &opts, &tensor, &error) < 0) {
        fail_rebuild(&s.handle, timeout, &error);
    } else if (stats_compute(tensor, &s.stats, &error) < 0) {
        fail(NAME, &error);
    } else {
        lend_tensor_info(tensor, &s.tensor);
        code = is_json ? print_json(&s) : print_text(&s);
    }
    lend_tensor_unref(tensor);
    lend_close(NULL);
    return code;
}

/* Standard input up to its end; more than a handle can have is cut and then no handle. */
static int read_stdin(char *buf, size_t buf_bytes) {
    size_t n = fread(buf, 1, buf_bytes - 1, stdin);
    buf[n] = 0;
    if (ferror(stdin)) return fail_text(NAME, "reading the handle from standard input failed: %s", strerror(errno));
    return CLI_OK;
}

/* More than 0 and at most a year; a nanosecond at least, because 0 would mean the context's default. */
static bool parse_timeout(const char *text, double *ret_seconds) {
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 1e-9 && seconds <= 31536000)) return false;
    *ret_seconds = seconds;
    return true;
}

int show_main(int argc, char **argv) {
    static const struct option options[] = {
        {"timeout", required_argument, NULL, 't'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    char buf[LEND_HANDLE_TEXT_MAX + 64];
    bool is_json = false;
    double timeout = 5;
    for (int c; (c = getopt_long(argc, argv, "t:jh", options, NULL)) != -1;) {
        switch (c) {
        case 't':
            if (parse_timeout(optarg, &timeout)) break;
            fail_text(NAME, "'%s' is no number of seconds above 0", optarg);
            return fail_usage(NAME);
        case 'j': is_json = true; break;
        case 'h': return fputs(show_help, stdout), finish_output(NAME);
        default: return fail_usage(NAME);
        }
    }
    if (argc - optind != 1) {
        fail_text(NAME, argc == optind ? "no handle was given" : "one handle at a time");
        return fail_usage(NAME);
    }
    const char *text = argv[optind];
    if (!strcmp(text, "-")) {
        int r = read_stdin(buf, sizeof buf);
        if (r != CLI_OK) return r;
        text = buf;
    }
    return rebuild_and_print(text, timeout, is_json);
}
