/* SPDX-License-Identifier: MIT */
/* Mapping a peer's allocation. Sizes and seals are checked by the back end before anything is mapped (I-5); what the
 * table calls a file has no seals, and its size is looked at again at each rebuild. Regions are added and removed with
 * no lend lock held; the look-up by address takes the import lock. */
#include "share/mapping.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/point.h"
#include "base/sys.h"
#include "share/peer.h"

#include <errno.h>
#include <stdlib.h>

/* Cold: goes through the storages of this peer. */
static struct lend__storage *storage_at(struct lend__region *region, const uint8_t *address, uint64_t bytes) {
    struct lend__mapping *mapping = region->owner;
    struct lend__storage *found = NULL;
    lend__import_lock();
    struct lend__peer *peer = mapping->peer;
    for (uint32_t i = 0; i < peer->imported_room; i++) {
        struct lend__storage *s = peer->imported[i];
        if (!s || s->mapping != mapping || address < s->data || (found && found->bytes <= s->bytes)) continue;
        if (lend__range_fits((uint64_t)(address - s->data), bytes, s->bytes)) found = s;
    }
    if (found) lend__storage_ref(found);
    lend__import_unlock();
    return found;
}

void lend__mapping_set_region(struct lend__mapping *mapping) {
    mapping->region = (struct lend__region){
        .base = mapping->extent.base, .bytes = mapping->extent.bytes, .storage_at = storage_at, .owner = mapping};
}

static int import_extent(const struct lend__device_ops *device, const struct lend__mapping_request *request, int fd,
                         struct lend__extent *ret, struct lend_error *error) {
    bool is_read_only = request->flags & LEND_SHM_ALLOCATION_READ_ONLY;
    bool is_file = request->flags & LEND_SHM_ALLOCATION_FILE;
    if (request->flags & ~(uint64_t)(LEND_SHM_ALLOCATION_READ_ONLY | LEND_SHM_ALLOCATION_FILE) ||
        (is_file && !is_read_only))
        return lend__fail(error, -EBADMSG, "lend_rebuild", "the peer's table gives an allocation the flags 0x%llx",
                          (unsigned long long)request->flags);
    if (is_file) return device->file_import(fd, request->fd_offset, request->bytes, ret, error);
    return device->allocation_import(fd, request->fd_offset, request->bytes, is_read_only, ret, error);
}

int lend__mapping_new(const struct lend__mapping_request *request, int *fd, struct lend__mapping **ret,
                      struct lend_error *error) {
    const struct lend__device_ops *device = lend__device_get(kDLCPU);
    struct lend__mapping *mapping = lend__zalloc(sizeof *mapping);
    if (!mapping) return lend__fail(error, -ENOMEM, "lend_rebuild", "no memory for the record of a mapping");
    int r = import_extent(device, request, *fd, &mapping->extent, error);
    if (r < 0) {
        free(mapping);
        return r;
    }
    *fd = -1; /* the extent's, from here on */
    LEND_POINT("C6.allocation-mapped");
    mapping->device = device;
    mapping->peer = request->peer;
    mapping->index = request->index;
    mapping->gen = request->gen;
    mapping->is_given = true;
    lend__mapping_set_region(mapping);
    r = lend__region_add(&mapping->region);
    if (r < 0) {
        device->allocation_free(&mapping->extent);
        free(mapping);
        return lend__fail(error, r, "lend_rebuild", "no memory for the list of mapped ranges");
    }
    *ret = mapping;
    return 0;
}

int lend__refuse_file(const char *operation, struct lend_error *error) {
    return lend__fail(
        error, -EACCES, operation,
        "the tensor's memory is a file, which can be cut short under its readers (SIGBUS); accept that with "
        "LEND_REBUILD_FILE_IN_PLACE, or let the lender read it into a pool");
}

void lend__mapping_free(struct lend__mapping *mapping) {
    if (!mapping) return;
    lend__region_remove(&mapping->region);
    mapping->device->allocation_free(&mapping->extent);
    LEND_POINT("R3.unmapped");
    free(mapping);
}

void lend__mapping_free_list(struct lend__mapping *first) {
    while (first) {
        struct lend__mapping *next = first->next;
        lend__mapping_free(first);
        first = next;
    }
}
