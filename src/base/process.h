/* SPDX-License-Identifier: MIT */
/* Is this still the process that opened the library? After fork() our handlers give the child a state of its own;
 * after a raw clone or _Fork nobody ran them, and one word in a page marked MADV_WIPEONFORK reads 0: every public
 * call then answers -ECHILD and destructors drop host memory only (facts: L-4 of docs/leases.md). One load, no getpid.
 */
#ifndef LEND_BASE_PROCESS_H_
#define LEND_BASE_PROCESS_H_

#include <stdbool.h>
#include <stdint.h>

/* Points at the wiped word; before lend__process_init at a word that is never wiped. */
extern const volatile uint32_t *lend__process_word;

/* Counts the forks on the way from the first process to this one. Objects that cannot be used in a child (pools)
 * remember it. Written only in the child's fork handler. */
extern uint32_t lend__fork_epoch;

static inline bool lend__is_raw_clone(void) {
    return __builtin_expect(*lend__process_word == 0, 0);
}

/* Maps the word (once per process; again in a forked child). Returns 0 or a negative errno; where the kernel lacks
 * MADV_WIPEONFORK (before 4.14) raw clones stay undetected. */
int lend__process_init(void);

#endif
