/* SPDX-License-Identifier: MIT */
/* Borrows a tensor by its handle, works on a column of it without a copy, and gives it back.
 *
 *     cc borrower.c -o borrower $(pkg-config --cflags --libs liblend)
 *     ./borrower lend1:...
 */
#include <lend/lend.h>
#include <stdio.h>

static int fail(const char *what, const struct lend_error *error) {
    fprintf(stderr, "%s: %s (%s)\n", what, error->text, lend_strerror(error->code));
    return 1;
}

int main(int argc, char **argv) {
    struct lend_error error = {.code = 0};
    struct lend_tensor *tensor = NULL, *column = NULL;
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_rebuild_opts opts = {.size = sizeof opts, .flags = LEND_REBUILD_WRITABLE};
    unsigned char handle[LEND_HANDLE_BYTES_MAX];
    size_t bytes;
    if (argc != 2 || lend_handle_parse(argv[1], handle, sizeof handle, &bytes) < 0) {
        fprintf(stderr, "usage: %s HANDLE\n", argv[0]);
        return 2;
    }
    if (lend_open(NULL, &error) < 0) return fail("lend_open", &error);
    if (lend_rebuild(handle, bytes, &opts, &tensor, &error) < 0) return fail("lend_rebuild", &error);
    if (lend_tensor_select(tensor, 1, -1, &column, &error) < 0) return fail("lend_tensor_select", &error);
    lend_tensor_info(column, &info);
    float *x = info.data; /* the same bytes as the lender's */
    for (int64_t i = 0; i < info.shape[0]; i++) x[i * info.strides[0]] *= 10;
    printf("borrowed %lld elements, last column times 10\n", (long long)info.numel);
    lend_tensor_unref(column);
    lend_tensor_unref(tensor);
    return lend_close(&error) < 0 ? fail("lend_close", &error) : 0;
}
