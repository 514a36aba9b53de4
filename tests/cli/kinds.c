/* SPDX-License-Identifier: MIT */
/* Lends one tensor of each kind that no file holds: sparse, nested, quantized, wrapped, with attributes, meta; and all
 * of them as a group. Prints "NAME HANDLE" for each and stays until its standard input ends.
 *
 *     cli-kinds */
#include <lend/lend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST(type, ...) \
    (const type[]) {    \
        __VA_ARGS__     \
    }
#define SHAPE(...) (int32_t)(sizeof LIST(int64_t, __VA_ARGS__) / sizeof(int64_t)), LIST(int64_t, __VA_ARGS__)

static const DLDataType float32 = {LEND_FLOAT, 32, 1}, int64 = {LEND_INT, 64, 1}, uint8 = {LEND_UINT, 8, 1},
                        complex64 = {LEND_COMPLEX, 64, 1};
static struct lend_pool *pool;
static struct lend_group *group;
static struct lend_error error;
static struct lend_tensor *made[64]; /* all of them, for the end */
static size_t n_made;

static void need(int r) {
    if (r >= 0) return;
    fprintf(stderr, "cli-kinds: %s\n", error.text);
    exit(1);
}

static struct lend_tensor *keep(struct lend_tensor *tensor) {
    if (n_made == sizeof made / sizeof made[0]) abort();
    return made[n_made++] = tensor;
}

static struct lend_tensor *dense(DLDataType dtype, int32_t ndim, const int64_t *shape, const void *elements) {
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_tensor *tensor;
    need(lend_tensor_new(pool, dtype, ndim, shape, &tensor, &error));
    need(lend_tensor_info(tensor, &info));
    memcpy(info.data, elements, info.nbytes);
    return keep(tensor);
}

static struct lend_tensor *with(struct lend_tensor *tensor, uint32_t flags, const char *user) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = flags};
    struct lend_tensor *marked;
    attrs.user = user;
    attrs.user_bytes = user ? strlen(user) : 0;
    attrs.user_tag = user ? 7 : 0;
    need(lend_tensor_with_attrs(tensor, &attrs, &marked, &error));
    return keep(marked);
}

static struct lend_tensor *compound(struct lend_compound c, int32_t ndim, const int64_t *shape,
                                    struct lend_tensor *const *parts) {
    struct lend_tensor *tensor;
    c.size = sizeof c;
    c.components = parts;
    c.ndim = ndim;
    c.shape = shape;
    while (c.n_components < 4 && parts[c.n_components]) c.n_components++;
    need(lend_tensor_new_compound(&c, &tensor, &error));
    return keep(tensor);
}

static void print_handle(const char *name, const void *handle, size_t bytes) {
    char *text = malloc(LEND_HANDLE_TEXT_BYTES(bytes));
    if (!text || lend_handle_format(handle, bytes, text, LEND_HANDLE_TEXT_BYTES(bytes)) < 0) exit(1);
    printf("%s %s\n", name, text);
    free(text);
}

static void lend_it(const char *name, struct lend_tensor *tensor) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t bytes;
    need(lend_reduce(tensor, NULL, handle, sizeof handle, &bytes, &error));
    print_handle(name, handle, bytes);
    need(lend_group_add(group, name, tensor, &error));
}

/* 2 x 3, with two elements; the second column is the caller's. */
static struct lend_tensor *csr(int64_t column) {
    struct lend_tensor *parts[4] = {dense(int64, SHAPE(3), LIST(int64_t, 0, 1, 2)),
                                    dense(int64, SHAPE(2), (const int64_t[]){0, column}),
                                    dense(float32, SHAPE(2), LIST(float, 1.5F, -2.5F))};
    return compound((struct lend_compound){.layout = LEND_LAYOUT_CSR}, SHAPE(2, 3), parts);
}

static void lend_sparse_and_nested(void) {
    struct lend_tensor *values =
        dense(float32, SHAPE(5, 4), LIST(float, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20));
    struct lend_tensor *coo[4] = {dense(int64, SHAPE(2, 2), LIST(int64_t, 0, 1, 2, 0)),
                                  dense(float32, SHAPE(2), LIST(float, 3, 4))};
    struct lend_tensor *jagged[4] = {values, dense(int64, SHAPE(3), LIST(int64_t, 0, 2, 5))};
    lend_it("csr", with(csr(2), LEND_ATTR_REQUIRES_GRAD, NULL));
    lend_it("broken", csr(3));
    lend_it("coo", compound((struct lend_compound){.layout = LEND_LAYOUT_COO, .is_coalesced = 1}, SHAPE(2, 3), coo));
    lend_it("jagged",
            compound((struct lend_compound){.layout = LEND_LAYOUT_JAGGED, .dim = 1}, SHAPE(2, LEND_RAGGED, 4), jagged));
}

static void lend_quantized_and_wrapped(void) {
    struct lend_tensor *bytes[4] = {dense(uint8, SHAPE(2, 2), LIST(uint8_t, 1, 2, 3, 4))};
    struct lend_tensor *channels[4] = {bytes[0], dense(float32, SHAPE(2), LIST(float, 0.5F, 2)),
                                       dense(int64, SHAPE(2), LIST(int64_t, 1, 2))};
    struct lend_tensor *wrapped[4] = {csr(1), with(bytes[0], LEND_ATTR_BUFFER, NULL)};
    lend_it("quantized",
            compound((struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED, .scale = 0.25, .zero_point = -3},
                     SHAPE(2, 2), bytes));
    lend_it("per_channel", compound((struct lend_compound){.layout = LEND_LAYOUT_QUANTIZED_PER_CHANNEL, .dim = 1},
                                    SHAPE(2, 2), channels));
    lend_it("wrapper", with(compound((struct lend_compound){.layout = LEND_LAYOUT_WRAPPER, .dtype = float32},
                                     SHAPE(2, 3), wrapped),
                            0, "class"));
}

static void lend_marked(void) {
    struct lend_tensor *complex_one = dense(complex64, SHAPE(2), LIST(float, 3, 4, 0, -1)), *meta;
    struct lend_tensor *floats = dense(float32, SHAPE(3), LIST(float, 1, 2, -3));
    need(lend_tensor_new_meta(float32, SHAPE(1000, 1000), &meta, &error));
    lend_it("conj", with(complex_one, LEND_ATTR_CONJ, NULL));
    lend_it("neg", with(floats, LEND_ATTR_NEG, NULL));
    lend_it("parameter", with(floats, LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD, "abc"));
    lend_it("meta", keep(meta));
}

static void lend_all(const char *name, uint32_t flags) {
    const struct lend_reduce_opts opts = {.size = sizeof opts, .flags = flags};
    void *handle;
    size_t bytes;
    need(lend_group_reduce(group, &opts, &handle, &bytes, &error));
    print_handle(name, handle, bytes);
    lend_free(handle);
}

int main(void) {
    need(lend_open(NULL, &error));
    need(lend_pool_new(NULL, &pool, &error));
    need(lend_group_new(&group, &error));
    lend_sparse_and_nested();
    lend_quantized_and_wrapped();
    lend_marked();
    lend_all("group", 0);
    lend_all("pinned", LEND_REDUCE_PIN);
    fflush(stdout);
    while (getchar() != EOF) continue;
    lend_group_unref(group);
    while (n_made) lend_tensor_unref(made[--n_made]);
    lend_pool_unref(pool);
    lend_close(NULL); /* a pin may be left: then the end of the process ends it */
    return 0;
}
