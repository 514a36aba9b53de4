/* SPDX-License-Identifier: MIT */
/* The tensor object: dtype, shape, strides and offset over a storage, or a layout over component tensors. All
 * arithmetic on offsets is in bits, so that packed sub-byte dtypes need no special case; it is overflow-safe and done
 * once, at birth. */
#ifndef LEND_TENSOR_TENSOR_H_
#define LEND_TENSOR_TENSOR_H_

#include "tensor/slab.h"
#include "tensor/storage.h"

#include <lend/attributes.h>
#include <lend/layout.h>
#include <lend/tensor.h>

/* What only some tensors have. Constant from birth, owned by its tensor. */
struct lend__extra {
    uint32_t user_tag, user_bytes; /* the bytes lie behind the struct: lend__extra_user */
    /* Layouts other than strided: */
    uint32_t n_components;
    uint32_t depth;     /* 1 + that of the deepest component */
    uint32_t n_tensors; /* 1 + those of all components */
    bool is_coalesced;
    int32_t dim;
    double scale;
    int64_t zero_point;
    struct lend_tensor *components[LEND_COMPONENTS_MAX]; /* with a reference each */
};

struct lend_tensor {
    uint32_t n_refs; /* atomic */
    int32_t ndim;
    struct lend__storage *storage; /* NULL: moved away, or a layout of components. Atomic pointer: lend_reduce(MOVE)
                                    * takes it out */
    struct lend__extra *extra;     /* NULL: no user attribute, and strided */
    struct lend__slab *slab;       /* where the object lies; NULL: by itself */
    DLDataType dtype;
    uint32_t attrs; /* enum lend_attr */
    uint64_t offset_bits;
    int64_t numel;
    uint32_t item_bits; /* bits that one element takes in memory: lend_dtype_bits, or 8*lanes when padded */
    uint8_t layout;     /* enum lend_layout */
    bool is_warned;     /* atomic: of its hooks */
    bool is_read_only;
    bool is_padded : 1;
    bool is_contiguous : 1;
    int64_t dims[]; /* shape[ndim], then strides[ndim] (0 unless strided) */
};

static inline void *lend__extra_user(const struct lend__extra *extra) {
    return (uint8_t *)(uintptr_t)extra + sizeof *extra;
}

/* Marks that travel. The others are of this process only. */
#define LEND__ATTRS_CARRIED                                                                                   \
    (LEND_ATTR_REQUIRES_GRAD | LEND_ATTR_NON_LEAF | LEND_ATTR_PARAMETER | LEND_ATTR_BUFFER | LEND_ATTR_CONJ | \
     LEND_ATTR_NEG | LEND_ATTR_INFERENCE)
/* Marks that say what the values are: views keep them. */
#define LEND__ATTRS_OF_VALUES (LEND_ATTR_CONJ | LEND_ATTR_NEG)

/* The geometry of a tensor before it is one: what views, DLPack and the wire have in common. */
struct lend__geometry {
    DLDataType dtype;
    bool is_padded;
    int32_t ndim;
    const int64_t *shape;
    const int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t offset_bits;   /* of element (0,...,0) in the storage */
};

/* What lend__geometry_check finds out on the way. */
struct lend__extent_bits {
    uint32_t item_bits;
    int64_t numel; /* numel * item_bits fits 64 bits */
    bool is_contiguous;
    /* The elements lie in [offset - below_bits, offset + end_bits). Both are 0 without elements, and both UINT64_MAX
     * (which no real extent can be) when one of them does not fit. */
    uint64_t below_bits, end_bits;
};

/* The first half of lend__geometry_check, for memory whose size is not known yet: all but offset and storage.
 * Returns 0, -EINVAL or -EOVERFLOW. Hot. */
int lend__geometry_measure(const struct lend__geometry *geometry, struct lend__extent_bits *ret, const char *operation,
                           struct lend_error *error);

/* Checks that every element lies inside `storage_bytes`, with overflow-safe arithmetic: dtype valid, ndim in
 * [0, 64], sizes not negative, offset a multiple of lend__offset_alignment.
 * A tensor without elements needs no memory, but its offset must still lie in [0, storage_bytes].
 * Returns 0, -EINVAL, -EOVERFLOW or -ERANGE; allocates nothing, fills error only on failure. Hot. */
int lend__geometry_check(const struct lend__geometry *geometry, uint64_t storage_bytes, struct lend__extent_bits *ret,
                         const char *operation, struct lend_error *error);

/* What an offset is a multiple of: whole bytes for elements of whole bytes; otherwise the largest power of two in the
 * element's bits, because memory of others can begin at any byte (element 0 of float6 at bit 8). */
static inline uint32_t lend__offset_alignment(uint32_t item_bits) {
    uint32_t bits = item_bits | 8;
    return bits & -bits;
}

/* Strides of C order without gaps; sizes of 0 count as 1. The product of the sizes is known to fit. */
static inline void lend__contiguous_strides(int32_t ndim, const int64_t *shape, int64_t *ret_strides) {
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        ret_strides[i] = stride;
        if (shape[i] > 1) stride *= shape[i];
    }
}

/* Makes a contiguous, writable tensor over new memory: of the pool, or with NULL private memory of this process,
 * 64-byte aligned. The geometry has neither strides nor an offset. Errors of lend_tensor_new. */
int lend__tensor_new(struct lend_pool *pool, const struct lend__geometry *geometry, struct lend_tensor **ret,
                     const char *operation, struct lend_error *error);

/* Makes the tensor; the storage reference is consumed on success only. The geometry has been checked. */
int lend__tensor_make(const struct lend__geometry *geometry, const struct lend__extent_bits *checked,
                      struct lend__storage *storage, bool is_read_only, struct lend_tensor **ret);

/* --- attributes.c --------------------------------------------------------------------------------------------------- */

/* Do these marks go together, and with dtype and layout? 0 or -EINVAL. For attributes given by a caller and by a wire. */
int lend__attrs_check(uint32_t attrs, DLDataType dtype, uint32_t layout, const char *operation,
                      struct lend_error *error);

/* The tensor and all below it. */
static inline uint32_t lend__tensor_count(const struct lend_tensor *tensor) {
    return tensor->layout == LEND_LAYOUT_STRIDED ? 1 : tensor->extra->n_tensors;
}

/* Gives a tensor that nobody else has yet its attributes; user bytes are copied. 0 or -ENOMEM. */
int lend__tensor_set_attrs(struct lend_tensor *tensor, uint32_t attrs, uint32_t user_tag, const void *user,
                           uint32_t user_bytes);

/* A copy of the bytes as they are, contiguous, with the attributes of values: what lend_reduce copies. A zero tensor
 * gives zeros. Errors of lend_tensor_copy. */
int lend__tensor_copy_raw(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret,
                          const char *operation, struct lend_error *error);

/* --- compound.c ------------------------------------------------------------------------------------------------------ */

/* Makes the tensor; the components' references are consumed on success only. Everything that lend_tensor_new_compound
 * refuses is refused: also for what a wire says. */
int lend__tensor_make_compound(const struct lend_compound *compound, struct lend_tensor **ret, const char *operation,
                               struct lend_error *error);

/* The name of a layout, and of a component in it, for sentences and `lend show`; NULL: there is none. */
const char *lend__layout_name(uint32_t layout);
const char *lend__component_name(uint32_t layout, uint32_t index);

/* The same, its object in a slab. */
int lend__tensor_make_in(struct lend__slab_maker *maker, const struct lend__geometry *geometry,
                         const struct lend__extent_bits *checked, struct lend__storage *storage, bool is_read_only,
                         struct lend_tensor **ret);

/* lend_tensor_unref for each; slabs are counted down by runs. */
void lend__tensors_unref(struct lend_tensor *const *tensors, size_t n);

/* The storage of a living strided tensor, or an error: 0, -EOPNOTSUPP (a layout of components: the sentence says to use
 * those), -ESTALE (moved), -ECHILD (dropped by fork, or raw clone). */
int lend__tensor_storage(const struct lend_tensor *tensor, struct lend__storage **ret, const char *operation,
                         struct lend_error *error);

static inline const int64_t *lend__tensor_shape(const struct lend_tensor *t) {
    return t->dims;
}
static inline const int64_t *lend__tensor_strides(const struct lend_tensor *t) {
    return t->dims + t->ndim;
}

#endif
