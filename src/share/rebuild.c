/* SPDX-License-Identifier: MIT */
/* lend_rebuild: handle -> tensor. The bytes are checked, then the tensor object is made, then its storage is obtained
 * (obtain.c): after that nothing can fail, so a pin ends in the same hold of the import lock as the lease is taken. */
#include "share/rebuild.h"

#include "base/error.h"
#include "share/context.h"
#include "share/peer.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <string.h>

#define OPERATION "lend_rebuild"
#define FLAGS_KNOWN (LEND_REBUILD_READ_ONLY | LEND_REBUILD_WRITABLE | LEND_REBUILD_CHECK | LEND_REBUILD_FILE_IN_PLACE)

static const struct lend_rebuild_opts defaults = {.size = sizeof defaults};

int lend__rebuild_read_opts(const struct lend_rebuild_opts *opts, struct lend__obtain *job) {
    if (!opts) return 0;
    if (opts->size != sizeof *opts)
        return lend__fail(job->error, -EINVAL, OPERATION,
                          "opts.size is %zu; set it to sizeof(struct lend_rebuild_opts) = %zu", opts->size,
                          sizeof *opts);
    if (opts->flags & ~(uint32_t)FLAGS_KNOWN || opts->reserved)
        return lend__fail(job->error, -EINVAL, OPERATION, "opts.flags 0x%x has unknown bits", opts->flags);
    job->wants_writable = opts->flags & LEND_REBUILD_WRITABLE;
    job->accepts_files = opts->flags & LEND_REBUILD_FILE_IN_PLACE;
    job->deadline_ns = opts->deadline_ns;
    return 0;
}

static int add_attrs(const struct lend__wire_tensor *wire, struct lend_tensor *tensor, struct lend_error *error) {
    if (lend__attrs_check(wire->attrs, wire->dtype, LEND_LAYOUT_STRIDED, OPERATION, NULL) < 0)
        return lend__fail(error, -EBADMSG, OPERATION, "the handle's attributes 0x%x do not go with its dtype",
                          wire->attrs);
    int r = lend__tensor_set_attrs(tensor, wire->attrs, wire->user_tag, wire->user, wire->user_bytes);
    return r < 0 ? lend__fail(error, r, OPERATION, "no memory for the attributes of a tensor") : 0;
}

int lend__rebuild_tensor(const struct lend__wire_tensor *wire, uint64_t storage_bytes, bool is_read_only,
                         struct lend__slab_maker *maker, struct lend_tensor **ret, struct lend_error *error) {
    const struct lend__geometry geometry = {
        .dtype = wire->dtype,
        .is_padded = wire->is_padded,
        .ndim = (int32_t)wire->ndim,
        .shape = wire->dims,
        .strides = wire->is_contiguous ? NULL : wire->dims + wire->ndim,
        .offset_bits = wire->offset_bits,
    };
    struct lend__extent_bits checked;
    if (lend__geometry_check(&geometry, storage_bytes, &checked, OPERATION, NULL) < 0)
        return lend__fail(error, -EBADMSG, OPERATION,
                          "the handle's dtype, shape, strides and offset do not fit its storage of %llu bytes",
                          (unsigned long long)storage_bytes);
    is_read_only |= wire->is_read_only;
    int r = maker ? lend__tensor_make_in(maker, &geometry, &checked, NULL, is_read_only, ret)
                  : lend__tensor_make(&geometry, &checked, NULL, is_read_only, ret);
    if (r < 0) return lend__fail(error, r, OPERATION, "no memory for the tensor object");
    if (__builtin_expect(!wire->attrs && !wire->user, 1)) return 0;
    r = add_attrs(wire, *ret, error);
    if (r >= 0) return 0;
    lend_tensor_unref(*ret);
    *ret = NULL;
    return r;
}

int lend__rebuild_wire(const struct lend__wire *wire, const struct lend_rebuild_opts *opts,
                       struct lend_tensor **ret_tensor, struct lend_error *error) {
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
    struct lend_tensor *tensor = NULL;
    if (!opts) opts = &defaults;
    int r = lend__rebuild_read_opts(opts, &job);
    if (r >= 0 && job.wants_writable && wire->tensor.is_read_only)
        r = lend__fail(
            error, -EACCES, OPERATION,
            "the tensor is lent read-only; rebuild it without LEND_REBUILD_WRITABLE, or lend_tensor_copy it");
    if (r >= 0)
        r = lend__rebuild_tensor(&wire->tensor, wire->storage.bytes, opts->flags & LEND_REBUILD_READ_ONLY, NULL,
                                 &tensor, error);
    if (r < 0) return r;
    if (lend__obtain_warm(&wire->exporter, &wire->storage, job.wants_writable, &wanted.got) != 0) {
        lend__obtain_fill(&wire->storage, &row, &wanted);
        r = lend__obtain_begin(&job);
    }
    if (r < 0) {
        lend_tensor_unref(tensor);
        return r;
    }
    tensor->storage = wanted.got;
    tensor->is_read_only |= wanted.got->is_read_only;
    *ret_tensor = tensor;
    return 0;
}

int lend__rebuild_any(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                      struct lend_tensor **ret_tensor, struct lend_error *error) {
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
