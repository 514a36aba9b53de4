/* SPDX-License-Identifier: MIT */
/* Is a process that maps our page, or whose table we map, still there? The kernel's word, not a guess.
 *
 * A lock (flock) belongs to an open file. We reopen a memfd, lock that open file, and give it away: the lock ends
 * exactly when the last descriptor and the last mapping of it are gone, whatever ended them - exit, SIGKILL, exec,
 * munmap - in any PID namespace, also in processes that a raw clone made. A second open file of the same memfd is
 * kept to test the lock. (docs/leases.md, "Whose death?") */
#ifndef LEND_SHARE_LIVENESS_H_
#define LEND_SHARE_LIVENESS_H_

#include <stdbool.h>

/* Reopens `memfd`, locks the new open file, and opens another one to test it with. `with_lock` false (the self-test
 * failed): two plain duplicates, and a pidfd has to decide.
 *   ret_lent   to be sent to (or mapped by) whoever is watched; close it here afterwards
 *   ret_mine   kept: lend__life_is_over(mine)
 * Returns 0 or a negative errno. */
int lend__life_lend(int memfd, bool with_lock, int *ret_lent, int *ret_mine);

/* Has the open file that lend__life_lend locked gone? Leaves no lock behind. For the one who watches exclusively
 * (an exporter and its pages). */
bool lend__life_is_over(int mine);

/* The same for a lock that many watch (a slot table): a shared test, so that two testers do not take each other for
 * the living exporter. */
bool lend__life_is_over_shared(int fd);

/* Proves once, by doing, that the lock follows the last mapping here. False: a pidfd must decide (old or foreign
 * kernels, /proc not mounted). About 20 us. */
bool lend__life_selftest(void);

/* The pidfd of a connected socket's peer (SO_PEERPIDFD where the kernel has it, else pidfd_open of `pid`), or a
 * negative errno. */
int lend__life_pidfd(int socket_fd, int pid);
bool lend__life_pidfd_is_over(int pidfd);

#endif
