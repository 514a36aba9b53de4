/* SPDX-License-Identifier: MIT */
/* Tensors of components: sparse, nested, quantized, and wrappers. The components are ordinary tensors, each shared,
 * deduplicated and counted by itself; the whole is reduced and rebuilt at once, or not at all. */
#ifndef LEND_LAYOUT_H_
#define LEND_LAYOUT_H_

#include <lend/error.h>
#include <lend/tensor.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The layouts, with their components in order. N is the number of stored elements; b... are batch dimensions, d... dense
 * ones. Index components are int32 or int64, of one dtype in a tensor; COO's and NESTED's are int64. */
enum lend_layout {
    LEND_LAYOUT_STRIDED = 0, /* none: dtype, shape, strides and offset over a storage */
    LEND_LAYOUT_COO = 1,     /* indices (sparse dims, N), values (N, d...) */
    LEND_LAYOUT_CSR = 2,     /* crow_indices (b..., rows + 1), col_indices (b..., N), values (b..., N, d...) */
    LEND_LAYOUT_CSC = 3,     /* ccol_indices (b..., columns + 1), row_indices (b..., N), values (b..., N, d...) */
    LEND_LAYOUT_BSR = 4,     /* as CSR, of blocks: values (b..., N, block rows, block columns, d...) */
    LEND_LAYOUT_BSC = 5,     /* as CSC, of blocks */
    LEND_LAYOUT_NESTED = 6,  /* values (one-dimensional), sizes (n, dims), strides (n, dims), offsets (n): strided. The
                              * shape of the whole is n and dims more; strides and offsets count elements of values */
    LEND_LAYOUT_JAGGED = 7,  /* values, offsets (n + 1), and optionally lengths (n). Values have the shape of the whole
                              * without its first size, n; where it is ragged, one constituent follows another */
    LEND_LAYOUT_QUANTIZED = 8, /* values (int8, uint8, int32, or packed uint of 2 or 4 bits) alone: scale and zero point
                                * are members below */
    LEND_LAYOUT_QUANTIZED_PER_CHANNEL = 9, /* values (as QUANTIZED), scales (channels; float32 or float64), zero_points
                                            * (channels; int32, int64 or float32), along an axis */
    LEND_LAYOUT_WRAPPER = 10, /* up to LEND_COMPONENTS_MAX tensors of any layout: a subclass that wraps others */
    LEND_LAYOUT_OPAQUE = 11   /* MKL-DNN and the like: no storage that could be lent. Always refused */
};

#define LEND_COMPONENTS_MAX 16
/* Wrappers may wrap wrappers, so deep: a strided tensor is 1, a sparse one 2, a wrapper of it 3. */
#define LEND_DEPTH_MAX 8
/* A size that differs from one constituent of a nested tensor to the next. */
#define LEND_RAGGED (-1)

struct lend_compound {
    size_t size;     /* sizeof(struct lend_compound) */
    uint32_t layout; /* enum lend_layout, not strided */
    uint32_t n_components;
    struct lend_tensor *const *components; /* in the order above */
    int32_t ndim;
    const int64_t *shape; /* of the whole; LEND_RAGGED where a nested tensor's constituents differ */
    DLDataType dtype;     /* WRAPPER: its own; otherwise that of the values, and not read by lend_tensor_new_compound */
    uint32_t is_coalesced : 1; /* COO: indices are sorted and unique */
    int32_t dim;               /* JAGGED: the ragged dimension (1 to ndim - 1); QUANTIZED_PER_CHANNEL: the axis */
    double scale;              /* QUANTIZED */
    int64_t zero_point;        /* QUANTIZED */
};

/* Makes a tensor of components. Their dtypes and shapes must go together; their elements are not read (for that there
 * is lend_tensor_check).
 *   compound    borrowed; the components are shared: the tensor adds references.
 *   ret_tensor  returned: one reference. It has no attributes (lend_tensor_with_attrs).
 *   error       borrowed, NULL allowed: names the component, what it is and what it must be.
 * Return: 0; -EINVAL; -EOVERFLOW; -EOPNOTSUPP (OPAQUE, or a layout that lend does not know); -ENOMEM; -ESTALE (a
 * component was moved away); -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.sparse_coo_tensor, torch.sparse_compressed_tensor, torch.nested, torch.quantize_per_channel. */
LEND_API int lend_tensor_new_compound(const struct lend_compound *compound, struct lend_tensor **ret_tensor,
                                      struct lend_error *error);

/* Tells what a tensor is made of.
 *   tensor        borrowed.
 *   ret_compound  its `size` is read first. Components and shape are borrowed from the tensor and live as long as it
 *                 does (lend_tensor_ref what is to live longer).
 * Return: 0; -EINVAL (size, or the tensor is strided); -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.Tensor.indices, crow_indices, values, q_scale. */
LEND_API int lend_tensor_components(const struct lend_tensor *tensor, struct lend_compound *ret_compound);

/* Checks the elements of the components of a sparse, nested or quantized tensor: indices in range, row pointers that
 * begin at 0, rise and end at N, no duplicates (where the layout forbids them), sizes and offsets inside the values. A
 * strided tensor has nothing to check, nor has a meta one, and a wrapper only what it wraps. LEND_REBUILD_CHECK does this at rebuild.
 *   tensor  borrowed.
 *   error   borrowed, NULL allowed: names the component, the place and the value.
 * Return: 0; -EBADMSG; -EOPNOTSUPP (memory that the CPU cannot read); -ENOMEM; -ESTALE; -ECHILD.
 * Threads: any. Each element is read once; whoever may write the memory can still change it afterwards: copy first
 * where that matters.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.sparse.check_sparse_tensor_invariants. */
LEND_API int lend_tensor_check(struct lend_tensor *tensor, struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
