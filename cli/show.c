/* SPDX-License-Identifier: MIT */
/* `lend show`: rebuilds what a handle stands for in this process and tells what is in it and where it lies.
 *
 * Memory that is a file's is taken, too. Its size was looked at by the rebuild; if the file is cut afterwards, the
 * access that finds nothing is SIGBUS, and the command ends with a sentence instead of a signal. */
#include "show.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "show"
/* Of the longest handle, with white space around it. */
#define TEXT_BYTES_MAX ((size_t)LEND_HANDLE_TEXT_BYTES(LEND_GROUP_BYTES_MAX) + 4096)

const char show_help[] =
    "Usage: lend show HANDLE|@FILE|- [OPTION...]\n"
    "Rebuild a tensor or a group in this process and tell what is in it. The handle\n"
    "is an argument (at most 128 KiB: a limit of the kernel), or is read from FILE,\n"
    "or with '-' from standard input.\n"
    "\n"
    "Of a tensor: dtype, shape, strides (in elements), attributes, min, max and mean\n"
    "(of complex numbers: of their magnitude; NaNs are counted and left out), a\n"
    "SHA-256 of the elements in C order (sub-byte elements packed), its exporter, and\n"
    "where the memory is. Of a sparse, nested, quantized or wrapped one: a tree of\n"
    "its components. Of a group: a table. Showing a pinned handle uses the pin up.\n"
    "\n"
    "  -n, --name NAME        of a group only this tensor, as if it were alone\n"
    "  -c, --check            check the indices of sparse and nested tensors\n"
    "  -t, --timeout SECONDS  how long to wait for an exporter that does not answer\n"
    "                         (5)\n"
    "  -j, --json             one JSON object, with the figures of each tensor of a\n"
    "                         group and of each component\n"
    "  -h, --help             this text\n"
    "\n"
    "Example: awk 'NR == 1 {print $NF}' handles.txt | lend show -\n"
    "after    lend share a.npy > handles.txt &\n";

struct request {
    const char *source; /* the argument: a handle, "@FILE" or "-" */
    const char *name;   /* NULL: all */
    double timeout;
    bool is_json, must_check;
    uint8_t *handle; /* owned */
    size_t bytes;
};

/* Only what a signal handler may do. */
static void on_sigbus(int number) {
    static const char sentence[] = "lend show: a file was cut short while its tensors were read\n";
    (void)number;
    if (write(STDERR_FILENO, sentence, sizeof sentence - 1) < 0) _exit(CLI_FAILED); /* nobody is there to be told */
    _exit(CLI_FAILED);
}

/* Why there was no tensor, with what only the handle knows: whose it is, and that it had a pin. */
static int fail_rebuild(const struct lend_handle_info *handle, double timeout, const struct lend_error *error) {
    const char *pin = "";
    if (error->code == -ETIMEDOUT)
        return fail_text(NAME,
                         "the exporter, pid %" PRIu32
                         ", did not answer within %g s (is it stopped?); try again or raise --timeout",
                         handle->exporter_pid, timeout);
    if (error->code == -ENOENT) return fail(NAME, error);
    if (error->code == -ESTALE && handle->pin_token) pin = "; the handle's pin may have been used already";
    return fail_text(NAME, "%s%s (exporter: pid %" PRIu32 ")", *error->text ? error->text : lend_strerror(error->code),
                     pin, handle->exporter_pid);
}

static int rebuild(const struct request *request, struct shown *shown, struct lend_error *error) {
    const struct lend_rebuild_opts opts = {.size = sizeof opts,
                                           .flags = LEND_REBUILD_FILE_IN_PLACE |
                                                    (request->must_check ? LEND_REBUILD_CHECK : 0u),
                                           .deadline_ns = (int64_t)(request->timeout * 1e9)};
    if (shown->handle.kind != LEND_HANDLE_GROUP)
        return lend_rebuild(request->handle, request->bytes, &opts, &shown->tensor, error);
    int r = lend_group_rebuild(request->handle, request->bytes, request->name ? &request->name : NULL,
                               request->name ? 1 : 0, &opts, &shown->group, error);
    if (r == 0 && request->name) shown->tensor = lend_tensor_ref(lend_group_get(shown->group, 0, NULL));
    return r;
}

static int rebuild_and_print(const struct request *request) {
    struct shown shown = {.handle = {.size = sizeof shown.handle}, .name = request->name};
    struct lend_error error = {0};
    if (lend_handle_describe(request->handle, request->bytes, &shown.handle, &error) < 0) return fail(NAME, &error);
    if (request->name && shown.handle.kind != LEND_HANDLE_GROUP)
        return fail_text(NAME, "--name picks a tensor of a group, and this handle is of one tensor");
    if (lend_open(NULL, &error) < 0) return fail(NAME, &error);

    int code = CLI_FAILED;
    signal(SIGBUS, on_sigbus);
    if (rebuild(request, &shown, &error) < 0)
        fail_rebuild(&shown.handle, request->timeout, &error);
    else
        code = request->is_json ? show_json(&shown) : show_text(&shown);
    lend_tensor_unref(shown.tensor);
    lend_group_unref(shown.group);
    lend_close(NULL);
    return code;
}

/* Makes room for more of a stream, of which `n` bytes are there. NULL: it has been told why not, and text is freed. */
static char *grow(char *text, size_t n, size_t room, const char *from) {
    char *longer = n < TEXT_BYTES_MAX ? realloc(text, room) : NULL;
    if (longer) return longer;
    if (n < TEXT_BYTES_MAX)
        fail_text(NAME, "no memory for the handle in %s, of more than %zu bytes", from, n);
    else
        fail_text(NAME, "%s is longer than any handle", from);
    free(text);
    return NULL;
}

/* All of a stream, with a NUL behind it, to be freed. NULL: it has been told why not. */
static char *read_stream(FILE *stream, const char *from) {
    size_t n = 0, room = 16384;
    char *text = grow(NULL, n, room, from);
    while (text) {
        n += fread(text + n, 1, room - n - 1, stream);
        if (n < room - 1) break; /* the end, or an error */
        room *= 2;
        text = grow(text, n, room, from);
    }
    if (!text) return NULL;
    if (ferror(stream)) {
        fail_text(NAME, "reading the handle from %s failed: %s", from, strerror(errno));
        free(text);
        return NULL;
    }
    text[n] = 0;
    if (strlen(text) < n) text[0] = 0; /* a NUL is in no handle, and would hide what follows */
    return text;
}

static char *read_source(const char *source) {
    if (!strcmp(source, "-")) return read_stream(stdin, "standard input");
    if (*source != '@') {
        char *text = strdup(source);
        if (!text) fail_text(NAME, "no memory for the handle");
        return text;
    }
    if (!source[1]) {
        fail_text(NAME, "'@' without a name: give @FILE, the file that holds the handle");
        return NULL;
    }
    FILE *file = fopen(source + 1, "re");
    if (!file) {
        fail_text(NAME, "cannot read %s: %s", source + 1, strerror(errno));
        return NULL;
    }
    char *text = read_stream(file, source + 1);
    fclose(file);
    return text;
}

static int parse_handle(struct request *request) {
    char *text = read_source(request->source);
    if (!text) return CLI_FAILED;
    size_t room = strlen(text) / 4 * 3 + 4;
    request->handle = malloc(room);
    int r = request->handle ? lend_handle_parse(text, request->handle, room, &request->bytes) : -ENOMEM;
    free(text);
    if (r == -EPROTONOSUPPORT) return fail_text(NAME, "the handle was made by another version of lend");
    if (r == -ENOMEM) return fail_text(NAME, "no memory for a handle of %zu bytes", room);
    if (r < 0) return fail_text(NAME, "this is not a whole handle: it begins with 'lend1:' and every character counts");
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

/* Negative: help was asked for. */
static int parse(int argc, char **argv, struct request *request) {
    static const struct option options[] = {
        {"name", required_argument, NULL, 'n'},    {"check", no_argument, NULL, 'c'},
        {"timeout", required_argument, NULL, 't'}, {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {0},
    };
    for (int c; (c = getopt_long(argc, argv, "n:ct:jh", options, NULL)) != -1;) {
        switch (c) {
        case 'n': request->name = optarg; break;
        case 'c': request->must_check = true; break;
        case 't':
            if (parse_timeout(optarg, &request->timeout)) break;
            fail_text(NAME, "'%s' is no number of seconds above 0", optarg);
            return fail_usage(NAME);
        case 'j': request->is_json = true; break;
        case 'h': return fputs(show_help, stdout), -1;
        default: return fail_usage(NAME);
        }
    }
    if (argc - optind != 1) {
        fail_text(NAME, argc == optind ? "no handle was given" : "one handle at a time");
        return fail_usage(NAME);
    }
    request->source = argv[optind];
    return CLI_OK;
}

int show_main(int argc, char **argv) {
    struct request request = {.source = "", .timeout = 5};
    int r = parse(argc, argv, &request);
    if (r < 0) return finish_output(NAME);
    if (r == CLI_OK) r = parse_handle(&request);
    if (r == CLI_OK) r = rebuild_and_print(&request);
    free(request.handle);
    return r;
}
