/* SPDX-License-Identifier: MIT */
/* Limits first, then the bounding set, groups and ids: each step needs the privileges that a later one gives up. */
#include "drop.h"

#include <errno.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

int drop_to(uid_t uid, unsigned long nofile_max) {
    struct rlimit limit = {nofile_max, nofile_max};
    if (nofile_max && setrlimit(RLIMIT_NOFILE, &limit)) return -errno;
    if (!uid || uid == getuid()) return 0;
    for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)) return -errno;
    if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) return -errno;
    return 0;
}
