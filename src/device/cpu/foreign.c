/* SPDX-License-Identifier: MIT */
/* Descriptors that others made: a caller's, adopted into a pool, and a peer's, imported. Both are input. Nothing is
 * mapped before the object is known to be shared memory, unable to shrink (a shrunken object is SIGBUS for whoever
 * reads it), and large enough. Stateless, any thread. */
#include "base/checked.h"
#include "base/error.h"
#include "base/sys.h"
#include "device/cpu/cpu.h"

#include <errno.h>

/* Large enough for every alignment that a pool may have. */
#define ADOPT_ALIGNMENT ((uint64_t)2 << 20)

static bool is_range_in(const struct stat *st, uint64_t off, uint64_t bytes) {
    return S_ISREG(st->st_mode) && st->st_size >= 0 && bytes > 0 && off % lend__page_bytes() == 0 &&
           lend__range_fits(off, bytes, (uint64_t)st->st_size);
}

/* Where huge pages are possible a fixed mapping must be whole huge pages (see lend__cpu_map); st_blksize names their
 * size, also for plain shared memory that could use them. */
static uint64_t adopt_alignment(const struct stat *st, uint64_t off, uint64_t bytes) {
    uint64_t block = (uint64_t)st->st_blksize;
    if (!lend__is_power_of_two(block) || block <= lend__page_bytes()) return ADOPT_ALIGNMENT;
    if (off % block || bytes % block) return 0;
    return block > ADOPT_ALIGNMENT ? block : ADOPT_ALIGNMENT;
}

static int adopt_seal(int fd, struct lend_error *error) {
    long seals = lend__sys.get_seals(fd);
    if (seals < 0)
        return lend__fail(error, -EINVAL, "lend_pool_new",
                          "adopt_fd is not a memfd (it has no seals); only shared memory can be adopted");
    if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
        return lend__fail(error, -EINVAL, "lend_pool_new", "adopt_fd is sealed against writing");
    if (seals & F_SEAL_SHRINK) return 0;
    long r = lend__sys.add_seals(fd, F_SEAL_SHRINK);
    if (r < 0 && seals & F_SEAL_SEAL)
        return lend__fail(error, -EOPNOTSUPP, "lend_pool_new",
                          "adopt_fd cannot be sealed against shrinking; make it with memfd_create(MFD_ALLOW_SEALING)");
    if (r < 0) return lend__fail(error, -EINVAL, "lend_pool_new", "adopt_fd is not open for reading and writing");
    return 0;
}

/* Gives the holes of the range pages, so that a shortage shows now and not as a signal at the first write. */
static int adopt_reserve(int fd, const struct stat *st, uint64_t off, uint64_t bytes, struct lend_error *error) {
    uint64_t size = (uint64_t)st->st_size, present = (uint64_t)st->st_blocks * 512;
    uint64_t missing = size > present ? size - present : 0;
    if (missing > bytes) missing = bytes;
    if (!missing) return 0;
    int r = lend__cpu_room_check(missing, missing, "fallocate", error);
    if (r < 0) return r;
    r = (int)lend__sys.fallocate(fd, 0, off, bytes);
    if (r == -ENOMEM || r == -ENOSPC)
        return lend__fail_bytes(error, -ENOMEM, "fallocate", bytes, bytes - missing,
                                "no memory for the holes of the adopted range: %llu of %llu bytes are missing",
                                (unsigned long long)missing, (unsigned long long)bytes);
    if (r < 0) return lend__fail_sys(error, r, "fallocate", "fallocate", "the adopted range");
    return 0;
}

int lend__cpu_adopt(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error) {
    struct stat st;
    int r = (int)lend__sys.fstat(fd, &st);
    if (r < 0) return lend__fail_sys(error, r == -EBADF ? -EINVAL : r, "fstat", "fstat", "adopt_fd");
    r = adopt_seal(fd, error);
    if (r < 0) return r;
    /* The size again, now that it cannot become smaller. */
    r = (int)lend__sys.fstat(fd, &st);
    if (r < 0) return lend__fail_sys(error, r, "fstat", "fstat", "adopt_fd");
    if (!is_range_in(&st, off, bytes))
        return lend__fail_bytes(error, -EINVAL, "lend_pool_new", bytes, (uint64_t)st.st_size,
                                "[%llu, +%llu) is not a range of adopt_fd (%lld bytes) that begins at a page",
                                (unsigned long long)off, (unsigned long long)bytes, (long long)st.st_size);
    r = adopt_reserve(fd, &st, off, bytes, error);
    if (r < 0) return r;
    LEND__CLEANUP_FD own = (int)lend__sys.dup(fd);
    if (own < 0) return lend__fail_sys(error, own, "fcntl", "fcntl(F_DUPFD_CLOEXEC)", "adopt_fd");
    uint8_t *base = NULL;
    r = lend__cpu_map(own, off, bytes, adopt_alignment(&st, off, bytes), PROT_READ | PROT_WRITE, &base, error);
    if (r == -EACCES || r == -EPERM)
        return lend__fail(error, -EINVAL, "lend_pool_new", "adopt_fd is not open for reading and writing");
    if (r < 0) return r;
    *ret = (struct lend__extent){
        .fd = LEND__TAKE_FD(own),
        .base = base,
        .bytes = bytes,
        .fd_offset = off,
        .inode = (uint64_t)st.st_ino,
        .is_writable = true,
    };
    return 0;
}

int lend__cpu_import(int fd, uint64_t off, uint64_t bytes, bool is_read_only, struct lend__extent *ret,
                     struct lend_error *error) {
    long seals = lend__sys.get_seals(fd);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return lend__fail(error, -EBADMSG, "lend_rebuild",
                          "the peer's descriptor is not shared memory sealed against shrinking");
    struct stat st;
    int r = (int)lend__sys.fstat(fd, &st);
    if (r < 0) return lend__fail_sys(error, r, "fstat", "fstat", "a peer's allocation");
    if (!is_range_in(&st, off, bytes))
        return lend__fail_bytes(error, -EBADMSG, "lend_rebuild", bytes, (uint64_t)st.st_size,
                                "the peer's allocation [%llu, +%llu) does not lie in its object of %lld bytes",
                                (unsigned long long)off, (unsigned long long)bytes, (long long)st.st_size);
    uint8_t *base = NULL;
    r = lend__cpu_map(fd, off, bytes, 0, is_read_only ? PROT_READ : PROT_READ | PROT_WRITE, &base, error);
    if (r == -EPERM || r == -EACCES)
        return lend__fail(error, -EACCES, "lend_rebuild", "the peer's memory is lent for reading only");
    if (r < 0) return r;
    *ret = (struct lend__extent){
        .fd = fd,
        .base = base,
        .bytes = bytes,
        .fd_offset = off,
        .inode = (uint64_t)st.st_ino,
        .is_peers_read_only = (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) != 0,
        .is_writable = !is_read_only,
    };
    return 0;
}
