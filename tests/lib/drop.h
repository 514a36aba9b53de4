/* SPDX-License-Identifier: MIT */
/* Becoming an ordinary user: root hides the limits that users meet. */
#ifndef LEND_TESTS_DROP_H_
#define LEND_TESTS_DROP_H_

#include <sys/types.h>

/* Sets RLIMIT_NOFILE (0: as it is), then user and group (0: as they are) with no capability left, also after exec.
 * Exec afterwards: until then /proc/self belongs to root. Returns 0 or a negative errno. */
int drop_to(uid_t uid, unsigned long nofile_max);

#endif
