/* SPDX-License-Identifier: MIT */
/* What the files of the CPU back end share. */
#ifndef LEND_DEVICE_CPU_CPU_H_
#define LEND_DEVICE_CPU_CPU_H_

#include "device/device.h"

#include <fcntl.h>
#include <sys/mman.h>

/* Newer than the oldest C libraries that we build with. */
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 0x0001U
#define MFD_ALLOW_SEALING 0x0002U
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef F_SEAL_SEAL
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#define F_SEAL_WRITE 0x0008
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_HUGEPAGE
#define MADV_HUGEPAGE 14
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE 0x01
#endif
#ifndef FALLOC_FL_PUNCH_HOLE
#define FALLOC_FL_PUNCH_HOLE 0x02
#endif

extern const struct lend__device_ops lend__cpu_ops;

/* limits.c: how much memory this process may still take, and which limit says so. */
struct lend__cpu_room {
    uint64_t bytes;  /* UINT64_MAX: no limit known */
    char limit[128]; /* the tightest limit, for the error's sentence */
};
void lend__cpu_room_read(struct lend__cpu_room *ret);

/* Checks that `bytes` more fit into the room, with a little for the kernel's own records of them. The check can
 * race with other processes of the same group; it is repeated for every piece.
 * Returns 0, or -ENOMEM with asked (the whole request) and available. */
int lend__cpu_room_check(uint64_t bytes, uint64_t asked, const char *operation, struct lend_error *error);

/* Checks RLIMIT_FSIZE, beyond which the kernel sends SIGXFSZ. Returns 0, or -ENOMEM with asked and available. */
int lend__cpu_file_check(uint64_t asked, const char *operation, struct lend_error *error);

/* The size of the default huge page, 0 when the kernel has none. */
uint64_t lend__cpu_huge_page_bytes(void);

/* policy.c: where pages come from. */
int lend__cpu_numa_bind(void *base, uint64_t bytes, uint32_t mode, uint64_t nodes, struct lend_error *error);
void lend__cpu_numa_read(const void *base, uint32_t *ret_mode, uint64_t *ret_nodes);
uint64_t lend__cpu_thp_bytes(const struct lend__extent *extent);

/* map.c: mappings at an aligned address, and their end. */
int lend__cpu_map(int fd, uint64_t off, uint64_t bytes, uint64_t alignment, int prot, uint8_t **ret,
                  struct lend_error *error);
void lend__cpu_free(struct lend__extent *extent);

/* foreign.c: descriptors that others made. */
int lend__cpu_adopt(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error);
int lend__cpu_import(int fd, uint64_t off, uint64_t bytes, bool is_read_only, struct lend__extent *ret,
                     struct lend_error *error);

/* file.c: files, mapped where they lie. */
int lend__cpu_file_adopt(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error);
int lend__cpu_file_import(int fd, uint64_t off, uint64_t bytes, struct lend__extent *ret, struct lend_error *error);

/* lines.c: text files of the kernel, line by line. */
struct lend__lines {
    int fd;
    size_t at, n;
    char buf[2048];
};
int lend__lines_open(struct lend__lines *lines, const char *path);
bool lend__lines_next(struct lend__lines *lines, char *line, size_t room); /* longer lines are cut */
void lend__lines_close(struct lend__lines *lines);

#endif
