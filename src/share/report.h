/* SPDX-License-Identifier: MIT */
/* The books as records, a part at a time, so that no reply is larger than a socket takes. The cursor makes the exporter
 * stateless: records that come and go between two parts may be missed or seen twice. */
#ifndef LEND_SHARE_REPORT_H_
#define LEND_SHARE_REPORT_H_

#include "share/control.h"

#include <stddef.h>

enum lend__report_part {
    LEND__REPORT_TOTALS = 1, /* one struct lend_report_totals */
    LEND__REPORT_ALLOCATIONS = 2,
    LEND__REPORT_PINS = 3,
    LEND__REPORT_PEERS = 4,
    LEND__REPORT_STORAGES = 5,
    LEND__REPORT_HOLDS = 6
};

/* Writes as many records of request->report_part from request->report_from on as fit; sets reply->n_records and
 * report_next (or reply->code). Returns the bytes written. Takes the ledger lock. */
size_t lend__report_fill(const struct lend__control_request *request, struct lend__control_reply *reply, void *records,
                         size_t room);

#endif
