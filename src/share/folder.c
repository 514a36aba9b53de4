/* SPDX-License-Identifier: MIT */
/* Path sockets outlive a SIGKILL. Their names are random and never used twice, so whoever finds one that refuses
 * connections, while holding the folder's lock, may unlink it. */
#include "share/folder.h"

#include "base/sys.h"
#include "share/peer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_WAIT_NS 1000000u
#define LOCK_WAITS 1000

int lend__folder_lock(const char *folder) {
    LEND__CLEANUP_FD fd = (int)lend__sys.open(folder, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return fd;
    for (int n = 0; n < LOCK_WAITS; n++) {
        long r = lend__sys.flock(fd, LOCK_EX | LOCK_NB);
        if (r >= 0) return LEND__TAKE_FD(fd);
        if (r != -EWOULDBLOCK) return (int)r;
        lend__sleep_ns(LOCK_WAIT_NS);
    }
    return -ETIMEDOUT;
}

static void sweep_one(const char *path) {
    struct stat st;
    if (lstat(path, &st) || !S_ISSOCK(st.st_mode)) return; /* connect refuses on any file */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return;
    strcpy(address.sun_path, path);
    LEND__CLEANUP_FD fd = (int)lend__sys.socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (fd < 0) return;
    if (lend__sys.connect(fd, (const struct sockaddr *)&address, sizeof address) == -ECONNREFUSED)
        lend__sys.unlink(path);
}

void lend__folder_sweep(const char *folder) {
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[512];
        uint8_t id[LEND__ID_BYTES];
        if (!lend__identity_parse_name(entry->d_name, geteuid(), id)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        sweep_one(path);
    }
    if (dir) closedir(dir);
}
