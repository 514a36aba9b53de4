/* SPDX-License-Identifier: MIT */
/* LEND_POINT(label) stands at every labelled atomic and around every system call of the protocol. In the product it
 * compiles to nothing; in the twin (-Dtest_points=true) it calls lend__point_hit, which tests use to kill, stop or
 * count at that place. LEND_MUTANT_NAME is defined in a twin built to lack the protection NAME. */
#ifndef LEND_BASE_POINT_H_
#define LEND_BASE_POINT_H_

#ifdef LEND_TEST_POINTS
void lend__point_hit(const char *label);
#define LEND_POINT(label) lend__point_hit(label)
#else
#define LEND_POINT(label) ((void)0)
#endif

#endif
