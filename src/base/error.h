/* SPDX-License-Identifier: MIT */
/* Filling a caller's lend_error: one sentence with the call, what was asked, what is available, the way out. */
#ifndef LEND_BASE_ERROR_H_
#define LEND_BASE_ERROR_H_

#include <lend/error.h>

/* Writes code, operation and text (printf) into error, if it is not NULL. Gives code, so that a failing path is
 * `return lend__fail(error, -EINVAL, "lend_pool_new", "alignment %u is not a power of two ...", a);`
 * The three are macros so that a reader, and an analyser, sees that the value is the code. */
#define lend__fail(error, code, ...)                               \
    ({                                                             \
        const int fail_code_ = (code);                             \
        lend__error_write((error), fail_code_, 0, 0, __VA_ARGS__); \
        fail_code_;                                                \
    })

/* The same with the numbers that the struct has fields for. */
#define lend__fail_bytes(error, code, operation, asked, available, ...)                         \
    ({                                                                                          \
        const int fail_code_ = (code);                                                          \
        lend__error_write((error), fail_code_, (asked), (available), (operation), __VA_ARGS__); \
        fail_code_;                                                                             \
    })

/* A system call said `code` (negative errno): text becomes "<syscall> for <what>: <meaning>", and for the limits of
 * descriptors, file sizes and addresses the limit is added. os_code is set. */
#define lend__fail_sys(error, code, operation, syscall_name, what)                       \
    ({                                                                                   \
        const int fail_code_ = (code);                                                   \
        lend__error_write_sys((error), fail_code_, (operation), (syscall_name), (what)); \
        fail_code_;                                                                      \
    })

void lend__error_write(struct lend_error *error, int code, uint64_t asked, uint64_t available, const char *operation,
                       const char *format, ...) __attribute__((format(printf, 6, 7), cold));
/* Adds where it happened to a sentence that is written: "SENTENCE (tensor \"NAME\")". NULL error or name: nothing. */
void lend__error_add_name(struct lend_error *error, const char *name) __attribute__((cold));
void lend__error_write_sys(struct lend_error *error, int code, const char *operation, const char *syscall_name,
                           const char *what) __attribute__((cold));

#endif
