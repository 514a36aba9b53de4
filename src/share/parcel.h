/* SPDX-License-Identifier: MIT */
/* The message of lend_send on a caller's own socket: a handle and the descriptors of what it names. No tensors here;
 * message.c puts them in and takes them out. */
#ifndef LEND_SHARE_PARCEL_H_
#define LEND_SHARE_PARCEL_H_

#include <lend/error.h>
#include <lend/handle.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lend__parcel_kind {
    LEND__PARCEL_TABLE = 1,      /* the slot table of exporter `index` of the handle */
    LEND__PARCEL_ALLOCATION = 2, /* allocation `index` (in a tree: row) */
    LEND__PARCEL_HANDLE = 3      /* the handle itself, when it is long: a sealed memfd */
};

/* The kernel lets no more travel with one message. */
#define LEND__PARCEL_FDS_MAX 253u

/* What comes with the message. */
struct lend__parcel_item {
    uint32_t kind, index;
};

struct lend__parcel_header {
    uint32_t magic;
    uint32_t handle_bytes;
    uint32_t n_fds; /* as many items follow, then the handle, unless it is one of them */
    uint32_t reserved;
};

#define LEND__PARCEL_BYTES_MAX                                                                      \
    (sizeof(struct lend__parcel_header) + LEND__PARCEL_FDS_MAX * sizeof(struct lend__parcel_item) + \
     LEND_HANDLE_BYTES_MAX)

/* Is it a Unix socket? Elsewhere the kernel drops descriptors without a word.
 * Return: 0; -EINVAL; what getsockopt answered: -ENOTSOCK, -EBADF. */
int lend__parcel_check_socket(int socket_fd, const char *operation, struct lend_error *error);

/* --- out -------------------------------------------------------------------------------------------------------------- */

struct lend__parcel {
    const void *handle; /* borrowed */
    size_t handle_bytes;
    uint32_t n_fds;
    struct lend__parcel_item items[LEND__PARCEL_FDS_MAX];
    int fds[LEND__PARCEL_FDS_MAX]; /* borrowed */
};

/* Adds a descriptor (none if it is negative). False: the message is full. */
bool lend__parcel_add(struct lend__parcel *parcel, enum lend__parcel_kind kind, uint32_t index, int fd);

/* Sends it whole or not at all. Return: 0, -ETIMEDOUT, or what sendmsg answered. */
int lend__parcel_send(int socket_fd, struct lend__parcel *parcel, uint64_t deadline);

/* --- in --------------------------------------------------------------------------------------------------------------- */

/* A message that lies in front of the socket and has not been taken off it. */
struct lend__arrival {
    const uint8_t *handle;
    size_t handle_bytes;
    size_t bytes; /* of the message */
    void *mapped; /* of a long handle */
    uint32_t n_fds;
    struct lend__parcel_item items[LEND__PARCEL_FDS_MAX];
    int fds[LEND__PARCEL_FDS_MAX]; /* ours */
    uint8_t room[LEND__PARCEL_BYTES_MAX];
};

/* Waits for a whole message and looks at it. What is none is taken off the socket (-EBADMSG).
 * Return: 0; -ETIMEDOUT; -EPIPE; -EBADMSG; -EMFILE (the message is kept); -EINVAL (the socket is not connected); what
 * recvmsg answered. On error nothing is left open. */
int lend__arrival_wait(int socket_fd, uint64_t deadline, struct lend__arrival *arrival, const char *operation,
                       struct lend_error *error);

/* The descriptor of this kind and index, or NULL. */
int *lend__arrival_fd(struct lend__arrival *arrival, enum lend__parcel_kind kind, uint32_t index);

/* Takes it off the socket. */
void lend__arrival_consume(int socket_fd, const struct lend__arrival *arrival);

/* Closes what came with it. */
void lend__arrival_drop(struct lend__arrival *arrival);

#endif
