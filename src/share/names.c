/* SPDX-License-Identifier: MIT */
/* Open addressing with linear probing, at most half full. No locks: whoever builds an index is alone with it, and
 * afterwards it is only read. */
#include "share/names.h"

#include "base/hash.h"
#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash(uint64_t key, const char *name) {
    size_t n = strlen(name);
    uint64_t h = key ^ n, word;
    for (; n >= 8; n -= 8, name += 8) {
        memcpy(&word, name, 8);
        h = lend__hash_fold(h ^ word, 0x9e3779b97f4a7c15ull ^ key);
    }
    word = 0;
    memcpy(&word, name, n);
    return lend__hash_fold(h ^ word, 0xd6e8feb86659fd93ull ^ key);
}

static struct lend__names *make(uint32_t room, uint64_t key) {
    struct lend__names *index = lend__zalloc(sizeof *index + room * sizeof index->slots[0]);
    if (!index) return NULL;
    index->room = room;
    index->key = key;
    return index;
}

struct lend__names *lend__names_new(uint32_t n) {
    uint64_t key = 0;
    uint32_t room = 16;
    while (room / 2 < n) room *= 2;
    if (lend__sys.getrandom(&key, sizeof key) < 0) key = (uintptr_t)&key; /* only worse against an enemy */
    return make(room, key);
}

/* The slot where the name is, or would be. */
static uint32_t probe(const struct lend__names *index, const char *const *names, const char *name) {
    uint32_t at = (uint32_t)hash(index->key, name) & (index->room - 1);
    while (index->slots[at] && strcmp(names[index->slots[at] - 1], name) != 0) at = (at + 1) & (index->room - 1);
    return at;
}

static int grow(struct lend__names **index, const char *const *names) {
    struct lend__names *old = *index, *fresh = make(old->room * 2, old->key);
    if (!fresh) return -ENOMEM;
    for (uint32_t i = 0; i < old->room; i++)
        if (old->slots[i]) fresh->slots[probe(fresh, names, names[old->slots[i] - 1])] = old->slots[i];
    fresh->n = old->n;
    free(old);
    *index = fresh;
    return 0;
}

int lend__names_add(struct lend__names **index, const char *const *names, uint32_t position) {
    uint32_t at = probe(*index, names, names[position]);
    if ((*index)->slots[at]) return -EEXIST;
    if (((*index)->n + 1) * 2 > (*index)->room) {
        int r = grow(index, names);
        if (r < 0) return r;
        at = probe(*index, names, names[position]);
    }
    (*index)->slots[at] = position + 1;
    (*index)->n++;
    return 0;
}

uint32_t lend__names_find(const struct lend__names *index, const char *const *names, const char *name) {
    uint32_t at = probe(index, names, name);
    return index->slots[at] ? index->slots[at] - 1 : LEND__NAME_NONE;
}
