/* SPDX-License-Identifier: MIT */
/* A back end: where allocations come from, for one kind of device. Ops tables are `static const`, collected in one
 * array (device.c); an empty slot means -EOPNOTSUPP, and the capability bits say the same (the conformance suite in
 * tests/device proves that bits and slots agree). */
#ifndef LEND_DEVICE_DEVICE_H_
#define LEND_DEVICE_DEVICE_H_

#include <lend/dlpack.h>
#include <lend/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lend__device_caps {
    LEND__CAP_ALLOCATE = 1u << 0,  /* allocation_new */
    LEND__CAP_IMPORT = 1u << 1,    /* allocation_import: a peer's descriptor can be mapped */
    LEND__CAP_READ_ONLY = 1u << 2, /* peers can be held to reading by the kernel */
    LEND__CAP_DISCARD = 1u << 3,   /* allocation_discard: pages go back although peers still map them */
    LEND__CAP_HUGE_PAGES = 1u << 4,
    LEND__CAP_NUMA = 1u << 5,
    LEND__CAP_ADOPT = 1u << 6, /* allocation_adopt: a caller's descriptor and range */
    LEND__CAP_FILE = 1u << 7   /* file_adopt, file_import: the pages of a file, where they lie */
};

/* What is asked of allocation_new. */
struct lend__allocation_request {
    uint64_t bytes;     /* a multiple of the page size */
    uint64_t alignment; /* of the mapping's address: a power of two; 0: the page size */
    bool is_peers_read_only;
    bool is_pretouched;
    uint32_t huge_pages; /* enum lend_huge_pages */
    uint32_t numa_mode;  /* enum lend_numa_mode */
    uint64_t numa_nodes;
};

/* What the system handed out: one descriptor, one mapping. Filled by the back end, owned by memory/allocation.c
 * (own memory) or share/mapping.c (a peer's). */
struct lend__extent {
    int fd;             /* owned; -1: none */
    uint8_t *base;      /* address of the first byte in this process */
    uint64_t bytes;     /* length of the mapping */
    uint64_t fd_offset; /* where the range begins in the descriptor (adopted memory) */
    uint64_t inode;     /* st_ino, for people and tests */
    bool is_peers_read_only;
    bool is_writable;         /* by this process */
    bool is_file;             /* a file's pages, which nothing keeps from being cut */
    uint32_t huge_page_bytes; /* obtained as hugetlb; 0: plain pages */
    uint32_t numa_mode;       /* read back from the kernel */
    uint64_t numa_nodes;
};

struct lend__device_ops {
    const char *name;
    DLDeviceType device_type;
    uint32_t caps; /* enum lend__device_caps */
    /* Reserves and maps; all or nothing. -ENOMEM/-ENOSPC carry asked and available bytes. */
    int (*allocation_new)(const struct lend__allocation_request *request, struct lend__extent *ret,
                          struct lend_error *error);
    /* Maps [off, off+bytes) of a caller's descriptor (borrowed, duplicated) after sealing it against shrinking. */
    int (*allocation_adopt)(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error);
    /* Maps what a peer sent: fd is consumed on success. Checks seals and size before mapping (I-5). -EBADMSG when the
     * object is not what the peer said. */
    int (*allocation_import)(int fd, uint64_t off, uint64_t bytes, bool is_read_only, struct lend__extent *ret,
                             struct lend_error *error);
    /* Maps [off, off+bytes) of a caller's regular file (borrowed, opened anew for reading): read-only, and sealed
     * against nothing. Costs the same whatever the size. */
    int (*file_adopt)(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error);
    /* The same for what a peer says is a file: fd is consumed on success. -EBADMSG: it is none, or cannot be read;
     * -ESTALE: it is shorter. */
    int (*file_import)(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error);
    /* Returns the pages to the system although peers may still map them. A file's pages never. */
    int (*allocation_discard)(struct lend__extent *extent);
    /* Unmaps and closes; cannot fail. */
    void (*allocation_free)(struct lend__extent *extent);
    /* Resident bytes that lie in transparent huge pages; 0 where unknown. */
    uint64_t (*thp_bytes)(const struct lend__extent *extent);
};

/* Does the file behind an extent still reach to the end of [off, off + bytes) of it? Memory that is no file's always
 * does. Asks the kernel anew each time; no lock is taken. Returns 0; -ESTALE; a code of fstat. */
int lend__extent_file_check(const struct lend__extent *extent, uint64_t off, uint64_t bytes, const char *operation,
                            struct lend_error *error);

/* The back end for a DLPack device type; NULL: none in this build. */
const struct lend__device_ops *lend__device_get(int32_t device_type);

/* All back ends, for the conformance suite. */
const struct lend__device_ops *const *lend__device_all(size_t *ret_n);

#endif
