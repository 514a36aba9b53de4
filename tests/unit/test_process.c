/* SPDX-License-Identifier: MIT */
/* The word that a raw clone does not inherit. */
#include "base/process.h"
#include "fault.h"
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

LEND_TEST(before_init_no_process_is_a_clone) {
    CHECK(!lend__is_raw_clone());
}

/* Runs in the child; 10 + the answer, so that a crash is no answer. */
static int answer_of(pid_t child) {
    int status;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status) - 10;
}

LEND_TEST(a_raw_clone_is_told_and_its_parent_is_not) {
    if (test_is_emulated()) SKIP("the emulator does not wipe on fork");
    CHECK_CODE(lend__process_init(), 0);
    CHECK(!lend__is_raw_clone());
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) _exit(10 + lend__is_raw_clone());
    CHECK_INT(answer_of(child), 1);
    CHECK(!lend__is_raw_clone());
}

LEND_TEST(a_forked_child_that_inits_again_is_its_own_process) {
    CHECK_CODE(lend__process_init(), 0);
    pid_t child = fork();
    if (!child) {
        int r = lend__process_init();
        _exit(10 + (r ? 5 : lend__is_raw_clone()));
    }
    CHECK_INT(answer_of(child), 0);
}

LEND_TEST(init_twice_is_one_mapping) {
    CHECK_CODE(lend__process_init(), 0);
    const volatile uint32_t *word = lend__process_word;
    CHECK_CODE(lend__process_init(), 0);
    CHECK(lend__process_word == word);
}

LEND_TEST(without_memory_init_says_so) {
    fault_arm_call("mmap", 0, -ENOMEM);
    CHECK_CODE(lend__process_init(), -ENOMEM);
    CHECK_STR(fault_disarm(), "mmap");
    CHECK(!lend__is_raw_clone());
    CHECK_CODE(lend__process_init(), 0);
}

LEND_TEST(an_old_kernel_without_wipeonfork_still_opens) {
    fault_arm_call("madvise", 0, -EINVAL);
    CHECK_CODE(lend__process_init(), 0);
    CHECK_STR(fault_disarm(), "madvise");
    CHECK(!lend__is_raw_clone());
}
