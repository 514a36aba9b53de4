/* SPDX-License-Identifier: MIT */
/* How `lend share` hands out what it has loaded: a line and a handle for each tensor, or one for all of them.
 *
 * In a group tensors keep the names of their files. Where files share a name, and only there, all tensors of that name
 * are called FILE:NAME, with FILE as it was given, so that a name does not depend on the order of the files. */
#include "cli.h"
#include "share.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NAME "share"

struct named {
    const char *name; /* of a tensor */
    size_t at;        /* in the order of the files */
};

static int by_name(const void *left, const void *right) {
    const struct named *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static void list_names(const struct share *s, struct named *list) {
    size_t at = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            list[at] = (struct named){.name = entry.name, .at = at};
            at++;
        }
    }
}

/* A file is what it is, not what it is called. */
struct identity {
    dev_t device;
    ino_t inode;
    size_t at; /* in the order of the files */
};

static int by_identity(const void *left, const void *right) {
    const struct identity *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if (a->inode != b->inode) return a->inode < b->inode ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

/* The files are open: what their names stand for is looked at afterwards. */
static int refuse_twice(const struct share *s) {
    struct identity *list = calloc(s->n_files, sizeof *list);
    if (!list) return fail_text(NAME, "no memory for the identities of %zu files", s->n_files);
    int r = CLI_OK;
    for (size_t i = 0; i < s->n_files && r == CLI_OK; i++) {
        struct stat st;
        if (stat(s->paths[i], &st) < 0) r = fail_text(NAME, "cannot look at %s: %s", s->paths[i], strerror(errno));
        if (r == CLI_OK) list[i] = (struct identity){.device = st.st_dev, .inode = st.st_ino, .at = i};
    }
    if (r == CLI_OK) qsort(list, s->n_files, sizeof *list, by_identity);
    for (size_t i = 1; i < s->n_files && r == CLI_OK; i++) {
        const struct identity *a = &list[i - 1], *b = &list[i];
        if (a->device != b->device || a->inode != b->inode) continue;
        const char *first = s->paths[a->at], *second = s->paths[b->at];
        r = strcmp(first, second) ? fail_text(NAME, "%s and %s are one file; a group takes each once", first, second)
                                  : fail_text(NAME, "%s is given twice; a group takes each file once", first);
    }
    free(list);
    return r;
}

int share_find_clashes(struct share *s) {
    int r = refuse_twice(s);
    if (r != CLI_OK) return r;
    struct named *list = calloc(s->n_entries, sizeof *list);
    s->is_clash = calloc(s->n_entries, sizeof *s->is_clash);
    if (!list || !s->is_clash) {
        free(list);
        return fail_text(NAME, "no memory for the names of %zu tensors", s->n_entries);
    }
    list_names(s, list);
    qsort(list, s->n_entries, sizeof *list, by_name);
    for (size_t i = 1; i < s->n_entries; i++) {
        if (!strcmp(list[i - 1].name, list[i].name)) s->is_clash[list[i - 1].at] = s->is_clash[list[i].at] = true;
    }
    free(list);
    return CLI_OK;
}

/* What a line says of a handle, to be freed: its text, or with --output where that has been written. NULL: it has been
 * told why not. */
static char *hand_out(struct share *s, const void *handle, size_t bytes) {
    size_t text_bytes = LEND_HANDLE_TEXT_BYTES(bytes);
    char *text = malloc(text_bytes), *place = NULL;
    int r = text ? lend_handle_format(handle, bytes, text, text_bytes) : -ENOMEM;
    if (r < 0) {
        fail_text(NAME, "the text of a handle of %zu bytes: %s", bytes, lend_strerror(r));
        free(text);
        return NULL;
    }
    if (!s->output_path) return text;
    r = share_output_write(s, text);
    free(text);
    if (r != CLI_OK) return NULL;
    if (asprintf(&place, "@%s", s->output_path) >= 0) return place;
    fail_text(NAME, "no memory for the name of %s", s->output_path);
    return NULL;
}

static json_t *json_entry(const char *path, const char *name, const struct lend_file_entry *entry) {
    char dtype[32];
    json_t *o = json_object();
    lend_dtype_format(entry->dtype, dtype, sizeof dtype);
    json_object_set_new(o, "file", json_text(path));
    json_object_set_new(o, "name", json_text(name));
    json_object_set_new(o, "dtype", json_string(dtype));
    json_object_set_new(o, "shape", json_dims(entry->ndim, entry->shape));
    json_object_set_new(o, "bytes", json_size(entry->nbytes));
    return o;
}

static void json_set_handle(const struct share *s, json_t *o, const char *text) {
    if (s->output_path)
        json_object_set_new(o, "output", json_text(s->output_path));
    else
        json_object_set_new(o, "handle", json_string(text));
}

static int print_line(const struct share *s, const char *path, const struct lend_file_entry *entry, const char *text) {
    char dtype[32], dims[FORMAT_DIMS_BYTES], name[256];
    if (s->is_json) {
        json_t *line = json_entry(path, entry->name, entry);
        json_set_handle(s, line, text);
        return json_print(NAME, line);
    }
    lend_dtype_format(entry->dtype, dtype, sizeof dtype);
    printf("%-24s  %-14s %-16s %12" PRIu64 "  %s\n", format_safe(entry->name, name, sizeof name), dtype,
           format_dims(entry->ndim, entry->shape, dims), entry->nbytes, text);
    return finish_output(NAME);
}

static int lend_one(struct share *s, const char *path, const struct lend_file_entry *entry,
                    struct lend_tensor *tensor) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t bytes = 0;
    if (lend_reduce(tensor, NULL, handle, sizeof handle, &bytes, &s->error) < 0) return fail(NAME, &s->error);
    char *text = hand_out(s, handle, bytes);
    if (!text) return CLI_FAILED;
    int r = print_line(s, path, entry, text);
    free(text);
    return r;
}

int share_lend_each(struct share *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            int r = lend_one(s, s->paths[i], &entry, s->tensors[n++]);
            if (r != CLI_OK) return r;
        }
        lend_file_close(s->files[i]);
        s->files[i] = NULL;
    }
    return CLI_OK;
}

/* Adds tensor `at`, under its name or, where that clashes, FILE:NAME. */
static int add_tensor(struct share *s, size_t at, const char *path, const char *name) {
    char *longer = NULL, safe[84];
    if (s->is_clash[at] && asprintf(&longer, "%s:%s", path, name) < 0)
        return fail_text(NAME, "no memory for the name of a tensor");
    int r = lend_group_add(s->group, longer ? longer : name, s->tensors[at], &s->error);
    free(longer);
    if (r == 0) return CLI_OK;
    return fail_text(NAME, "%s, tensor %s: %s", path, format_safe(name, safe, sizeof safe), s->error.text);
}

/* All tensors into the group, and, where it is wanted, the list of them for JSON. */
static int fill_group(struct share *s, json_t *list) {
    size_t at = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            const char *name = NULL;
            lend_file_entry_get(s->files[i], k, &entry);
            int r = add_tensor(s, at, s->paths[i], entry.name);
            if (r != CLI_OK) return r;
            lend_group_get(s->group, at++, &name);
            if (list) json_array_append_new(list, json_entry(s->paths[i], name, &entry));
        }
        lend_file_close(s->files[i]);
        s->files[i] = NULL;
    }
    return CLI_OK;
}

/* `list` is consumed; it is for JSON only. */
static int print_group(const struct share *s, json_t *list, const char *text) {
    char count[FORMAT_BYTES];
    if (s->is_json) {
        json_t *line = json_object();
        json_object_set_new(line, "tensors", list);
        json_object_set_new(line, "bytes", json_size(s->bytes));
        json_set_handle(s, line, text);
        return json_print(NAME, line);
    }
    snprintf(count, sizeof count, "%zu tensor%s", s->n_tensors, s->n_tensors == 1 ? "" : "s");
    printf("%-24s  %-14s %-16s %12" PRIu64 "  %s\n", "group", count, "", s->bytes, text);
    return finish_output(NAME);
}

int share_lend_group(struct share *s) {
    void *handle = NULL;
    char *text = NULL;
    size_t bytes = 0;
    if (lend_group_new(&s->group, &s->error) < 0) return fail(NAME, &s->error);
    json_t *list = s->is_json ? json_array() : NULL;
    int r = fill_group(s, list);
    if (r == CLI_OK && lend_group_reduce(s->group, NULL, &handle, &bytes, &s->error) < 0) r = fail(NAME, &s->error);
    if (r == CLI_OK && !(text = hand_out(s, handle, bytes))) r = CLI_FAILED;
    lend_free(handle);
    if (r == CLI_OK)
        r = print_group(s, list, text);
    else
        json_decref(list);
    free(text);
    return r;
}
