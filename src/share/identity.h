/* SPDX-License-Identifier: MIT */
/* Who a process is to others. The random id is the identity; everything else is a label or says which host. */
#ifndef LEND_SHARE_IDENTITY_H_
#define LEND_SHARE_IDENTITY_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#define LEND__ID_BYTES 16

struct lend__identity {
    uint8_t boot_id[LEND__ID_BYTES]; /* /proc/sys/kernel/random/boot_id: which host, which boot */
    uint8_t id[LEND__ID_BYTES];      /* drawn from the kernel's generator, anew after a fork */
    uint64_t start_ns;
    uint32_t uid, pid;
};

/* Draws a new identity for this process. Returns 0 or a negative errno. */
int lend__identity_draw(struct lend__identity *ret);

/* The abstract socket name of an exporter: "lend-<uid>-<32 hex digits>", or with a folder the path
 * "<folder>/lend-<uid>-<32 hex digits>". Returns the address's length, or -EINVAL when the path is too long. */
int lend__identity_address(uint32_t uid, const uint8_t id[LEND__ID_BYTES], const char *folder, struct sockaddr_un *ret);

/* Is this the name (without folder or leading NUL) of an exporter of this user? Then ret_id is its id. */
bool lend__identity_parse_name(const char *name, uint32_t uid, uint8_t ret_id[LEND__ID_BYTES]);

/* Is a peer with this uid one of us? Equal uids; the overflow id is nobody in particular unless it is a real id of
 * the initial user namespace (facts: flaw 13). */
bool lend__identity_is_same_user(uint32_t peer_uid);

#endif
