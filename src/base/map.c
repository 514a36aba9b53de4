/* SPDX-License-Identifier: MIT */
/* Open addressing with linear probing, at most half full. Keys are our own, so no key is needed for the hash. */
#include "base/map.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>

#define FIRST_ROOM 32

static struct lend__map_slot *probe(const struct lend__map *map, uint64_t key) {
    uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15ull >> 32) & (map->room - 1);
    while (map->slots[at].key && map->slots[at].key != key) at = (at + 1) & (map->room - 1);
    return &map->slots[at];
}

static int grow(struct lend__map *map) {
    struct lend__map old = *map;
    map->room = old.room ? old.room * 2 : FIRST_ROOM;
    map->slots = lend__zalloc(map->room * sizeof *map->slots);
    if (!map->slots) {
        *map = old;
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < old.room; i++)
        if (old.slots[i].key) *probe(map, old.slots[i].key) = old.slots[i];
    free(old.slots);
    return 0;
}

int lend__map_get(struct lend__map *map, uint64_t key, uint32_t fresh, uint32_t *ret) {
    if ((map->n + 1) * 2 > map->room && grow(map) < 0) return -ENOMEM;
    struct lend__map_slot *slot = probe(map, key);
    if (slot->key) {
        *ret = slot->value;
        return 1;
    }
    *slot = (struct lend__map_slot){key, fresh};
    map->n++;
    *ret = fresh;
    return 0;
}

void lend__map_free(struct lend__map *map) {
    free(map->slots);
    *map = (struct lend__map){0};
}
