/* SPDX-License-Identifier: MIT */
/* What a tensor carries besides its elements. The library gives these marks no meaning of its own, with two
 * exceptions: LEND_ATTR_CONJ and LEND_ATTR_NEG change the values (lend_tensor_copy and lend_tensor_resolve apply them),
 * and some marks make lend_reduce refuse or warn. Bindings set them; they arrive exactly as they were sent. */
#ifndef LEND_ATTRIBUTES_H_
#define LEND_ATTRIBUTES_H_

#include <lend/error.h>
#include <lend/tensor.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum lend_attr {
    LEND_ATTR_REQUIRES_GRAD = 1u << 0, /* float and complex dtypes only */
    LEND_ATTR_NON_LEAF = 1u << 1,  /* the result of a recorded operation; only with REQUIRES_GRAD. lend_reduce refuses
                                    * such a tensor: autograd does not cross a process boundary */
    LEND_ATTR_PARAMETER = 1u << 2, /* torch.nn.Parameter; not with BUFFER */
    LEND_ATTR_BUFFER = 1u << 3,    /* torch.nn.Buffer */
    LEND_ATTR_CONJ = 1u << 4,      /* the values are the conjugates of what the memory says: complex dtypes only */
    LEND_ATTR_NEG = 1u << 5,       /* the values are the negatives of what the memory says: not for bool */
    LEND_ATTR_INFERENCE = 1u << 6, /* made in inference mode */
    /* Those from here on concern this process and do not travel. */
    LEND_ATTR_NAMED = 1u << 16,         /* has named dimensions: lend_reduce refuses it */
    LEND_ATTR_UNINITIALIZED = 1u << 17, /* has no shape or memory yet: lend_reduce refuses it */
    LEND_ATTR_HOOKS = 1u << 18,         /* has hooks, which stay behind: lend_reduce warns through the log callback,
                                         * once per tensor */
    LEND_ATTR_HOOKS_MARKED = 1u << 19   /* its hooks are meant to stay behind: no warning */
};

/* The longest user attribute. With it a strided tensor's handle still fits LEND_HANDLE_BYTES_MAX. */
#define LEND_USER_BYTES_MAX 512

struct lend_tensor_attrs {
    size_t size;       /* sizeof(struct lend_tensor_attrs) */
    uint32_t flags;    /* enum lend_attr */
    uint32_t user_tag; /* whose bytes `user` are: a number of the binding's choice, so that it does not take another's
                        * for its own; 0 without bytes */
    const void *user;  /* opaque bytes of the binding: a Parameter's or subclass's metadata; NULL: none */
    size_t user_bytes; /* at most LEND_USER_BYTES_MAX */
};

/* Tells what a tensor carries.
 *   tensor     borrowed.
 *   ret_attrs  its `size` is read first. `user` is borrowed from the tensor and lives as long as it does.
 * Return: 0; -EINVAL (size); -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: torch.Tensor.requires_grad, is_leaf, is_conj, is_neg. */
LEND_API int lend_tensor_attrs(const struct lend_tensor *tensor, struct lend_tensor_attrs *ret_attrs);

/* Makes a tensor with the same elements, or components, and exactly these attributes. (The views of tensor.h keep CONJ
 * and NEG, which belong to the values, and drop the rest.)
 *   tensor      borrowed; the new one shares its storage.
 *   attrs       borrowed; `user` is copied. NULL: none.
 *   ret_tensor  returned: one reference.
 *   error       borrowed, NULL allowed: names the attribute.
 * Return: 0; -EINVAL (a flag that is unknown, or does not go with the dtype, the layout or another flag; user_bytes,
 * or a user_tag without them); -ENOMEM; -ESTALE; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: docs/kinds.md. */
LEND_API int lend_tensor_with_attrs(struct lend_tensor *tensor, const struct lend_tensor_attrs *attrs,
                                    struct lend_tensor **ret_tensor, struct lend_error *error);

/* Gives a tensor whose memory says what its values are: for consumers that know neither CONJ nor NEG nor zero tensors.
 * With nothing to do that is the tensor itself; else a contiguous copy with the other attributes. Of a tensor of
 * components, every component is treated so.
 *   tensor      borrowed.
 *   pool        where copies lie (shared), or NULL: private memory of this process.
 *   ret_tensor  returned: one reference.
 *   error       borrowed, NULL allowed.
 * Return: 0; errors of lend_tensor_copy.
 * Threads: any.  Crash: as the end of the process.  Since: 0.1.
 * See: torch.resolve_conj, torch.resolve_neg. */
LEND_API int lend_tensor_resolve(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret_tensor,
                                 struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
