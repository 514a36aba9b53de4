/* SPDX-License-Identifier: MIT */
/* Where `lend share --output` puts the handle. `-o *.safetensors` must not cost anybody a model: the handle
 * is written beside the file and takes its name in one step, and only an older handle is ever replaced. */
#include "cli.h"
#include "share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "share"
#define HANDLE_BEGIN "lend1:"

static int fail_output(const struct share *s, int code) {
    return fail_text(NAME, "cannot write to %s: %s", s->output_path, strerror(code));
}

/* Length of the folder's name at the beginning of a path, with its slash. */
static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash + 1 - path) : 0;
}

static int check_content(const struct share *s) {
    char begin[sizeof HANDLE_BEGIN - 1];
    int fd = open(s->output_target, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, begin, sizeof begin);
    int code = errno;
    if (fd >= 0) close(fd);
    if (n < 0) return fail_text(NAME, "cannot see what %s holds: %s", s->output_path, strerror(code));
    if (n == sizeof begin && !memcmp(begin, HANDLE_BEGIN, sizeof begin)) return CLI_OK;
    return fail_text(NAME, "%s exists and holds no handle: --output replaces only a handle; give another name",
                     s->output_path);
}

static int check_folder(const struct share *s) {
    char *folder = NULL;
    if (asprintf(&folder, "%.*s.", folder_length(s->output_target), s->output_target) < 0)
        return fail_output(s, ENOMEM);
    int r = access(folder, W_OK) == 0 ? CLI_OK : fail_output(s, errno);
    free(folder);
    return r;
}

int share_output_check(struct share *s) {
    struct stat st;
    if (!s->output_path) return CLI_OK;
    free(s->output_target);
    s->output_target = NULL;
    bool is_there = stat(s->output_path, &st) == 0;
    if (!is_there && errno != ENOENT) return fail_output(s, errno);
    if (!is_there && lstat(s->output_path, &st) == 0)
        return fail_text(NAME, "cannot write to %s: it is a link to nothing", s->output_path);
    if (is_there && (S_ISCHR(st.st_mode) || S_ISFIFO(st.st_mode))) return CLI_OK;
    if (is_there && S_ISDIR(st.st_mode)) return fail_output(s, EISDIR);
    if (is_there && !S_ISREG(st.st_mode))
        return fail_text(NAME, "cannot write to %s: it is neither a file nor a pipe", s->output_path);
    s->output_target = is_there ? realpath(s->output_path, NULL) : strdup(s->output_path);
    if (!s->output_target) return fail_output(s, errno);
    int r = is_there ? check_content(s) : CLI_OK;
    return r == CLI_OK ? check_folder(s) : r;
}

/* `fd` is consumed. */
static int write_line(const struct share *s, int fd, const char *text) {
    FILE *file = fdopen(fd, "w");
    if (!file) {
        close(fd);
        return fail_output(s, ENOMEM);
    }
    bool is_written = fprintf(file, "%s\n", text) > 0;
    is_written &= fclose(file) == 0;
    return is_written ? CLI_OK : fail_text(NAME, "writing to %s failed: %s", s->output_path, strerror(errno));
}

static int write_beside(struct share *s, const char *text) {
    char *path = NULL;
    if (asprintf(&path, "%.*s.lend-XXXXXX", folder_length(s->output_target), s->output_target) < 0)
        return fail_output(s, ENOMEM);
    int fd = mkostemp(path, O_CLOEXEC);
    int r = fd < 0 ? fail_output(s, errno) : write_line(s, fd, text);
    if (r == CLI_OK && rename(path, s->output_target) < 0) r = fail_output(s, errno);
    if (r == CLI_OK)
        s->is_output_written = true;
    else if (fd >= 0)
        unlink(path);
    free(path);
    return r;
}

int share_output_write(struct share *s, const char *text) {
    int r = share_output_check(s); /* again: loading may have taken long */
    if (r != CLI_OK) return r;
    if (s->output_target) return write_beside(s, text);
    int fd = open(s->output_path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? fail_output(s, errno) : write_line(s, fd, text);
}

void share_output_drop(struct share *s) {
    if (s->is_output_written) unlink(s->output_target);
    s->is_output_written = false;
}
