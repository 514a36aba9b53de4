/* SPDX-License-Identifier: MIT */
/* Attributes: what a tensor carries besides its elements.
 *
 * The marks lie in the tensor itself. The user's bytes lie behind the struct that only some tensors have, which is made
 * for them if need be. Both are given before anybody else can see the tensor, so later reads need no lock.
 *
 * Locking: none. */
#include "tensor/compound.h"

#include "base/error.h"
#include "base/process.h"
#include "base/sys.h"

#include <errno.h>
#include <string.h>

#define ATTRS_LOCAL (LEND_ATTR_NAMED | LEND_ATTR_UNINITIALIZED | LEND_ATTR_HOOKS | LEND_ATTR_HOOKS_MARKED)

static bool is_quantized(uint32_t layout) {
    return layout == LEND_LAYOUT_QUANTIZED || layout == LEND_LAYOUT_QUANTIZED_PER_CHANNEL;
}

/* CONJ and NEG. */
static int check_marks_of_values(uint32_t attrs, DLDataType dtype, uint32_t layout, const char *operation,
                                 struct lend_error *error) {
    if (!(attrs & LEND__ATTRS_OF_VALUES)) return 0;
    if (layout != LEND_LAYOUT_STRIDED)
        return lend__fail(
            error, -EINVAL, operation,
            "LEND_ATTR_CONJ and LEND_ATTR_NEG say how memory is read, and a %s tensor has none of its own: "
            "set them on the components",
            lend__layout_name(layout));
    bool is_conj_wrong = (attrs & LEND_ATTR_CONJ) && dtype.code != LEND_COMPLEX;
    bool is_neg_wrong = (attrs & LEND_ATTR_NEG) && (dtype.code == LEND_BOOL || dtype.code == LEND_FLOAT8_E8M0FNU);
    if (!is_conj_wrong && !is_neg_wrong) return 0;
    char name[32] = ""; /* slow, and part of every rebuild of such a tensor if it came first */
    lend_dtype_format(dtype, name, sizeof name);
    return is_conj_wrong
               ? lend__fail(error, -EINVAL, operation, "LEND_ATTR_CONJ needs a complex dtype, not %s", name)
               : lend__fail(error, -EINVAL, operation, "LEND_ATTR_NEG needs a dtype with negatives, not %s", name);
}

int lend__attrs_check(uint32_t attrs, DLDataType dtype, uint32_t layout, const char *operation,
                      struct lend_error *error) {
    uint32_t unknown = attrs & ~(uint32_t)(LEND__ATTRS_CARRIED | ATTRS_LOCAL);
    if (unknown)
        return lend__fail(error, -EINVAL, operation, "flags 0x%x are no attributes of enum lend_attr", unknown);
    if ((attrs & LEND_ATTR_NON_LEAF) && !(attrs & LEND_ATTR_REQUIRES_GRAD))
        return lend__fail(
            error, -EINVAL, operation,
            "LEND_ATTR_NON_LEAF goes only with LEND_ATTR_REQUIRES_GRAD: without it every tensor is a leaf");
    if ((attrs & LEND_ATTR_PARAMETER) && (attrs & LEND_ATTR_BUFFER))
        return lend__fail(error, -EINVAL, operation,
                          "LEND_ATTR_PARAMETER and LEND_ATTR_BUFFER exclude one another: a tensor is one or the other");
    if ((attrs & LEND_ATTR_REQUIRES_GRAD) && is_quantized(layout))
        return lend__fail(error, -EINVAL, operation, "LEND_ATTR_REQUIRES_GRAD: a %s tensor has no gradient",
                          lend__layout_name(layout));
    bool is_integer = dtype.code == LEND_INT || dtype.code == LEND_UINT || dtype.code == LEND_BOOL;
    if ((attrs & LEND_ATTR_REQUIRES_GRAD) && is_integer && layout != LEND_LAYOUT_WRAPPER) {
        char name[32] = "";
        lend_dtype_format(dtype, name, sizeof name);
        return lend__fail(error, -EINVAL, operation, "LEND_ATTR_REQUIRES_GRAD needs a float or complex dtype, not %s",
                          name);
    }
    return check_marks_of_values(attrs, dtype, layout, operation, error);
}

int lend__tensor_set_attrs(struct lend_tensor *tensor, uint32_t attrs, uint32_t user_tag, const void *user,
                           uint32_t user_bytes) {
    struct lend__extra *extra = tensor->extra;
    if (user_bytes) {
        void *memory = NULL;
        if (lend__sys.realloc(extra, sizeof *extra + user_bytes, &memory) < 0) return -ENOMEM;
        if (!extra) memset(memory, 0, sizeof *extra);
        extra = tensor->extra = memory;
        memcpy(lend__extra_user(extra), user, user_bytes);
    }
    if (extra) {
        extra->user_tag = user_tag;
        extra->user_bytes = user_bytes;
    }
    tensor->attrs = attrs;
    return 0;
}

int lend_tensor_attrs(const struct lend_tensor *tensor, struct lend_tensor_attrs *ret_attrs) {
    if (lend__is_raw_clone()) return -ECHILD;
    if (!tensor || !ret_attrs || ret_attrs->size < offsetof(struct lend_tensor_attrs, flags)) return -EINVAL;
    const struct lend__extra *extra = tensor->extra;
    const struct lend_tensor_attrs attrs = {
        .size = ret_attrs->size,
        .flags = tensor->attrs,
        .user_tag = extra ? extra->user_tag : 0,
        .user = extra && extra->user_bytes ? lend__extra_user(extra) : NULL,
        .user_bytes = extra ? extra->user_bytes : 0,
    };
    memcpy(ret_attrs, &attrs, attrs.size < sizeof attrs ? attrs.size : sizeof attrs);
    return 0;
}

static int check_given(const struct lend_tensor *tensor, const struct lend_tensor_attrs *attrs, const char *operation,
                       struct lend_error *error) {
    if (attrs->size != sizeof *attrs)
        return lend__fail(error, -EINVAL, operation,
                          "attrs.size is %zu; set it to sizeof(struct lend_tensor_attrs) = %zu", attrs->size,
                          sizeof *attrs);
    if (attrs->user_bytes > LEND_USER_BYTES_MAX)
        return lend__fail_bytes(error, -EINVAL, operation, attrs->user_bytes, LEND_USER_BYTES_MAX,
                                "a user attribute has at most LEND_USER_BYTES_MAX = %d bytes, not %zu",
                                LEND_USER_BYTES_MAX, attrs->user_bytes);
    if (attrs->user_bytes && !attrs->user)
        return lend__fail(error, -EINVAL, operation, "user is NULL and user_bytes is %zu", attrs->user_bytes);
    if (attrs->user_tag && !attrs->user_bytes)
        return lend__fail(error, -EINVAL, operation, "user_tag is %u without user bytes, and must be 0",
                          attrs->user_tag);
    return lend__attrs_check(attrs->flags, tensor->dtype, tensor->layout, operation, error);
}

/* Another tensor over the same storage, with the same geometry. */
static int again_strided(const struct lend_tensor *tensor, struct lend_tensor **ret, const char *operation,
                         struct lend_error *error) {
    struct lend__storage *storage;
    int r = lend__tensor_storage(tensor, &storage, operation, error);
    if (r < 0) return r;
    const struct lend__geometry geometry = {
        .dtype = tensor->dtype,
        .is_padded = tensor->is_padded,
        .ndim = tensor->ndim,
        .shape = lend__tensor_shape(tensor),
        .strides = lend__tensor_strides(tensor),
        .offset_bits = tensor->offset_bits,
    };
    const struct lend__extent_bits checked = {
        .item_bits = tensor->item_bits, .numel = tensor->numel, .is_contiguous = tensor->is_contiguous};
    r = lend__tensor_make(&geometry, &checked, lend__storage_ref(storage), tensor->is_read_only, ret);
    if (r < 0) {
        lend__storage_unref(storage);
        return lend__fail(error, r, operation, "no memory for a tensor object of %d dimensions", tensor->ndim);
    }
    return 0;
}

/* Another tensor of the same components. */
static int again_compound(const struct lend_tensor *tensor, struct lend_tensor **ret, const char *operation,
                          struct lend_error *error) {
    struct lend_compound compound = {.size = sizeof compound};
    int r = lend_tensor_components(tensor, &compound);
    if (r >= 0) r = lend__tensor_make_compound(&compound, ret, operation, error);
    if (r < 0) return r;
    for (uint32_t i = 0; i < compound.n_components; i++) lend_tensor_ref(compound.components[i]);
    (*ret)->is_read_only = tensor->is_read_only;
    return 0;
}

int lend_tensor_with_attrs(struct lend_tensor *tensor, const struct lend_tensor_attrs *attrs,
                           struct lend_tensor **ret_tensor, struct lend_error *error) {
    static const struct lend_tensor_attrs none = {.size = sizeof none};
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
    if (!tensor || !ret_tensor) return lend__fail(error, -EINVAL, __func__, "tensor and ret_tensor must not be NULL");
    if (!attrs) attrs = &none;
    int r = check_given(tensor, attrs, __func__, error);
    struct lend_tensor *made = NULL;
    if (r >= 0)
        r = tensor->layout == LEND_LAYOUT_STRIDED ? again_strided(tensor, &made, __func__, error)
                                                  : again_compound(tensor, &made, __func__, error);
    if (r < 0) return r;
    r = lend__tensor_set_attrs(made, attrs->flags, attrs->user_tag, attrs->user, (uint32_t)attrs->user_bytes);
    if (r < 0) {
        lend_tensor_unref(made);
        return lend__fail_bytes(error, r, __func__, attrs->user_bytes, 0,
                                "no memory for the %zu bytes of a user attribute", attrs->user_bytes);
    }
    *ret_tensor = made;
    return 0;
}
