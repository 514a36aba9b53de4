/* SPDX-License-Identifier: MIT */
/* Between asking the exporters (ls.c), ordering what they said (ls_report.c), and printing it (ls_print.c and
 * ls_json.c). */
#ifndef LEND_CLI_LS_H_
#define LEND_CLI_LS_H_

#include <lend/lend.h>
#include <stdbool.h>
#include <stddef.h>

struct answer {
    struct lend_exporter exporter;
    struct lend_report *report; /* owned; NULL when code is not 0 */
    int code;
    struct lend_error error;
    uint32_t silent_pid; /* of an exporter that did not answer; 0: not known */
    char silent_command[64];
};

/* Brings a report into the order that printing needs: storages and holds by slot, peers by pid, pins by sender and
 * then the oldest first. */
void ls_sort(struct lend_report *report);

/* The holds of a storage: moves *at, where the search begins, to the first and returns the end. Storages are asked for
 * in ascending order, so all of them together cost one walk. */
size_t ls_holds_find(const struct lend_report *report, uint32_t slot, size_t *at);
const struct lend_report_peer *ls_peer_find(const struct lend_report *report, uint32_t pid); /* NULL: none */

struct ls_sums {
    size_t n_answering;
    uint64_t n_allocations, allocation_bytes, n_storages, storage_bytes, n_limbo, limbo_bytes, n_pins, pin_bytes;
    uint64_t n_holders, n_contacts; /* peers that hold something, and those that hold nothing */
};
struct ls_sums ls_sum_up(const struct answer *answers, size_t n);

/* Not so: that of an empty tensor, whose allocation is reported as UINT32_MAX. */
bool ls_has_memory(const struct lend_report_storage *storage);

/* Since a CLOCK_BOOTTIME, the clock of all times in a report. */
uint64_t ls_age_ns(uint64_t since_ns);

/* Each takes sorted reports and returns an exit code. */
int ls_print_text(const struct answer *answers, size_t n, bool with_all);
int ls_print_json(const struct answer *answers, size_t n, bool with_all);

#endif
