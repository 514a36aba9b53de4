/* SPDX-License-Identifier: MIT */
/* A trainer lends its state dict under one handle: parameters, two of them tied, a buffer, and a sparse weight. A server
 * takes all of it, and then two tensors by their names.
 *
 *     cc state_dict.c -o state_dict $(pkg-config --cflags --libs liblend)
 *     ./state_dict             # the trainer: prints the handle, waits for a line on standard input
 *     ./state_dict lend1:...   # the server
 */
#include <inttypes.h>
#include <lend/lend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const DLDataType FLOAT32 = {kDLFloat, 32, 1}, INT64 = {kDLInt, 64, 1};

/* Ends the program after an error; the end of a process gives back whatever it holds. */
static void must(int r, const struct lend_error *error) {
    if (r >= 0) return;
    fprintf(stderr, "%s: %s (%s)\n", error->operation, error->text, lend_strerror(r));
    exit(1);
}

static struct lend_tensor *filled(struct lend_pool *pool, DLDataType dtype, const void *values, int64_t n) {
    struct lend_error error;
    struct lend_tensor *tensor;
    must(lend_tensor_new(pool, dtype, 1, &n, &tensor, &error), &error);
    memcpy(lend_tensor_data(tensor), values, (size_t)n * dtype.bits / 8);
    return tensor;
}

/* Puts a tensor into the group with marks, which a tensor gets by being made anew over the same memory. The group has
 * its own reference then. */
static void add(struct lend_group *group, const char *name, struct lend_tensor *tensor, uint32_t marks) {
    struct lend_error error;
    struct lend_tensor *marked;
    must(lend_tensor_with_attrs(tensor, &(struct lend_tensor_attrs){.size = sizeof(struct lend_tensor_attrs), .flags = marks},
                                &marked, &error), &error);
    must(lend_group_add(group, name, marked, &error), &error);
    lend_tensor_unref(marked);
}

static struct lend_group *new_state_dict(void) {
    const uint32_t parameter = LEND_ATTR_PARAMETER | LEND_ATTR_REQUIRES_GRAD;
    struct lend_error error;
    struct lend_pool *pool;
    struct lend_group *group;
    struct lend_tensor *sparse;
    must(lend_pool_new(NULL, &pool, &error), &error);
    must(lend_group_new(&group, &error), &error);
    struct lend_tensor *embedding = filled(pool, FLOAT32, (float[]){1, 2, 3, 4}, 4);
    struct lend_tensor *mean = filled(pool, FLOAT32, (float[]){0.5, 0.25}, 2);
    /* [[7, 0, 8], [0, 9, 0]] in CSR: where each row begins, the columns of its elements, the elements. */
    struct lend_tensor *parts[] = {filled(pool, INT64, (int64_t[]){0, 2, 3}, 3), filled(pool, INT64, (int64_t[]){0, 2, 1}, 3),
                                   filled(pool, FLOAT32, (float[]){7, 8, 9}, 3)};
    struct lend_compound csr = {.size = sizeof csr, .layout = LEND_LAYOUT_CSR, .n_components = 3, .components = parts,
                                .ndim = 2, .shape = (int64_t[]){2, 3}};
    must(lend_tensor_new_compound(&csr, &sparse, &error), &error);
    add(group, "embed.weight", embedding, parameter);
    add(group, "head.weight", embedding, parameter); /* tied: the same memory under a second name */
    add(group, "norm.mean", mean, LEND_ATTR_BUFFER);
    add(group, "sparse.weight", sparse, parameter);
    for (int i = 0; i < 3; i++) lend_tensor_unref(parts[i]);
    lend_tensor_unref(sparse);
    lend_tensor_unref(mean);
    lend_tensor_unref(embedding);
    lend_pool_unref(pool);
    return group;
}

static void train(void) {
    const struct lend_reduce_opts pinned = {.size = sizeof pinned, .flags = LEND_REDUCE_PIN};
    struct lend_error error;
    struct lend_group *group = new_state_dict();
    void *handle;
    size_t bytes;
    must(lend_group_reduce(group, &pinned, &handle, &bytes, &error), &error);
    lend_group_unref(group); /* the pin keeps all of it for one server */
    char *text = malloc(LEND_HANDLE_TEXT_BYTES(bytes));
    if (text && lend_handle_format(handle, bytes, text, LEND_HANDLE_TEXT_BYTES(bytes)) == 0) puts(text);
    fflush(stdout);
    free(text);
    getchar(); /* who lends must be there to be asked */
    must(lend_pin_cancel(handle, bytes, 0, &error), &error); /* in case no server came */
    lend_free(handle);
}
