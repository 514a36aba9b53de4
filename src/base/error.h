/* SPDX-License-Identifier: MIT */
/* Filling a caller's lend_error: one sentence with the call, what was asked, what is available, the way out. */
#ifndef LEND_BASE_ERROR_H_
#define LEND_BASE_ERROR_H_

#include <lend/error.h>

/* Writes code, operation and text (printf) into error, if it is not NULL. Returns code, so that a failing path is
 * `return lend__fail(error, -EINVAL, "lend_pool_new", "alignment %u is not a power of two ...", a);` */
int lend__fail(struct lend_error *error, int code, const char *operation, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

/* The same with the numbers that the struct has fields for. */
int lend__fail_bytes(struct lend_error *error, int code, const char *operation, uint64_t asked, uint64_t available,
                     const char *format, ...) __attribute__((format(printf, 6, 7), cold));

/* A system call said `code` (negative errno): text becomes "<syscall> for <what>: <meaning>", and for EMFILE and
 * ENFILE the limit is added. os_code is set. Returns code. */
int lend__fail_sys(struct lend_error *error, int code, const char *operation, const char *syscall_name,
                   const char *what) __attribute__((cold));

#endif
