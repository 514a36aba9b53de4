/* SPDX-License-Identifier: MIT */
/* A group with something of every kind, for sweeps: made, and looked at where it arrives. */
#ifndef LEND_TESTS_FAULT_MANY_H_
#define LEND_TESTS_FAULT_MANY_H_

#include "test.h"

#include <lend/lend.h>
#include <stdlib.h>
#include <string.h>

enum { SEVEN = 7, PLAIN_BYTES = 3000, USER_TAG = 77 };

static const char user_attribute[] = "what a binding wants to have back";

/* --- making ----------------------------------------------------------------------------------------------------------- */

/* pool NULL: private memory. All bytes are 7. */
static inline struct lend_tensor *sevens(struct lend_pool *pool, int64_t n) {
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL, *copy = NULL;
    struct lend_pool *own = pool;
    if (!pool) CHECK_OK(lend_pool_new(NULL, &own, &error), &error);
    CHECK_OK(lend_tensor_new(own, (DLDataType){kDLUInt, 8, 1}, 1, &n, &tensor, &error), &error);
    memset(lend_tensor_data(tensor), SEVEN, (size_t)n);
    if (pool) return tensor;
    CHECK_OK(lend_tensor_copy(tensor, NULL, &copy, &error), &error);
    lend_tensor_unref(tensor);
    lend_pool_unref(own);
    return copy;
}

static inline struct lend_tensor *index_of(struct lend_pool *pool, int64_t n, const int64_t *values) {
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_tensor_new(pool, (DLDataType){kDLInt, 64, 1}, 1, &n, &tensor, &error), &error);
    memcpy(lend_tensor_data(tensor), values, (size_t)n * sizeof *values);
    return tensor;
}

/* Takes the components over. */
static inline struct lend_tensor *compound_of(uint32_t layout, uint32_t n, struct lend_tensor **components) {
    static const int64_t shape[] = {2, 2};
    struct lend_error error = {0};
    struct lend_tensor *tensor = NULL;
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = layout,
                                           .n_components = n,
                                           .components = components,
                                           .ndim = 2,
                                           .shape = shape,
                                           .dtype = {kDLUInt, 8, 1}};
    CHECK_OK(lend_tensor_new_compound(&compound, &tensor, &error), &error);
    for (uint32_t i = 0; i < n; i++) lend_tensor_unref(components[i]);
    return tensor;
}

static inline struct lend_tensor *csr_in(struct lend_pool *pool) {
    static const int64_t rows[] = {0, 1, 2}, columns[] = {0, 1};
    struct lend_tensor *parts[] = {index_of(pool, 3, rows), index_of(pool, 2, columns), sevens(pool, 2)};
    return compound_of(LEND_LAYOUT_CSR, 3, parts);
}

static inline struct lend_tensor *with_user(struct lend_tensor *tensor) {
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs,
                                            .flags = LEND_ATTR_PARAMETER,
                                            .user_tag = USER_TAG,
                                            .user = user_attribute,
                                            .user_bytes = sizeof user_attribute};
    struct lend_error error = {0};
    struct lend_tensor *made = NULL;
    CHECK_OK(lend_tensor_with_attrs(tensor, &attrs, &made, &error), &error);
    return made;
}

/* Takes the tensor over. `pad`: how many characters longer than it must be the name is. */
static inline void add(struct lend_group *group, const char *name, struct lend_tensor *tensor, size_t pad) {
    char padded[LEND_GROUP_NAME_MAX + 1];
    struct lend_error error = {0};
    size_t n = strlen(name);
    memcpy(padded, name, n);
    memset(padded + n, '.', pad);
    padded[n + pad] = '\0';
    CHECK_OK(lend_group_add(group, padded, tensor, &error), &error);
    lend_tensor_unref(tensor);
}

/* Of a pool: a plain tensor, the same with an attribute, one of components, and a wrapper of such a one. */
static inline struct lend_group *pooled_group(struct lend_pool *pool, size_t pad) {
    struct lend_error error = {0};
    struct lend_group *group = NULL;
    struct lend_tensor *plain = sevens(pool, PLAIN_BYTES), *parts[] = {csr_in(pool), with_user(plain)};
    CHECK_OK(lend_group_new(&group, &error), &error);
    add(group, "user", with_user(plain), pad);
    add(group, "plain", plain, pad);
    add(group, "csr", csr_in(pool), pad);
    struct lend_tensor *wrapper = compound_of(LEND_LAYOUT_WRAPPER, 2, parts);
    add(group, "wrapper", with_user(wrapper), pad);
    lend_tensor_unref(wrapper);
    return group;
}

/* Adds what has to be copied (two views of one storage, one alone, a zero tensor), and a meta tensor. */
static inline void add_private(struct lend_group *group, size_t pad) {
    static const int64_t n = 64;
    struct lend_error error = {0};
    struct lend_tensor *whole = sevens(NULL, 500), *half = NULL, *zero = NULL, *meta = NULL;
    CHECK_OK(lend_tensor_slice(whole, 0, 0, 250, 1, &half, &error), &error);
    CHECK_OK(lend_tensor_new_zero((DLDataType){kDLUInt, 8, 1}, 1, &n, &zero, &error), &error);
    CHECK_OK(lend_tensor_new_meta((DLDataType){kDLUInt, 8, 1}, 1, &n, &meta, &error), &error);
    add(group, "whole", whole, pad);
    add(group, "half", half, pad);
    add(group, "alone", sevens(NULL, 100), pad);
    add(group, "zero", zero, pad);
    add(group, "meta", meta, pad);
}

/* --- looking ---------------------------------------------------------------------------------------------------------- */

static inline void check_user(const struct lend_tensor *tensor) {
    struct lend_tensor_attrs attrs = {.size = sizeof attrs};
    CHECK_INT(lend_tensor_attrs(tensor, &attrs), 0);
    CHECK_UINT(attrs.flags, LEND_ATTR_PARAMETER);
    CHECK_UINT(attrs.user_tag, USER_TAG);
    CHECK_UINT(attrs.user_bytes, sizeof user_attribute);
    CHECK_MEM(attrs.user, user_attribute, sizeof user_attribute);
}

static inline void check_bytes_are(const struct lend_tensor *tensor, uint8_t value) {
    struct lend_tensor_info info = {.size = sizeof info};
    CHECK_INT(lend_tensor_info(tensor, &info), 0);
    for (uint64_t i = 0; i < info.nbytes; i++) CHECK_UINT(((const uint8_t *)info.data)[i], value);
}

static inline void check_csr(struct lend_tensor *tensor) {
    struct lend_compound compound = {.size = sizeof compound};
    struct lend_error error = {0};
    CHECK_INT(lend_tensor_components(tensor, &compound), 0);
    CHECK_UINT(compound.layout, LEND_LAYOUT_CSR);
    CHECK_OK(lend_tensor_check(tensor, &error), &error);
    check_bytes_are(compound.components[2], SEVEN);
}

/* Is the tensor what its name says? */
static inline void check_member(const char *name, struct lend_tensor *tensor) {
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_compound compound = {.size = sizeof compound};
    CHECK_INT(lend_tensor_info(tensor, &info), 0);
    if (!strncmp(name, "user", 4)) check_user(tensor);
    if (!strncmp(name, "csr", 3)) {
        check_csr(tensor);
    } else if (!strncmp(name, "wrapper", 7)) {
        check_user(tensor);
        CHECK_INT(lend_tensor_components(tensor, &compound), 0);
        CHECK_UINT(compound.n_components, 2);
        check_csr(compound.components[0]);
        check_user(compound.components[1]);
        check_bytes_are(compound.components[1], SEVEN);
    } else if (!strncmp(name, "meta", 4)) {
        CHECK_INT((int)info.device.device_type, LEND_DEVICE_META);
    } else if (!info.is_zero) { /* where it arrives it has memory */
        check_bytes_are(tensor, strncmp(name, "zero", 4) ? SEVEN : 0);
    }
}

/* All of it; `n`: so many tensors. Views of one storage are so here, too. */
static inline void check_group(const struct lend_group *group, size_t n) {
    const char *name, *before = "";
    struct lend_tensor *tensor, *twin = NULL;
    CHECK_UINT(lend_group_count(group), n);
    for (size_t i = 0; (tensor = lend_group_get(group, i, &name)); i++) {
        check_member(name, tensor);
        bool is_twin = (!strncmp(name, "plain", 5) && !strncmp(before, "user", 4)) ||
                       (!strncmp(name, "half", 4) && !strncmp(before, "whole", 5));
        if (is_twin) CHECK_PTR(lend_tensor_data(tensor), lend_tensor_data(twin));
        twin = tensor;
        before = name;
    }
}

#endif
