/* SPDX-License-Identifier: MIT */
/* The inside of a group: what restore.c fills and gather.c reads. */
#ifndef LEND_SHARE_GROUP_H_
#define LEND_SHARE_GROUP_H_

#include "share/names.h"

#include <lend/group.h>

struct lend_group {
    uint32_t n_refs; /* atomic */
    uint32_t n, room;
    struct lend_tensor **tensors; /* with a reference each; NULL in a group that could not be filled */
    const char **names;           /* each a string of its own, or in `block` */
    char *block;                  /* names that came together; NULL: none */
    uint32_t n_in_block;          /* the first so many names lie there */
    struct lend__names *index;    /* atomic: made at the first look-up, or the first addition */
};

/* A group with room for n tensors and block_bytes of names; n is 0 until its owner says otherwise. 0 or -ENOMEM. */
int lend__group_make(uint32_t room, size_t block_bytes, struct lend_group **ret);

#endif
