/* SPDX-License-Identifier: MIT */
/* Lends a 2x3 tensor: prints its handle, waits for a line on standard input, and shows what the borrower wrote.
 *
 *     cc lender.c -o lender $(pkg-config --cflags --libs liblend)
 *     ./lender
 */
#include <lend/lend.h>
#include <stdio.h>

static int fail(const char *what, const struct lend_error *error) {
    fprintf(stderr, "%s: %s (%s)\n", what, error->text, lend_strerror(error->code));
    return 1;
}

int main(void) {
    struct lend_error error;
    struct lend_pool *pool = NULL;
    struct lend_tensor *tensor = NULL;
    DLDataType float32 = {kDLFloat, 32, 1};
    int64_t shape[] = {2, 3};
    if (lend_open(NULL, &error) < 0) return fail("lend_open", &error);
    if (lend_pool_new(NULL, &pool, &error) < 0) return fail("lend_pool_new", &error);
    if (lend_tensor_new(pool, float32, 2, shape, &tensor, &error) < 0) return fail("lend_tensor_new", &error);
    float *x = lend_tensor_data(tensor); /* recycled memory is not cleared: write every element */
    for (int i = 0; i < 6; i++) x[i] = (float)i;

    unsigned char handle[LEND_HANDLE_BYTES_MAX];
    char text[LEND_HANDLE_TEXT_MAX];
    size_t bytes;
    if (lend_reduce(tensor, NULL, handle, sizeof handle, &bytes, &error) < 0) return fail("lend_reduce", &error);
    lend_handle_format(handle, bytes, text, sizeof text);
    printf("%s\n", text);
    fflush(stdout);
    getchar(); /* without a pin the handle is good while somebody holds the tensor: hold it */

    printf("x[1][2] is %g\n", x[5]);
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    return lend_close(&error) < 0 ? fail("lend_close", &error) : 0;
}
