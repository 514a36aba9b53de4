/* SPDX-License-Identifier: MIT */
/* fork(): what parent and child hold afterwards (docs/fork.md). Registered once, at the first lend_open. */
#ifndef LEND_SHARE_FORK_H_
#define LEND_SHARE_FORK_H_

/* 0, or -ENOMEM. Under the context lock. */
int lend__fork_register(void);

#endif
