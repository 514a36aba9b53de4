/* SPDX-License-Identifier: MIT */
/* Failing one call of the table. A sweep goes on until nothing was left to fail:
 *
 *     for (unsigned n = 0;; n++) {
 *         fault_arm(n);
 *         int r = lend_pool_new(...);
 *         const char *failed = fault_disarm();
 *         ...when failed: r is an error, and everything is as before; when not: r is 0
 *         if (!failed) break;
 *     }
 *
 * close and munmap are never failed: what cannot be given back cannot be tested for having been given back. */
#ifndef LEND_TESTS_FAULT_H_
#define LEND_TESTS_FAULT_H_

/* From now on the nth call (0: the next) of any thread fails with an error that it could have. */
void fault_arm(unsigned nth);
/* The same, counting the calls of the calling thread only, so that a sweep finds the same calls each time. */
void fault_arm_thread(unsigned nth);
/* Counts only calls of that name ("mmap"), and fails with `code` (negative errno) instead. */
void fault_arm_call(const char *call, unsigned nth, int code);
/* Puts the table back. Returns the name of the call that failed, or NULL if none did. */
const char *fault_disarm(void);
/* Calls counted since the last arm. */
unsigned fault_count(void);

#endif
