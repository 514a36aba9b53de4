/* SPDX-License-Identifier: MIT */
/* One sweep: a job is done again and again, each time with the next call of the table failing, until nothing was left
 * to fail. A failed call must say so completely, and the same call must work right after. */
#ifndef LEND_TESTS_FAULT_SWEEP_H_
#define LEND_TESTS_FAULT_SWEEP_H_

#include "fault.h"
#include "test.h"

#include <errno.h>
#include <lend/lend.h>
#include <string.h>

struct sweep {
    const char *name;
    void (*begin)(void);                   /* before each round; NULL: nothing */
    int (*call)(struct lend_error *error); /* what is swept: 0 or a positive outcome is success */
    void (*end)(void);                     /* undoes a success of call, and begin; NULL: nothing */
    bool may_lose;                         /* the call may fail again after a failure (a message that is gone) */
    unsigned n_min;                        /* fewer calls than that were not the job */
};

static inline void sweep_check_error(const struct sweep *sweep, const char *failed, int r,
                                     const struct lend_error *error) {
    if (error->code != r || !error->operation[0] || strlen(error->text) < 10 || error->text[LEND_ERROR_TEXT_BYTES - 1])
        FAIL("%s: after a failed %s the code is %d and the error says %d, %s: \"%s\"", sweep->name,
             failed ? failed : "(nothing)", r, (int)error->code, error->operation, error->text);
}

/* A code that a failed call of either side may turn into, as the other side sees it. */
static inline bool sweep_is_typed(int code) {
    return code == -EMFILE || code == -ENOMEM || code == -ENOSPC || code == -EOWNERDEAD || code == -ETIMEDOUT ||
           code == -EPERM || code == -ESTALE || code == -EAGAIN || code == -EBADMSG || code == -EBUSY ||
           code == -ECONNRESET || code == -ENOLCK || code == -EIO;
}

/* Returns how many calls there were. `look`: called after each failure, when nothing may have changed; NULL: nothing. */
static inline unsigned sweep_run_and_look(const struct sweep *sweep, void (*look)(const char *failed)) {
    for (unsigned n = 0;; n++) {
        struct lend_error error = {0}, again = {0};
        if (n > 1000) FAIL("%s has no end", sweep->name);
        if (sweep->begin) sweep->begin();
        fault_arm_thread(n);
        int r = sweep->call(&error);
        const char *failed = fault_disarm();
        if (r < 0) sweep_check_error(sweep, failed, r, &error);
        if (r < 0 && !failed) FAIL("%s: %d without a fault: %s", sweep->name, r, error.text);
        if (r < 0 && look) look(failed);
        if (r < 0) {
            r = sweep->call(&again);
            if (r < 0 && !sweep->may_lose)
                FAIL("%s: after a failed %s (call %u: %s) it does not work any more: %d %s", sweep->name, failed, n,
                     error.text, r, again.text);
        }
        if (sweep->end) sweep->end();
        if (failed) continue;
        if (n < sweep->n_min) FAIL("%s made %u calls only", sweep->name, n);
        return n;
    }
}

static inline unsigned sweep_run(const struct sweep *sweep) {
    return sweep_run_and_look(sweep, NULL);
}

#endif
