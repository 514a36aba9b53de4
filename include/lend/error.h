/* SPDX-License-Identifier: MIT */
/* Errors are values.
 *
 * Calls return 0, a negative errno with the fixed meaning below, or a positive outcome that the call
 * documents. Cold calls also fill a caller-owned `struct lend_error` with one sentence: which call, what was
 * asked, what is available, and the way out. Passing NULL is always allowed.
 *
 *   -EINVAL           an argument is wrong (the sentence names it)
 *   -EBADMSG          bytes are not what they must be (a damaged or forged handle or message)
 *   -EPROTONOSUPPORT  the other side speaks another version
 *   -ESTALE           the storage is gone, or its slot was given to another
 *   -EOWNERDEAD       the exporter died and the memory cannot be reached any more
 *   -EAGAIN           the exporter is just closing the slot; the deadline came first
 *   -ETIMEDOUT        a peer did not answer within the deadline
 *   -EREMOTE          the handle names another host, and there is no gateway
 *   -EPERM            the peer belongs to another user
 *   -EACCES           write access was asked for memory that is lent read-only; or the memory is a file's, which was
 *                     not accepted
 *   -EMFILE           a limit of descriptors was met (the sentence says whose and how high)
 *   -ENOMEM           no memory, with bytes asked and available
 *   -ENOSPC           a budget is used up (pool budget, pin budget, slots), with bytes asked and available
 *   -ENODEV           the device is not here
 *   -EOPNOTSUPP       this device or build cannot do that
 *   -ECHILD           the process was made by a raw clone or _Fork, or the object is the parent's
 *   -EBUSY            something still uses it
 *   -ENOTCONN         lend_open() has not been called
 *   -EFBIG            RLIMIT_FSIZE is too small for the (sparse) files that lending needs
 *   -EOVERFLOW        sizes do not fit their type
 *   -ERANGE           an index or a range lies outside, or a buffer is too small
 *   -ENOENT           there is no such name (in a group, in a folder)
 *   -EEXIST           the name is taken
 *   -E2BIG            more descriptors than one message can carry
 */
#ifndef LEND_ERROR_H_
#define LEND_ERROR_H_

#include <lend/version.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Positive outcomes. Each is returned only by the calls that document it. */
enum lend_outcome {
    LEND_COPIED = 1, /* lend_reduce and its relatives: memory was private, so what is lent of it was copied */
    LEND_EMPTY = 2   /* lend_watch_next: no record is waiting */
};

#define LEND_ERROR_TEXT_BYTES 256

/* Filled by cold calls on failure, left untouched on success. Caller-owned; no thread-local state. */
struct lend_error {
    int32_t code;                     /* the value that the call returned */
    int32_t os_code;                  /* errno of the failing system call, or the driver's own code, or 0 */
    char operation[32];               /* the lend call or the system call that failed */
    uint64_t asked, available;        /* bytes or counts, where the sentence names them; otherwise 0 */
    char text[LEND_ERROR_TEXT_BYTES]; /* one sentence, NUL-terminated */
};

/* Gives the short meaning of a code: a negative errno or a positive outcome of this library.
 *   code  as returned by a call of this library.
 * Return: a static string, never NULL.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: errno(3). */
LEND_API const char *lend_strerror(int code);

#ifdef __cplusplus
}
#endif
#endif
