/* SPDX-License-Identifier: MIT */
/* Groups as objects: an ordered list of named tensors with an index. How they are reduced and rebuilt is gather.c's and
 * restore.c's business.
 *
 * Locking: none. A group is changed only by lend_group_add, whose caller has it alone; the index that a look-up makes
 * is put in place by one compare-and-swap. */
#include "share/group.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/point.h"
#include "base/process.h"
#include "base/sys.h"
#include "share/context.h"
#include "share/gather.h"
#include "share/rebuild.h"
#include "share/tree.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int lend__group_make(uint32_t room, size_t block_bytes, struct lend_group **ret) {
    struct lend_group *group = lend__zalloc(sizeof *group);
    if (!group) return -ENOMEM;
    group->n_refs = 1;
    group->room = room;
    if (room) group->tensors = lend__zalloc(room * sizeof *group->tensors);
    if (room) group->names = lend__zalloc(room * sizeof *group->names);
    void *block = NULL;
    int r = block_bytes ? (int)lend__sys.realloc(NULL, block_bytes, &block) : 0;
    group->block = block;
    if (r >= 0 && (!room || (group->tensors && group->names))) {
        *ret = group;
        return 0;
    }
    lend_group_unref(group);
    return -ENOMEM;
}

int lend_group_new(struct lend_group **ret_group, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
    if (!ret_group) return lend__fail(error, -EINVAL, __func__, "ret_group is NULL");
    int r = lend__group_make(0, 0, ret_group);
    return r < 0 ? lend__fail(error, r, __func__, "no memory for a group") : 0;
}

struct lend_group *lend_group_ref(struct lend_group *group) {
    lend__add_relaxed(&group->n_refs, 1);
    return group;
}

void lend_group_unref(struct lend_group *group) {
    if (!group) return;
    if (lend__load_acquire(&group->n_refs) != 1 && lend__sub_acq_rel(&group->n_refs, 1) != 1) return;
    lend__tensors_unref(group->tensors, group->n);
    for (uint32_t i = group->n_in_block; i < group->n; i++) free((void *)(uintptr_t)group->names[i]);
    free(group->tensors);
    free(group->names);
    free(group->block);
    free(group->index);
    free(group);
}

/* --- adding ---------------------------------------------------------------------------------------------------------- */

static int make_room(struct lend_group *group) {
    if (group->n < group->room) return 0;
    uint32_t room = group->room ? group->room * 2 : 16;
    void *tensors = NULL, *names = NULL;
    if (lend__sys.realloc(group->tensors, room * sizeof *group->tensors, &tensors) < 0) return -ENOMEM;
    group->tensors = tensors;
    if (lend__sys.realloc(group->names, room * sizeof *group->names, &names) < 0) return -ENOMEM;
    group->names = names;
    group->room = room;
    return 0;
}

/* Of names that came with a handle, the first of two equal ones counts. NULL: no memory. */
static struct lend__names *make_index(const struct lend_group *group) {
    struct lend__names *index = lend__names_new(group->n);
    for (uint32_t i = 0; index && i < group->n; i++) {
        if (lend__names_add(&index, group->names, i) != -ENOMEM) continue;
        free(index);
        return NULL;
    }
    return index;
}

int lend_group_add(struct lend_group *group, const char *name, struct lend_tensor *tensor, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
    if (!group || !name || !tensor)
        return lend__fail(error, -EINVAL, __func__, "group, name and tensor must not be NULL");
    size_t bytes = strlen(name);
    if (bytes > LEND_GROUP_NAME_MAX)
        return lend__fail_bytes(error, -ERANGE, __func__, bytes, LEND_GROUP_NAME_MAX,
                                "the name has %zu bytes and may have %d", bytes, LEND_GROUP_NAME_MAX);
    if (group->n == LEND_GROUP_TENSORS_MAX)
        return lend__fail_bytes(error, -ENOSPC, __func__, (uint64_t)group->n + 1, LEND_GROUP_TENSORS_MAX,
                                "the group has %u tensors and may not have more; begin another", group->n);
    void *copy = NULL;
    int r = make_room(group);
    if (r >= 0 && !group->index && !(group->index = make_index(group))) r = -ENOMEM;
    if (r >= 0) r = (int)lend__sys.realloc(NULL, bytes + 1, &copy);
    if (r < 0) return lend__fail(error, -ENOMEM, __func__, "no memory for the entry of \"%.80s\"", name);
    memcpy(copy, name, bytes + 1);
    group->names[group->n] = copy;
    r = lend__names_add(&group->index, group->names, group->n);
    if (r < 0) {
        free(copy);
        return r == -EEXIST ? lend__fail(error, r, __func__, "the group has a tensor \"%.80s\" already", name)
                            : lend__fail(error, r, __func__, "no memory for the entry of \"%.80s\"", name);
    }
    group->tensors[group->n++] = lend_tensor_ref(tensor);
    return 0;
}

/* --- reading --------------------------------------------------------------------------------------------------------- */

size_t lend_group_count(const struct lend_group *group) {
    return group->n;
}

struct lend_tensor *lend_group_get(const struct lend_group *group, size_t index, const char **ret_name) {
    if (index >= group->n) return NULL;
    if (ret_name) *ret_name = group->names[index];
    return group->tensors[index];
}

struct lend_tensor *lend_group_find(const struct lend_group *group, const char *name) {
    struct lend__names *index = lend__load_acquire(&group->index);
    if (!name) return NULL;
    if (!index && group->n) {
        struct lend__names *fresh = make_index(group);
        /* The index is no part of what the group is: const for its users. */
        struct lend_group *mutable_group = (struct lend_group *)(uintptr_t)group;
        if (fresh && lend__cas_acq_rel(&mutable_group->index, &index, fresh))
            index = fresh;
        else
            free(fresh);
    }
    if (index) {
        uint32_t position = lend__names_find(index, group->names, name);
        return position == LEND__NAME_NONE ? NULL : group->tensors[position];
    }
    for (uint32_t i = 0; i < group->n; i++) /* no memory for an index */
        if (!strcmp(group->names[i], name)) return group->tensors[i];
    return NULL;
}

/* --- crossing -------------------------------------------------------------------------------------------------------- */

int lend_group_reduce(struct lend_group *group, const struct lend_reduce_opts *opts, void **ret_handle,
                      size_t *ret_bytes, struct lend_error *error) {
    int r = lend__context_check(__func__, error);
    if (r < 0) return r;
    if (!group || !ret_handle || !ret_bytes)
        return lend__fail(error, -EINVAL, __func__, "group, ret_handle and ret_bytes must not be NULL");
    const struct lend__gather_request request = {.operation = __func__,
                                                 .tensors = group->tensors,
                                                 .names = group->names,
                                                 .n = group->n,
                                                 .is_group = true,
                                                 .opts = opts};
    struct lend__gather *gather = NULL;
    r = lend__gather_begin(&request, &gather, error);
    if (r < 0) return r;
    *ret_handle = lend__gather_take_bytes(gather, ret_bytes);
    LEND_POINT("A7.group-reduced");
    lend__gather_end(gather, true);
    return r;
}

int lend_group_names(const void *handle, size_t bytes, const char ***ret_names, size_t *ret_n,
                     struct lend_error *error) {
    struct lend__tree tree;
    if (!handle || !ret_names || !ret_n)
        return lend__fail(error, -EINVAL, __func__, "handle, ret_names and ret_n must not be NULL");
    int r = lend__tree_open(handle, bytes, &tree, __func__, error);
    if (r >= 0) r = lend__tree_check(&tree, __func__, error);
    if (r < 0) return r;
    if (!tree.is_group) return lend__fail(error, -EINVAL, __func__, "the handle is of one tensor, which has no name");
    const char **names = NULL;
    if (tree.n_entries && !(names = lend__zalloc(tree.n_entries * sizeof *names)))
        return lend__fail(error, -ENOMEM, __func__, "no memory for a list of %u names", tree.n_entries);
    lend__tree_names(&tree, names, __func__, NULL); /* checked above */
    *ret_names = names;
    *ret_n = tree.n_entries;
    return 0;
}
