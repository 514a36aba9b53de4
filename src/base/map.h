/* SPDX-License-Identifier: MIT */
/* A map from 64-bit keys that are not 0 (addresses of this process, mostly) to numbers, while something is put
 * together. */
#ifndef LEND_BASE_MAP_H_
#define LEND_BASE_MAP_H_

#include <stdint.h>

struct lend__map {
    struct lend__map_slot {
        uint64_t key; /* 0: free */
        uint32_t value;
    } * slots;
    uint32_t room, n; /* room: 0, or a power of two, at least twice n */
};

/* The value of the key; if it is not there, `fresh` is put in. Return: 1 it was there; 0 put in; -ENOMEM. */
int lend__map_get(struct lend__map *map, uint64_t key, uint32_t fresh, uint32_t *ret);

void lend__map_free(struct lend__map *map);

#endif
