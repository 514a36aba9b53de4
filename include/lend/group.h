/* SPDX-License-Identifier: MIT */
/* Groups: many named tensors under one handle, such as a state dict. Order is kept; a storage that several tensors view
 * is taken once; the whole is reduced or rebuilt, or nothing of it. */
#ifndef LEND_GROUP_H_
#define LEND_GROUP_H_

#include <lend/error.h>
#include <lend/handle.h>
#include <lend/tensor.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lend_group;

/* Limits of a group, and of what a handle of one may claim. */
#define LEND_GROUP_TENSORS_MAX (1u << 20) /* entries, and also tensors with their components */
#define LEND_GROUP_NAME_MAX 4095          /* bytes of a name without its NUL */
#define LEND_GROUP_BYTES_MAX (1u << 28)   /* bytes of its handle */
#define LEND_GROUP_EXPORTERS_MAX 1024     /* processes whose storages it names */

/* Makes an empty group.
 *   ret_group  returned: one reference.
 *   error      borrowed, NULL allowed.
 * Return: 0; -ENOMEM; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.nn.Module.state_dict. */
LEND_API int lend_group_new(struct lend_group **ret_group, struct lend_error *error);

/* Adds a reference.
 * Return: group.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_group_unref. */
LEND_API struct lend_group *lend_group_ref(struct lend_group *group);

/* Gives a reference back; with the last one the group drops its references of its tensors.
 *   group  consumed; NULL allowed.
 * Return: nothing; cannot fail.
 * Threads: any.  Crash: the kernel's word ends the leases.  Since: 0.1.
 * See: lend_tensor_unref. */
LEND_API void lend_group_unref(struct lend_group *group);

/* Appends a tensor.
 *   group   borrowed.
 *   name    borrowed (copied), NUL-terminated, at most LEND_GROUP_NAME_MAX bytes, not yet in the group. By convention
 *           UTF-8.
 *   tensor  shared: the group adds a reference. One tensor may have several names (tied parameters).
 *   error   borrowed, NULL allowed.
 * Return: 0; -EINVAL (NULL); -EEXIST (the name is taken); -ERANGE (the name is too long); -ENOSPC (the group is full);
 * -ENOMEM; -ECHILD.
 * Threads: one at a time, when no other uses the group.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_group_find. */
LEND_API int lend_group_add(struct lend_group *group, const char *name, struct lend_tensor *tensor,
                            struct lend_error *error);

/* Tells how many tensors a group has.
 *   group  borrowed.
 * Return: the number.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_group_get. */
LEND_API size_t lend_group_count(const struct lend_group *group);

/* Gives tensor `index`, in the order in which they were added.
 *   group     borrowed.
 *   ret_name  NULL allowed; borrowed from the group and lives as long as it does; untouched when there is no tensor.
 * Return: the tensor, borrowed from the group (lend_tensor_ref it to keep it longer); NULL: there is no such index.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_group_find. */
LEND_API struct lend_tensor *lend_group_get(const struct lend_group *group, size_t index, const char **ret_name);

/* Gives the tensor with this name, in constant time.
 *   group  borrowed.
 *   name   borrowed.
 * Return: the tensor, borrowed from the group; NULL: there is none.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_group_get. */
LEND_API struct lend_tensor *lend_group_find(const struct lend_group *group, const char *name);

/* Reduces a group to one handle: lend_reduce for each of its tensors, with one operation for each storage, and all or
 * nothing. Tensors that view one storage alias in the importer, too, also when the memory is private: then the whole
 * storage is copied, once. (DLPack brings each tensor with a storage of its own; those are one when they begin at the
 * same byte and are equally long, as tied parameters are.)
 *   group       borrowed.
 *   opts        borrowed; NULL: share, no pin. A pin holds all storages for one delivery (a group without storages that
 *               could go, empty or all of meta tensors, has none). LEND_MODE_MOVE moves all.
 *   ret_handle  returned: bytes to give to lend_free (inspect.h).
 *   ret_bytes   their number, at most LEND_GROUP_BYTES_MAX.
 *   error       borrowed, NULL allowed: names the tensor.
 * Return: 0; LEND_COPIED: some memory was copied, and the handle is pinned; errors of lend_reduce; -ENOSPC also when
 * the handle would be longer than LEND_GROUP_BYTES_MAX, or the tensors with their components are more than
 * LEND_GROUP_TENSORS_MAX.
 * Threads: any, when no other changes the group.  Crash: as lend_reduce.  Since: 0.1.
 * See: docs/kinds.md, docs/wire.md. */
LEND_API int lend_group_reduce(struct lend_group *group, const struct lend_reduce_opts *opts, void **ret_handle,
                               size_t *ret_bytes, struct lend_error *error);

/* Rebuilds a group, or some of its tensors.
 *   handle, bytes  borrowed; any bytes are safe.
 *   names          borrowed: the wanted names, each once; the others' storages are not touched. NULL: all. A pin ends with
 *                  this, also when a part is taken; afterwards the handle is good while somebody holds the tensors.
 *   n_names        number of names.
 *   opts           borrowed; NULL: defaults.
 *   ret_group      returned: one reference; the tensors are in the order of the handle.
 *   error          borrowed, NULL allowed: names the tensor.
 * Return: 0; -ENOENT (a wanted name is not in the group; named); -EINVAL (also: a name is wanted twice, or the handle is
 * of one tensor); errors of lend_rebuild. After an error no lease is
 * held, and a pin is still good.
 * Threads: any.  Crash: the kernel's word ends the leases.  Since: 0.1.
 * See: lend_rebuild. */
LEND_API int lend_group_rebuild(const void *handle, size_t bytes, const char *const *names, size_t n_names,
                                const struct lend_rebuild_opts *opts, struct lend_group **ret_group,
                                struct lend_error *error);

/* Lists the names in a handle without touching anything else.
 *   handle, bytes  borrowed.
 *   ret_names      returned: an array to give to lend_free (inspect.h); the names are borrowed from `handle`. NULL for none.
 *   ret_n          its length.
 *   error          borrowed, NULL allowed.
 * Return: 0; -EBADMSG; -EPROTONOSUPPORT; -EINVAL (the handle is of one tensor); -ENOMEM.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_handle_describe. */
LEND_API int lend_group_names(const void *handle, size_t bytes, const char ***ret_names, size_t *ret_n,
                              struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
