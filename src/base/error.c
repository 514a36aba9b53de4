/* SPDX-License-Identifier: MIT */
/* Errors are values: the sentences, and the short meanings behind lend_strerror. Nothing here allocates or prints. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

void lend__error_write(struct lend_error *error, int code, uint64_t asked, uint64_t available, const char *operation,
                       const char *format, ...) {
    if (!error) return;
    memset(error, 0, sizeof *error);
    error->code = code;
    error->asked = asked;
    error->available = available;
    snprintf(error->operation, sizeof error->operation, "%s", operation);
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
}

void lend__error_add_name(struct lend_error *error, const char *name) {
    if (!error || !name) return;
    size_t n = strlen(error->text);
    snprintf(error->text + n, sizeof error->text - n, " (tensor \"%.100s\")", name);
}

static const struct {
    int code;
    const char *text;
} meanings[] = {
    {0, "success"},
    {LEND_COPIED, "the memory was private and has been copied"},
    {LEND_EMPTY, "nothing is waiting"},
    {-EINVAL, "an argument is wrong"},
    {-EBADMSG, "the bytes are not what they must be"},
    {-EPROTONOSUPPORT, "the other side speaks another version"},
    {-ESTALE, "the storage is gone"},
    {-EOWNERDEAD, "the exporter is dead and its memory out of reach"},
    {-EAGAIN, "the exporter is just closing the slot; try again"},
    {-ETIMEDOUT, "the peer did not answer within the deadline"},
    {-EREMOTE, "the handle names another host, and there is no gateway"},
    {-EPERM, "the peer belongs to another user"},
    {-EACCES, "the memory is lent read-only, or is a file that was not accepted"},
    {-EMFILE, "a limit of descriptors was met"},
    {-ENFILE, "the system's table of open files is full"},
    {-ENOMEM, "no memory"},
    {-ENOSPC, "a budget is used up"},
    {-ENODEV, "the device is not here"},
    {-EOPNOTSUPP, "this device or build cannot do that"},
    {-ECHILD, "made by a raw clone, or the object belongs to the parent process"},
    {-EBUSY, "something still uses it"},
    {-ENOTCONN, "lend_open has not been called"},
    {-EOVERFLOW, "the sizes do not fit their type"},
    {-ERANGE, "an index or range lies outside, or a buffer is too small"},
    {-EPIPE, "the other end is closed"},
    {-ECONNREFUSED, "nobody listens there"},
    {-ENOSYS, "this kernel does not have the call"},
    {-ENOENT, "there is no such file or name"},
    {-EIO, "reading or writing failed"},
    {-ENOTSOCK, "not a socket"},
    {-ECONNRESET, "the other end closed the connection"},
    {-ETOOMANYREFS, "too many descriptors are in flight"},
    {-EFAULT, "an address is wrong"},
    {-EEXIST, "the name is taken"},
    {-E2BIG, "more descriptors than one message can carry"},
    {-EADDRINUSE, "the address is in use"},
    {-EFBIG, "larger than this process may make a file"},
    {-EINTR, "interrupted by a signal"},
};

/* What the system's own answers mean: lend gives some of these numbers a meaning of its own. */
static const struct {
    int code;
    const char *text;
} system_meanings[] = {
    {-EACCES, "permission denied"},
    {-EPERM, "not permitted"},
    {-ENOTDIR, "not a folder"},
    {-EBADF, "not an open descriptor"},
    {-EINVAL, "not possible with that"},
    {-ENOSPC, "no space left"},
    {-EROFS, "the file system is read-only"},
    {-ELOOP, "too many symbolic links"},
    {-ENAMETOOLONG, "the name is too long"},
    {-EBUSY, "busy"},
    {-EAGAIN, "not possible just now"},
    {-ETIMEDOUT, "not done in time"},
    {-ENODEV, "no such device"},
    {-EOPNOTSUPP, "not supported here"},
};

static const char *system_meaning(int code) {
    for (size_t i = 0; i < sizeof system_meanings / sizeof system_meanings[0]; i++)
        if (system_meanings[i].code == code) return system_meanings[i].text;
    return lend_strerror(code);
}

static bool is_limited(int resource, unsigned long long *ret) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) || limit.rlim_cur == RLIM_INFINITY) return false;
    *ret = limit.rlim_cur;
    return true;
}

void lend__error_write_sys(struct lend_error *error, int code, const char *operation, const char *syscall_name,
                           const char *what) {
    if (!error) return;
    unsigned long long limit = 0;
    if (code == -EMFILE && is_limited(RLIMIT_NOFILE, &limit))
        lend__fail(
            error, code, operation,
            "%s for %s: this process has used up its limit of %llu descriptors; raise RLIMIT_NOFILE or close some",
            syscall_name, what, limit);
    else if (code == -EFBIG && is_limited(RLIMIT_FSIZE, &limit))
        lend__fail(error, code, operation,
                   "%s for %s: RLIMIT_FSIZE allows this process files of %llu bytes; sparse ones of 0.6 GB are needed "
                   "(they take no such memory): raise it",
                   syscall_name, what, limit);
    else if (code == -ENOMEM && is_limited(RLIMIT_AS, &limit))
        lend__fail(error, code, operation,
                   "%s for %s: no memory; RLIMIT_AS allows this process %llu bytes of addresses, and each exporter met "
                   "takes 0.6 GB of them (sparse, not memory): raise it",
                   syscall_name, what, limit);
    else
        lend__fail(error, code, operation, "%s for %s: %s", syscall_name, what, system_meaning(code));
    error->os_code = -code;
    error->available = limit;
}

const char *lend_strerror(int code) {
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
        if (meanings[i].code == code) return meanings[i].text;
    return "unknown code";
}
