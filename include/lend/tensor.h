/* SPDX-License-Identifier: MIT */
/* Tensors: dtype, shape, strides and offset over a storage.
 *
 * A storage is a byte range of one allocation. Views share it; it is never resized once it is shared or imported.
 * Strides and offsets count elements, as in PyTorch and DLPack. Sub-byte elements are packed, little bit-endian.
 *
 * A tensor never changes: what it carries besides its elements (attributes.h) is given to a new tensor over the same
 * storage. Sparse, nested and quantized tensors are made of ordinary ones (layout.h). */
#ifndef LEND_TENSOR_H_
#define LEND_TENSOR_H_

#include <lend/dlpack.h>
#include <lend/dtype.h>
#include <lend/error.h>
#include <lend/pool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LEND_NDIM_MAX 64

/* The device type of meta tensors, which have a shape and no memory. DLPack has none: the number is ours. */
#define LEND_DEVICE_META 1024

struct lend_tensor;

/* Makes a contiguous tensor in a pool. The elements are not initialised: recycled memory keeps its old bytes.
 *   pool        shared: the tensor keeps it alive.
 *   dtype       lend_dtype_is_valid.
 *   ndim        0 to LEND_NDIM_MAX.
 *   shape       borrowed: ndim sizes, each at least 0.
 *   ret_tensor  returned: one reference.
 *   error       borrowed, NULL allowed.
 * Return: 0; -EINVAL; -EOVERFLOW (elements * size); -ENOMEM or -ENOSPC with asked and available bytes; -EMFILE;
 * -ECHILD.
 * Threads: any.  Crash: as the end of the process.  Since: 0.1.
 * See: torch.empty. */
LEND_API int lend_tensor_new(struct lend_pool *pool, DLDataType dtype, int32_t ndim, const int64_t *shape,
                             struct lend_tensor **ret_tensor, struct lend_error *error);

/* Makes a contiguous, read-only tensor over a given place of the file that a pool with LEND_POOL_FILE_IN_PLACE maps.
 * Nothing is copied, and nothing keeps others from writing or cutting the file.
 *   pool        shared: the tensor keeps it alive, and with it the mapping.
 *   offset      of the first byte, from the start of the adopted range; any byte.
 *   dtype, ndim, shape, ret_tensor, error  as for lend_tensor_new.
 * Return: 0; -EINVAL (also: the pool is no such pool); -ERANGE (the elements do not lie in the range); -EOVERFLOW;
 * -ESTALE (the file is shorter now); -ENOMEM; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: mmap(2), SIGBUS. */
LEND_API int lend_tensor_new_at(struct lend_pool *pool, uint64_t offset, DLDataType dtype, int32_t ndim,
                                const int64_t *shape, struct lend_tensor **ret_tensor, struct lend_error *error);

/* Makes a meta tensor: dtype and shape over a storage that has a size, an identity and no memory. Its views alias it
 * as those of any storage do, here and in the processes that rebuild them.
 *   dtype, ndim, shape, ret_tensor, error  as for lend_tensor_new.
 * Return: 0; -EINVAL; -EOVERFLOW; -ENOMEM; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.empty(device="meta"). */
LEND_API int lend_tensor_new_meta(DLDataType dtype, int32_t ndim, const int64_t *shape, struct lend_tensor **ret_tensor,
                                  struct lend_error *error);

/* Makes a zero tensor: every element is 0, and there is no memory. lend_reduce refuses it, unless told to materialise
 * it; lend_tensor_copy and lend_tensor_resolve give it memory.
 *   dtype, ndim, shape, ret_tensor, error  as for lend_tensor_new.
 * Return: 0; -EINVAL; -EOVERFLOW; -ENOMEM; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch._efficientzerotensor. */
LEND_API int lend_tensor_new_zero(DLDataType dtype, int32_t ndim, const int64_t *shape, struct lend_tensor **ret_tensor,
                                  struct lend_error *error);

/* Adds a reference.
 * Return: tensor.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_tensor_unref. */
LEND_API struct lend_tensor *lend_tensor_ref(struct lend_tensor *tensor);

/* Gives a reference back. With the last tensor of an imported storage the lease goes back to its exporter; with the
 * last of an own storage that others hold, the storage waits in limbo until they are done.
 *   tensor  consumed; NULL allowed.
 * Return: nothing; cannot fail. No system call, unless memory returns to the system (isolated tensors, the last tensor
 * of a dead exporter or of a pool without references) or the first storage goes into limbo (the service is woken).
 * Threads: any.  Crash: the kernel's word ends the lease.  Since: 0.1.
 * See: docs/leases.md. */
LEND_API void lend_tensor_unref(struct lend_tensor *tensor);

/* What a tensor is, by value. `shape` and `strides` are borrowed from the tensor and live as long as it does. */
struct lend_tensor_info {
    size_t size; /* in: sizeof(struct lend_tensor_info) */
    DLDataType dtype;
    DLDevice device;
    int32_t ndim;
    uint32_t is_read_only : 1;  /* writing faults, or is forbidden by whoever gave the memory */
    uint32_t is_imported : 1;   /* the storage belongs to another process */
    uint32_t is_shared : 1;     /* it has been reduced here, or it is imported */
    uint32_t is_contiguous : 1; /* C order, no gaps */
    uint32_t is_padded : 1;     /* sub-byte elements take a byte each (DLPack's IS_SUBBYTE_TYPE_PADDED) */
    uint32_t is_private : 1;    /* not in a lend allocation: lend_reduce has to copy */
    uint32_t is_zero : 1;       /* every element is 0 and there is no memory (lend_tensor_new_zero) */
    uint32_t is_file : 1;       /* the memory is a file's, which can be cut short under it (LEND_FILE_IN_PLACE) */
    uint32_t layout;            /* enum lend_layout: with another than strided there are no strides, data and storage
                                 * here but in the components, nbytes is their sum, storage_id 0, is_shared says that
                                 * all of them are, and the other bits that any is */
    uint32_t attrs;             /* enum lend_attr */
    const int64_t *shape;
    const int64_t *strides; /* in elements; NULL unless the layout is strided */
    void *data;             /* address of element (0,...,0); NULL when there are no elements; for sub-byte
                               * dtypes of the byte that holds it */
    uint32_t data_bit;      /* sub-byte dtypes: first bit of that element in the byte; otherwise 0 */
    int64_t numel;
    uint64_t nbytes;    /* numel elements, packed and rounded up to bytes */
    void *storage_data; /* first byte of the storage */
    uint64_t storage_bytes;
    uint64_t storage_id;          /* equal exactly for tensors that share a storage in this process */
    uint64_t storage_offset_bits; /* of element (0,...,0), from the start of the storage */
    uint64_t allocation_inode;    /* CPU: st_ino of the memfd; 0 for private memory */
    uint64_t allocation_offset;   /* of the storage, bytes from the start of the allocation */
    uint64_t allocation_bytes;
};

/* Tells what a tensor is.
 *   tensor    borrowed.
 *   ret_info  its `size` is read first; only that many bytes are written.
 * Return: 0; -EINVAL (size); -ESTALE: the tensor was moved away (lend_reduce with LEND_MODE_MOVE); -ECHILD: it was
 * dropped by a fork.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.Tensor attributes, DLTensor. */
LEND_API int lend_tensor_info(const struct lend_tensor *tensor, struct lend_tensor_info *ret_info);

/* Gives the address of element (0,...,0): lend_tensor_info without the rest, for inner loops.
 * Return: the address; NULL when there are no elements or there is no memory, or the tensor was moved away or dropped.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.Tensor.data_ptr. */
LEND_API void *lend_tensor_data(const struct lend_tensor *tensor);

/* Selects element `index` of a dimension, which the view lacks. This and the five views after it are a new tensor over
 * the same storage, or an error that names dimension, index and size.
 *   tensor      borrowed; the view shares its storage.
 *   dim         negative counts from the end.
 *   ret_tensor  returned: one reference.
 *   error       borrowed, NULL allowed.
 * Return: 0; -ERANGE (dim, index or range); -EINVAL; -EOVERFLOW; -EOPNOTSUPP (a tensor of components); -ENOMEM;
 * -ESTALE; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.select, slicing, torch.transpose, torch.Tensor.expand, torch.Tensor.view. */
LEND_API int lend_tensor_select(struct lend_tensor *tensor, int32_t dim, int64_t index, struct lend_tensor **ret_tensor,
                                struct lend_error *error);
/* As lend_tensor_select, for [start, stop) with a step other than 0; a negative step gives a negative stride, as in
 * NumPy. Negative start and stop count from the end; both are clamped. With a negative step, INT64_MIN as stop means
 * "through index 0". */
LEND_API int lend_tensor_slice(struct lend_tensor *tensor, int32_t dim, int64_t start, int64_t stop, int64_t step,
                               struct lend_tensor **ret_tensor, struct lend_error *error);
/* As lend_tensor_select, with two dimensions exchanged. */
LEND_API int lend_tensor_transpose(struct lend_tensor *tensor, int32_t dim0, int32_t dim1,
                                   struct lend_tensor **ret_tensor, struct lend_error *error);
/* As lend_tensor_select: sizes of 1 become any size with stride 0; -1 keeps a size; new dimensions come in front. */
LEND_API int lend_tensor_expand(struct lend_tensor *tensor, int32_t ndim, const int64_t *shape,
                                struct lend_tensor **ret_tensor, struct lend_error *error);
/* As lend_tensor_select: another shape without copying, or -EINVAL that says why not (lend_tensor_copy first); one
 * size may be -1. */
LEND_API int lend_tensor_reshape(struct lend_tensor *tensor, int32_t ndim, const int64_t *shape,
                                 struct lend_tensor **ret_tensor, struct lend_error *error);
/* As lend_tensor_select: any shape, strides and offset whose elements lie inside the storage; offset counts elements
 * of the tensor's dtype from the start of the storage. */
LEND_API int lend_tensor_as_strided(struct lend_tensor *tensor, int32_t ndim, const int64_t *shape,
                                    const int64_t *strides, int64_t offset, struct lend_tensor **ret_tensor,
                                    struct lend_error *error);

/* Changes the number of bytes of a tensor's storage. Only private, unshared storages of a single tensor can be
 * resized; everything that is shared, imported or in a pool is refused.
 *   tensor  borrowed.
 *   bytes   wanted.
 *   error   borrowed, NULL allowed: says why, and to make a new tensor and copy.
 * Return: 0 when bytes is the present size of an unshared storage; -EOPNOTSUPP otherwise.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.UntypedStorage.resize_ ("storage that is not resizable"). */
LEND_API int lend_tensor_resize(struct lend_tensor *tensor, uint64_t bytes, struct lend_error *error);

/* Shows the whole storage of a tensor as a one-dimensional uint8 tensor.
 *   tensor      borrowed; the view shares its storage.
 *   ret_tensor  returned: one reference.
 *   error       borrowed, NULL allowed.
 * Return: 0; -EOPNOTSUPP (a tensor of components has no storage of its own); -ENOMEM; -ESTALE; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.Tensor.untyped_storage. */
LEND_API int lend_tensor_as_bytes(struct lend_tensor *tensor, struct lend_tensor **ret_tensor,
                                  struct lend_error *error);

/* Copies the elements into a new contiguous, writable tensor, in C order; of a tensor of components every component, and
 * the copy has the same layout. Values are copied, not bytes: where the
 * tensor is marked as conjugated or negated (LEND_ATTR_CONJ, LEND_ATTR_NEG) the copy's elements are so, and it has no
 * attributes; a zero tensor gives zeros.
 *   tensor      borrowed.
 *   pool        where the copy lies (shared), or NULL: private memory of this process.
 *   ret_tensor  returned: one reference.
 *   error       borrowed, NULL allowed.
 * Return: 0; errors of lend_tensor_new; -EOPNOTSUPP (memory that the CPU cannot read); -ESTALE;
 * -ECHILD.
 * Threads: any; whoever writes the source at the same time gets torn elements.
 * Crash: as the end of the process.  Since: 0.1.
 * See: torch.clone(memory_format=torch.contiguous_format). */
LEND_API int lend_tensor_copy(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret_tensor,
                              struct lend_error *error);

/* Takes a DLPack tensor in. Memory that already lies in a lend allocation of this process finds its storage: it
 * stays shared and identical, and nothing is copied; other memory becomes a private tensor that calls the producer's
 * deleter with its last reference.
 *   managed     consumed on success only; on error the caller still owns it.
 *   ret_tensor  returned: one reference. DLPACK_FLAG_BITMASK_READ_ONLY makes it read-only.
 *   error       borrowed, NULL allowed.
 * Return: 0; -EPROTONOSUPPORT (major version other than 1); -EINVAL; -EOVERFLOW; -ENODEV (device without a back
 * end); -EOPNOTSUPP (a dtype that lend does not carry); -ENOMEM; -ECHILD.
 * Threads: any; the deleter runs without a lock of ours, in the thread that drops the last reference.
 * Crash: nothing shared is touched.  Since: 0.1.
 * See: DLPack 1.x, DLManagedTensorVersioned. */
LEND_API int lend_tensor_from_dlpack(struct DLManagedTensorVersioned *managed, struct lend_tensor **ret_tensor,
                                     struct lend_error *error);
/* As lend_tensor_from_dlpack, from the struct of DLPack before 1.0, which cannot say that memory is read-only. */
LEND_API int lend_tensor_from_dlpack_legacy(struct DLManagedTensor *managed, struct lend_tensor **ret_tensor,
                                            struct lend_error *error);

/* Gives a tensor out as DLPack; byte_offset is 0 and strides are never NULL (except for 0 dimensions).
 *   tensor       borrowed; the struct holds a reference until its deleter is called.
 *   ret_managed  returned: the consumer calls its deleter.
 *   error        borrowed, NULL allowed.
 * Return: 0; -EACCES (legacy form of a read-only tensor: it could not say so); -EOPNOTSUPP (legacy form of a dtype
 * that old consumers do not know; a sub-byte view that does not begin at a byte; a tensor marked as conjugated or
 * negated, zero, meta, or of components: the sentence says what to do); -ENOMEM; -ESTALE; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: DLPack 1.x. */
LEND_API int lend_tensor_to_dlpack(struct lend_tensor *tensor, struct DLManagedTensorVersioned **ret_managed,
                                   struct lend_error *error);
/* As lend_tensor_to_dlpack, in the struct of DLPack before 1.0. */
LEND_API int lend_tensor_to_dlpack_legacy(struct lend_tensor *tensor, struct DLManagedTensor **ret_managed,
                                          struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
