/* SPDX-License-Identifier: MIT */
/* CPU memory: a sealed memfd, wholly reserved before anyone gets it, mapped once.
 *
 * Order matters. The object is sized and mapped; then the NUMA policy and the wish for huge pages are set, because
 * they act on pages that come later; then pages are reserved piece by piece, each piece after a look at the limits
 * (shortage must be an error, not a kill); then the seals, which for read-only peers forbid every later writable
 * mapping but ours. All or nothing: an error closes the object, and its pages with it. Stateless, any thread. */
#include "device/cpu/cpu.h"

#include "base/error.h"
#include "base/sys.h"

#include <errno.h>
#include <lend/pool.h>

/* The limits are read again after this much. */
#define CHECKED_BYTES ((uint64_t)64 << 20)
/* One system call reserves this much: a signal that interrupts it makes the kernel undo the piece, and with larger
 * pieces a profiler's timer could keep it from ever ending. */
#define PIECE_BYTES ((uint64_t)4 << 20)

static int memfd_new(unsigned flags, struct lend_error *error) {
    int fd = lend__memfd_new("lend", flags);
    return fd < 0 ? lend__fail_sys(error, fd, "memfd_create", "memfd_create", "an allocation") : fd;
}

/* Maps the pages of a piece by writing, where the kernel knows how (5.14). */
static int populate(uint8_t *at, uint64_t bytes, bool *ret_is_unknown) {
    long r = lend__sys.madvise(at, bytes, MADV_POPULATE_WRITE);
    *ret_is_unknown = r == -EINVAL;
    return r == -EINVAL ? 0 : (int)r;
}

/* Nobody else has the object yet, so writing zeros over zeros is not seen by anyone. */
static void touch(uint8_t *at, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i += lend__page_bytes()) *(volatile uint8_t *)(at + i) = 0;
}

static int fail_reserve(int code, const char *call, uint64_t asked, uint64_t done, struct lend_error *error) {
    if (code != -ENOMEM && code != -ENOSPC && code != -EFAULT)
        return lend__fail_sys(error, code, call, call, "an allocation");
    return lend__fail_bytes(error, -ENOMEM, call, asked, done,
                            "no memory for %llu bytes: the kernel gave %llu; ask for less", (unsigned long long)asked,
                            (unsigned long long)done);
}

/* Gives every byte a page. `is_first_touched`: by faults through the mapping, which alone obey its policy and its
 * wish for huge pages; fallocate then finds the pages in place. */
static int reserve(const struct lend__allocation_request *request, const struct lend__extent *extent,
                   bool is_first_touched, struct lend_error *error) {
    bool is_huge = extent->huge_page_bytes != 0;
    uint64_t piece = extent->huge_page_bytes > PIECE_BYTES ? extent->huge_page_bytes : PIECE_BYTES;
    for (uint64_t done = 0, n; done < extent->bytes; done += n) {
        n = extent->bytes - done < piece ? extent->bytes - done : piece;
        /* Huge pages were set aside at boot or by the administrator: they are not charged to the group. */
        if (!is_huge && done > 0 && done % CHECKED_BYTES == 0) {
            int r = lend__cpu_room_check(extent->bytes - done, extent->bytes, "fallocate", error);
            if (r < 0) return r;
        }
        bool is_unknown = false;
        int r = is_first_touched ? populate(extent->base + done, n, &is_unknown) : 0;
        if (r < 0) return fail_reserve(r, "madvise", extent->bytes, done, error);
        /* Without it a huge page would come by the policy of the process, not ours: rather plain pages. */
        if (is_unknown && is_huge && request->numa_mode != LEND_NUMA_DEFAULT) return -EOPNOTSUPP;
        r = (int)lend__sys.fallocate(extent->fd, 0, done, n);
        if (r < 0) return fail_reserve(r, "fallocate", extent->bytes, done, error);
        if (is_unknown && request->is_pretouched) touch(extent->base + done, n);
    }
    return 0;
}

static int seal(struct lend__extent *extent, struct lend_error *error) {
    unsigned seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (extent->is_peers_read_only) seals |= F_SEAL_FUTURE_WRITE;
    long r = lend__sys.add_seals(extent->fd, seals);
    if (r == -EINVAL && extent->is_peers_read_only)
        return lend__fail(error, -EOPNOTSUPP, "fcntl",
                          "memory that peers may only read needs F_SEAL_FUTURE_WRITE, which this kernel lacks (Linux "
                          "5.1 has it)");
    if (r < 0) return lend__fail_sys(error, (int)r, "fcntl", "fcntl(F_ADD_SEALS)", "an allocation");
    return 0;
}

/* Fills a mapped but still open object: policy, pages, seals. */
static int finish(const struct lend__allocation_request *request, struct lend__extent *extent,
                  struct lend_error *error) {
    bool has_policy = request->numa_mode != LEND_NUMA_DEFAULT, is_thp = request->huge_pages == LEND_HUGE_THP;
    int r = 0;
    if (has_policy)
        r = lend__cpu_numa_bind(extent->base, extent->bytes, request->numa_mode, request->numa_nodes, error);
    if (r < 0) return r;
    /* Refused where the kernel has no transparent huge pages; the statistics then say 0. */
    if (is_thp) (void)lend__sys.madvise(extent->base, extent->bytes, MADV_HUGEPAGE);
    r = reserve(request, extent, request->is_pretouched || is_thp || (has_policy && extent->huge_page_bytes), error);
    if (r < 0) return r;
    if (has_policy) lend__cpu_numa_read(extent->base, &extent->numa_mode, &extent->numa_nodes);
    struct stat st;
    r = (int)lend__sys.fstat(extent->fd, &st);
    if (r < 0) return lend__fail_sys(error, r, "fstat", "fstat", "an allocation");
    extent->inode = (uint64_t)st.st_ino;
    return seal(extent, error);
}

static int object_new(const struct lend__allocation_request *request, uint64_t huge_page_bytes,
                      struct lend__extent *ret, struct lend_error *error) {
    uint64_t alignment = request->alignment;
    struct lend__extent extent = {
        .bytes = request->bytes,
        .is_peers_read_only = request->is_peers_read_only,
        .is_writable = true,
        .huge_page_bytes = (uint32_t)huge_page_bytes,
    };
    if (alignment < huge_page_bytes) alignment = huge_page_bytes;
    if (request->huge_pages == LEND_HUGE_THP) {
        uint64_t huge = lend__cpu_huge_page_bytes(); /* a huge page can only lie at its own alignment */
        if (alignment < huge && huge <= request->bytes) alignment = huge;
    }
    extent.fd = memfd_new(huge_page_bytes ? MFD_HUGETLB : 0, error);
    if (extent.fd < 0) return extent.fd;
    int r = (int)lend__sys.ftruncate(extent.fd, extent.bytes);
    if (r < 0)
        lend__fail_sys(error, r, "ftruncate", "ftruncate", "an allocation");
    else
        r = lend__cpu_map(extent.fd, 0, extent.bytes, alignment, PROT_READ | PROT_WRITE, &extent.base, error);
    if (r >= 0) r = finish(request, &extent, error);
    if (r < 0) {
        lend__cpu_free(&extent);
        return r;
    }
    *ret = extent;
    return 0;
}

static int cpu_new(const struct lend__allocation_request *request, struct lend__extent *ret, struct lend_error *error) {
    int r = lend__cpu_file_check(request->bytes, "ftruncate", error);
    if (r < 0) return r;
    if (request->huge_pages == LEND_HUGE_HUGETLB) {
        uint64_t huge = lend__cpu_huge_page_bytes();
        /* Too few huge pages, or none at all: plain ones, and huge_page_bytes says so. */
        if (huge && request->bytes % huge == 0 && object_new(request, huge, ret, NULL) == 0) return 0;
    }
    r = lend__cpu_room_check(request->bytes, request->bytes, "fallocate", error);
    if (r < 0) return r;
    return object_new(request, 0, ret, error);
}

static int cpu_discard(struct lend__extent *extent) {
    if (extent->is_peers_read_only) return -EPERM; /* the seal forbids it, as every other write */
    if (extent->is_file) return -EPERM;            /* what it holds is not ours to drop */
    return (int)lend__sys.fallocate(extent->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, extent->fd_offset,
                                    extent->bytes);
}

const struct lend__device_ops lend__cpu_ops = {
    .name = "cpu",
    .device_type = kDLCPU,
    .caps = LEND__CAP_ALLOCATE | LEND__CAP_IMPORT | LEND__CAP_READ_ONLY | LEND__CAP_DISCARD | LEND__CAP_HUGE_PAGES |
            LEND__CAP_NUMA | LEND__CAP_ADOPT | LEND__CAP_FILE,
    .allocation_new = cpu_new,
    .allocation_adopt = lend__cpu_adopt,
    .allocation_import = lend__cpu_import,
    .file_adopt = lend__cpu_file_adopt,
    .file_import = lend__cpu_file_import,
    .allocation_discard = cpu_discard,
    .allocation_free = lend__cpu_free,
    .thp_bytes = lend__cpu_thp_bytes,
};
