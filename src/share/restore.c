/* SPDX-License-Identifier: MIT */
/* Rebuilding trees: groups, and tensors of components. First every byte is checked and every strided tensor object made,
 * then all storages are obtained at once (obtain.c), then they are put in place and the tensors of components are made
 * of them. A failure anywhere drops everything, and pins are still good. */
#include "base/error.h"
#include "base/sys.h"
#include "share/carry.h"
#include "share/context.h"
#include "share/group.h"
#include "share/rebuild.h"
#include "share/tree.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OPERATION "lend_rebuild"

/* A node that was read. */
struct node {
    struct lend_tensor *tensor; /* strided: made, without a storage; NULL: a layout of components, or moved on */
    uint32_t storage;           /* strided: index */
    uint32_t at;                /* components: where its bytes are */
};

struct restore {
    struct lend__tree tree;
    struct lend__obtain job;
    uint32_t flags;     /* of the options */
    const char **names; /* of a group's entries, in the handle; NULL: one tensor */
    struct lend__slab_maker maker;
    struct node *nodes;
    uint32_t n_nodes; /* read so far */
    uint32_t at;      /* in the bytes */
    bool has_components;
    struct lend_error *error;
};

/* --- reading --------------------------------------------------------------------------------------------------------- */

/* Not zeroed, and of at least one element, so that NULL is for lack of memory alone. */
static void *alloc_array(uint32_t n, size_t bytes) {
    void *at = NULL;
    return lend__sys.realloc(NULL, (n + (size_t)1) * bytes, &at) < 0 ? NULL : at;
}

static int begin(struct restore *x, const void *handle, size_t bytes, const struct lend_rebuild_opts *opts) {
    struct lend__obtain *job = &x->job;
    *job = (struct lend__obtain){.is_final = true, .error = x->error};
    int r = lend__obtain_read_opts(opts, job);
    if (r >= 0) r = lend__tree_open(handle, bytes, &x->tree, OPERATION, x->error);
    if (r < 0) return r;
    const struct lend__tree *tree = &x->tree;
    x->flags = opts ? opts->flags : 0;
    x->at = tree->nodes_at;
    x->maker.n_expected = tree->n_nodes;
    job->n_exporters = tree->n_exporters;
    job->n_rows = tree->n_allocations;
    job->n_wanted = tree->n_storages;
    /* One more of each, so that nothing is NULL for lack of anything. */
    struct lend__wire_exporter *exporters = lend__zalloc((tree->n_exporters + 1ull) * sizeof *exporters);
    job->exporters = exporters;
    job->sources = lend__zalloc((tree->n_exporters + 1ull) * sizeof *job->sources);
    job->rows = alloc_array(tree->n_allocations, sizeof *job->rows);
    job->wanted = alloc_array(tree->n_storages, sizeof *job->wanted);
    x->nodes = alloc_array(tree->n_nodes, sizeof *x->nodes);
    if (!exporters || !job->sources || !job->rows || !job->wanted || !x->nodes)
        return lend__fail(x->error, -ENOMEM, OPERATION, "no memory to rebuild %u tensors", tree->n_nodes);
    lend__tree_exporters(tree, exporters);
    for (uint32_t i = 0; i < tree->n_allocations; i++) {
        struct lend__tree_allocation row;
        lend__tree_allocation(tree, i, &row);
        job->rows[i] = (struct lend__row){.exporter = row.exporter,
                                          .device_type = row.device_type,
                                          .allocation = row.index,
                                          .allocation_gen = row.gen};
    }
    for (uint32_t i = 0; i < tree->n_storages; i++) {
        struct lend__tree_storage row;
        lend__tree_storage(tree, i, &row);
        job->wanted[i] = (struct lend__wanted){.row = row.allocation,
                                               .slot = row.slot,
                                               .slot_gen = row.slot_gen,
                                               .off = row.off,
                                               .bytes = row.bytes,
                                               .is_skipped = true}; /* until a tensor wants it */
    }
    return 0;
}

static void end(struct restore *x) {
    lend__slab_finish(&x->maker);
    for (uint32_t i = 0; i < x->n_nodes; i++) lend_tensor_unref(x->nodes[i].tensor);
    free(x->nodes);
    free(x->names);
    free((void *)(uintptr_t)x->job.exporters);
    free(x->job.sources);
    free(x->job.rows);
    free(x->job.wanted);
}

static int read_strided(struct restore *x, const struct lend__tree_node *node, struct node *ret) {
    struct lend__wanted *wanted = &x->job.wanted[node->storage];
    if (node->tensor.is_read_only && x->job.wants_writable)
        return lend__fail(x->error, -EACCES, OPERATION,
                          "a tensor of the handle is lent read-only; rebuild it without LEND_REBUILD_WRITABLE");
    wanted->is_skipped = false;
    ret->storage = node->storage;
    return lend__carry_make(&node->tensor, wanted->bytes, x->flags & LEND_REBUILD_READ_ONLY, &x->maker, &ret->tensor,
                            x->error);
}

/* Reads a tensor with all its components; or, not wanted, only checks them. */
static int read_node(struct restore *x, uint32_t depth, bool is_wanted, uint32_t *left) {
    struct lend__tree_node node;
    uint32_t at = x->at;
    if (depth > LEND_DEPTH_MAX) return lend__wire_bad(x->error, OPERATION, "it is too deep");
    if (!*left) return lend__wire_bad(x->error, OPERATION, "it has more tensors than it says");
    --*left;
    int r = lend__tree_next(&x->tree, &x->at, &node, OPERATION, x->error);
    if (r < 0) return r;
    if (is_wanted) {
        struct node *mine = &x->nodes[x->n_nodes++];
        *mine = (struct node){.at = at};
        if (node.layout == LEND_LAYOUT_STRIDED)
            r = read_strided(x, &node, mine);
        else
            x->has_components = true;
    }
    uint32_t n = node.n_components;
    for (uint32_t i = 0; r >= 0 && i < n; i++) r = read_node(x, depth + 1, is_wanted, left);
    return r;
}

/* `selected`: NULL, or for each entry whether it is wanted. */
static int read_all(struct restore *x, const bool *selected) {
    uint32_t left = x->tree.n_nodes;
    for (uint32_t i = 0; i < x->tree.n_entries; i++) {
        int r = read_node(x, 1, !selected || selected[i], &left);
        if (r < 0) {
            if (x->names) lend__error_add_name(x->error, x->names[i]);
            return r;
        }
    }
    if (left || x->at != x->tree.nodes_end)
        return lend__wire_bad(x->error, OPERATION, "it has fewer tensors than it says");
    if (x->has_components || (x->flags & LEND_REBUILD_CHECK)) x->job.is_final = false;
    return 0;
}

/* --- putting together ------------------------------------------------------------------------------------------------- */

static struct lend_tensor *finish_strided(struct restore *x, struct node *node) {
    struct lend__wanted *wanted = &x->job.wanted[node->storage];
    struct lend_tensor *tensor = node->tensor;
    tensor->storage = wanted->is_taken ? lend__storage_ref(wanted->got) : wanted->got;
    wanted->is_taken = true;
    tensor->is_read_only |= wanted->got->is_read_only;
    node->tensor = NULL;
    return tensor;
}

static int build(struct restore *x, uint32_t *next, struct lend_tensor **ret);

/* The components, built one after another; on error those that were are dropped. */
static int build_components(struct restore *x, uint32_t n, uint32_t *next, struct lend_tensor **ret) {
    uint32_t done = 0;
    int r = 0;
    while (done < n && (r = build(x, next, &ret[done])) >= 0) done++;
    while (r < 0 && done) lend_tensor_unref(ret[--done]);
    return r;
}

/* Whatever does not go together is the fault of the bytes. */
static int fault_of_bytes(int code, struct lend_error *error) {
    if (code != -EINVAL && code != -EOVERFLOW && code != -EOPNOTSUPP) return code;
    if (error) error->code = -EBADMSG;
    return -EBADMSG;
}

static int make_compound(struct restore *x, const struct lend__tree_node *node, struct lend_tensor *const *components,
                         struct lend_tensor **ret) {
    const struct lend__wire_tensor *t = &node->tensor;
    const struct lend_compound compound = {
        .size = sizeof compound,
        .layout = node->layout,
        .n_components = node->n_components,
        .components = components,
        .ndim = (int32_t)t->ndim,
        .shape = t->dims,
        .dtype = t->dtype,
        .is_coalesced = node->is_coalesced,
        .dim = node->dim,
        .scale = node->scale,
        .zero_point = node->zero_point,
    };
    int r = lend__attrs_check(t->attrs, t->dtype, node->layout, OPERATION, x->error);
    if (r >= 0) r = lend__tensor_make_compound(&compound, ret, OPERATION, x->error);
    if (r < 0) {
        for (uint32_t i = 0; i < node->n_components; i++) lend_tensor_unref(components[i]);
        return fault_of_bytes(r, x->error);
    }
    if (memcmp(&t->dtype, &(*ret)->dtype, sizeof t->dtype) != 0) {
        lend_tensor_unref(*ret);
        return lend__wire_bad(x->error, OPERATION, "a tensor's dtype is not that of its values");
    }
    if (!t->attrs && !t->user_bytes) return 0;
    r = lend__tensor_set_attrs(*ret, t->attrs, t->user_tag, t->user, t->user_bytes);
    if (r >= 0) return 0;
    lend_tensor_unref(*ret);
    return lend__fail(x->error, r, OPERATION, "no memory for the attributes of a tensor");
}

/* The tensor at nodes[*next], and all below it. */
static int build(struct restore *x, uint32_t *next, struct lend_tensor **ret) {
    struct node *mine = &x->nodes[(*next)++];
    if (mine->tensor) {
        *ret = finish_strided(x, mine);
        return 0;
    }
    struct lend__tree_node node;
    struct lend_tensor *components[LEND_COMPONENTS_MAX] = {NULL};
    uint32_t at = mine->at;
    int r = lend__tree_next(&x->tree, &at, &node, OPERATION, x->error); /* again: it was right the first time */
    if (r >= 0) r = build_components(x, node.n_components, next, components);
    return r < 0 ? r : make_compound(x, &node, components, ret);
}

/* --- naming what failed ----------------------------------------------------------------------------------------------- */

/* Says that an error is about the n-th of the wanted tensors. Returns the error. */
static int name_root(struct restore *x, int code, uint32_t n, const bool *selected) {
    for (uint32_t i = 0; i < x->tree.n_entries; i++) {
        if (selected && !selected[i]) continue;
        if (!n-- && x->names) lend__error_add_name(x->error, x->names[i]);
    }
    return code;
}

/* Is that storage one of the tensor at nodes[*next], or of one below it? Nothing has been built yet. */
static bool uses(struct restore *x, uint32_t *next, uint32_t storage) {
    struct node *mine = &x->nodes[(*next)++];
    struct lend__tree_node node;
    uint32_t at = mine->at;
    bool does = false;
    if (mine->tensor) return mine->storage == storage;
    if (lend__tree_next(&x->tree, &at, &node, OPERATION, NULL) < 0) return false;
    for (uint32_t i = 0; i < node.n_components; i++) does |= uses(x, next, storage);
    return does;
}

static int name_storage(struct restore *x, int code, uint32_t n, const bool *selected) {
    for (uint32_t i = 0, next = 0; x->job.failed && i < n; i++)
        if (uses(x, &next, x->job.failed - 1)) return name_root(x, code, i, selected);
    return code;
}

/* Builds `n` roots into `ret`, all or none. */
static int build_all(struct restore *x, uint32_t n, const bool *selected, struct lend_tensor **ret) {
    uint32_t next = 0, done = 0;
    int r = lend__obtain_begin(&x->job);
    if (r < 0) return name_storage(x, r, n, selected);
    while (done < n && (r = build(x, &next, &ret[done])) >= 0) done++;
    if (r < 0) name_root(x, r, done, selected);
    for (uint32_t i = 0; r >= 0 && (x->flags & LEND_REBUILD_CHECK) && i < n; i++) {
        r = lend_tensor_check(ret[i], x->error);
        if (r < 0) name_root(x, r, i, selected);
    }
    while (r < 0 && done) {
        lend_tensor_unref(ret[--done]);
        ret[done] = NULL;
    }
    lend__obtain_end(&x->job, r >= 0);
    return r;
}

int lend__restore_tensor(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                         struct lend_tensor **ret_tensor, struct lend_error *error) {
    struct restore x = {.error = error};
    struct lend_tensor *tensor = NULL;
    int r = begin(&x, handle, bytes, opts);
    if (r >= 0 && x.tree.is_group)
        r = lend__fail(error, -EINVAL, OPERATION, "the handle is of a group of %u tensors; use lend_group_rebuild",
                       x.tree.n_entries);
    if (r >= 0) r = lend__tree_names(&x.tree, NULL, OPERATION, error);
    if (r >= 0) r = read_all(&x, NULL);
    if (r >= 0) r = build_all(&x, 1, NULL, &tensor);
    end(&x);
    if (r >= 0) *ret_tensor = tensor;
    return r;
}

/* --- groups ----------------------------------------------------------------------------------------------------------- */

/* The names that a caller wants, found among those of the handle. */
struct subset {
    bool *selected; /* by entry; NULL: all */
    uint32_t n;     /* selected ones */
    size_t bytes;   /* of their names, with NULs */
};

static int missing(const char *const *names, const bool *found, uint32_t n, struct lend_error *error) {
    for (uint32_t i = 0; i < n; i++)
        if (!found[i])
            return lend__fail(error, -ENOENT, "lend_group_rebuild", "the group has no tensor \"%.120s\"", names[i]);
    return 0;
}

static int select_names(const struct restore *x, const char *const *wanted, uint32_t n, struct lend__names **index,
                        bool *found, struct subset *ret) {
    for (uint32_t i = 0; i < n; i++) {
        int r = lend__names_add(index, wanted, i);
        if (r == -EEXIST)
            return lend__fail(x->error, -EINVAL, "lend_group_rebuild", "\"%.120s\" is wanted twice", wanted[i]);
        if (r < 0) return lend__fail(x->error, r, "lend_group_rebuild", "no memory for a list of %u names", n);
    }
    for (uint32_t i = 0; i < x->tree.n_entries; i++) {
        uint32_t position = lend__names_find(*index, wanted, x->names[i]);
        if (position == LEND__NAME_NONE || found[position]) continue; /* of two equal names the first counts */
        found[position] = ret->selected[i] = true;
        ret->n++;
        ret->bytes += strlen(x->names[i]) + 1;
    }
    return missing(wanted, found, n, x->error);
}

static int make_subset(const struct restore *x, const char *const *wanted, size_t n, struct subset *ret) {
    const struct lend__tree *tree = &x->tree;
    if (!wanted) {
        *ret = (struct subset){NULL, tree->n_entries, tree->names_bytes};
        return 0;
    }
    if (n > LEND_GROUP_TENSORS_MAX)
        return lend__fail(x->error, -EINVAL, "lend_group_rebuild", "%zu names are more than a group can have", n);
    struct lend__names *index = lend__names_new((uint32_t)n);
    bool *found = lend__zalloc(n + 1);
    *ret = (struct subset){lend__zalloc(tree->n_entries + 1u), 0, 0};
    int r = index && found && ret->selected
                ? select_names(x, wanted, (uint32_t)n, &index, found, ret)
                : lend__fail(x->error, -ENOMEM, "lend_group_rebuild", "no memory for a list of %zu names", n);
    free(index);
    free(found);
    return r;
}

/* Copies the names of the selected entries into the group's block. */
static void copy_names(const struct restore *x, const struct subset *subset, struct lend_group *group) {
    const struct lend__tree *tree = &x->tree;
    char *to = group->block;
    uint32_t n = 0;
    if (!subset->selected && tree->names_bytes) {
        memcpy(to, tree->names, tree->names_bytes);
        for (; n < tree->n_entries; n++) group->names[n] = to + (x->names[n] - tree->names);
    }
    for (uint32_t i = 0; subset->selected && i < tree->n_entries; i++) {
        if (!subset->selected[i]) continue;
        size_t bytes = strlen(x->names[i]) + 1;
        group->names[n++] = memcpy(to, x->names[i], bytes);
        to += bytes;
    }
    group->n_in_block = n;
}

/* The names of all entries, where they are. */
static int read_names(struct restore *x) {
    x->names = alloc_array(x->tree.n_entries, sizeof *x->names);
    if (!x->names)
        return lend__fail(x->error, -ENOMEM, "lend_group_rebuild", "no memory for %u names", x->tree.n_entries);
    return lend__tree_names(&x->tree, x->names, OPERATION, x->error);
}

static int restore_group(struct restore *x, const char *const *names, size_t n_names, struct subset *subset,
                         struct lend_group **ret) {
    struct lend_group *group = NULL;
    if (!x->tree.is_group)
        return lend__fail(x->error, -EINVAL, "lend_group_rebuild", "the handle is of one tensor; use lend_rebuild");
    int r = read_names(x);
    if (r >= 0) r = make_subset(x, names, n_names, subset);
    if (r >= 0) r = read_all(x, subset->selected);
    if (r >= 0 && (r = lend__group_make(subset->n, subset->bytes, &group)) < 0)
        lend__fail(x->error, r, "lend_group_rebuild", "no memory for a group of %u tensors", subset->n);
    if (r >= 0) r = build_all(x, subset->n, subset->selected, group->tensors);
    if (r >= 0) {
        group->n = subset->n;
        copy_names(x, subset, group);
        *ret = group;
    } else {
        lend_group_unref(group);
    }
    return r;
}

int lend_group_rebuild(const void *handle, size_t bytes, const char *const *names, size_t n_names,
                       const struct lend_rebuild_opts *opts, struct lend_group **ret_group, struct lend_error *error) {
    struct restore x = {.error = error};
    struct subset subset = {.selected = NULL};
    int r = lend__context_check("lend_group_rebuild", error);
    if (r >= 0 && (!handle || !ret_group))
        r = lend__fail(error, -EINVAL, "lend_group_rebuild", "handle and ret_group must not be NULL");
    for (size_t i = 0; r >= 0 && names && i < n_names; i++)
        if (!names[i]) r = lend__fail(error, -EINVAL, "lend_group_rebuild", "names[%zu] is NULL", i);
    if (r >= 0 && !lend__wire_is_tree(handle, bytes)) {
        struct lend__wire wire; /* to tell garbage from a handle of another kind */
        r = lend__wire_decode(handle, bytes, &wire, "lend_group_rebuild", error);
        if (r >= 0)
            r = lend__fail(error, -EINVAL, "lend_group_rebuild", "the handle is of one tensor; use lend_rebuild");
    }
    if (r < 0) return r;
    r = begin(&x, handle, bytes, opts);
    if (r >= 0) r = restore_group(&x, names, n_names, &subset, ret_group);
    free(subset.selected);
    end(&x);
    return r;
}
