/* SPDX-License-Identifier: MIT */
/* Where pages come from: NUMA nodes and transparent huge pages. What the kernel really did is read back, never
 * assumed. The calls go by their own numbers, so libnuma is not needed. Stateless. */
#include "base/error.h"
#include "base/sys.h"
#include "device/cpu/cpu.h"

#include <errno.h>
#include <lend/pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernel's numbers (linux/mempolicy.h). */
#define MPOL_PREFERRED_ 1
#define MPOL_BIND_ 2
#define MPOL_INTERLEAVE_ 3
#define MPOL_F_ADDR_ 2

/* More nodes than a kernel can be built for: get_mempolicy refuses a shorter mask. */
#define N_NODES_MAX 1024
#define MASK_WORDS (N_NODES_MAX / (8 * sizeof(unsigned long)))

static const struct {
    uint32_t lend;
    int kernel;
} modes[] = {
    {LEND_NUMA_BIND, MPOL_BIND_},
    {LEND_NUMA_PREFERRED, MPOL_PREFERRED_},
    {LEND_NUMA_INTERLEAVE, MPOL_INTERLEAVE_},
};

int lend__cpu_numa_bind(void *base, uint64_t bytes, uint32_t mode, uint64_t nodes, struct lend_error *error) {
    unsigned long mask[MASK_WORDS] = {0};
    for (unsigned i = 0; i < 64; i++)
        if (nodes >> i & 1) mask[i / (8 * sizeof mask[0])] |= 1ul << (i % (8 * sizeof mask[0]));
    int kernel = 0;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (modes[i].lend == mode) kernel = modes[i].kernel;
    /* The kernel takes one bit less than it is told. */
    long r = lend__sys.mbind(base, bytes, kernel, mask, N_NODES_MAX + 1, 0);
    if (r == 0) return 0;
    if (r == -EINVAL)
        return lend__fail(error, -EINVAL, "mbind",
                          "NUMA nodes 0x%llx: the machine has no such node, or no memory on it",
                          (unsigned long long)nodes);
    if (r == -ENOSYS || r == -EPERM) {
        lend__fail_sys(error, (int)r, "mbind", "mbind", "a NUMA policy");
        if (error) error->code = -EOPNOTSUPP;
        return -EOPNOTSUPP;
    }
    return lend__fail_sys(error, (int)r, "mbind", "mbind", "a NUMA policy");
}

void lend__cpu_numa_read(const void *base, uint32_t *ret_mode, uint64_t *ret_nodes) {
    unsigned long mask[MASK_WORDS] = {0};
    int mode = 0;
    *ret_mode = LEND_NUMA_DEFAULT;
    *ret_nodes = 0;
    /* The call only looks the address up. */
    if (lend__sys.get_mempolicy(&mode, mask, N_NODES_MAX, (void *)(uintptr_t)base, MPOL_F_ADDR_) < 0) return;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (modes[i].kernel == (mode & 0xff)) *ret_mode = modes[i].lend;
    if (*ret_mode == LEND_NUMA_DEFAULT) return;
    for (unsigned i = 0; i < 64; i++)
        if (mask[i / (8 * sizeof mask[0])] >> (i % (8 * sizeof mask[0])) & 1) *ret_nodes |= (uint64_t)1 << i;
}

/* Sums ShmemPmdMapped over the parts of the mapping in /proc/self/smaps. */
uint64_t lend__cpu_thp_bytes(const struct lend__extent *extent) {
    struct lend__lines lines;
    char line[256];
    uint64_t kib = 0, from = (uintptr_t)extent->base, to = from + extent->bytes;
    bool is_ours = false;
    if (lend__lines_open(&lines, "/proc/self/smaps") < 0) return 0;
    while (lend__lines_next(&lines, line, sizeof line)) {
        unsigned long long low, high, value;
        if (sscanf(line, "%llx-%llx ", &low, &high) == 2)
            is_ours = low < to && high > from;
        else if (is_ours && sscanf(line, "ShmemPmdMapped: %llu", &value) == 1)
            kib += value;
    }
    lend__lines_close(&lines);
    return kib * 1024;
}
