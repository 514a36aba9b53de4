/* SPDX-License-Identifier: MIT */
/* Files in place: a caller's, adopted into a pool, and one that a peer lends. Their pages are mapped where they lie,
 * for reading only.
 *
 * A file is the one kind of memory that the kernel protects from nobody: whoever may write it can cut it short, and
 * then an access behind its end is SIGBUS. So its size is believed for one call only: it is looked at before the file
 * is mapped, and again each time a tensor is made, reduced or rebuilt. No page is reserved, touched or counted, so a
 * file of any size costs the same. Stateless, any thread. */
#include "base/checked.h"
#include "base/error.h"
#include "base/sys.h"
#include "device/cpu/cpu.h"

#include <errno.h>

#define ULL(v) ((unsigned long long)(v))

/* Where the mapping cannot be had, the file can still be read. */
static int map_file(int fd, uint64_t off, uint64_t bytes, const char *operation, uint8_t **ret,
                    struct lend_error *error) {
    int r = lend__cpu_map(fd, off, bytes, 0, PROT_READ, ret, error);
    if (r == -ENODEV)
        return lend__fail(error, r, operation,
                          "the file lies in a file system that cannot map files; read it into a pool, without "
                          "LEND_FILE_IN_PLACE");
    return r;
}

static struct lend__extent extent_of(int fd, const struct stat *st, uint64_t off, uint64_t bytes, uint8_t *base) {
    return (struct lend__extent){
        .fd = fd,
        .base = base,
        .bytes = bytes,
        .fd_offset = off,
        .inode = (uint64_t)st->st_ino,
        .is_peers_read_only = true,
        .is_file = true,
    };
}

/* An open file for ourselves and for peers, which cannot write: a new one, so that nobody moves the caller's position.
 * Where it cannot be had (a process that was given what it may not open, or has no /proc), the caller's own will do if
 * it cannot write either. */
static int open_reader(int fd) {
    int own = lend__fd_reopen(fd, O_RDONLY);
    bool is_refused = own == -EACCES || own == -EPERM || own == -ENOENT;
    if (!is_refused || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) return own;
    return (int)lend__sys.dup(fd);
}

int lend__cpu_file_adopt(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error) {
    const char *operation = "lend_pool_new";
    struct stat st;
    int r = (int)lend__sys.fstat(fd, &st);
    if (r < 0) return lend__fail_sys(error, r == -EBADF ? -EINVAL : r, "fstat", "fstat", "adopt_fd");
    if (!S_ISREG(st.st_mode))
        return lend__fail(error, -EINVAL, operation, "adopt_fd is not a regular file; only such can be lent in place");
    if (!lend__range_fits(off, bytes, (uint64_t)st.st_size))
        return lend__fail_bytes(error, -EINVAL, operation, bytes, (uint64_t)st.st_size,
                                "[%llu, +%llu) is not a range of adopt_fd, which has %lld bytes", ULL(off), ULL(bytes),
                                (long long)st.st_size);
    LEND__CLEANUP_FD own = open_reader(fd);
    uint8_t *base = NULL;
    r = own < 0 ? own : map_file(own, off, bytes, operation, &base, error);
    if (r == -EACCES || r == -EPERM || r == -EBADF || r == -ENOENT)
        return lend__fail(error, -EINVAL, operation,
                          "adopt_fd cannot be opened anew for reading through /proc/self/fd (is the file readable, and "
                          "/proc mounted?); give a descriptor that is open for reading only");
    if (own < 0) return lend__fail_sys(error, own, "open", "open", "adopt_fd");
    if (r < 0) return r;
    *ret = extent_of(LEND__TAKE_FD(own), &st, off, bytes, base);
    return 0;
}

int lend__cpu_file_import(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error) {
    const char *operation = "lend_rebuild";
    struct stat st;
    int r = (int)lend__sys.fstat(fd, &st);
    if (r < 0 && r != -EBADF) return lend__fail_sys(error, r, "fstat", "fstat", "a peer's file");
    if (r < 0 || !S_ISREG(st.st_mode) || !bytes || off % lend__page_bytes())
        return lend__fail(error, -EBADMSG, operation, "what the peer lends as a file is not a range of a regular file");
    if (!lend__range_fits(off, bytes, (uint64_t)st.st_size))
        return lend__fail_bytes(error, -ESTALE, operation, bytes, (uint64_t)st.st_size,
                                "the peer's file has been cut to %lld bytes; it lends [%llu, +%llu) of it",
                                (long long)st.st_size, ULL(off), ULL(bytes));
    uint8_t *base = NULL;
    r = map_file(fd, off, bytes, operation, &base, error);
    if (r == -EACCES || r == -EPERM || r == -EBADF)
        return lend__fail(error, -EBADMSG, operation, "the peer's file is not open for reading");
    if (r < 0) return r;
    *ret = extent_of(fd, &st, off, bytes, base);
    return 0;
}

int lend__extent_file_check(const struct lend__extent *extent, uint64_t off, uint64_t bytes, const char *operation,
                            struct lend_error *error) {
    struct stat st;
    if (!extent->is_file) return 0;
    int r = (int)lend__sys.fstat(extent->fd, &st);
    if (r < 0) return lend__fail_sys(error, r, operation, "fstat", "the file behind the tensor");
    uint64_t end = 0, size = (uint64_t)st.st_size;
    bool is_beyond = lend__add_overflows(off, bytes, &end) || lend__add_overflows(end, extent->fd_offset, &end);
    if (!is_beyond && end <= size) return 0;
    return lend__fail_bytes(error, -ESTALE, operation, end, size,
                            "the file behind the tensor has been cut to %llu bytes; the tensor needs %llu of them",
                            ULL(size), ULL(end));
}
