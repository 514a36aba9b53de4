/* SPDX-License-Identifier: MIT */
/* A trainer lends a state dict under one handle: two tied parameters, a buffer and a sparse parameter. A server takes
 * all of it, and then two of its tensors by name.
 *
 *     cc state_dict.c -o state_dict $(pkg-config --cflags --libs liblend)
 *     ./state_dict               # the trainer: prints the handle and waits for a line on standard input
 *     ./state_dict lend1:...     # the server; the handle is pinned for one delivery
 */
#include <errno.h>
#include <lend/lend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1};
static struct lend_error error;

static void must(int r) {
    if (r >= 0) return;
    fprintf(stderr, "%s: %s\n", lend_strerror(r), error.text);
    exit(1); /* the end of a process gives back whatever it holds */
}

static struct lend_tensor *new_row(struct lend_pool *pool, DLDataType dtype, int64_t n, const void *values) {
    struct lend_tensor *tensor;
    must(lend_tensor_new(pool, dtype, 1, &n, &tensor, &error));
    memcpy(lend_tensor_data(tensor), values, (size_t)n * dtype.bits / 8);
    return tensor;
}

/* [[7, 0, 8], [0, 9, 0]]: where each row begins in the other two, the columns, the elements. */
static struct lend_tensor *new_sparse(struct lend_pool *pool) {
    struct lend_tensor *parts[] = {new_row(pool, int64, 3, (int64_t[]){0, 2, 3}),
                                   new_row(pool, int64, 3, (int64_t[]){0, 2, 1}),
                                   new_row(pool, float32, 3, (float[]){7, 8, 9})};
    struct lend_tensor *tensor;
    struct lend_compound csr = {.size = sizeof csr, .layout = LEND_LAYOUT_CSR, .n_components = 3, .components = parts};
    csr.ndim = 2;
    csr.shape = (int64_t[]){2, 3};
    must(lend_tensor_new_compound(&csr, &tensor, &error));
    for (int i = 0; i < 3; i++) lend_tensor_unref(parts[i]); /* the tensor holds them */
    return tensor;
}

/* Consumes the tensor. Tensors never change: the one with marks is another, over the same memory. */
static void add(struct lend_group *group, const char *name, struct lend_tensor *tensor, uint32_t marks) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = marks};
    struct lend_tensor *marked;
    must(lend_tensor_with_attrs(tensor, &attrs, &marked, &error));
    must(lend_group_add(group, name, marked, &error));
    lend_tensor_unref(marked); /* the group holds it */
    lend_tensor_unref(tensor);
}

static void train(void) {
    const uint32_t parameter = LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD;
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_PIN};
    struct lend_pool *pool;
    struct lend_group *group;
    void *handle;
    size_t bytes;
    must(lend_pool_new(NULL, &pool, &error));
    must(lend_group_new(&group, &error));
    add(group, "embed.weight", new_row(pool, float32, 4, (float[]){1, 2, 3, 4}), parameter);
    add(group, "head.weight", lend_tensor_ref(lend_group_get(group, 0, NULL)), parameter); /* tied: the same memory */
    add(group, "norm.mean", new_row(pool, float32, 2, (float[]){0.5, 0.25}), LEND_ATTR_BUFFER);
    add(group, "sparse.weight", new_sparse(pool), parameter);
    must(lend_group_reduce(group, &opts, &handle, &bytes, &error));
    lend_group_unref(group); /* from here on the pin holds all of it */
    lend_pool_unref(pool);
    char *text = malloc(LEND_HANDLE_TEXT_BYTES(bytes));
    if (text && lend_handle_format(handle, bytes, text, LEND_HANDLE_TEXT_BYTES(bytes)) == 0) puts(text);
    fflush(stdout);
    getchar();                                       /* the server asks this process: it must be there */
    must(lend_pin_cancel(handle, bytes, 0, &error)); /* in case no server came */
    free(text);
    lend_free(handle);
}

static void show(const struct lend_group *group) {
    uint64_t last_id = 0;
    for (size_t i = 0; i < lend_group_count(group); i++) {
        const char *name;
        struct lend_tensor *tensor = lend_group_get(group, i, &name);
        struct lend_tensor_info info = {.size = sizeof info};
        struct lend_compound csr = {.size = sizeof csr};
        must(lend_tensor_info(tensor, &info));
        printf("%s %s:", info.attrs & LEND_ATTR_PARAMETER ? "parameter" : "buffer", name);
        if (info.layout == LEND_LAYOUT_CSR && lend_tensor_components(tensor, &csr) == 0)
            must(lend_tensor_info(csr.components[2], &info)); /* what is printed of it: its elements */
        int is_row = info.data && info.is_contiguous && memcmp(&info.dtype, &float32, sizeof float32) == 0;
        for (int64_t k = 0; is_row && k < info.numel; k++) printf(" %g", ((float *)info.data)[k]);
        puts(info.data && info.storage_id == last_id ? ", tied to the last" : "");
        last_id = info.storage_id;
    }
}

static void serve(const char *text) {
    const char *const names[] = {"norm.mean", "sparse.weight"};
    struct lend_rebuild_opts opts = {.size = sizeof opts, .flags = LEND_REBUILD_CHECK}; /* the indices are a peer's */
    struct lend_group *all, *two;
    size_t bytes = strlen(text);
    void *handle = malloc(bytes); /* the text is longer than the handle */
    must(handle ? lend_handle_parse(text, handle, bytes, &bytes) : -ENOMEM);
    must(lend_group_rebuild(handle, bytes, NULL, 0, &opts, &all, &error));
    show(all);
    must(lend_group_rebuild(handle, bytes, names, 2, &opts, &two, &error)); /* while we hold it, pin or not */
    show(two);
    lend_group_unref(all);
    lend_group_unref(two);
    free(handle);
}

int main(int argc, char **argv) {
    must(lend_open(NULL, &error));
    argc == 2 ? serve(argv[1]) : train();
    must(lend_close(&error));
}
