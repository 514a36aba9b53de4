/* SPDX-License-Identifier: MIT */
/* What the service answers to each kind of request. Split from service.c (the loop) by subject. */
#ifndef LEND_SHARE_REQUESTS_H_
#define LEND_SHARE_REQUESTS_H_

#include "share/control.h"
#include "share/service.h"

/* Handles one message of a connection. False: the connection is to be closed (garbage, a foreign user, or a peer that
 * does not read its replies). */
bool lend__request_handle(struct lend__connection *connection, const void *message, size_t bytes);

/* Tells a peer why it cannot be served before its connection is closed. */
void lend__request_refuse(int fd, int code);

#endif
