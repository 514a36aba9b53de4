/* SPDX-License-Identifier: MIT */
/* The cells of our page: where a rebuild writes its pin token before it takes the lease, so that a crash in between
 * leaves a trace (docs/leases.md, "Pins"). Under the import lock.
 *
 *   P2  intent := token          before L1 of take
 *       used := token            after L2, when the tensor is made; announced
 *       intent := 0              instead, when the rebuild failed
 *   P3  the exporter consumes    used tokens; of a dropped page also intents (page.c)
 *   P4  it acknowledges          then the cell may be used again */
#ifndef LEND_SHARE_CELL_H_
#define LEND_SHARE_CELL_H_

#include "share/peer.h"

/* Writes the token into a free cell. Return: the cell, or -EAGAIN: all wait for the exporter, which has been kicked. */
int lend__cell_begin(struct lend__peer *peer, uint64_t token);

/* The lease is taken and the tensor made: the exporter may consume the token. */
void lend__cell_used(struct lend__peer *peer, int cell, uint64_t token);

/* The rebuild failed: the pin is still good. */
void lend__cell_clear(struct lend__peer *peer, int cell);

#endif
