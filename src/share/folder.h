/* SPDX-License-Identifier: MIT */
/* A folder of path sockets: the only names that lend leaves in a file system, and how they are swept. */
#ifndef LEND_SHARE_FOLDER_H_
#define LEND_SHARE_FOLDER_H_

/* Takes the folder's lock, under which sockets are bound, made to listen, and swept: a name that is bound but does not
 * listen yet must not be taken for a dead one. Returns a descriptor (close it to unlock), or a negative errno:
 * -ETIMEDOUT when another process keeps the lock for a second. */
int lend__folder_lock(const char *folder);

/* Unlinks the names of exporters of this user that are dead (nobody listens). Under the lock; best effort. */
void lend__folder_sweep(const char *folder);

#endif
