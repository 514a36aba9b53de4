/* SPDX-License-Identifier: MIT */
/* What the files of the harness share with one another; tests include test.h. */
#ifndef LEND_TESTS_RUNNER_H_
#define LEND_TESTS_RUNNER_H_

#include "test.h"

enum { TEST_EXIT_FAILED = 1, TEST_EXIT_SKIPPED = 77 };

/* Shared between the runner, the test's process and its forked children. NULL in a role. */
struct test_outcome {
    bool has_failed;
    char skip[256];
};
extern struct test_outcome *test_outcome;

uint64_t test_scale(void);

/* Runs the role that argv[2] names (role.c). */
int test_role_main(int argc, char **argv);

#endif
