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

#define NAME "share"

/* A tensor's name and where it is from. */
struct named {
    const char *name, *path;
    size_t at; /* in the order of the files */
};

static int by_name(const void *left, const void *right) {
    const struct named *a = left, *b = right;
    int order = strcmp(a->name, b->name);
    return order ? order : strcmp(a->path, b->path);
}

static void list_names(const struct share *s, struct named *list) {
    size_t at = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        for (size_t k = 0; k < lend_file_count(s->files[i]); k++) {
            struct lend_file_entry entry = {.size = sizeof entry};
            lend_file_entry_get(s->files[i], k, &entry);
            list[at] = (struct named){.name = entry.name, .path = s->paths[i], .at = at};
            at++;
        }
    }
}

int share_find_clashes(struct share *s) {
    struct named *list = calloc(s->n_entries, sizeof *list);
    s->is_clash = calloc(s->n_entries, sizeof *s->is_clash);
    if (!list || !s->is_clash) {
        free(list);
        return fail_text(NAME, "no memory for the names of %zu tensors", s->n_entries);
    }
    list_names(s, list);
    qsort(list, s->n_entries, sizeof *list, by_name);
    int r = CLI_OK;
    for (size_t i = 1; i < s->n_entries && r == CLI_OK; i++) {
        if (strcmp(list[i - 1].name, list[i].name)) continue;
        s->is_clash[list[i - 1].at] = s->is_clash[list[i].at] = true;
        if (!strcmp(list[i - 1].path, list[i].path))
            r = fail_text(NAME, "%s is given twice; in a group each name stands once", list[i].path);
    }
    free(list);
    return r;
}

/* Writes the one handle that --output is for; the file is whole when its name is printed. */
static int write_output(struct share *s, const char *text) {
    bool is_written = fprintf(s->output, "%s\n", text) > 0;
    is_written &= fclose(s->output) == 0;
    s->output = NULL;
    return is_written ? CLI_OK : fail_text(NAME, "writing to %s failed: %s", s->output_path, strerror(errno));
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
    if (!s->output) return text;
    r = write_output(s, text);
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
