/* SPDX-License-Identifier: MIT */
/* Errors as values: what is filled, what is left alone, and that every documented code has words. */
#include "base/error.h"
#include "test.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

LEND_TEST(fail_fills_the_error_and_returns_the_code) {
    struct lend_error e;
    memset(&e, 0xAA, sizeof e);
    CHECK_INT(lend__fail(&e, -EINVAL, "lend_pool_new", "alignment %u is not a power of two", 48u), -EINVAL);
    CHECK_INT(e.code, -EINVAL);
    CHECK_INT(e.os_code, 0);
    CHECK_UINT(e.asked, 0);
    CHECK_UINT(e.available, 0);
    CHECK_STR(e.operation, "lend_pool_new");
    CHECK_STR(e.text, "alignment 48 is not a power of two");
}

LEND_TEST(null_errors_are_allowed) {
    CHECK_INT(lend__fail(NULL, -EINVAL, "x", "y"), -EINVAL);
    CHECK_INT(lend__fail_bytes(NULL, -ENOMEM, "x", 1, 2, "y"), -ENOMEM);
    CHECK_INT(lend__fail_sys(NULL, -EIO, "x", "read", "y"), -EIO);
}

LEND_TEST(long_texts_are_cut_and_terminated) {
    struct lend_error e;
    char text[600];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    lend__fail(&e, -EINVAL, text, "%s", text);
    CHECK_UINT(strlen(e.text), LEND_ERROR_TEXT_BYTES - 1);
    CHECK_UINT(strlen(e.operation), sizeof e.operation - 1);
}

LEND_TEST(bytes_are_kept_as_numbers) {
    struct lend_error e;
    CHECK_INT(lend__fail_bytes(&e, -ENOSPC, "lend_tensor_new", 100, 60, "asked for %d", 100), -ENOSPC);
    CHECK_UINT(e.asked, 100);
    CHECK_UINT(e.available, 60);
    CHECK_STR(e.text, "asked for 100");
}

LEND_TEST(system_calls_are_named_with_their_errno) {
    struct lend_error e;
    CHECK_INT(lend__fail_sys(&e, -EIO, "lend_open", "read", "the file"), -EIO);
    CHECK_INT(e.os_code, EIO);
    CHECK_STR(e.text, "read for the file: reading or writing failed");
}

LEND_TEST(a_full_table_names_the_limit) {
    struct lend_error e;
    struct rlimit limit = {77, 77};
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_INT(lend__fail_sys(&e, -EMFILE, "lend_open", "socket", "the service"), -EMFILE);
    CHECK_CONTAINS(e.text, "limit of 77 descriptors");
    CHECK_UINT(e.available, 77);
    CHECK_INT(e.os_code, EMFILE);
}

LEND_TEST(every_documented_code_has_words) {
    static const int codes[] = {
        0,       LEND_COPIED, LEND_EMPTY, -EINVAL, -EBADMSG,  -EPROTONOSUPPORT, -ESTALE, -EOWNERDEAD,
        -EAGAIN, -ETIMEDOUT,  -EREMOTE,   -EPERM,  -EACCES,   -EMFILE,          -ENOMEM, -ENOSPC,
        -ENODEV, -EOPNOTSUPP, -ECHILD,    -EBUSY,  -ENOTCONN, -EOVERFLOW,       -ERANGE,
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        CHECK(strcmp(lend_strerror(codes[i]), "unknown code"));
        for (size_t j = 0; j < i; j++) CHECK(strcmp(lend_strerror(codes[i]), lend_strerror(codes[j])));
    }
    CHECK_STR(lend_strerror(-99999), "unknown code");
    CHECK_STR(lend_strerror(12345), "unknown code");
}
