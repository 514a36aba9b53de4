/* SPDX-License-Identifier: MIT */
/* What a failed call must leave as it was: this process's books as exporter and as importer, the blocks of its pools,
 * its descriptors. */
#ifndef LEND_TESTS_FAULT_BOOKS_H_
#define LEND_TESTS_FAULT_BOOKS_H_

#include "share/ledger.h"
#include "share/peer.h"
#include "test.h"

#include <dirent.h>
#include <lend/lend.h>

struct books {
    uint64_t n_limbo, n_pins, used_bytes, n_imported;
    unsigned n_fds;
};

static struct books books_before;

static inline struct books books_now(void) {
    struct lend_error error = {0};
    struct lend_report *report = NULL;
    struct books now = {.n_imported = lend__peers_storages()};
    CHECK_OK(lend_report_get(NULL, 0, 0, &report, &error), &error);
    now.n_limbo = report->totals.n_limbo;
    now.n_pins = report->totals.n_pins;
    for (size_t i = 0; i < report->n_allocations; i++) now.used_bytes += report->allocations[i].used_bytes;
    lend_report_free(report);
    DIR *fds = opendir("/proc/self/fd");
    CHECK(fds);
    while (readdir(fds)) now.n_fds++;
    closedir(fds);
    return now;
}

static inline void books_remember(void) {
    books_before = books_now();
}

/* For sweep_run_and_look. */
static inline void books_are_as_before(const char *failed) {
    struct books now = books_now();
    if (now.n_limbo == books_before.n_limbo && now.n_pins == books_before.n_pins &&
        now.used_bytes == books_before.used_bytes && now.n_imported == books_before.n_imported &&
        now.n_fds == books_before.n_fds)
        return;
    FAIL("a failed %s left: limbo %d, pins %d, bytes %lld, imported storages %d, descriptors %d", failed,
         (int)(now.n_limbo - books_before.n_limbo), (int)(now.n_pins - books_before.n_pins),
         (long long)(now.used_bytes - books_before.used_bytes), (int)(now.n_imported - books_before.n_imported),
         (int)(now.n_fds - books_before.n_fds));
}

#endif
