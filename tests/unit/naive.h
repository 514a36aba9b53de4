/* SPDX-License-Identifier: MIT */
/* The slow, obvious way to say where elements are and what they hold, to compare the library with. */
#ifndef LEND_TESTS_UNIT_NAIVE_H_
#define LEND_TESTS_UNIT_NAIVE_H_

#include <lend/tensor.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* splitmix64: the same numbers in every run. */
static inline uint64_t naive_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A number in [low, high]. */
static inline int64_t naive_between(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(naive_random(state) % (uint64_t)(high - low + 1));
}

/* The next index in C order; false after the last one. Start from all zeros, with no size of 0. */
static inline bool naive_next(int32_t ndim, const int64_t *shape, int64_t *index) {
    for (int32_t i = ndim - 1; i >= 0; i--) {
        if (++index[i] < shape[i]) return true;
        index[i] = 0;
    }
    return false;
}

/* Bits that an element takes in memory. */
static inline uint32_t naive_item_bits(const struct lend_tensor_info *info) {
    uint32_t lane = info->dtype.bits < 8 && info->is_padded ? 8 : info->dtype.bits;
    return lane * info->dtype.lanes;
}

/* The first bit of an element, from the start of the storage. */
static inline int64_t naive_bit(const struct lend_tensor_info *info, const int64_t *index) {
    int64_t elements = 0;
    for (int32_t i = 0; i < info->ndim; i++) elements += index[i] * info->strides[i];
    return (int64_t)info->storage_offset_bits + elements * naive_item_bits(info);
}

/* Writes the elements, one bit at a time, in C order to `ret`, which has been cleared. */
static inline void naive_gather(const struct lend_tensor_info *info, uint8_t *ret) {
    int64_t index[LEND_NDIM_MAX] = {0};
    uint64_t to = 0;
    if (info->numel == 0) return;
    do {
        int64_t from = naive_bit(info, index);
        for (uint32_t i = 0; i < naive_item_bits(info); i++, from++, to++)
            if (((const uint8_t *)info->storage_data)[from / 8] >> (from % 8) & 1)
                ret[to / 8] |= (uint8_t)(1u << (to % 8));
    } while (naive_next(info->ndim, info->shape, index));
}

/* What a tensor is; a failure to tell leaves ndim -1. */
static inline struct lend_tensor_info naive_info(const struct lend_tensor *tensor) {
    struct lend_tensor_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    if (lend_tensor_info(tensor, &info) < 0) info.ndim = -1;
    return info;
}

/* Every dtype that lend carries, with one lane. Returns how many. */
#define NAIVE_N_DTYPES 31
static inline int naive_dtypes(DLDataType ret[NAIVE_N_DTYPES]) {
    static const struct {
        uint8_t code, bits[6];
    } rows[] = {
        {LEND_INT, {2, 4, 8, 16, 32, 64}}, {LEND_UINT, {2, 4, 8, 16, 32, 64}},
        {LEND_FLOAT, {16, 32, 64}},        {LEND_BFLOAT, {16}},
        {LEND_COMPLEX, {32, 64, 128}},     {LEND_BOOL, {8}},
        {LEND_FLOAT8_E3M4, {8}},           {LEND_FLOAT8_E4M3, {8}},
        {LEND_FLOAT8_E4M3B11FNUZ, {8}},    {LEND_FLOAT8_E4M3FN, {8}},
        {LEND_FLOAT8_E4M3FNUZ, {8}},       {LEND_FLOAT8_E5M2, {8}},
        {LEND_FLOAT8_E5M2FNUZ, {8}},       {LEND_FLOAT8_E8M0FNU, {8}},
        {LEND_FLOAT6_E2M3FN, {6}},         {LEND_FLOAT6_E3M2FN, {6}},
        {LEND_FLOAT4_E2M1FN, {4}},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int j = 0; j < 6 && rows[i].bits[j]; j++)
            ret[n++] = (DLDataType){.code = rows[i].code, .bits = rows[i].bits[j], .lanes = 1};
    return n;
}

#endif
