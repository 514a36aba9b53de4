/* SPDX-License-Identifier: MIT */
/* lend_rebuild: handle -> tensor. The bytes are checked, then the tensor object is made, then its storage is obtained
 * (obtain.c): after that nothing can fail, so a pin ends in the same hold of the import lock as the lease is taken. */
#include "share/rebuild.h"

#include "base/error.h"
#include "share/carry.h"
#include "share/context.h"

#include <errno.h>
#include <string.h>

#define OPERATION "lend_rebuild"
static const struct lend_rebuild_opts defaults = {.size = sizeof defaults};

/* The general way to one storage. */
static __attribute__((noinline)) int obtain_at_length(const struct lend__wire *wire,
                                                      const struct lend_rebuild_opts *opts, struct lend__storage **ret,
                                                      struct lend_error *error) {
    struct lend__wanted wanted;
    struct lend__row row;
    struct lend__source source = {.cell = 0};
    struct lend__obtain job = {.exporters = &wire->exporter,
                               .sources = &source,
                               .rows = &row,
                               .wanted = &wanted,
                               .n_exporters = 1,
                               .n_rows = 1,
                               .n_wanted = 1,
                               .is_final = true,
                               .error = error};
    lend__obtain_fill(&wire->storage, &row, &wanted);
    int r = lend__obtain_read_opts(opts, &job);
    if (r >= 0) r = lend__obtain_begin(&job);
    *ret = wanted.got;
    return r;
}

int lend__rebuild_wire(const struct lend__wire *wire, const struct lend_rebuild_opts *opts,
                       struct lend_tensor **ret_tensor, struct lend_error *error) {
    struct lend_tensor *tensor = NULL;
    struct lend__storage *got = NULL;
    int r = opts ? lend__obtain_check_opts(opts, error) : 0;
    if (r < 0) return r;
    if (!opts) opts = &defaults;
    bool wants_writable = opts->flags & LEND_REBUILD_WRITABLE;
    if (wants_writable && wire->tensor.is_read_only)
        return lend__fail(
            error, -EACCES, OPERATION,
            "the tensor is lent read-only; rebuild it without LEND_REBUILD_WRITABLE, or lend_tensor_copy it");
    r = lend__carry_make(&wire->tensor, wire->storage.bytes, opts->flags & LEND_REBUILD_READ_ONLY, NULL, &tensor,
                         error);
    if (r < 0) return r;
    if (lend__obtain_warm(&wire->exporter, &wire->storage, wants_writable, &got) != 0)
        r = obtain_at_length(wire, opts, &got, error);
    if (r < 0) {
        lend_tensor_unref(tensor);
        return r;
    }
    tensor->storage = got;
    tensor->is_read_only |= got->is_read_only;
    *ret_tensor = tensor;
    return 0;
}

int lend__rebuild_any(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                      struct lend_tensor **ret_tensor, struct lend_error *error) {
    if (!handle || !ret_tensor) return lend__fail(error, -EINVAL, OPERATION, "handle and ret_tensor must not be NULL");
    if (lend__wire_is_tree(handle, bytes)) return lend__restore_tensor(handle, bytes, opts, ret_tensor, error);
    struct lend__wire wire;
    int r = lend__wire_decode(handle, bytes, &wire, OPERATION, error);
    return r < 0 ? r : lend__rebuild_wire(&wire, opts, ret_tensor, error);
}

int lend_rebuild(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                 struct lend_tensor **ret_tensor, struct lend_error *error) {
    int r = lend__context_check(OPERATION, error);
    return r < 0 ? r : lend__rebuild_any(handle, bytes, opts, ret_tensor, error);
}
