/* SPDX-License-Identifier: MIT */
/* Ending a pin before its delivery. */
#ifndef LEND_SHARE_CANCEL_H_
#define LEND_SHARE_CANCEL_H_

#include "share/wire.h"

/* Ends the pin that a handle names at this exporter, also when that is this process. Return: as lend_pin_cancel. */
int lend__pin_cancel_at(const struct lend__wire_exporter *exporter, int64_t deadline_ns, struct lend_error *error);

#endif
