/* SPDX-License-Identifier: MIT */
/* The reader of .safetensors: a file that the safetensors library wrote, every dtype, every rule of the format broken
 * once, and many damaged headers. */
#include "fault.h"
#include "file_bytes.h"
#include "test.h"

#include <errno.h>
#include <lend/lend.h>

static int open_header(const char *header, size_t n_data, struct lend_file **ret, struct lend_error *error) {
    static uint8_t bytes[1 << 16];
    return open_bytes(bytes, safetensors_bytes(header, n_data, bytes, sizeof bytes), ret, error);
}

static void check_refused(const char *header, size_t n_data, int code, const char *part) {
    struct lend_file *file = NULL;
    struct lend_error error;
    CHECK_CODE(open_header(header, n_data, &file, &error), code);
    CHECK_CONTAINS(error.text, part);
    CHECK_PTR(file, NULL);
}

LEND_TEST(safetensors_tells_what_is_there) {
    struct lend_file *file;
    struct lend_error error;
    struct lend_file_entry e = {.size = sizeof e};
    const char *key, *value;
    size_t index;
    CHECK_OK(open_header("{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"late\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                         "\"early\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                         "\"scalar\":{\"shape\":[],\"data_offsets\":[28,29],\"dtype\":\"U8\"}}   ",
                         29, &file, &error),
             &error);
    CHECK_UINT(lend_file_count(file), 3);
    CHECK_OK(lend_file_entry_get(file, 0, &e), NULL);
    CHECK_STR(e.name, "early");
    CHECK_OK(lend_file_entry_get(file, 1, &e), NULL);
    CHECK_STR(e.name, "late");
    CHECK_INT(e.dtype.code, LEND_FLOAT);
    CHECK_INT(e.dtype.bits, 32);
    CHECK_INT(e.ndim, 2);
    CHECK_INT(e.shape[0], 2);
    CHECK_INT(e.shape[1], 3);
    CHECK_INT(e.strides[0], 3);
    CHECK_INT(e.strides[1], 1);
    CHECK_UINT(e.nbytes, 24);
    CHECK_OK(lend_file_find(file, "scalar", &index), NULL);
    CHECK_UINT(index, 2);
    CHECK_OK(lend_file_entry_get(file, index, &e), NULL);
    CHECK_INT(e.ndim, 0);
    CHECK_UINT(e.nbytes, 1);
    CHECK_CODE(lend_file_find(file, "none", &index), -ENOENT);
    CHECK_CODE(lend_file_entry_get(file, 3, &e), -ERANGE);
    e.size = 8;
    CHECK_CODE(lend_file_entry_get(file, 0, &e), -EINVAL);
    CHECK_OK(lend_file_metadata(file, 0, &key, &value), NULL);
    CHECK_STR(key, "format");
    CHECK_STR(value, "pt");
    CHECK_CODE(lend_file_metadata(file, 1, &key, &value), -ERANGE);
    lend_file_close(file);
    lend_file_close(NULL);
}

LEND_TEST(safetensors_knows_every_dtype) {
    static const struct {
        const char *name;
        const char *ours;
        unsigned bytes; /* of 8 elements */
    } rows[] = {
        {"BOOL", "bool", 8},
        {"F4", "float4_e2m1fn", 4},
        {"F6_E2M3", "float6_e2m3fn", 6},
        {"F6_E3M2", "float6_e3m2fn", 6},
        {"U8", "uint8", 8},
        {"I8", "int8", 8},
        {"F8_E5M2", "float8_e5m2", 8},
        {"F8_E4M3", "float8_e4m3fn", 8},
        {"F8_E8M0", "float8_e8m0fnu", 8},
        {"F8_E4M3FNUZ", "float8_e4m3fnuz", 8},
        {"F8_E5M2FNUZ", "float8_e5m2fnuz", 8},
        {"I16", "int16", 16},
        {"U16", "uint16", 16},
        {"F16", "float16", 16},
        {"BF16", "bfloat16", 16},
        {"I32", "int32", 32},
        {"U32", "uint32", 32},
        {"F32", "float32", 32},
        {"C64", "complex64", 64},
        {"F64", "float64", 64},
        {"I64", "int64", 64},
        {"U64", "uint64", 64},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct lend_file *file;
        struct lend_error error;
        struct lend_file_entry e = {.size = sizeof e};
        char header[128], name[32];
        snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
                 rows[i].name, rows[i].bytes);
        CHECK_OK(open_header(header, rows[i].bytes, &file, &error), &error);
        CHECK_OK(lend_file_entry_get(file, 0, &e), NULL);
        CHECK_OK(lend_dtype_format(e.dtype, name, sizeof name), NULL);
        CHECK_STR(name, rows[i].ours);
        CHECK_UINT(e.nbytes, rows[i].bytes);
        lend_file_close(file);
    }
}

LEND_TEST(safetensors_without_tensors_or_bytes) {
    struct lend_file *file;
    struct lend_error error;
    CHECK_OK(open_header("{}", 0, &file, &error), &error);
    CHECK_UINT(lend_file_count(file), 0);
    lend_file_close(file);
    CHECK_OK(open_header("{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                         "\"a\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}",
                         4, &file, &error),
             &error);
    CHECK_UINT(lend_file_count(file), 2);
    lend_file_close(file);
}

#define TENSOR(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

LEND_TEST(safetensors_layout_is_exact) {
    check_refused("{" TENSOR("a", "U8", "4", "0,4") "}", 5, -EBADMSG, "end at 4, but 5 bytes");
    check_refused("{" TENSOR("a", "U8", "4", "0,4") "}", 3, -EBADMSG, "cut short");
    check_refused("{" TENSOR("a", "U8", "4", "1,5") "}", 5, -EBADMSG, "after a hole");
    check_refused("{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "2,6") "}", 6, -EBADMSG,
                  "inside another");
    check_refused("{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "0,4") "}", 4, -EBADMSG,
                  "inside another");
    check_refused("{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "5,9") "}", 9, -EBADMSG, "after a hole");
    check_refused("{" TENSOR("a", "F32", "4", "0,4") "}", 4, -EBADMSG, "needs 16 bytes, data_offsets give it 4");
    check_refused("{" TENSOR("a", "F4", "3", "0,2") "}", 2, -EBADMSG, "whole bytes");
    check_refused("{" TENSOR("a", "U8", "4", "4,0") "}", 4, -EBADMSG, "not [begin, end]");
    check_refused("{" TENSOR("a", "U8", "4", "-4,0") "}", 4, -EBADMSG, "not [begin, end]");
    check_refused("{" TENSOR("a", "U8", "4", "0,4,4") "}", 4, -EBADMSG, "not [begin, end]");
    check_refused("{}", 1, -EBADMSG, "1 bytes follow");
}

LEND_TEST(safetensors_sizes_do_not_overflow) {
    check_refused("{" TENSOR("a", "U8", "4294967296,4294967296", "0,0") "}", 0, -EBADMSG, "64 bits");
    check_refused("{" TENSOR("a", "F64", "2305843009213693952", "0,0") "}", 0, -EBADMSG, "64 bits");
    check_refused("{" TENSOR("a", "U8", "0,4294967296,4294967296", "0,0") "}", 0, -EBADMSG, "64 bits");
    check_refused("{" TENSOR("a", "U8", "9223372036854775808", "0,0") "}", 0, -EBADMSG, "not JSON");
    check_refused("{" TENSOR("a", "U8", "9223372036854775807", "0,9223372036854775807") "}", 4, -EBADMSG, "64 bits");
    check_refused("{" TENSOR("a", "U8", "-1,-4", "0,4") "}", 4, -EBADMSG, "other than sizes");
    check_refused("{" TENSOR("a", "U8", "4.0", "0,4") "}", 4, -EBADMSG, "other than sizes");
    check_refused("{" TENSOR("a", "U8", "true", "0,1") "}", 1, -EBADMSG, "other than sizes");
    char header[512] = "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1";
    for (int i = 1; i < LEND_NDIM_MAX; i++) strcat(header, ",1");
    struct lend_file *file;
    struct lend_error error;
    strcat(header, "]}}");
    CHECK_OK(open_header(header, 1, &file, &error), &error);
    lend_file_close(file);
    strcpy(strstr(header, "]}}"), ",1]}}");
    check_refused(header, 1, -EOPNOTSUPP, "65 dimensions");
}

LEND_TEST(safetensors_header_is_json_of_that_form) {
    check_refused(" {}", 0, -EBADMSG, "begin with '{'");
    check_refused("[]", 0, -EBADMSG, "begin with '{'");
    check_refused("{\"a\":", 0, -EBADMSG, "not JSON");
    check_refused("{} {}", 0, -EBADMSG, "not JSON");
    check_refused("{\"\xff\":1}", 0, -EBADMSG, "not JSON");
    check_refused("{\"a\":1}", 0, -EBADMSG, "not an object");
    check_refused("{" TENSOR("a", "U8", "1", "0,1") "," TENSOR("a", "U8", "1", "1,2") "}", 2, -EBADMSG, "not JSON");
    check_refused("{\"__metadata__\":[]}", 0, -EBADMSG, "__metadata__ is not an object");
    check_refused("{\"__metadata__\":{\"k\":1}}", 0, -EBADMSG, "__metadata__ \"k\" is not a string");
    check_refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EBADMSG, "dtype is missing");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, -EBADMSG, "shape is missing");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, -EBADMSG, "data_offsets is missing");
    check_refused("{" TENSOR("a", "F128", "1", "0,16") "}", 16, -EOPNOTSUPP, "dtype \"F128\"");
    check_refused("{" TENSOR("a", "u8", "1", "0,1") "}", 1, -EOPNOTSUPP, "dtype \"u8\"");
}

LEND_TEST(safetensors_deep_json_is_refused) {
    static char header[60001];
    memset(header, '[', sizeof header - 1);
    memcpy(header, "{\"a\":", 5);
    check_refused(header, 0, -EBADMSG, "not JSON");
}

LEND_TEST(safetensors_lengths_of_the_header) {
    struct lend_file *file = NULL;
    struct lend_error error;
    CHECK_CODE(open_bytes("", 0, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x02\0\0\0\0\0\0", 7, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\0\0\0\0\0\0\0\0", 8, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\x03\0\0\0\0\0\0\0{}", 10, &file, &error), -EBADMSG);
    CHECK_CODE(open_bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &file, &error), -EBADMSG);
    CHECK_UINT(error.asked, UINT64_MAX);
    /* 100,000,001: one above the limit. */
    CHECK_CODE(open_bytes("\x01\xe1\xf5\x05\0\0\0\0{}", 10, &file, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "at most 100000000");
    CHECK_CODE(open_bytes("\x00\xe1\xf5\x05\0\0\0\0{}", 10, &file, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "in a file of 10");
    CHECK_PTR(file, NULL);
}

LEND_TEST(files_that_cannot_be_read) {
    struct lend_file *file = NULL;
    struct lend_error error;
    CHECK_CODE(lend_file_open("/nonexistent/x.npy", &file, &error), -ENOENT);
    CHECK_CONTAINS(error.text, "/nonexistent/x.npy cannot be opened: No such file");
    CHECK_CODE(lend_file_open("/", &file, &error), -EISDIR);
    CHECK_CODE(lend_file_open("/dev/null", &file, &error), -EINVAL);
    CHECK_CODE(lend_file_open(NULL, &file, &error), -EINVAL);
    CHECK_CODE(lend_file_open("/nonexistent", &file, NULL), -ENOENT);
}

/* Any damage gives a table or a typed error; what opens is consistent. */
LEND_TEST(safetensors_damaged_headers) {
    static const char good[] = "{\"__metadata__\":{\"k\":\"v\"}," TENSOR("a", "F32", "2,2", "0,16") "," TENSOR(
        "b", "I64", "3", "16,40") "," TENSOR("c", "F4", "0", "40,40") "}";
    uint64_t state = 1;
    unsigned n_opened = 0;
    for (unsigned round = 0; round < 4000; round++) {
        char header[sizeof good];
        struct lend_file *file = NULL;
        struct lend_error error;
        memcpy(header, good, sizeof good);
        for (unsigned n = 1 + next_random(&state) % 4; n > 0; n--)
            header[next_random(&state) % (sizeof good - 1)] = next_random(&state) % 2
                                                                  ? good[next_random(&state) % (sizeof good - 1)]
                                                                  : (char)(1 + next_random(&state) % 255);
        int r = open_header(header, 40, &file, &error);
        if (r == 0) {
            n_opened++;
            for (size_t i = 0; i < lend_file_count(file); i++) {
                struct lend_file_entry e = {.size = sizeof e};
                CHECK_OK(lend_file_entry_get(file, i, &e), NULL);
                CHECK(e.offset >= 8 + sizeof good - 1 && e.offset + e.nbytes <= 8 + sizeof good - 1 + 40);
            }
            lend_file_close(file);
        } else {
            CHECK(r == -EBADMSG || r == -EOPNOTSUPP);
        }
    }
    CHECK(n_opened > 0);
}

LEND_TEST(safetensors_each_call_fails_once) {
    for (unsigned n = 0;; n++) {
        struct lend_file *file = NULL;
        struct lend_error error = {0};
        fault_arm_thread(n);
        int r = lend_file_open(sample("examples/digits/digits.safetensors"), &file, &error);
        const char *failed = fault_disarm();
        if (!failed) {
            CHECK_OK(r, &error);
            lend_file_close(file);
            CHECK(n > 10);
            return;
        }
        CHECK(r < 0);
        CHECK_INT(error.code, r);
        CHECK(error.text[0]);
        CHECK_PTR(file, NULL);
    }
}

/* digits.safetensors was written by the safetensors library. */
LEND_TEST(safetensors_loads_into_a_pool) {
    static const char *const names[] = {"images", "labels", "is_held_out", "w1", "b1", "w2", "b2"};
    struct lend_file *file;
    struct lend_pool *pool;
    struct lend_tensor *tensors[7];
    struct lend_error error;
    struct lend_file_entry e = {.size = sizeof e};
    struct lend_tensor_info info = {.size = sizeof info};
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    CHECK_OK(lend_file_open(sample("examples/digits/digits.safetensors"), &file, &error), &error);
    CHECK_UINT(lend_file_count(file), 7);
    for (size_t i = 0; i < 7; i++) {
        size_t index;
        CHECK_OK(lend_file_find(file, names[i], &index), NULL);
        CHECK_OK(lend_file_load(file, index, pool, NULL, &tensors[i], &error), &error);
        CHECK_OK(lend_file_entry_get(file, index, &e), NULL);
        CHECK_OK(lend_tensor_info(tensors[i], &info), NULL);
        CHECK_UINT(info.nbytes, e.nbytes);
        CHECK(info.is_contiguous);
        CHECK(info.allocation_inode != 0);
        /* Byte for byte what the file has there. */
        uint8_t *wanted = malloc(e.nbytes);
        FILE *raw = fopen(sample("examples/digits/digits.safetensors"), "rb");
        CHECK(raw && wanted && !fseek(raw, (long)e.offset, SEEK_SET));
        CHECK_UINT(fread(wanted, 1, e.nbytes, raw), e.nbytes);
        fclose(raw);
        CHECK_MEM(info.data, wanted, e.nbytes);
        free(wanted);
    }
    CHECK_OK(lend_tensor_info(tensors[0], &info), NULL);
    CHECK_INT(info.ndim, 3);
    CHECK_INT(info.shape[0], 1797);
    CHECK_CODE(lend_file_load(file, 7, pool, NULL, &tensors[0], &error), -ERANGE);
    lend_file_close(file);
    for (size_t i = 0; i < 7; i++) lend_tensor_unref(tensors[i]);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}

static int count_progress(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    unsigned *calls = user;
    ++*calls;
    CHECK_UINT(done_bytes, total_bytes);
    return *calls > 1;
}

LEND_TEST(a_load_is_one_read_and_can_be_ended) {
    struct lend_file *file;
    struct lend_pool *pool;
    struct lend_tensor *tensor = NULL;
    struct lend_error error;
    unsigned calls = 0;
    const struct lend_file_load_opts opts = {.size = sizeof opts, .progress = count_progress, .user = &calls};
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    CHECK_OK(open_header("{" TENSOR("a", "U8", "4", "0,4") "}", 4, &file, &error), &error);
    CHECK_OK(lend_file_load(file, 0, pool, &opts, &tensor, &error), &error);
    CHECK_UINT(calls, 1);
    CHECK_MEM(lend_tensor_data(tensor), "\0\1\2\3", 4);
    lend_tensor_unref(tensor);
    tensor = NULL;
    CHECK_CODE(lend_file_load(file, 0, pool, &opts, &tensor, &error), -ECANCELED);
    CHECK_PTR(tensor, NULL);
    lend_file_close(file);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}

LEND_TEST(a_file_cut_after_it_was_opened) {
    struct lend_file *file;
    struct lend_pool *pool;
    struct lend_tensor *tensor = NULL;
    struct lend_error error;
    char path[64];
    static const char bytes[] =
        "\x3a\0\0\0\0\0\0\0"
        "{" TENSOR("a", "U8", "4", "0,4") "}         ";
    int fd = memfd_create("lend-test", MFD_CLOEXEC);
    CHECK_INT(write(fd, bytes, 8 + 0x3a), 8 + 0x3a);
    CHECK_INT(write(fd, "abcd", 4), 4);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    CHECK_OK(lend_file_open(path, &file, &error), &error);
    CHECK_INT(ftruncate(fd, 8 + 0x3a + 1), 0);
    CHECK_CODE(lend_file_load(file, 0, pool, NULL, &tensor, &error), -EBADMSG);
    CHECK_CONTAINS(error.text, "ends after 1 of the 4 bytes");
    CHECK_PTR(tensor, NULL);
    lend_file_close(file);
    close(fd);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}
