/* SPDX-License-Identifier: MIT */
/* What the files that know layouts tell one another: layout.c says what components must be, compound.c makes the
 * tensor of them, layout_check.c reads their elements. */
#ifndef LEND_TENSOR_COMPOUND_H_
#define LEND_TENSOR_COMPOUND_H_

#include "tensor/tensor.h"

/* Which component has the tensor's dtype and device: the values. There is none in a wrapper: UINT32_MAX. */
uint32_t lend__layout_values(uint32_t layout);

/* Do layout, number, dtypes and sizes of the components go together, and with the shape? Their elements are not read.
 * Errors of lend_tensor_new_compound. */
int lend__layout_check(const struct lend_compound *compound, const char *operation, struct lend_error *error);

/* Writes "(2, 3)", cut with "..." where it does not fit. Returns buf. */
const char *lend__shape_format(int32_t ndim, const int64_t *shape, char *buf, size_t buf_bytes);

/* lend_tensor_info of a tensor of components; `size` is left at 0. 0, -ESTALE or -ECHILD. */
int lend__compound_info(const struct lend_tensor *tensor, struct lend_tensor_info *ret_info);

/* Drops the components and frees the struct. */
void lend__extra_free(struct lend__extra *extra);

#endif
