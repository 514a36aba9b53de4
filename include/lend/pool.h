/* SPDX-License-Identifier: MIT */
/* Pools: the caching allocator behind tensors that can be lent.
 *
 * A pool reserves a few large allocations (sealed memfds on the CPU) and carves tensors out of them, so that a new
 * tensor costs no descriptor, no mapping and no page fault. Its book-keeping lies outside the shared bytes.
 * A pool is the unit of trust: whoever may map one of its allocations sees every tensor in it. */
#ifndef LEND_POOL_H_
#define LEND_POOL_H_

#include <lend/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lend_pool;

enum lend_pool_flags {
    LEND_POOL_PEERS_READ_ONLY = 1u << 0, /* peers can map the memory only for reading; the kernel enforces it */
    LEND_POOL_ISOLATE = 1u << 1,         /* every tensor gets an allocation of its own: no neighbours are seen */
    LEND_POOL_PRETOUCH = 1u << 2,        /* map the pages at creation, so that the first write faults no more */
    LEND_POOL_FILE_IN_PLACE = 1u << 3 /* adopt_fd is a file on a disk, not a memfd: its range is mapped read-only, here
                                          * and by peers, stays backed by the file, and is given out by
                                          * lend_tensor_new_at alone. The kernel cannot protect it: whoever may write
                                          * the file can cut it short, and then an access is SIGBUS in every process
                                          * that has it */
};

enum lend_huge_pages {
    LEND_HUGE_NONE = 0,
    LEND_HUGE_THP = 1,    /* transparent huge pages by madvise, where /sys allows them for shared memory */
    LEND_HUGE_HUGETLB = 2 /* reserved huge pages; when there are too few: plain pages, and the statistics say so */
};

enum lend_numa_mode { LEND_NUMA_DEFAULT = 0, LEND_NUMA_BIND = 1, LEND_NUMA_PREFERRED = 2, LEND_NUMA_INTERLEAVE = 3 };

struct lend_pool_opts {
    size_t size;         /* sizeof(struct lend_pool_opts) */
    int32_t device_type; /* DLDeviceType; 0 means kDLCPU */
    int32_t device_id;
    uint32_t flags;         /* enum lend_pool_flags */
    uint32_t huge_pages;    /* enum lend_huge_pages */
    uint64_t budget_bytes;  /* most bytes the pool may reserve from the system; 0: no limit of its own */
    uint64_t initial_bytes; /* reserve this much now; 0: nothing before the first tensor */
    uint32_t alignment;     /* of every tensor, a power of two from 64 to 2 MiB; 0: 64 */
    uint32_t numa_mode;     /* enum lend_numa_mode */
    uint64_t numa_nodes;    /* bit n: node n; ignored with LEND_NUMA_DEFAULT */
    int adopt_fd;           /* with adopt_bytes > 0: borrowed (duplicated) memfd, open for reading and writing, whose
                              * range becomes the pool's only allocation. It gets sealed against shrinking, so it must
                              * allow that (MFD_ALLOW_SEALING) or be so already; a file of shm_open cannot. With
                              * LEND_POOL_FILE_IN_PLACE: borrowed (reopened for reading only) descriptor of a
                              * regular file, open for reading */
    uint64_t adopt_offset;  /* bytes, a multiple of the page size */
    uint64_t adopt_bytes;   /* 0: adopt nothing */
};

struct lend_pool_stats {
    size_t size;                                    /* in: sizeof(struct lend_pool_stats) */
    uint64_t n_allocations;                         /* living now */
    uint64_t n_allocations_made;                    /* since the pool began */
    uint64_t n_allocations_returned;                /* given back to the system */
    uint64_t reserved_bytes, reserved_bytes_peak;   /* of a file in place: what is mapped, which is no memory */
    uint64_t allocated_bytes, allocated_bytes_peak; /* blocks in use, rounded sizes */
    uint64_t requested_bytes;                       /* as asked for */
    uint64_t cached_bytes;                          /* free, ready for the next tensor */
    uint64_t limbo_bytes;                           /* dropped here, still held by peers or pins */
    uint64_t n_blocks, n_allocs, n_frees, n_failures;
    uint64_t hugetlb_bytes;   /* obtained as reserved huge pages */
    uint64_t thp_bytes;       /* resident as transparent huge pages, read back from the kernel */
    uint32_t huge_page_bytes; /* 0 when none were obtained */
    uint32_t numa_mode;       /* read back from the kernel for the newest allocation */
    uint64_t numa_nodes;
};

/* Makes a pool.
 *   opts      borrowed; NULL: a growing CPU pool with defaults.
 *   ret_pool  returned: one reference for the caller.
 *   error     borrowed, NULL allowed.
 * Return: 0; -EINVAL (an option, named); -ENODEV; -EOPNOTSUPP; -ENOMEM or -ENOSPC with asked and available bytes;
 * -EMFILE; -ENOTCONN; -ECHILD.
 * Threads: any.  Crash: the kernel frees what was reserved; nothing has a name.  Since: 0.1.
 * See: memfd_create(2), F_ADD_SEALS in fcntl(2), PyTorch's CUDACachingAllocator. */
LEND_API int lend_pool_new(const struct lend_pool_opts *opts, struct lend_pool **ret_pool, struct lend_error *error);

/* Adds a reference.
 *   pool  borrowed.
 * Return: pool.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_pool_unref. */
LEND_API struct lend_pool *lend_pool_ref(struct lend_pool *pool);

/* Gives a reference back. Tensors keep their pool alive; with the last of them, in this process and in others,
 * its memory returns to the system.
 *   pool  consumed; NULL allowed.
 * Return: nothing; cannot fail.
 * Threads: any.  Crash: as the end of the process.  Since: 0.1.
 * See: lend_pool_new. */
LEND_API void lend_pool_unref(struct lend_pool *pool);

/* Reads the statistics.
 *   pool       borrowed.
 *   ret_stats  its `size` is read first; only that many bytes are written.
 * Return: 0; -EINVAL (size); -ECHILD.
 * Threads: any; the figures of one call belong together.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.cuda.memory_stats. */
LEND_API int lend_pool_stats(struct lend_pool *pool, struct lend_pool_stats *ret_stats);

/* Gives allocations that hold no tensor back to the system. Peers that still map one unmap it when they next
 * look; plain (not read-only) memory is punched out at once, so it returns without their help.
 *   pool       borrowed.
 *   keep_bytes free bytes that may stay cached.
 *   ret_bytes  returned to the system; NULL allowed.
 * Return: 0; -ECHILD.
 * Threads: any.  Crash: as the end of the process.  Since: 0.1.
 * See: FALLOC_FL_PUNCH_HOLE in fallocate(2), malloc_trim(3). */
LEND_API int lend_pool_trim(struct lend_pool *pool, uint64_t keep_bytes, uint64_t *ret_bytes);

/* Checks the allocator's book-keeping: every byte of every allocation belongs to exactly one block, free
 * neighbours are merged, free lists and sums agree.
 *   pool   borrowed.
 *   error  borrowed, NULL allowed: names the first thing that is wrong.
 * Return: 0; -EBADMSG; -ECHILD.
 * Threads: any; it holds the pool's lock for O(blocks).  Crash: nothing shared is touched.  Since: 0.1.
 * See: mcheck(3). */
LEND_API int lend_pool_check(struct lend_pool *pool, struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
