/* SPDX-License-Identifier: MIT */
/* The reader of .npy: files that NumPy wrote (tests/data), headers that no NumPy writes, and damaged ones. */
#include "fault.h"
#include "file_bytes.h"
#include "test.h"

#include <errno.h>
#include <lend/lend.h>

/* A version 1.0 file of this header and `n_data` bytes 0, 1, 2... */
static int open_header(const char *header, size_t n_data, struct lend_file **ret, struct lend_error *error) {
    uint8_t bytes[4096] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    size_t n = strlen(header);
    CHECK(10 + n + n_data <= sizeof bytes);
    bytes[8] = (uint8_t)n;
    bytes[9] = (uint8_t)(n >> 8);
    memcpy(bytes + 10, header, n);
    for (size_t i = 0; i < n_data; i++) bytes[10 + n + i] = (uint8_t)i;
    return open_bytes(bytes, 10 + n + n_data, ret, error);
}

static void check_refused(const char *header, size_t n_data, int code, const char *part) {
    struct lend_file *file = NULL;
    struct lend_error error;
    CHECK_CODE(open_header(header, n_data, &file, &error), code);
    CHECK_CONTAINS(error.text, part);
    CHECK_PTR(file, NULL);
}

static void check_opens(const char *header, size_t n_data, int32_t ndim) {
    struct lend_file *file;
    struct lend_error error;
    struct lend_file_entry e = {.size = sizeof e};
    CHECK_OK(open_header(header, n_data, &file, &error), &error);
    CHECK_OK(lend_file_entry_get(file, 0, &e), NULL);
    CHECK_INT(e.ndim, ndim);
    CHECK_UINT(e.nbytes, n_data);
    lend_file_close(file);
}

LEND_TEST(npy_of_every_dtype) {
    static const struct {
        const char *name;
        unsigned bits;
    } rows[] = {{"bool", 8},     {"int8", 8},     {"int16", 16},     {"int32", 32},      {"int64", 64},
                {"uint8", 8},    {"uint16", 16},  {"uint32", 32},    {"uint64", 64},     {"float16", 16},
                {"float32", 32}, {"float64", 64}, {"complex64", 64}, {"complex128", 128}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct lend_file *file;
        struct lend_error error;
        struct lend_file_entry e = {.size = sizeof e};
        char path[64], name[32];
        snprintf(path, sizeof path, "tests/data/c_%s.npy", rows[i].name);
        CHECK_OK(lend_file_open(sample(path), &file, &error), &error);
        CHECK_UINT(lend_file_count(file), 1);
        CHECK_OK(lend_file_entry_get(file, 0, &e), NULL);
        CHECK_OK(lend_dtype_format(e.dtype, name, sizeof name), NULL);
        CHECK_STR(name, rows[i].name);
        snprintf(path, sizeof path, "c_%s", rows[i].name);
        CHECK_STR(e.name, path);
        CHECK_INT(e.ndim, 2);
        CHECK_INT(e.shape[0], 2);
        CHECK_INT(e.shape[1], 3);
        CHECK_INT(e.strides[0], 3);
        CHECK_INT(e.strides[1], 1);
        CHECK_UINT(e.nbytes, 6 * rows[i].bits / 8);
        lend_file_close(file);
    }
}

static void check_shape(const char *name, int32_t ndim, const int64_t *shape, const int64_t *strides) {
    struct lend_file *file;
    struct lend_error error;
    struct lend_file_entry e = {.size = sizeof e};
    char path[64];
    snprintf(path, sizeof path, "tests/data/%s.npy", name);
    CHECK_OK(lend_file_open(sample(path), &file, &error), &error);
    CHECK_OK(lend_file_entry_get(file, 0, &e), NULL);
    CHECK_INT(e.ndim, ndim);
    CHECK_MEM(e.shape, shape, (size_t)ndim * sizeof *shape);
    CHECK_MEM(e.strides, strides, (size_t)ndim * sizeof *strides);
    lend_file_close(file);
}

LEND_TEST(npy_shapes_and_versions) {
    check_shape("scalar", 0, (int64_t[]){0}, (int64_t[]){0});
    check_shape("empty", 3, (int64_t[]){3, 0, 2}, (int64_t[]){2, 2, 1});
    check_shape("version2", 1, (int64_t[]){5}, (int64_t[]){1});
    check_shape("version3", 1, (int64_t[]){5}, (int64_t[]){1});
    check_shape("f_float32", 3, (int64_t[]){2, 3, 4}, (int64_t[]){1, 2, 6});
}

LEND_TEST(npy_that_lend_does_not_carry) {
    static const struct {
        const char *name, *part;
    } rows[] = {{"bad_big_endian", "big-endian numbers (>i4)"},
                {"bad_record", "records"},
                {"bad_text", "'<U3'"},
                {"bad_date", "'<M8[D]'"},
                {"bad_object", "'|O'"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct lend_file *file = NULL;
        struct lend_error error = {0};
        char path[64];
        snprintf(path, sizeof path, "tests/data/%s.npy", rows[i].name);
        CHECK_CODE(lend_file_open(sample(path), &file, &error), -EOPNOTSUPP);
        CHECK_CONTAINS(error.text, rows[i].part);
        CHECK_PTR(file, NULL);
    }
}

#define DICT(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

LEND_TEST(npy_headers_that_mean_the_same) {
    check_opens(DICT("'<i2'", "False", "(2, 3)"), 12, 2);
    check_opens("{\"shape\":(2,3,),\"descr\":\"<i2\",\"fortran_order\":True}    \n", 12, 2);
    check_opens(DICT("'=i2'", "False", "(2L, 3L)"), 12, 2);
    check_opens(DICT("'i2'", "False", "( 6 , )"), 12, 1);
    check_opens(DICT("'>u1'", "False", "(6,)"), 6, 1);
    check_opens(DICT("'?'", "False", "()"), 1, 0);
}

LEND_TEST(npy_headers_that_numpy_does_not_write) {
    static const char *const bad[] = {
        "\n",
        "{}\n",
        DICT("'<i2'", "False", "(6)"),
        DICT("'<i2'", "False", "[6]"),
        DICT("'<i2'", "False", "(6,,)"),
        DICT("'<i2'", "False", "(,)"),
        DICT("'<i2'", "False", "(3 2)"),
        DICT("'<i2'", "False", "(-6,)"),
        DICT("'<i2'", "False", "(6.0,)"),
        DICT("'<i2'", "False", "(06,)"),
        DICT("'<i2'", "False", "(2*3,)"),
        DICT("'<i2'", "False", "(9223372036854775808,)"),
        DICT("'<i2'", "0", "(6,)"),
        DICT("'<i2'", "false", "(6,)"),
        DICT("'<i2", "False", "(6,)"),
        DICT("'<\\x69'", "False", "(6,)"),
        DICT("dtype('<i2')", "False", "(6,)"),
        "{'descr': '<i2', 'fortran_order': False}\n",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (6,), 'shape': (6,)}\n",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (6,), 'more': 1}\n",
        "{'descr': '<i2' 'fortran_order': False, 'shape': (6,)}\n",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (6,)} x\n",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (6,)\n",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (6,)}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) check_refused(bad[i], 12, -EBADMSG, "the header");
}

LEND_TEST(npy_sizes_agree) {
    check_refused(DICT("'<i2'", "False", "(6,)"), 11, -EBADMSG, "cut short");
    check_refused(DICT("'<i2'", "False", "(6,)"), 13, -EBADMSG, "one array in a file");
    check_refused(DICT("'<i2'", "False", "(4294967296, 4294967296)"), 0, -EBADMSG, "64 bits");
    check_refused(DICT("'<i2'", "False", "(0, 4294967296, 4294967296)"), 0, -EBADMSG, "64 bits");
    check_refused(DICT("'<c16'", "False", "(1152921504606846976,)"), 0, -EBADMSG, "64 bits");
    char header[1024] = "{'descr': '|u1', 'fortran_order': False, 'shape': (1";
    for (int i = 1; i < LEND_NDIM_MAX; i++) strcat(header, ", 1");
    strcat(header, "), }\n");
    check_opens(header, 1, LEND_NDIM_MAX);
    strcpy(strstr(header, "), }"), ", 1, 1, 1), }\n");
    check_refused(header, 1, -EOPNOTSUPP, "64 dimensions");
}

LEND_TEST(npy_lengths_and_versions) {
    struct lend_file *file = NULL;
    struct lend_error error;
    CHECK_CODE(open_bytes("\x93NUMPY\1\0", 8, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x93NUMPY\1\0\1", 9, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x93NUMPY\1\0\xff\xff{", 11, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x93NUMPY\2\0\xff\xff\xff\xff{", 13, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x93NUMPY\1\0\0\0", 10, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x93NUMPY\4\0\0\0\0\0", 12, &file, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "version 4.0");
    CHECK_CODE(open_bytes("\x93NUMPY\1\1\0\0\0\0", 12, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x93NUMPZ\1\0\0\0\0\0", 12, &file, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "neither .npy nor .safetensors");
    CHECK_PTR(file, NULL);
}

LEND_TEST(npy_damaged_headers) {
    static const char good[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n";
    uint64_t state = 2;
    unsigned n_opened = 0;
    for (unsigned round = 0; round < 4000; round++) {
        char header[sizeof good];
        struct lend_file *file = NULL;
        struct lend_error error;
        memcpy(header, good, sizeof good);
        for (unsigned n = 1 + next_random(&state) % 3; n > 0; n--)
            header[next_random(&state) % (sizeof good - 1)] = next_random(&state) % 2
                                                                  ? good[next_random(&state) % (sizeof good - 1)]
                                                                  : (char)(1 + next_random(&state) % 255);
        int r = open_header(header, 24, &file, &error);
        if (r == 0)
            n_opened++;
        else
            CHECK(r == -EBADMSG || r == -EOPNOTSUPP);
        lend_file_close(file);
    }
    CHECK(n_opened > 0);
}

LEND_TEST(npy_each_call_fails_once) {
    for (unsigned n = 0;; n++) {
        struct lend_file *file = NULL;
        struct lend_error error = {0};
        fault_arm_thread(n);
        int r = lend_file_open(sample("tests/data/c_int32.npy"), &file, &error);
        const char *failed = fault_disarm();
        if (!failed) {
            CHECK_OK(r, &error);
            lend_file_close(file);
            CHECK(n > 7);
            return;
        }
        CHECK(r < 0);
        CHECK_INT(error.code, r);
        CHECK(error.text[0]);
        CHECK_PTR(file, NULL);
    }
}

LEND_TEST(npy_loads_into_a_pool) {
    struct lend_file *file;
    struct lend_pool *pool;
    struct lend_tensor *tensor, *copy;
    struct lend_error error;
    struct lend_tensor_info info = {.size = sizeof info};
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);

    CHECK_OK(lend_file_open(sample("tests/data/c_int32.npy"), &file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, pool, NULL, &tensor, &error), &error);
    lend_file_close(file);
    CHECK_MEM(lend_tensor_data(tensor), ((int32_t[]){0, 1, 2, 3, 4, 5}), 24);
    lend_tensor_unref(tensor);

    /* Fortran order is a transposed view; in C order it is 0..23 again. */
    CHECK_OK(lend_file_open(sample("tests/data/f_float32.npy"), &file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, pool, NULL, &tensor, &error), &error);
    lend_file_close(file);
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    CHECK_INT(info.ndim, 3);
    CHECK_INT(info.strides[0], 1);
    CHECK_INT(info.strides[2], 6);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    for (int i = 0; i < 24; i++) CHECK(((float *)lend_tensor_data(copy))[i] == (float)i);
    lend_tensor_unref(copy);
    lend_tensor_unref(tensor);

    /* So it is in place. */
    const struct lend_file_load_opts in_place = {.size = sizeof in_place, .flags = LEND_FILE_IN_PLACE};
    CHECK_OK(lend_file_open(sample("tests/data/f_float32.npy"), &file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), &error);
    lend_file_close(file);
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    CHECK_INT(info.strides[0], 1);
    CHECK_INT(info.strides[2], 6);
    CHECK(info.is_read_only);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    for (int i = 0; i < 24; i++) CHECK(((float *)lend_tensor_data(copy))[i] == (float)i);
    lend_tensor_unref(copy);
    lend_tensor_unref(tensor);

    CHECK_OK(lend_file_open(sample("tests/data/empty.npy"), &file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, NULL, &in_place, &tensor, &error), &error);
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    CHECK_INT(info.numel, 0);
    lend_tensor_unref(tensor);
    lend_file_close(file);
    CHECK_OK(lend_file_open(sample("tests/data/empty.npy"), &file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, pool, NULL, &tensor, &error), &error);
    lend_file_close(file);
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    CHECK_INT(info.numel, 0);
    lend_tensor_unref(tensor);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}
