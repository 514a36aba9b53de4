/* SPDX-License-Identifier: MIT */
/* How much shared memory the processes of this run hold, counted by inode: system totals would count the neighbours'. */
#ifndef LEND_TESTS_MEMORY_H_
#define LEND_TESTS_MEMORY_H_

#include <stdint.h>

struct memory_count {
    unsigned n_inodes;
    uint64_t bytes; /* sum of the sizes */
    uint64_t
        resident_bytes; /* sum of what is allocated; of an inode that is only mapped, 0 where not even root may look */
};

/* Counts every memfd whose name begins with "lend" that a process of this run has open or mapped. */
struct memory_count memory_count(void);

#endif
