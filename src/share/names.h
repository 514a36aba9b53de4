/* SPDX-License-Identifier: MIT */
/* An index of names: which position in an array of strings has this one? Hashed with a key of this process, so that
 * names that a peer chose cannot be made to collide. */
#ifndef LEND_SHARE_NAMES_H_
#define LEND_SHARE_NAMES_H_

#include <stdint.h>

#define LEND__NAME_NONE UINT32_MAX

struct lend__names {
    uint64_t key;
    uint32_t room, n; /* room: a power of two, at least twice n */
    uint32_t slots[]; /* position + 1; 0: free */
};

/* An empty index with room for n names (and more: lend__names_add grows it). NULL: no memory. */
struct lend__names *lend__names_new(uint32_t n);

/* Adds names[position]; *index may move. Return: 0, -ENOMEM, -EEXIST (an equal name is there already). */
int lend__names_add(struct lend__names **index, const char *const *names, uint32_t position);

/* The position, or LEND__NAME_NONE. */
uint32_t lend__names_find(const struct lend__names *index, const char *const *names, const char *name);

#endif
