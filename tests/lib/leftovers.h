/* SPDX-License-Identifier: MIT */
/* What a process has: descriptors (sockets among them), shared mappings, children, threads. Two snapshots tell what a
 * test left behind. */
#ifndef LEND_TESTS_LEFTOVERS_H_
#define LEND_TESTS_LEFTOVERS_H_

#include <stdio.h>
#include <sys/types.h>

/* One line per thing, newline-terminated; freed by the caller. */
char *leftovers_snapshot(void);

/* Waits up to one second (threads and closed files go a moment after the call that ended them) until the process has
 * what `before` lists, and ends the test as failed, naming each difference, if it does not come to that. */
void leftovers_check(const char *before);

/* Calls fn for each child of this process, zombies included. Returns how many there are. */
unsigned leftovers_each_child(void (*fn)(pid_t pid, const char *comm, char state, void *arg), void *arg);

#endif
