/* SPDX-License-Identifier: MIT */
/* What no command does: lends tensors of 4 KiB in pinned handles and drops them at once, so that only the pins keep
 * them. Prints the handles, one in a line, and stays until its standard input ends.
 *
 *     cli-sender N */
#include <lend/lend.h>
#include <stdio.h>
#include <stdlib.h>

static int send_one(struct lend_pool *pool, struct lend_error *error) {
    const struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_PIN};
    const int64_t shape[] = {1024};
    const DLDataType dtype = {.code = LEND_FLOAT, .bits = 32, .lanes = 1};
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    char text[LEND_HANDLE_TEXT_MAX];
    struct lend_tensor *tensor;
    size_t bytes;
    int r = lend_tensor_new(pool, dtype, 1, shape, &tensor, error);
    if (r < 0) return r;
    r = lend_reduce(tensor, &opts, handle, sizeof handle, &bytes, error);
    lend_tensor_unref(tensor);
    if (r < 0) return r;
    r = lend_handle_format(handle, bytes, text, sizeof text);
    if (r == 0) puts(text);
    return r;
}

int main(int argc, char **argv) {
    const struct lend_pool_opts opts = {.size = sizeof opts};
    struct lend_error error = {.code = 0};
    struct lend_pool *pool;
    long n = argc == 2 ? strtol(argv[1], NULL, 10) : 1;
    int r = lend_open(NULL, &error);
    if (r == 0) r = lend_pool_new(&opts, &pool, &error);
    for (long i = 0; i < n && r == 0; i++) r = send_one(pool, &error);
    if (r < 0) {
        fprintf(stderr, "cli-sender: %s\n", error.text);
        return 1;
    }
    fflush(stdout);
    while (getchar() != EOF) continue;
    return 0; /* the end of the process is the end of what it lent */
}
