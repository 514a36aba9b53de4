/* SPDX-License-Identifier: MIT */
/* Mappings of the CPU back end: at an aligned address, and their end. Stateless. */
#include "base/error.h"
#include "base/sys.h"
#include "device/cpu/cpu.h"

#include <errno.h>

static int fail_map(int code, uint64_t bytes, struct lend_error *error) {
    if (code != -ENOMEM) return lend__fail_sys(error, code, "mmap", "mmap", "an allocation");
    return lend__fail_bytes(error, code, "mmap", bytes, 0,
                            "no address range for %llu bytes (RLIMIT_AS, vm.max_map_count, or too few huge pages)",
                            (unsigned long long)bytes);
}

/* mmap aligns to pages only. For more, a larger range is reserved, the object mapped over its aligned middle, and
 * the rest given back. Objects of huge pages must be whole huge pages: the kernel would round a fixed mapping up,
 * over whatever lies behind it. */
int lend__cpu_map(int fd, uint64_t off, uint64_t bytes, uint64_t alignment, int prot, uint8_t **ret,
                  struct lend_error *error) {
    size_t page = lend__page_bytes();
    void *at = NULL;
    long r;
    if (alignment <= page) {
        r = lend__sys.mmap(NULL, bytes, prot, MAP_SHARED, fd, off, &at);
        if (r < 0) return fail_map((int)r, bytes, error);
        *ret = at;
        return 0;
    }
    uint64_t mapped = (bytes + page - 1) & ~(uint64_t)(page - 1), reserved = mapped + alignment;
    r = lend__sys.mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &at);
    if (r < 0) return fail_map((int)r, bytes, error);
    uint8_t *low = at, *high = low + reserved;
    uint8_t *base = low + (-(uintptr_t)low & (alignment - 1));
    r = lend__sys.mmap(base, bytes, prot, MAP_SHARED | MAP_FIXED, fd, off, &at);
    if (r < 0) {
        lend__sys.munmap(low, reserved);
        return fail_map((int)r, bytes, error);
    }
    if (base > low) lend__sys.munmap(low, (size_t)(base - low));
    if (base + mapped < high) lend__sys.munmap(base + mapped, (size_t)(high - base - mapped));
    *ret = base;
    return 0;
}

void lend__cpu_free(struct lend__extent *extent) {
    if (extent->base && lend__sys.munmap(extent->base, extent->bytes) == -EINVAL) {
        /* A foreign object of huge pages that is not a whole number of them. */
        struct stat st;
        if (extent->fd >= 0 && lend__sys.fstat(extent->fd, &st) == 0 && st.st_blksize > 0) {
            uint64_t step = (uint64_t)st.st_blksize;
            lend__sys.munmap(extent->base, (extent->bytes + step - 1) / step * step);
        }
    }
    extent->base = NULL;
    lend__fd_close(&extent->fd);
}
