/* SPDX-License-Identifier: MIT */
/* The elements of index components: right ones in every geometry, and each way to be wrong with its sentence. */
#include "compounds.h"
#include "naive.h"
#include "test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void set_int(struct lend_tensor *tensor, int64_t at, int64_t value) {
    uint8_t *data = lend_tensor_data(tensor);
    if (tensor->dtype.bits == 64)
        memcpy(data + at * 8, &value, 8);
    else
        memcpy(data + at * 4, &(int32_t){(int32_t)value}, 4);
}

/* Puts a view in the place of a part. */
static void replace_by_view(struct sample *s, uint32_t part, int32_t ndim, const int64_t *shape, const int64_t *strides,
                            int64_t offset) {
    struct lend_error error;
    struct lend_tensor *view;
    CHECK_OK(lend_tensor_as_strided(s->parts[part], ndim, shape, strides, offset, &view, &error), &error);
    sample_replace(s, part, view);
}

static void check_right(const struct sample *s) {
    struct lend_error error;
    struct lend_tensor *tensor = sample_tensor(s);
    CHECK_OK(lend_tensor_check(tensor, &error), &error);
    lend_tensor_unref(tensor);
}

static void check_wrong(const struct sample *s, const char *text) {
    struct lend_error error = {0};
    struct lend_tensor *tensor = sample_tensor(s);
    CHECK_CODE(lend_tensor_check(tensor, &error), -EBADMSG);
    CHECK_INT(error.code, -EBADMSG);
    CHECK_STR(error.operation, "lend_tensor_check");
    CHECK_CONTAINS(error.text, text);
    CHECK_CODE(lend_tensor_check(tensor, NULL), -EBADMSG);
    lend_tensor_unref(tensor);
}

/* A sample after the change, with indices of 32 and of 64 bits. */
#define CASE(check, layout, ...)                                            \
    do {                                                                    \
        for (int is_wide = 0; is_wide < 2; is_wide++) {                     \
            struct sample s;                                                \
            sample_make(&s, (layout), is_wide ? dtype_int64 : dtype_int32); \
            __VA_ARGS__;                                                    \
            check;                                                          \
            sample_end(&s);                                                 \
        }                                                                   \
    } while (0)
#define RIGHT(layout, ...) CASE(check_right(&s), layout, __VA_ARGS__)
#define WRONG(layout, text, ...) CASE(check_wrong(&s, text), layout, __VA_ARGS__)

LEND_TEST(check_passes_what_is_right) {
    for (uint32_t layout = LEND_LAYOUT_COO; layout <= LEND_LAYOUT_QUANTIZED_PER_CHANNEL; layout++) RIGHT(layout, );
    RIGHT(LEND_LAYOUT_JAGGED, s.compound.n_components = 3);
    struct lend_tensor *strided = tensor_of(dtype_float32, SHAPE(2));
    CHECK_CODE(lend_tensor_check(strided, NULL), 0);
    CHECK_CODE(lend_tensor_check(NULL, NULL), -EINVAL);
    lend_tensor_unref(strided);
}

LEND_TEST(check_coo) {
    uint32_t coo = LEND_LAYOUT_COO;
    WRONG(coo, "indices[0][2] is 3: outside dimension 0, whose size is 3", set_int(s.parts[0], 2, 3));
    WRONG(coo, "indices[1][0] is -1: outside dimension 1, whose size is 4", set_int(s.parts[0], 3, -1));
    WRONG(coo, "indices[1][2] is 9223372036854775807", set_int(s.parts[0], 5, INT64_MAX));
    WRONG(coo, "indices[0][2] is 0, after 1: the columns of a coalesced COO tensor must rise",
          set_int(s.parts[0], 2, 0));
    WRONG(coo, "indices[1][2] is 0, after 2: the columns", set_int(s.parts[0], 4, 2), set_int(s.parts[0], 5, 0));
    WRONG(coo, "columns 1 and 2 of indices are equal", set_int(s.parts[0], 5, 0));
    RIGHT(coo, s.compound.is_coalesced = 0, set_int(s.parts[0], 5, 0)); /* then they may */
    RIGHT(coo, s.compound.is_coalesced = 0, set_int(s.parts[0], 2, 0));
    WRONG(coo, "outside dimension 0", s.compound.is_coalesced = 0, set_int(s.parts[0], 0, -5));
    WRONG(coo, "columns 0 and 1 of indices are equal", set_int(s.parts[0], 1, 0), set_int(s.parts[0], 4, 1));
    RIGHT(coo, set_int(s.parts[0], 1, 0), set_int(s.parts[0], 4, 2)); /* (0, 1) (0, 2) (1, 3) */
}

LEND_TEST(check_rows) {
    uint32_t csr = LEND_LAYOUT_CSR;
    WRONG(csr, "crow_indices[0] of batch (0) is 1 and must be 0", set_int(s.parts[0], 0, 1));
    WRONG(csr, "crow_indices[0] of batch (1) is -1 and must be 0", set_int(s.parts[0], 4, -1));
    WRONG(csr, "crow_indices[2] of batch (0) is 0, after 1: it must rise by 0 to 4, to at most 3",
          set_int(s.parts[0], 2, 0));
    WRONG(csr, "crow_indices[3] of batch (0) is 4, after 3", set_int(s.parts[0], 3, 4)); /* more than are stored */
    WRONG(csr, "crow_indices[1] of batch (0) is 2147483647, after 0", set_int(s.parts[0], 1, INT32_MAX));
    WRONG(csr, "crow_indices[1] of batch (0) is -2147483648, after 0", set_int(s.parts[0], 1, INT32_MIN));
    WRONG(csr, "crow_indices[3] of batch (1) is 2 and must be 3, the number of stored elements",
          set_int(s.parts[0], 7, 2));
    WRONG(csr, "col_indices[2] of batch (0) is 4: not in [0, 4)", set_int(s.parts[1], 2, 4));
    WRONG(csr, "col_indices[0] of batch (1) is -1: not in [0, 4)", set_int(s.parts[1], 3, -1));
    WRONG(csr, "col_indices[2] of batch (0) is 0, after 0: within [1, 3) they must rise", set_int(s.parts[1], 2, 0));
    WRONG(csr, "col_indices[1] of batch (1) is 1, after 3: within [0, 2) they must rise", set_int(s.parts[1], 3, 3),
          set_int(s.parts[1], 4, 1));
    WRONG(csr, "it must rise by 0 to 1, to at most 3", s.shape[2] = 1, set_int(s.parts[1], 0, 0)); /* a full row */
}

LEND_TEST(check_columns_and_blocks) {
    WRONG(LEND_LAYOUT_CSC, "row_indices[0] of batch (0) is 4: not in [0, 4)", set_int(s.parts[1], 0, 4));
    WRONG(LEND_LAYOUT_CSC, "ccol_indices[0] of batch (0) is 1 and must be 0", set_int(s.parts[0], 0, 1));
    WRONG(LEND_LAYOUT_BSR, "col_indices[1] is 3: not in [0, 3)", set_int(s.parts[1], 1, 3)); /* in blocks */
    WRONG(LEND_LAYOUT_BSR, "crow_indices[2] is 2 and must be 3", set_int(s.parts[0], 2, 2));
    WRONG(LEND_LAYOUT_BSC, "row_indices[2] is 2: not in [0, 2)", set_int(s.parts[1], 2, 2));
    WRONG(LEND_LAYOUT_BSC, "ccol_indices[3] is 3, after 0: it must rise by 0 to 2, to at most 3",
          set_int(s.parts[0], 1, 0), set_int(s.parts[0], 2, 0));
}

LEND_TEST(check_nested) {
    uint32_t nested = LEND_LAYOUT_NESTED;
    WRONG(nested, "sizes[1][1] is -2, and the size of dimension 2 is ragged", set_int(s.parts[1], 3, -2));
    WRONG(nested, "sizes[0][0] is 1, and the size of dimension 1 is 2", set_int(s.parts[1], 0, 1));
    WRONG(nested, "constituent 0, of sizes (2, 3), strides (3, 1) and offset 5, leaves the 10 values",
          set_int(s.parts[3], 0, 5));
    WRONG(nested, "offset -1, leaves", set_int(s.parts[3], 0, -1));
    WRONG(nested, "offset 1, leaves", set_int(s.parts[3], 1, 1)); /* its strides go back by 2 */
    RIGHT(nested, set_int(s.parts[3], 1, 2));
    WRONG(nested, "offset 9, leaves", set_int(s.parts[3], 1, 9));
    WRONG(nested, "strides (9223372036854775807, 1)", set_int(s.parts[2], 0, INT64_MAX));
    WRONG(nested, "strides (-9223372036854775808, 1)", set_int(s.parts[2], 0, INT64_MIN));
    WRONG(nested, "sizes (2, 9223372036854775807), strides (3, 9223372036854775807)", set_int(s.parts[1], 1, INT64_MAX),
          set_int(s.parts[2], 1, INT64_MAX));
    WRONG(nested, "constituent 0, of sizes (2, 9223372036854775807)", set_int(s.parts[1], 1, INT64_MAX));
    /* Without elements only the offset matters, which may be the end. */
    RIGHT(nested, set_int(s.parts[1], 1, 0), set_int(s.parts[2], 0, INT64_MIN), set_int(s.parts[3], 0, 10));
    WRONG(nested, "offset 11, leaves", set_int(s.parts[1], 1, 0), set_int(s.parts[3], 0, 11));
}

LEND_TEST(check_jagged) {
    uint32_t jagged = LEND_LAYOUT_JAGGED;
    WRONG(jagged, "offsets[0] is 1 and must be 0, of 5", set_int(s.parts[1], 0, 1));
    WRONG(jagged, "offsets[0] is -1 and must be 0, of 5", set_int(s.parts[1], 0, -1));
    WRONG(jagged, "offsets[1] is -3, after 0: they must rise, to at most 5", set_int(s.parts[1], 1, -3));
    WRONG(jagged, "offsets[2] is 2, after 3: they must rise", set_int(s.parts[1], 1, 3), set_int(s.parts[1], 2, 2));
    WRONG(jagged, "offsets[2] is 6, after 2", set_int(s.parts[1], 2, 6));
    RIGHT(jagged, set_int(s.parts[1], 2, 4)); /* values behind the last one belong to nobody */
    RIGHT(jagged, s.compound.n_components = 3, set_int(s.parts[1], 0, 1));
    WRONG(jagged, "offsets[0] is 6 and must be in 0 to 5", s.compound.n_components = 3, set_int(s.parts[1], 0, 6));
    WRONG(jagged, "offsets[0] is -1 and must be in 0 to 5", s.compound.n_components = 3, set_int(s.parts[1], 0, -1));
    WRONG(jagged, "lengths[0] is -1, from offset 0 on: not in the 5 values", s.compound.n_components = 3,
          set_int(s.parts[2], 0, -1));
    WRONG(jagged, "lengths[1] is 4, from offset 2 on: not in the 5 values", s.compound.n_components = 3,
          set_int(s.parts[2], 1, 4));
    WRONG(jagged, "lengths[1] is 2147483647", s.compound.n_components = 3, set_int(s.parts[2], 1, INT32_MAX));
}

LEND_TEST(check_quantized) {
    static const float bad[] = {NAN, -NAN};
    for (int k = 0; k < 2; k++)
        WRONG(LEND_LAYOUT_QUANTIZED_PER_CHANNEL, "scales[1] is not a number",
              memcpy((float *)lend_tensor_data(s.parts[1]) + 1, &bad[k], 4));
    WRONG(LEND_LAYOUT_QUANTIZED_PER_CHANNEL, "scales[2] is not a number",
          sample_replace(&s, 1, tensor_of((DLDataType){LEND_FLOAT, 64, 1}, SHAPE(3))),
          memcpy((double *)lend_tensor_data(s.parts[1]) + 2, &(double){-NAN}, 8));
    RIGHT(LEND_LAYOUT_QUANTIZED_PER_CHANNEL, memcpy(lend_tensor_data(s.parts[1]), &(float){-INFINITY}, 4));
}

LEND_TEST(check_wrapper_looks_inside) {
    struct lend_error error;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_COO, dtype_int64);
    struct lend_tensor *parts[] = {s.parts[1], sample_tensor(&s)}, *outer = NULL, *outmost = NULL;
    struct lend_compound wrapper = {.size = sizeof wrapper,
                                    .layout = LEND_LAYOUT_WRAPPER,
                                    .n_components = 2,
                                    .components = parts,
                                    .dtype = dtype_int64};
    CHECK_OK(lend_tensor_new_compound(&wrapper, &outer, &error), &error);
    wrapper.components = &outer;
    wrapper.n_components = 1;
    CHECK_OK(lend_tensor_new_compound(&wrapper, &outmost, &error), &error);
    CHECK_OK(lend_tensor_check(outmost, &error), &error);
    set_int(s.parts[0], 0, 9);
    CHECK_CODE(lend_tensor_check(outmost, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "indices[0][0] is 9");
    lend_tensor_unref(outmost);
    lend_tensor_unref(outer);
    lend_tensor_unref(parts[1]);
    sample_end(&s);
}

/* --- geometry -------------------------------------------------------------------------------------------------------- */

/* Indices that do not lie in C order: the same elements, found by other strides and from odd bytes on. */
LEND_TEST(check_reads_any_strides) {
    /* (2, 3) as the transpose of (3, 2), backwards: columns (0,1) (1,0) (1,3) from the end. */
    RIGHT(LEND_LAYOUT_COO, sample_replace(&s, 0, tensor_of_ints(dtype_int64, SHAPE(6), LIST(3, 1, 0, 1, 1, 0))),
          replace_by_view(&s, 0, SHAPE(2, 3), LIST(-1, -2), 5));
    WRONG(LEND_LAYOUT_COO, "indices[1][2] is 4",
          sample_replace(&s, 0, tensor_of_ints(dtype_int64, SHAPE(6), LIST(4, 1, 0, 1, 1, 0))),
          replace_by_view(&s, 0, SHAPE(2, 3), LIST(-1, -2), 5));
    RIGHT(LEND_LAYOUT_CSR, set_int(s.parts[0], 0, 0), /* both batches are the second one */
          replace_by_view(&s, 0, SHAPE(2, 4), LIST(0, 1), 4), replace_by_view(&s, 1, SHAPE(2, 3), LIST(0, 1), 3));
    RIGHT(LEND_LAYOUT_CSR, replace_by_view(&s, 0, SHAPE(2, 4), LIST(-4, 1), 4), /* the batches exchanged */
          replace_by_view(&s, 1, SHAPE(2, 3), LIST(-3, 1), 3));
    WRONG(LEND_LAYOUT_CSR, "of batch (0)", replace_by_view(&s, 0, SHAPE(2, 4), LIST(-4, 1), 4));
    static uint8_t memory[40];
    struct sample s;
    for (int bits = 32; bits <= 64; bits += 32) {
        int64_t n = 3;
        struct lend_error error;
        DLManagedTensorVersioned managed = {.version = {1, 3},
                                            .dl_tensor = {.data = memory + 3,
                                                          .device = {kDLCPU, 0},
                                                          .ndim = 1,
                                                          .dtype = {LEND_INT, (uint8_t)bits, 1},
                                                          .shape = &n}};
        sample_make(&s, LEND_LAYOUT_JAGGED, dtype_int64);
        sample_replace(&s, 1, NULL);
        CHECK_OK(lend_tensor_from_dlpack(&managed, &s.parts[1], &error), &error);
        memset(memory, 0, sizeof memory);
        memory[3 + bits / 8] = 2;
        memory[3 + bits / 4] = 5;
        check_right(&s);
        memory[3 + bits / 4] = 6;
        check_wrong(&s, "offsets[2] is 6, after 2");
        sample_end(&s);
    }
}

/* Tensors of more elements than there is time for, over a few bytes: each is answered at once. */
LEND_TEST_TIMED(check_ends_soon, 20) {
    int64_t many = (int64_t)1 << 55;
    RIGHT(LEND_LAYOUT_COO, s.compound.is_coalesced = 0, replace_by_view(&s, 0, SHAPE(2, many), LIST(1, 0), 0),
          replace_by_view(&s, 1, SHAPE(many, 2), LIST(0, 1), 0));
    WRONG(LEND_LAYOUT_COO, "columns 0 and 1 of indices are equal",
          replace_by_view(&s, 0, SHAPE(2, many), LIST(1, 0), 0), replace_by_view(&s, 1, SHAPE(many, 2), LIST(0, 1), 0));
    RIGHT(LEND_LAYOUT_COO, s.compound.is_coalesced = 0, replace_by_view(&s, 0, SHAPE(0, many), LIST(1, 1), 0),
          replace_by_view(&s, 1, SHAPE(many, 2), LIST(0, 1), 0), s.compound.ndim = 1, s.shape[0] = 2);
    WRONG(LEND_LAYOUT_BSR, "crow_indices[36028797018963968] is 0 and must be 3",
          replace_by_view(&s, 0, SHAPE(many + 1), LIST(0), 0), s.shape[0] = 2 * many, s.shape[1] = 3, s.shape[2] = 2);
    WRONG(LEND_LAYOUT_JAGGED, "offsets[0] is 2", replace_by_view(&s, 1, SHAPE(many + 1), LIST(0), 1),
          s.shape[0] = many);
    RIGHT(LEND_LAYOUT_JAGGED, replace_by_view(&s, 1, SHAPE(many + 1), LIST(0), 0), s.shape[0] = many);
    RIGHT(LEND_LAYOUT_NESTED, replace_by_view(&s, 1, SHAPE(many, 2), LIST(0, 1), 0), s.shape[0] = many,
          replace_by_view(&s, 2, SHAPE(many, 2), LIST(0, 1), 0), replace_by_view(&s, 3, SHAPE(many), LIST(0), 0));
    RIGHT(LEND_LAYOUT_QUANTIZED_PER_CHANNEL, replace_by_view(&s, 0, SHAPE(2, many), LIST(0, 0), 0), s.shape[1] = many,
          replace_by_view(&s, 1, SHAPE(many), LIST(0), 0), replace_by_view(&s, 2, SHAPE(many), LIST(0), 0));
}

/* Batches: expanded ones are one, overlapping ones are refused when they are more than their memory has room for. */
static void check_batches(int64_t stride, bool is_right) {
    int64_t n = (int64_t)1 << 20;
    struct sample s;
    sample_make(&s, LEND_LAYOUT_CSR, dtype_int32);
    sample_replace(&s, 0, tensor_of(dtype_int32, SHAPE(2 * n)));
    memset(lend_tensor_data(s.parts[0]), 0, (size_t)n * 8);
    replace_by_view(&s, 0, SHAPE(n, n, 1, 2), LIST(stride, stride, 0, 1), 0);
    replace_by_view(&s, 1, SHAPE(n, n, 1, 0), LIST(0, 0, 0, 1), 0);
    replace_by_view(&s, 2, SHAPE(n, n, 1, 0), LIST(0, 0, 0, 1), 0);
    sample_shape(&s, 3, SHAPE(n, n, 1, 1, 4));
    if (is_right)
        check_right(&s);
    else
        check_wrong(&s, "the batches of crow_indices and col_indices overlap in memory: lend_tensor_copy them first");
    sample_end(&s);
}

LEND_TEST_TIMED(check_batches_end_soon, 20) {
    check_batches(0, true);
    check_batches(1, false);
}

LEND_TEST(check_no_batches) {
    RIGHT(LEND_LAYOUT_CSR, replace_by_view(&s, 0, SHAPE(0, 4), LIST(1, 1), 0),
          replace_by_view(&s, 1, SHAPE(0, 3), LIST(1, 1), 0), replace_by_view(&s, 2, SHAPE(0, 3), LIST(1, 1), 0),
          s.shape[0] = 0);
    RIGHT(LEND_LAYOUT_CSR, /* no rows */ replace_by_view(&s, 0, SHAPE(2, 1), LIST(0, 1), 0),
          replace_by_view(&s, 1, SHAPE(2, 0), LIST(0, 1), 0), replace_by_view(&s, 2, SHAPE(2, 0), LIST(0, 1), 0),
          s.shape[1] = 0);
}

/* --- a peer who writes meanwhile ------------------------------------------------------------------------------------- */

/* For ever turns the last of the pointers far out of range, and back. */
static void write_for_ever(volatile int64_t *pointers) {
    for (uint64_t i = 0;; i++) pointers[2] = i % 2 ? (int64_t)1 << 40 : 3;
}

/* `managed` lives as long as the tensor. */
static struct lend_tensor *borrow_ints(DLManagedTensorVersioned *managed, int64_t *data, int64_t n) {
    struct lend_error error;
    struct lend_tensor *tensor;
    *managed = (DLManagedTensorVersioned){
        .version = {1, 3},
        .dl_tensor = {.data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = dtype_int64, .shape = &n}};
    CHECK_OK(lend_tensor_from_dlpack(managed, &tensor, &error), &error);
    return tensor;
}

/* The indices end where the memory ends: a pointer that is used after a second look leads out of it. */
LEND_TEST(check_of_memory_that_changes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK_INT(mprotect(memory + page, page, PROT_NONE), 0);
    int64_t *numbers = (int64_t *)(void *)(memory + page) - 6;
    memcpy(numbers, LIST(0, 2, 3, 0, 2, 1), 48);
    DLManagedTensorVersioned managed[2];
    struct sample s;
    sample_make(&s, LEND_LAYOUT_BSR, dtype_int64);
    sample_replace(&s, 0, borrow_ints(&managed[0], numbers, 3));
    sample_replace(&s, 1, borrow_ints(&managed[1], numbers + 3, 3));
    check_right(&s);
    struct lend_tensor *tensor = sample_tensor(&s);
    pid_t peer = fork();
    if (peer == 0) write_for_ever(numbers);
    unsigned n_right = 0, n_wrong = 0;
    for (uint64_t deadline = test_deadline_ms(10000);
         test_now_ms() < deadline && (n_right < 20000 || n_wrong < 20000);) {
        int r = lend_tensor_check(tensor, NULL);
        CHECK(r == 0 || r == -EBADMSG);
        n_right += r == 0;
        n_wrong += r != 0;
    }
    kill(peer, SIGKILL);
    CHECK_INT(waitpid(peer, NULL, 0), peer);
    CHECK(n_right > 0 && n_wrong > 0);
    lend_tensor_unref(tensor);
    sample_end(&s);
    munmap(memory, 2 * page);
}

/* --- memory that is none --------------------------------------------------------------------------------------------- */

/* A zero tensor reads as zeros; of a meta tensor nothing can be read, unless nobody asks. */
LEND_TEST(check_without_memory) {
    struct lend_error error;
    struct sample s;
    struct lend_tensor *part;
    sample_make(&s, LEND_LAYOUT_JAGGED, dtype_int64);
    CHECK_OK(lend_tensor_new_zero(dtype_int64, SHAPE(3), &part, &error), &error);
    sample_replace(&s, 1, part);
    check_right(&s);
    CHECK_OK(lend_tensor_new_meta(dtype_float32, SHAPE(5, 4), &part, &error), &error);
    sample_replace(&s, 0, part); /* the values are not looked at */
    check_right(&s);
    CHECK_OK(lend_tensor_new_meta(dtype_int64, SHAPE(3), &part, &error), &error);
    sample_replace(&s, 1, part);
    check_right(&s); /* no elements, nothing to be wrong */
    sample_end(&s);
    sample_make(&s, LEND_LAYOUT_CSR, dtype_int64);
    CHECK_OK(lend_tensor_new_zero(dtype_int64, SHAPE(2, 4), &part, &error), &error);
    sample_replace(&s, 0, part);
    check_wrong(&s, "crow_indices[3] of batch (0) is 0 and must be 3");
    sample_end(&s);
}

/* A meta tensor before a wrong one does not hide it. */
LEND_TEST(check_looks_behind_meta) {
    struct lend_error error;
    struct sample meta, wrong;
    struct lend_tensor *part, *parts[2], *wrapper = NULL;
    sample_make(&meta, LEND_LAYOUT_CSR, dtype_int64);
    CHECK_OK(lend_tensor_new_meta(dtype_int64, SHAPE(2, 4), &part, &error), &error);
    sample_replace(&meta, 0, part);
    sample_make(&wrong, LEND_LAYOUT_CSR, dtype_int64);
    CHECK_OK(lend_tensor_new_zero(dtype_int64, SHAPE(2, 4), &part, &error), &error);
    sample_replace(&wrong, 0, part);
    parts[0] = sample_tensor(&meta);
    parts[1] = sample_tensor(&wrong);
    static const int64_t shape[] = {2};
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = LEND_LAYOUT_WRAPPER,
                                           .n_components = 2,
                                           .components = parts,
                                           .ndim = 1,
                                           .shape = shape,
                                           .dtype = dtype_float32};
    CHECK_OK(lend_tensor_new_compound(&compound, &wrapper, &error), &error);
    CHECK_OK(lend_tensor_check(parts[0], &error), &error);
    CHECK_CODE(lend_tensor_check(wrapper, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "crow_indices[3] of batch (0) is 0 and must be 3");
    lend_tensor_unref(wrapper);
    lend_tensor_unref(parts[0]);
    lend_tensor_unref(parts[1]);
    sample_end(&meta);
    sample_end(&wrong);
}
