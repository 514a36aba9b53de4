/* SPDX-License-Identifier: MIT */
/* Reads lend_pool_opts: a struct that may be shorter or longer than ours, each option checked and named when wrong.
 * Nothing here touches memory of a device. */
#include "base/checked.h"
#include "base/error.h"
#include "base/sys.h"
#include "memory/pool.h"

#include <errno.h>
#include <string.h>

#define CALL "lend_pool_new"
#define ALIGNMENT_MIN 64u
#define ALIGNMENT_MAX (2u << 20)
#define FLAGS_KNOWN \
    ((uint32_t)(LEND_POOL_PEERS_READ_ONLY | LEND_POOL_ISOLATE | LEND_POOL_PRETOUCH | LEND_POOL_FILE_IN_PLACE))

/* A caller compiled against a later header may pass a longer struct; what we do not know must be 0. */
static int copy_in(const struct lend_pool_opts *opts, struct lend_pool_opts *ret, struct lend_error *error) {
    memset(ret, 0, sizeof *ret);
    ret->size = sizeof *ret;
    if (!opts) return 0;
    if (opts->size < sizeof opts->size || opts->size > 4096)
        return lend__fail(error, -EINVAL, CALL, "size is %zu; set it to sizeof(struct lend_pool_opts)", opts->size);
    memcpy(ret, opts, opts->size < sizeof *ret ? opts->size : sizeof *ret);
    ret->size = sizeof *ret;
    for (size_t i = sizeof *ret; i < opts->size; i++)
        if (((const unsigned char *)opts)[i])
            return lend__fail(error, -EINVAL, CALL, "an option at byte %zu is newer than this library", i);
    return 0;
}

static int check_values(const struct lend_pool_opts *o, struct lend_error *error) {
    if (o->flags & ~FLAGS_KNOWN)
        return lend__fail(error, -EINVAL, CALL, "flags 0x%x has bits that are not in lend_pool_flags", o->flags);
    if (o->huge_pages > LEND_HUGE_HUGETLB)
        return lend__fail(error, -EINVAL, CALL, "huge_pages %u is not in lend_huge_pages", o->huge_pages);
    if (o->numa_mode > LEND_NUMA_INTERLEAVE)
        return lend__fail(error, -EINVAL, CALL, "numa_mode %u is not in lend_numa_mode", o->numa_mode);
    if (o->numa_mode != LEND_NUMA_DEFAULT && !o->numa_nodes)
        return lend__fail(error, -EINVAL, CALL, "numa_nodes names no node; set a bit for each node to use");
    if (!lend__is_power_of_two(o->alignment) || o->alignment < ALIGNMENT_MIN || o->alignment > ALIGNMENT_MAX)
        return lend__fail(error, -EINVAL, CALL, "alignment %u is not a power of two from %u to %u", o->alignment,
                          ALIGNMENT_MIN, ALIGNMENT_MAX);
    return 0;
}

/* Of the options as they were given: a file promises no alignment, not even the smallest. */
static int check_file(const struct lend_pool_opts *o, struct lend_error *error) {
    if (!(o->flags & LEND_POOL_FILE_IN_PLACE)) return 0;
    if (!o->adopt_bytes)
        return lend__fail(error, -EINVAL, CALL,
                          "LEND_POOL_FILE_IN_PLACE needs a file: give adopt_fd, and the range in adopt_bytes");
    if (o->flags != LEND_POOL_FILE_IN_PLACE || o->alignment || o->huge_pages || o->numa_mode || o->initial_bytes ||
        o->budget_bytes)
        return lend__fail(error, -EINVAL, CALL,
                          "a file in place is as it lies on its disk: no other flags, alignment, huge pages, NUMA, "
                          "budget or initial_bytes");
    return 0;
}

static int check_adopt(const struct lend_pool_opts *o, struct lend_error *error) {
    bool is_file = o->flags & LEND_POOL_FILE_IN_PLACE;
    if (!o->adopt_bytes) return 0;
    if ((!is_file && o->flags) || o->huge_pages || o->numa_mode || o->initial_bytes || o->budget_bytes)
        return lend__fail(
            error, -EINVAL, CALL,
            "adopted memory is as its maker left it: no flags, huge pages, NUMA, budget or initial_bytes");
    if (o->adopt_offset % lend__page_bytes())
        return lend__fail(error, -EINVAL, CALL, "adopt_offset %llu is not a multiple of the page size %zu",
                          (unsigned long long)o->adopt_offset, lend__page_bytes());
    if (!is_file && o->adopt_bytes % o->alignment)
        return lend__fail(error, -EINVAL, CALL, "adopt_bytes %llu is not a multiple of the alignment %u",
                          (unsigned long long)o->adopt_bytes, o->alignment);
    return 0;
}

/* What was asked for must be what the back end can do. */
static int check_caps(const struct lend_pool_opts *o, const struct lend__device_ops *device, struct lend_error *error) {
    const struct {
        bool is_asked;
        uint32_t cap;
        const char *what;
    } needs[] = {
        {!o->adopt_bytes, LEND__CAP_ALLOCATE, "memory"},
        {o->adopt_bytes > 0, o->flags & LEND_POOL_FILE_IN_PLACE ? LEND__CAP_FILE : LEND__CAP_ADOPT, "adopted memory"},
        {o->flags & LEND_POOL_PEERS_READ_ONLY, LEND__CAP_READ_ONLY, "memory that peers may only read"},
        {o->huge_pages != LEND_HUGE_NONE, LEND__CAP_HUGE_PAGES, "huge pages"},
        {o->numa_mode != LEND_NUMA_DEFAULT, LEND__CAP_NUMA, "a NUMA policy"},
    };
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if (needs[i].is_asked && !(device->caps & needs[i].cap))
            return lend__fail(error, -EOPNOTSUPP, CALL, "device %s has no %s", device->name, needs[i].what);
    return 0;
}

int lend__pool_opts_read(const struct lend_pool_opts *opts, struct lend_pool_opts *ret_opts,
                         const struct lend__device_ops **ret_device, struct lend_error *error) {
    struct lend_pool_opts o;
    int r = copy_in(opts, &o, error);
    if (r < 0 || (r = check_file(&o, error)) < 0) return r;
    if (!o.device_type) o.device_type = kDLCPU;
    if (!o.alignment) o.alignment = ALIGNMENT_MIN;
    if (o.numa_mode == LEND_NUMA_DEFAULT) o.numa_nodes = 0;
    const struct lend__device_ops *device = lend__device_get(o.device_type);
    if (!device)
        return lend__fail(error, -ENODEV, CALL, "device_type %d has no back end in this build", (int)o.device_type);
    if (o.device_type == kDLCPU && o.device_id != 0)
        return lend__fail(error, -ENODEV, CALL, "there is one CPU device, 0; device_id is %d", (int)o.device_id);
    if ((r = check_values(&o, error)) < 0 || (r = check_adopt(&o, error)) < 0 ||
        (r = check_caps(&o, device, error)) < 0)
        return r;
    *ret_opts = o;
    *ret_device = device;
    return 0;
}
