/* SPDX-License-Identifier: MIT */
/* `lend share`: loads files into one pool, prints a handle for each tensor, and stays until it is told to stop.
 *
 * Everything is loaded before the first line is printed, so that a bad file among several lends nothing. The first
 * SIGINT or SIGTERM ends the command with exit code 0; memory that others still hold stays with them. A reader that
 * closes the pipe is noticed by the next line and is an error; after the last line nothing is written any more. */
#include "cli.h"
#include "progress.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <lend/file.h>
#include <lend/lend.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NAME "share"

const char share_help[] =
    "Usage: lend share FILE... [--read-only] [--json]\n"
    "Load .safetensors and .npy files into shared memory and lend their tensors.\n"
    "\n"
    "Each tensor is one line: name, dtype, shape, bytes, handle. The handle is plain\n"
    "text; any process of this user can rebuild the tensor from it, as often as it\n"
    "likes, while this command runs. It runs until Ctrl-C or SIGTERM, also when\n"
    "nobody reads its output any more. Whoever holds a tensor then keeps it.\n"
    "\n"
    "  -r, --read-only  others can map the memory for reading only (the kernel\n"
    "                   enforces it)\n"
    "  -j, --json       one JSON object per line: file, name, dtype, shape, bytes,\n"
    "                   handle\n"
    "  -h, --help       this text\n"
    "\n"
    "Example: lend share weights.safetensors > handles.txt &\n";

static volatile sig_atomic_t must_stop;

/* What runs through the command; every member is released by release(), in whatever state. */
struct share {
    char **paths;
    struct lend_file **files;
    size_t n_files;
    struct lend_tensor **tensors; /* of all files, in order */
    size_t n_tensors;
    struct lend_pool *pool;
    bool is_open, is_json, is_read_only;
    struct lend_error error;
};

static void on_signal(int number) {
    (void)number;
    must_stop = 1;
}

static int open_files(struct share *s, uint64_t *ret_bytes) {
    size_t n_tensors = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        if (lend_file_open(s->paths[i], &s->files[i], &s->error) < 0) return fail(NAME, &s->error);
        n_tensors += lend_file_count(s->files[i]);
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            *ret_bytes += entry.nbytes;
        }
    }
    if (!n_tensors && s->n_files == 1)
        return fail_text(NAME, "%s holds no tensors; there is nothing to lend", s->paths[0]);
    if (!n_tensors) return fail_text(NAME, "the %zu files hold no tensors; there is nothing to lend", s->n_files);
    s->tensors = calloc(n_tensors + 1, sizeof(struct lend_tensor *));
    return s->tensors ? CLI_OK : fail_text(NAME, "no memory for a table of %zu tensors", n_tensors);
}

static int on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    (void)total_bytes;
    progress_set(user, done_bytes);
    return must_stop;
}

/* The bar ends before a sentence is printed, which would otherwise stand in its line. */
static int fail_load(const struct share *s, struct progress *progress, const char *path, const char *tensor, int code) {
    char name[84];
    progress_end(progress);
    if (code == -ECANCELED || must_stop) return fail_text(NAME, "stopped by a signal before anything was lent");
    return fail_text(NAME, "%s, tensor %s: %s", path, format_safe(tensor, name, sizeof name), s->error.text);
}

static int load_files(struct share *s, struct progress *progress) {
    const struct lend_file_load_opts opts = {.size = sizeof opts, .progress = on_progress, .user = progress};
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            int r = lend_file_load(s->files[i], k, s->pool, &opts, &s->tensors[s->n_tensors], &s->error);
            if (r == 0) s->n_tensors++;
            if (r < 0 || must_stop) return fail_load(s, progress, s->paths[i], entry.name, r);
            progress_add(progress, entry.nbytes);
        }
    }
    progress_end(progress);
    return CLI_OK;
}

static int print_line(const struct share *s, const char *path, const struct lend_file_entry *entry,
                      const char *handle) {
    char dtype[32], dims[FORMAT_DIMS_BYTES], name[256];
    lend_dtype_format(entry->dtype, dtype, sizeof dtype);
    if (s->is_json) {
        json_t *line = json_object();
        json_object_set_new(line, "file", json_text(path));
        json_object_set_new(line, "name", json_text(entry->name));
        json_object_set_new(line, "dtype", json_string(dtype));
        json_object_set_new(line, "shape", json_dims(entry->ndim, entry->shape));
        json_object_set_new(line, "bytes", json_size(entry->nbytes));
        json_object_set_new(line, "handle", json_string(handle));
        return json_print(NAME, line);
    }
    printf("%-24s  %-14s %-16s %12" PRIu64 "  %s\n", format_safe(entry->name, name, sizeof name), dtype,
           format_dims(entry->ndim, entry->shape, dims), entry->nbytes, handle);
    return finish_output(NAME);
}

static int lend_all(struct share *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            uint8_t handle[LEND_HANDLE_BYTES_MAX];
            char text[LEND_HANDLE_TEXT_MAX];
            size_t bytes = 0;
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            int r = lend_reduce(s->tensors[n++], NULL, handle, sizeof handle, &bytes, &s->error);
            if (r < 0) return fail(NAME, &s->error);
            r = lend_handle_format(handle, bytes, text, sizeof text);
            if (r < 0) return fail_text(NAME, "%s", lend_strerror(r));
            r = print_line(s, s->paths[i], &entry, text);
            if (r != CLI_OK) return r;
        }
        lend_file_close(s->files[i]);
        s->files[i] = NULL;
    }
    return CLI_OK;
}

static void release(struct share *s) {
    for (size_t i = 0; i < s->n_tensors; i++) lend_tensor_unref(s->tensors[i]);
    for (size_t i = 0; i < s->n_files && s->files; i++) lend_file_close(s->files[i]);
    lend_pool_unref(s->pool);
    /* Tensors that others hold keep the context busy; the end of the process is their exporter's death. */
    if (s->is_open) lend_close(NULL);
    free(s->tensors);
    free(s->files);
}

static int load_and_lend(struct share *s) {
    struct lend_pool_opts opts = {.size = sizeof opts, .flags = s->is_read_only ? LEND_POOL_PEERS_READ_ONLY : 0};
    struct progress progress;
    uint64_t bytes = 0;
    int r = open_files(s, &bytes);
    if (r != CLI_OK) return r;
    if (lend_open(NULL, &s->error) < 0) return fail(NAME, &s->error);
    s->is_open = true;
    if (lend_pool_new(&opts, &s->pool, &s->error) < 0) return fail(NAME, &s->error);
    progress_begin(&progress, "loading", bytes);
    r = load_files(s, &progress);
    return r == CLI_OK ? lend_all(s) : r;
}

static int parse(int argc, char **argv, struct share *s) {
    static const struct option options[] = {
        {"read-only", no_argument, NULL, 'r'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    for (int c; (c = getopt_long(argc, argv, "rjh", options, NULL)) != -1;) {
        switch (c) {
        case 'r': s->is_read_only = true; break;
        case 'j': s->is_json = true; break;
        case 'h': return fputs(share_help, stdout), -1;
        default: return fail_usage(NAME);
        }
    }
    if (optind == argc) {
        fail_text(NAME, "no file was given");
        return fail_usage(NAME);
    }
    s->paths = argv + optind;
    s->n_files = (size_t)(argc - optind);
    return CLI_OK;
}

int share_main(int argc, char **argv) {
    struct share s = {.is_open = false};
    int r = parse(argc, argv, &s);
    if (r < 0) return finish_output(NAME);
    if (r != CLI_OK) return r;
    s.files = calloc(s.n_files + 1, sizeof(struct lend_file *));
    if (!s.files) return fail_text(NAME, "no memory for a table of %zu files", s.n_files);

    sigset_t stops, before;
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* or the command would end without a word while others are told that it lends */
    r = load_and_lend(&s);
    if (r == CLI_OK) {
        fprintf(stderr, "lend share: %zu tensor%s lent by process %ld; stop with Ctrl-C or SIGTERM\n", s.n_tensors,
                s.n_tensors == 1 ? "" : "s", (long)getpid());
        sigemptyset(&stops);
        sigaddset(&stops, SIGINT);
        sigaddset(&stops, SIGTERM);
        /* Blocked between the test and the wait, so that no signal falls in between. */
        sigprocmask(SIG_BLOCK, &stops, &before);
        while (!must_stop) sigsuspend(&before);
    }
    release(&s);
    return r;
}
