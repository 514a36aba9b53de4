/* SPDX-License-Identifier: MIT */
/* The handle of anything but one strided tensor (docs/wire.md, "Tree"): tables of exporters, allocations and storages,
 * then the tensors in pre-order, then paths and names. A reader holds nothing but positions in the bytes: decoding
 * allocates nothing, looks at each byte once, and does not recurse deeper than LEND_DEPTH_MAX. */
#ifndef LEND_SHARE_TREE_H_
#define LEND_SHARE_TREE_H_

#include "share/wire.h"

#include <lend/group.h>
#include <lend/layout.h>

#define LEND__TREE_NONE UINT32_MAX

/* A node: a strided tensor, or the head of a layout of components, which follow. */
struct lend__tree_node {
    struct lend__wire_tensor tensor; /* with components: dtype, attrs, user, shape */
    uint8_t layout;
    uint32_t n_components;
    uint32_t storage; /* index; LEND__TREE_NONE with components */
    bool is_coalesced;
    int32_t dim;
    double scale;
    int64_t zero_point;
};

/* A row of the table of allocations. */
struct lend__tree_allocation {
    uint32_t exporter; /* index */
    int32_t device_type;
    uint32_t index, gen;
    uint64_t bytes;
};

/* A row of the table of storages. */
struct lend__tree_storage {
    uint32_t allocation; /* index of a row */
    uint32_t slot;
    uint64_t slot_gen, off, bytes;
};

/* Bytes of the parts. */
#define LEND__TREE_HEAD_BYTES 48u
#define LEND__TREE_EXPORTER_BYTES 64u
#define LEND__TREE_ALLOCATION_BYTES 32u
#define LEND__TREE_STORAGE_BYTES 32u
#define LEND__TREE_NODE_BYTES 32u     /* and dims, and user bytes */
#define LEND__TREE_COMPOUND_BYTES 16u /* more, in front of the dims */

/* --- reading --------------------------------------------------------------------------------------------------------- */

/* A tree whose tables have been checked, over borrowed bytes. Names are checked by lend__tree_names, nodes as they are
 * read. */
struct lend__tree {
    const uint8_t *bytes;
    uint16_t major, minor;
    bool is_group;
    uint32_t n_exporters, n_allocations, n_storages, n_nodes;
    uint32_t n_entries; /* a group's; otherwise 1 */
    uint32_t nodes_at, nodes_end;
    const char *names; /* of a group's entries, each with its NUL */
    uint32_t names_bytes;
    const char *paths; /* of the exporters, without NUL */
};

/* Checks everything but nodes and names. Return: 0, -EBADMSG, -EPROTONOSUPPORT; -EINVAL: it is of one strided tensor. */
int lend__tree_open(const void *bytes, size_t n, struct lend__tree *ret, const char *operation,
                    struct lend_error *error);

/* Fills `ret` with all exporters; paths are borrowed from the bytes. */
void lend__tree_exporters(const struct lend__tree *tree, struct lend__wire_exporter *ret);
void lend__tree_allocation(const struct lend__tree *tree, uint32_t i, struct lend__tree_allocation *ret);
void lend__tree_storage(const struct lend__tree *tree, uint32_t i, struct lend__tree_storage *ret);

/* Reads the node at *at (first: nodes_at) and moves *at behind it. What follows from the tree as a whole (number of
 * components, depth, number of nodes) is the caller's to check, or lend__tree_check's. */
int lend__tree_next(const struct lend__tree *tree, uint32_t *at, struct lend__tree_node *ret, const char *operation,
                    struct lend_error *error);

/* Checks the names, and fills `ret` (NULL: no) with one for each entry, borrowed from the bytes. */
int lend__tree_names(const struct lend__tree *tree, const char **ret, const char *operation, struct lend_error *error);

/* Checks names, nodes and their structure: what a handle must be before it is described, formatted or passed on. */
int lend__tree_check(const struct lend__tree *tree, const char *operation, struct lend_error *error);

/* --- writing --------------------------------------------------------------------------------------------------------- */

/* What is to be written. Nodes in pre-order; names NUL-terminated, one for each entry of a group. */
struct lend__tree_source {
    bool is_group;
    uint32_t n_exporters, n_allocations, n_storages, n_nodes, n_entries;
    const struct lend__wire_exporter *exporters;
    const struct lend__tree_allocation *allocations;
    const struct lend__tree_storage *storages;
    const char *const *names;
    /* Fills node i; called twice for each, in order. */
    void (*node)(void *user, uint32_t i, struct lend__tree_node *ret);
    void *user;
};

/* Allocates the bytes and writes them. Return: 0, -ENOMEM, -ENOSPC (longer than LEND_GROUP_BYTES_MAX). */
int lend__tree_write(const struct lend__tree_source *source, void **ret_bytes, size_t *ret_n);

#endif
