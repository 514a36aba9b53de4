/* SPDX-License-Identifier: MIT */
/* Helpers of the proc tests: everything that is said in more than one of them. */
#include "peer.h"

#include "base/crc32c.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

char actor_sentence[LEND_ERROR_TEXT_BYTES];

void open_with(const struct lend_opts *opts) {
    struct lend_error error = {0};
    CHECK_OK(lend_open(opts, &error), &error);
}

struct lend_pool *new_pool(const struct lend_pool_opts *opts) {
    struct lend_error error = {0};
    struct lend_pool *pool = NULL;
    CHECK_OK(lend_pool_new(opts, &pool, &error), &error);
    return pool;
}

void close_all(struct lend_pool *pool) {
    struct lend_error error = {0};
    CHECK_OK(lend_check(&error), &error);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}

struct lend_tensor *new_bytes(struct lend_pool *pool, int64_t n, int fill) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_new(pool, uint8, 1, &n, &tensor, &error), &error);
    if (n) memset(lend_tensor_data(tensor), fill, (size_t)n);
    return tensor;
}

struct lend_tensor_info info_of(const struct lend_tensor *tensor) {
    struct lend_tensor_info info = {.size = sizeof info};
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    return info;
}

uint64_t limbo_bytes(struct lend_pool *pool) {
    struct lend_pool_stats stats = {.size = sizeof stats};
    CHECK_OK(lend_pool_stats(pool, &stats), NULL);
    return stats.limbo_bytes;
}

void reduce_to(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code, struct handle *ret) {
    struct lend_error error = {0};
    ret->n = 0;
    ret->text[0] = '\0';
    int r = lend_reduce(tensor, opts, ret->bytes, sizeof ret->bytes, &ret->n, &error);
    if (r != code) FAIL("lend_reduce: %d instead of %d: %s", r, code, error.text);
    if (r < 0) return;
    CHECK_OK(lend_handle_format(ret->bytes, ret->n, ret->text, sizeof ret->text), NULL);
}

const char *reduce_text(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, int code) {
    static struct handle handle;
    reduce_to(tensor, opts, code, &handle);
    return handle.text;
}

int rebuild_text(const char *text, const struct lend_rebuild_opts *opts, struct lend_tensor **ret,
                 struct lend_error *error) {
    uint8_t bytes[ROLE_LINE_BYTES]; /* a wrapper's may be longer than LEND_HANDLE_BYTES_MAX */
    size_t n = 0;
    int r = lend_handle_parse(text, bytes, sizeof bytes, &n);
    return r < 0 ? r : lend_rebuild(bytes, n, opts, ret, error);
}

uint32_t sum_of(struct lend_tensor *tensor) {
    struct lend_tensor *copy = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    struct lend_tensor_info info = info_of(copy);
    uint32_t sum = lend__crc32c(0, info.data, info.nbytes);
    lend_tensor_unref(copy);
    return sum;
}

static void list(FILE *out, const char *name, const int64_t *dims, int32_t n) {
    fprintf(out, " %s", name);
    for (int32_t i = 0; i < n; i++) fprintf(out, ",%lld", (long long)dims[i]);
}

static void describe_attrs(FILE *out, const struct lend_tensor *tensor, uint32_t expected) {
    struct lend_tensor_attrs a = {.size = sizeof a};
    CHECK_OK(lend_tensor_attrs(tensor, &a), NULL);
    CHECK_UINT(a.flags, expected);
    fprintf(out, " attrs %x user %u,%zu,%08x", a.flags, a.user_tag, a.user_bytes,
            lend__crc32c(0, a.user, a.user_bytes));
}

static void describe_strided(FILE *out, struct lend_tensor *tensor, const struct lend_tensor_info *i) {
    list(out, "strides", i->strides, i->ndim);
    fprintf(out, " flags %d%d%d%d bit %u numel %lld nbytes %llu", i->is_shared, i->is_contiguous, i->is_padded,
            i->is_private, i->data_bit, (long long)i->numel, (unsigned long long)i->nbytes);
    fprintf(out, " storage %llu at %llu.%llu of %llu in %llu", (unsigned long long)i->storage_bytes,
            (unsigned long long)i->allocation_offset, (unsigned long long)i->storage_offset_bits,
            (unsigned long long)i->allocation_bytes, (unsigned long long)i->allocation_inode);
    if (i->device.device_type == kDLCPU)
        fprintf(out, " data %lld sum %08x", i->data ? (long long)((uint8_t *)i->data - (uint8_t *)i->storage_data) : -1,
                sum_of(tensor));
}

static void describe_into(FILE *out, struct lend_tensor *tensor) {
    struct lend_tensor_info i = info_of(tensor);
    fprintf(out, "dtype %u.%u.%u device %d.%d", i.dtype.code, i.dtype.bits, i.dtype.lanes, (int)i.device.device_type,
            i.device.device_id);
    list(out, "shape", i.shape, i.ndim);
    if (i.layout == LEND_LAYOUT_STRIDED) {
        describe_strided(out, tensor, &i);
        describe_attrs(out, tensor, i.attrs);
        return;
    }
    struct lend_compound c = {.size = sizeof c};
    CHECK_OK(lend_tensor_components(tensor, &c), NULL);
    CHECK_UINT(c.layout, i.layout);
    CHECK(c.ndim == i.ndim && !memcmp(c.shape, i.shape, (size_t)i.ndim * sizeof c.shape[0]));
    CHECK(!memcmp(&c.dtype, &i.dtype, sizeof c.dtype));
    CHECK_PTR(i.strides, NULL);
    fprintf(out, " layout %u coalesced %d dim %d scale %a zero_point %lld nbytes %llu", c.layout, c.is_coalesced, c.dim,
            c.scale, (long long)c.zero_point, (unsigned long long)i.nbytes);
    describe_attrs(out, tensor, i.attrs);
    for (uint32_t k = 0; k < c.n_components; k++) {
        fprintf(out, "%s", k ? "; " : " [");
        describe_into(out, c.components[k]);
    }
    fprintf(out, "]");
}

char *describe(struct lend_tensor *tensor) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) FAIL("no memory for a description");
    describe_into(out, tensor);
    fclose(out);
    if (bytes > ROLE_LINE_BYTES / 2) /* a large tree: equal is still equal */
        snprintf(text, bytes, "%zu bytes, sum %08x", bytes, lend__crc32c(0, text, bytes));
    return text;
}

char *handle_put(const void *bytes, size_t n) {
    char *path = strdup("/tmp/lend-handle-XXXXXX");
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) FAIL("cannot write %s", path);
    close(fd);
    return path;
}

void *handle_get(const char *path, size_t *ret_n) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) FAIL("cannot open %s", path);
    void *bytes = malloc((size_t)st.st_size + 1);
    if (read(fd, bytes, (size_t)st.st_size) != st.st_size) FAIL("cannot read %s", path);
    close(fd);
    *ret_n = (size_t)st.st_size;
    return bytes;
}

void handle_drop(char *path) {
    unlink(path);
    free(path);
}

bool is_filled(struct lend_tensor *tensor, int value) {
    struct lend_tensor_info info = info_of(tensor);
    const uint8_t *p = info.data;
    for (uint64_t i = 0; i < info.nbytes; i++)
        if (p[i] != (uint8_t)value) return false;
    return true;
}

/* --- counts --------------------------------------------------------------------------------------------------------- */

unsigned count_fds(void) {
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;
    if (!dir) FAIL("cannot read /proc/self/fd");
    for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n - 1;
}

static unsigned count_lines(const char *path, const char *part) {
    FILE *file = fopen(path, "re");
    char line[512];
    unsigned n = 0;
    if (!file) FAIL("cannot read %s", path);
    while (fgets(line, sizeof line, file)) n += strstr(line, part) != NULL;
    fclose(file);
    return n;
}

unsigned count_maps(void) {
    return count_lines("/proc/self/maps", "-");
}

unsigned count_lend_maps(void) {
    return count_lines("/proc/self/maps", "/memfd:lend");
}

uint64_t resident_bytes(void) {
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%llu %llu", &total, &resident) != 2) FAIL("cannot read /proc/self/statm");
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool has_socket(const uint8_t exporter_id[16]) {
    char hex[33];
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", exporter_id[i]);
    return count_lines("/proc/net/unix", hex) > 0;
}

unsigned count_dev_shm(void) {
    DIR *dir = opendir("/dev/shm");
    unsigned n = 0;
    if (!dir) return 0;
    for (struct dirent *e; (e = readdir(dir));) n += strstr(e->d_name, "lend") != NULL;
    closedir(dir);
    return n;
}

/* --- actors --------------------------------------------------------------------------------------------------------- */

void actor_start(struct role *actor, const struct role_opts *opts, const char *options) {
    ROLE_START(actor, opts, "actor", options ? options : "");
    role_expect(actor, "ready");
}

static const char *command(struct role *actor, const char *format, va_list args) {
    char line[ROLE_LINE_BYTES - 16];
    vsnprintf(line, sizeof line, format, args);
    role_send(actor, "%s", line);
    const char *answer = role_line(actor, 30000);
    if (!answer) FAIL("an actor ended with %d at \"%.80s\"", role_wait(actor), line);
    if (strncmp(answer, "ok", 2) && strncmp(answer, "error ", 6)) FAIL("\"%.80s\" gave \"%s\"", line, answer);
    return answer;
}

const char *actor_ok(struct role *actor, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *answer = command(actor, format, args);
    va_end(args);
    if (strncmp(answer, "ok", 2)) FAIL("\"%.80s\" gave \"%s\"", format, answer);
    return answer[2] == ' ' ? answer + 3 : answer + 2;
}

long long actor_int(struct role *actor, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *answer = command(actor, format, args);
    va_end(args);
    if (strncmp(answer, "ok ", 3)) FAIL("\"%.80s\" gave \"%s\"", format, answer);
    return strtoll(answer + 3, NULL, 10);
}

int actor_code(struct role *actor, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *answer = command(actor, format, args);
    va_end(args);
    int code = 0, at = 0;
    actor_sentence[0] = '\0';
    if (!strncmp(answer, "ok", 2)) return 0;
    if (sscanf(answer, "error %d %n", &code, &at) != 1) FAIL("\"%.80s\" gave \"%s\"", format, answer);
    snprintf(actor_sentence, sizeof actor_sentence, "%s", answer + at);
    return code;
}
