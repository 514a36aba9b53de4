/* SPDX-License-Identifier: MIT */
/* Tensors and groups over a caller's own Unix socket. The message carries the descriptors of slot tables and
 * allocations, so what was sent survives its sender. */
#ifndef LEND_MESSAGE_H_
#define LEND_MESSAGE_H_

#include <lend/error.h>
#include <lend/group.h>
#include <lend/handle.h>
#include <lend/tensor.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sends one tensor of any layout. The message is pinned: the caller may drop the tensor, and end, when this returns.
 *   socket_fd    borrowed: a connected AF_UNIX socket, stream, seqpacket or datagram; blocking or not.
 *   tensor       borrowed.
 *   opts         borrowed; NULL: share. The pin is implied.
 *   deadline_ns  for a full socket: 0 the context's default, negative no limit.
 *   error        borrowed, NULL allowed.
 * Return: 0; LEND_COPIED as lend_reduce; -ETIMEDOUT (the socket stayed full; nothing was sent and the pin is
 * cancelled); -EPIPE; -ENOTSOCK; -EINVAL (also: not an AF_UNIX socket, or not connected); -E2BIG (more than 250
 * allocations and exporters: send several); errors of lend_reduce.
 * Threads: any; concurrent senders on one stream socket must take turns.
 * Crash: killed before the send: nothing was sent; after it: the data is complete.  Since: 0.1.
 * See: SCM_RIGHTS in unix(7). */
LEND_API int lend_send(int socket_fd, struct lend_tensor *tensor, const struct lend_reduce_opts *opts,
                       int64_t deadline_ns, struct lend_error *error);

/* Receives one tensor that lend_send sent.
 *   socket_fd    borrowed.
 *   opts         borrowed; NULL: defaults (its deadline is not used here).
 *   deadline_ns  for a message to come: 0 the context's default, negative no limit.
 *   ret_tensor   returned: one reference.
 *   error        borrowed, NULL allowed.
 * Return: 0; -ETIMEDOUT; -EPIPE (the other end is closed and nothing is left to read); -EBADMSG (not a message of
 * lend_send; it is taken off the socket); -EINVAL (opts; or the socket; or it is of lend_group_send); errors of
 * lend_rebuild. After -EMFILE and -ENFILE (a full table of descriptors), -ENOMEM, -ETIMEDOUT, -EAGAIN, -EACCES and
 * -EINVAL the message is kept: call again, or the call that fits. To be rid of one whose memory is a file's (-EACCES),
 * receive it once with LEND_REBUILD_FILE_IN_PLACE, do not touch the data, and drop the tensor.
 * Threads: any; concurrent receivers on one socket must take turns.
 * Crash: the message stays for the next reader until the tensor is rebuilt.  Since: 0.1.
 * See: MSG_PEEK in recv(2). */
LEND_API int lend_recv(int socket_fd, const struct lend_rebuild_opts *opts, int64_t deadline_ns,
                       struct lend_tensor **ret_tensor, struct lend_error *error);

/* Sends a whole group in one message, pinned as by lend_send; the arguments are those of lend_send.
 *   group  borrowed.
 * Return: as lend_send; errors of lend_group_reduce.
 * Threads: any, when no other changes the group; concurrent senders on one stream socket must take turns.
 * Crash: killed before the send: nothing was sent; after it: the data is complete.  Since: 0.1.
 * See: lend_send. */
LEND_API int lend_group_send(int socket_fd, struct lend_group *group, const struct lend_reduce_opts *opts,
                             int64_t deadline_ns, struct lend_error *error);

/* Receives a group that lend_group_send sent, whole or not at all; the arguments are those of lend_recv.
 *   ret_group  returned: one reference.
 * Return: as lend_recv, which also says when the message is kept; -EINVAL also when it is one of lend_send; errors of
 * lend_group_rebuild.
 * Threads: any; concurrent receivers on one socket must take turns.
 * Crash: the message stays for the next reader until the group is rebuilt.  Since: 0.1.
 * See: lend_recv. */
LEND_API int lend_group_recv(int socket_fd, const struct lend_rebuild_opts *opts, int64_t deadline_ns,
                             struct lend_group **ret_group, struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
