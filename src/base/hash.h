/* SPDX-License-Identifier: MIT */
/* Hashing what another process chose: with a key of this process, so that nothing can be made to collide. */
#ifndef LEND_BASE_HASH_H_
#define LEND_BASE_HASH_H_

#include <stdint.h>

/* Both halves of the product: every bit of the result depends on every bit of both. */
static inline uint64_t lend__hash_fold(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
