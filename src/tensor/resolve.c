/* SPDX-License-Identifier: MIT */
/* Copies whose memory says what the values are: LEND_ATTR_CONJ and LEND_ATTR_NEG are applied to a copy of the bytes, in
 * place, where nobody else can see it yet.
 *
 * What is changed is a run of numbers: the elements, or with lanes the parts of each, or the halves of complex ones.
 * Negating a float, of any format, turns its sign bit; the formats named "fnuz" have no -0, whose bits are their NaN,
 * so that 0 and NaN stay. Integers are negated modulo 2^bits. The conjugate of a complex number has the imaginary half
 * negated. Numbers are little-endian, as DLPack's are on every machine that lend runs on.
 *
 * Locking: none. */
#include "tensor/compound.h"

#include "base/error.h"
#include "base/process.h"

#include <errno.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the sign of a number is in its last byte");

/* A run of numbers. Of complex ones, every second half may be meant: numbers first, first + step, ... below n. */
struct numbers {
    uint8_t *data;
    uint64_t n, first, step;
    uint32_t bits;  /* of one */
    uint32_t pitch; /* bits from one to the next; more than `bits` when less than a byte is padded to one */
};

static void turn_signs(const struct numbers *x) {
    uint32_t bytes = x->bits / 8;
    for (uint64_t i = x->first; i < x->n; i += x->step) x->data[(i + 1) * bytes - 1] ^= 0x80;
}

static void turn_signs_fnuz(const struct numbers *x) {
    for (uint64_t i = 0; i < x->n; i++)
        if (x->data[i] & 0x7f) x->data[i] ^= 0x80;
}

#define NEGATE_INTEGERS(BITS)                            \
    case BITS:                                           \
        for (uint64_t i = 0; i < x->n; i++) {            \
            uint##BITS##_t v;                            \
            uint8_t *at = x->data + i * sizeof v;        \
            memcpy(&v, at, sizeof v);                    \
            v = (uint##BITS##_t)(0 - (uint##BITS##_t)v); \
            memcpy(at, &v, sizeof v);                    \
        }                                                \
        break

static void negate_integers(const struct numbers *x) {
    switch (x->bits) {
        NEGATE_INTEGERS(8);
        NEGATE_INTEGERS(16);
        NEGATE_INTEGERS(32);
        NEGATE_INTEGERS(64);
    }
}

/* Numbers of less than a byte, packed or padded; one of 6 bits may lie in two bytes. */
static void negate_small(const struct numbers *x, bool is_integer) {
    uint32_t mask = (1u << x->bits) - 1, sign = 1u << (x->bits - 1);
    for (uint64_t i = 0; i < x->n; i++) {
        uint64_t bit = i * x->pitch;
        uint8_t *at = x->data + bit / 8;
        uint32_t shift = bit % 8;
        bool is_split = shift + x->bits > 8;
        uint32_t pair = at[0] | (is_split ? (uint32_t)at[1] << 8 : 0), v = pair >> shift & mask;
        v = is_integer ? (0 - v) & mask : v ^ sign;
        pair = (pair & ~(mask << shift)) | v << shift;
        at[0] = (uint8_t)pair;
        if (is_split) at[1] = (uint8_t)(pair >> 8);
    }
}

static void negate(const struct numbers *x, uint8_t code) {
    bool is_integer = code == LEND_INT || code == LEND_UINT;
    bool is_fnuz = code == LEND_FLOAT8_E4M3B11FNUZ || code == LEND_FLOAT8_E4M3FNUZ || code == LEND_FLOAT8_E5M2FNUZ;
    if (x->bits < 8)
        negate_small(x, is_integer);
    else if (is_integer)
        negate_integers(x);
    else if (is_fnuz)
        turn_signs_fnuz(x);
    else
        turn_signs(x);
}

/* Applies the marks of a contiguous tensor that nobody else has, and takes them off. */
static void apply_marks(struct lend_tensor *copy) {
    bool is_conj = copy->attrs & LEND_ATTR_CONJ, is_neg = copy->attrs & LEND_ATTR_NEG;
    bool is_complex = copy->dtype.code == LEND_COMPLEX;
    uint32_t n_parts = copy->dtype.lanes * (is_complex ? 2u : 1u); /* of an element; even ones are real */
    struct numbers x = {
        .data = copy->storage->data,
        .n = (uint64_t)copy->numel * n_parts,
        .first = is_conj && !is_neg, /* the imaginary parts; of a conjugate that is negated, the real ones */
        .step = is_conj ? 2 : 1,
        .bits = copy->dtype.bits / (is_complex ? 2u : 1u),
        .pitch = copy->item_bits / n_parts,
    };
    if (is_conj || is_neg) negate(&x, copy->dtype.code);
    copy->attrs = 0;
}

/* --- components ------------------------------------------------------------------------------------------------------ */

typedef int (*component_fn)(struct lend_tensor *component, struct lend_pool *pool, struct lend_tensor **ret,
                            struct lend_error *error);

/* The same layout over what `each` makes of every component; the tensor itself when that changes none of them. */
static int map_components(struct lend_tensor *tensor, struct lend_pool *pool, component_fn each, const char *operation,
                          struct lend_tensor **ret, struct lend_error *error) {
    struct lend_tensor *parts[LEND_COMPONENTS_MAX];
    struct lend_compound compound = {.size = sizeof compound};
    bool is_changed = false;
    uint32_t n = 0;
    int r = lend_tensor_components(tensor, &compound);
    while (r >= 0 && n < compound.n_components) {
        r = each(compound.components[n], pool, &parts[n], error);
        if (r < 0) break;
        is_changed |= parts[n] != compound.components[n];
        n++;
    }
    if (r >= 0 && is_changed) {
        compound.components = parts;
        r = lend__tensor_make_compound(&compound, ret, operation, error);
        if (r >= 0) return 0; /* with our references in it */
    }
    while (n > 0) lend_tensor_unref(parts[--n]);
    if (r >= 0) *ret = lend_tensor_ref(tensor);
    return r;
}

/* --- copying --------------------------------------------------------------------------------------------------------- */

int lend_tensor_copy(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret_tensor,
                     struct lend_error *error) {
    if (tensor && tensor->layout != LEND_LAYOUT_STRIDED) {
        if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, __func__, "this process was made by a raw clone");
        if (!ret_tensor) return lend__fail(error, -EINVAL, __func__, "ret_tensor is NULL");
        return map_components(tensor, pool, lend_tensor_copy, __func__, ret_tensor, error);
    }
    int r = lend__tensor_copy_raw(tensor, pool, ret_tensor, __func__, error);
    if (r < 0) return r;
    apply_marks(*ret_tensor);
    return 0;
}

/* --- resolving ------------------------------------------------------------------------------------------------------- */

#define OPERATION "lend_tensor_resolve"

static int resolve(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret,
                   struct lend_error *error);

static int resolve_strided(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret,
                           struct lend_error *error) {
    struct lend__storage *storage;
    int r = lend__tensor_storage(tensor, &storage, OPERATION, error);
    if (r < 0) return r;
    if (!(tensor->attrs & LEND__ATTRS_OF_VALUES) && storage->kind != LEND__STORAGE_ZERO) {
        *ret = lend_tensor_ref(tensor);
        return 0;
    }
    r = lend__tensor_copy_raw(tensor, pool, ret, OPERATION, error);
    if (r == 0) apply_marks(*ret);
    return r;
}

static int resolve_components(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret,
                              struct lend_error *error) {
    int r = map_components(tensor, pool, resolve, OPERATION, ret, error);
    if (r >= 0 && *ret != tensor) (*ret)->is_read_only = tensor->is_read_only;
    return r;
}

static int resolve(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret,
                   struct lend_error *error) {
    struct lend_tensor *made;
    int r = tensor->layout == LEND_LAYOUT_STRIDED ? resolve_strided(tensor, pool, &made, error)
                                                  : resolve_components(tensor, pool, &made, error);
    if (r < 0) return r;
    if (made != tensor) {
        const struct lend__extra *extra = tensor->extra;
        uint32_t user_bytes = extra ? extra->user_bytes : 0;
        r = lend__tensor_set_attrs(made, tensor->attrs & ~LEND__ATTRS_OF_VALUES, extra ? extra->user_tag : 0,
                                   user_bytes ? lend__extra_user(extra) : NULL, user_bytes);
    }
    if (r < 0) {
        lend_tensor_unref(made);
        return lend__fail(error, r, OPERATION, "no memory for the user attribute of a tensor");
    }
    *ret = made;
    return 0;
}

int lend_tensor_resolve(struct lend_tensor *tensor, struct lend_pool *pool, struct lend_tensor **ret_tensor,
                        struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__fail(error, -ECHILD, OPERATION, "this process was made by a raw clone");
    if (!tensor || !ret_tensor) return lend__fail(error, -EINVAL, OPERATION, "tensor and ret_tensor must not be NULL");
    return resolve(tensor, pool, ret_tensor, error);
}
