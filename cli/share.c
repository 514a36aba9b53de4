/* SPDX-License-Identifier: MIT */
/* `lend share`: loads files into one pool, or maps them where they are, prints a handle for each tensor or one for all,
 * and stays until it is told to stop.
 *
 * Everything is loaded before the first line is printed, so that a bad file among several lends nothing. The first
 * SIGINT or SIGTERM ends the command with exit code 0; memory that others still hold stays with them. A reader that
 * closes the pipe is noticed by the next line and is an error; after the last line nothing is written any more. */
#include "share.h"
#include "cli.h"
#include "progress.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "share"

const char share_help[] =
    "Usage: lend share FILE... [OPTION...]\n"
    "Load .safetensors and .npy files into shared memory and lend their tensors.\n"
    "\n"
    "Each tensor is one line: name, dtype, shape, bytes, handle. The handle is plain\n"
    "text; any process of this user can rebuild the tensor from it, as often as it\n"
    "likes, while this command runs. It runs until Ctrl-C or SIGTERM, also when\n"
    "nobody reads its output any more. Whoever holds a tensor then keeps it.\n"
    "\n"
    "  -g, --group        one line and one handle for all tensors, which keep their\n"
    "                     names; one that several files have becomes FILE:NAME\n"
    "  -i, --in-place     read nothing and lend the files' own bytes, read-only; who\n"
    "                     cuts a file short ends whoever reads it then (SIGBUS)\n"
    "  -o, --output FILE  write the handle, of a group or of the only tensor, into\n"
    "                     FILE, for 'lend show @FILE'; the line has @FILE instead;\n"
    "                     a FILE that is there and holds no handle is refused\n"
    "  -r, --read-only    others can map the memory for reading only (the kernel\n"
    "                     enforces it)\n"
    "  -j, --json         one JSON object per line: file, name, dtype, shape, bytes,\n"
    "                     handle; with --group: tensors, bytes, handle\n"
    "  -h, --help         this text\n"
    "\n"
    "Example: lend share weights.safetensors > handles.txt &\n";

static volatile sig_atomic_t must_stop;

static void on_signal(int number) {
    (void)number;
    must_stop = 1;
}

static int open_files(struct share *s) {
    for (size_t i = 0; i < s->n_files; i++) {
        if (lend_file_open(s->paths[i], &s->files[i], &s->error) < 0) return fail(NAME, &s->error);
        s->n_entries += lend_file_count(s->files[i]);
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            s->bytes += entry.nbytes;
        }
    }
    if (!s->n_entries && s->n_files == 1)
        return fail_text(NAME, "%s holds no tensors; there is nothing to lend", s->paths[0]);
    if (!s->n_entries) return fail_text(NAME, "the %zu files hold no tensors; there is nothing to lend", s->n_files);
    if (s->output_path && s->n_entries > 1 && !s->is_group)
        return fail_text(NAME, "--output takes one handle, and there are %zu tensors: lend them as one with --group",
                         s->n_entries);
    s->tensors = calloc(s->n_entries, sizeof *s->tensors);
    return s->tensors ? CLI_OK : fail_text(NAME, "no memory for a table of %zu tensors", s->n_entries);
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

static int load_files(struct share *s) {
    struct progress progress = {.has_thread = false};
    const struct lend_file_load_opts copy = {.size = sizeof copy, .progress = on_progress, .user = &progress};
    const struct lend_file_load_opts in_place = {.size = sizeof in_place, .flags = LEND_FILE_IN_PLACE};
    if (!s->is_in_place) progress_begin(&progress, "loading", s->bytes);
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            int r = lend_file_load(s->files[i], k, s->pool, s->is_in_place ? &in_place : &copy,
                                   &s->tensors[s->n_tensors], &s->error);
            if (r == 0) s->n_tensors++;
            if (r < 0 || must_stop) return fail_load(s, &progress, s->paths[i], entry.name, r);
            progress_add(&progress, entry.nbytes);
        }
    }
    progress_end(&progress);
    return CLI_OK;
}

static void release(struct share *s) {
    lend_group_unref(s->group);
    for (size_t i = 0; i < s->n_tensors; i++) lend_tensor_unref(s->tensors[i]);
    for (size_t i = 0; i < s->n_files && s->files; i++) lend_file_close(s->files[i]);
    lend_pool_unref(s->pool);
    /* Tensors that others hold keep the context busy; the end of the process is their exporter's death. */
    if (s->is_open) lend_close(NULL);
    free(s->output_target);
    free(s->is_clash);
    free(s->tensors);
    free(s->files);
}

static int load_and_lend(struct share *s) {
    struct lend_pool_opts opts = {.size = sizeof opts, .flags = s->is_read_only ? LEND_POOL_PEERS_READ_ONLY : 0};
    int r = open_files(s);
    if (r == CLI_OK && s->is_group) r = share_find_clashes(s);
    if (r == CLI_OK) r = share_output_check(s); /* before loading, which may take long */
    if (r != CLI_OK) return r;
    if (lend_open(NULL, &s->error) < 0) return fail(NAME, &s->error);
    s->is_open = true;
    if (!s->is_in_place && lend_pool_new(&opts, &s->pool, &s->error) < 0) return fail(NAME, &s->error);
    r = load_files(s);
    if (r != CLI_OK) return r;
    return s->is_group ? share_lend_group(s) : share_lend_each(s);
}

static int parse(int argc, char **argv, struct share *s) {
    static const struct option options[] = {
        {"group", no_argument, NULL, 'g'},
        {"in-place", no_argument, NULL, 'i'},
        {"output", required_argument, NULL, 'o'},
        {"read-only", no_argument, NULL, 'r'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    for (int c; (c = getopt_long(argc, argv, "gio:rjh", options, NULL)) != -1;) {
        switch (c) {
        case 'g': s->is_group = true; break;
        case 'i': s->is_in_place = true; break;
        case 'o': s->output_path = optarg; break;
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
        fprintf(stderr, "lend share: %zu tensor%s lent%s by process %ld; stop with Ctrl-C or SIGTERM\n", s.n_tensors,
                s.n_tensors == 1 ? "" : "s", s.is_group ? " as a group" : "", (long)getpid());
        sigemptyset(&stops);
        sigaddset(&stops, SIGINT);
        sigaddset(&stops, SIGTERM);
        /* Blocked between the test and the wait, so that no signal falls in between. */
        sigprocmask(SIG_BLOCK, &stops, &before);
        while (!must_stop) sigsuspend(&before);
    }
    if (r != CLI_OK) share_output_drop(&s);
    release(&s);
    return r;
}
