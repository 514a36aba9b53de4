/* SPDX-License-Identifier: MIT */
/* An allocation of a peer, mapped here: at most once per process (I-1), found by (exporter, index, generation), never
 * by address. Kept while anything of it is held, and cached afterwards until its exporter retires it. */
#ifndef LEND_SHARE_MAPPING_H_
#define LEND_SHARE_MAPPING_H_

#include "device/device.h"
#include "memory/region.h"
#include "tensor/storage.h"

#include <lend/error.h>
#include <stdbool.h>
#include <stdint.h>

struct lend__peer;

struct lend__mapping {
    struct lend__extent extent; /* first: tensor/ reads inode and base through it */
    const struct lend__device_ops *device;
    struct lend__peer *peer;
    uint32_t index, gen;
    uint64_t n_storages; /* under the import lock */
    bool is_given; /* to the page that we have now: only then do its counts protect anything. Not in a family's child */
    struct lend__region region;
    struct lend__mapping *next; /* on its way out (mapping_release) */
};

_Static_assert(offsetof(struct lend__mapping, extent) == 0, "lend__storage_extent reads it so");

/* What is to be mapped, as the exporter's table says. */
struct lend__mapping_request {
    struct lend__peer *peer;
    uint32_t index, gen;
    uint64_t fd_offset, bytes;
    uint64_t flags; /* enum lend_shm_allocation_flags, and whatever else the peer wrote */
};

/* Maps what a peer sent. *fd is consumed (and -1) on success. No lend lock may be held but the context's (the region
 * lock comes before all others).
 * Return: 0, -EBADMSG (not what was said), -EACCES, -ESTALE (a file that has been cut), -ENOMEM, -ENODEV. */
int lend__mapping_new(const struct lend__mapping_request *request, int *fd, struct lend__mapping **ret,
                      struct lend_error *error);

/* A file's memory, to a caller who has not accepted that. Returns -EACCES. */
int lend__refuse_file(const char *operation, struct lend_error *error) __attribute__((cold));

/* Fills the region of a mapping that takes over what is registered already (fork.c). */
void lend__mapping_set_region(struct lend__mapping *mapping);

/* Unmaps; no lend lock may be held. NULL allowed. */
void lend__mapping_free(struct lend__mapping *mapping);
void lend__mapping_free_list(struct lend__mapping *first);

#endif
