/* SPDX-License-Identifier: MIT */
/* Test points of the twin: what happens where the protocol passes LEND_POINT(label). Linked only with the twin.
 *
 * A role is told by its environment: LEND_POINT_AT="LABEL NTH kill" or "LABEL NTH stop" (NTH from 0). Hits of all
 * threads count. */
#ifndef LEND_TESTS_POINTS_H_
#define LEND_TESTS_POINTS_H_

enum point_action { POINT_COUNT, POINT_KILL, POINT_STOP, POINT_CALL };

/* At the nth hit of `label` (0: the next): SIGKILL or SIGSTOP to this process. Replaces what was set before. */
void points_at(const char *label, unsigned nth, enum point_action action);
/* At the nth hit: calls fn(arg) in the thread that hits, once. The way to force an order between threads. */
void points_call_at(const char *label, unsigned nth, void (*fn)(void *arg), void *arg);
/* Forgets counts and what was set. */
void points_reset(void);

/* Hits of a label since the start or the last reset. */
unsigned points_count(const char *label);
/* The i-th label seen, in order of first hit; NULL past the last. */
const char *points_label(unsigned i);
/* Writes "point LABEL COUNT" per label and "points end" to standard output, as a role reports to its test. */
void points_say(void);

#endif
