/* SPDX-License-Identifier: MIT */
/* Round trips with an exporter (call.c), as contact.c uses them. All but lend__peer_kick are made with the call slot
 * (lend__peer_begin_call), a user counted, and no lock. */
#ifndef LEND_SHARE_CALL_H_
#define LEND_SHARE_CALL_H_

#include "share/peer.h"

/* What came back: descriptors belong to the caller; a page is mapped already (peer->pending_page), under the same hold
 * of the import lock under which its descriptor arrived, so that no fork can inherit the open file. */
struct lend__answer {
    struct lend__control_reply reply;
    int table_fd, allocation_fd; /* -1: none */
};
void lend__answer_drop(struct lend__peer *peer, struct lend__answer *answer);

/* A request of this type to this peer, with the next sequence number. */
struct lend__control_request lend__call_request(struct lend__peer *peer, uint16_t type);

/* One round trip on the peer's connection, which exists or is made. reply.code is returned when it is negative, with a
 * sentence. */
int lend__peer_call(struct lend__peer *peer, struct lend__control_request *request, struct lend__answer *ret,
                    uint64_t deadline, const char *operation, struct lend_error *error);

/* The sentence for a code; `reply` (may be NULL) is where the code came from. Returns code. */
int lend__call_explain(const struct lend__peer *peer, int code, const struct lend__control_reply *reply,
                       const char *operation, struct lend_error *error);

/* A sealed memfd of at least this length? A peer that could shrink it could kill us by SIGBUS. 0 or -EBADMSG. */
int lend__call_check_sealed(int fd, uint64_t bytes);

void lend__call_disconnect(struct lend__peer *peer);

#endif
