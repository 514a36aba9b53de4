/* SPDX-License-Identifier: MIT */
/* Messages between an importer and the exporter's service thread, over SOCK_SEQPACKET: one request, one reply, the
 * reply with up to three descriptors. Fixed structs, checked field by field: bytes from a peer are input. */
#ifndef LEND_SHARE_CONTROL_H_
#define LEND_SHARE_CONTROL_H_

#include "share/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define LEND__CONTROL_MAGIC 0x4c54434cu /* "LCTL" */
#define LEND__CONTROL_FDS_MAX 3
/* A reply with records; fits a socket's send buffer (212,992 bytes by default) several times. */
#define LEND__CONTROL_BYTES_MAX (32u << 10)

enum lend__control_type {
    LEND__CONTROL_HELLO = 1,      /* first contact, or a page claimed on a new connection */
    LEND__CONTROL_ALLOCATION = 2, /* the descriptor of one allocation */
    LEND__CONTROL_SPARE = 3,      /* a page for a child that is about to be forked */
    LEND__CONTROL_PIN = 4,        /* pin storages on behalf of this importer */
    LEND__CONTROL_CANCEL = 5,     /* end a pin */
    LEND__CONTROL_KICK = 6,       /* drain my page; no reply */
    LEND__CONTROL_REPORT = 7      /* the books, a part at a time; needs no hello */
};

#define LEND__CONTROL_NONE UINT32_MAX /* no allocation, no page */

struct lend__control_request {
    uint32_t magic;
    uint16_t type, major;
    uint32_t sequence, bytes;            /* bytes: this struct and the slots behind it (PIN) */
    uint64_t layout;                     /* lend__shm_layout() */
    uint8_t exporter_id[LEND__ID_BYTES]; /* whom the peer believes to talk to */
    uint32_t pid;                        /* HELLO: a label */
    uint32_t reserved0;
    uint64_t reserved1;
    uint32_t allocation, allocation_gen; /* HELLO (or NONE), ALLOCATION */
    uint32_t page_index, reserved;       /* HELLO: a page that the peer has already, or NONE */
    uint64_t page_nonce;                 /* HELLO with page_index */
    uint64_t token;                      /* CANCEL; PIN: 0, or the token to add to */
    uint64_t pin_ns_max;                 /* PIN */
    uint32_t report_part, with_all;      /* REPORT: enum lend__report_part */
    uint64_t report_from;                /* REPORT: cursor */
};

/* PIN: one for each storage, behind the request. */
struct lend__control_slot {
    uint32_t slot, reserved;
    uint64_t gen;
};
/* A request with so many slots is 16 KiB and a bit: less than any socket's buffer. */
#define LEND__CONTROL_SLOTS_MAX 1024u
#define LEND__CONTROL_REQUEST_BYTES_MAX \
    (sizeof(struct lend__control_request) + LEND__CONTROL_SLOTS_MAX * sizeof(struct lend__control_slot))

struct lend__control_reply {
    uint32_t magic;
    uint16_t type, major;
    uint32_t sequence, bytes; /* bytes: this struct and the records behind it */
    int32_t code;             /* 0 or a negative errno; with an error no descriptor comes */
    uint32_t n_fds;           /* descriptors, in this order: table, page, allocation; those that has_ says */
    uint64_t limit;           /* with -EMFILE: the exporter's limit of descriptors; -ENOSPC: bytes available */
    uint8_t exporter_id[LEND__ID_BYTES];
    uint32_t has_table, has_page, has_allocation, page_index;
    uint64_t page_nonce;
    uint32_t oldest_pin_pid, reserved; /* with -ENOSPC of a pin */
    uint64_t token;
    uint64_t oldest_pin_age_ns;
    uint64_t n_records, report_next; /* REPORT: cursor of the next part, UINT64_MAX: no more */
};

/* A received message: header checked, descriptors owned by the holder (close with lend__control_drop_fds). */
struct lend__control_fds {
    int fd[LEND__CONTROL_FDS_MAX];
    unsigned n;
    bool is_truncated; /* the kernel dropped descriptors: this process's table is full */
};

void lend__control_drop_fds(struct lend__control_fds *fds);

/* Room for received descriptors, whatever their number. */
struct lend__fds {
    int *fd;
    unsigned n, room;
    bool is_truncated;
};

/* Room for the descriptors of one message. */
union lend__control_space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(LEND__CONTROL_FDS_MAX * sizeof(int))];
};

/* Puts n descriptors (borrowed, at least one) into a message to be sent. `space`: CMSG_SPACE of them, aligned. */
void lend__control_put_fds(struct msghdr *msg, void *space, const int *fds, unsigned n);

/* Appends the descriptors of a received control message to `ret`; more than there is room for are closed. */
void lend__control_take_fds(struct msghdr *msg, struct lend__fds *ret);

/* Sends one message without waiting. Returns 0, -EAGAIN, -EPIPE, or another negative errno. */
int lend__control_send(int socket_fd, const void *message, size_t bytes, const int *fds, unsigned n_fds);

/* Receives one message without waiting. Returns its length (0: the other end is closed), -EAGAIN, -EMSGSIZE when it
 * is longer than buf, or another negative errno. On error no descriptor is left open. */
int lend__control_recv(int socket_fd, void *buf, size_t bytes, struct lend__control_fds *ret_fds);

/* The uid and pid that the kernel vouches for. */
int lend__control_credentials(int socket_fd, uint32_t *ret_uid, uint32_t *ret_pid);

#endif
