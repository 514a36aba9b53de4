/* SPDX-License-Identifier: MIT */
/* Identities and addresses. What is kept is one answer: whether the user this process ran as when it drew its identity
 * is the overflow id, so that a first contact need not read /proc again. */
#include "share/identity.h"

#include "base/atomic.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a small file of /proc whole. Returns the bytes read (NUL-terminated), or a negative errno. */
static int read_small(const char *path, char *buf, size_t bytes) {
    LEND__CLEANUP_FD fd = (int)lend__sys.open(path, O_RDONLY);
    if (fd < 0) return fd;
    long n = lend__sys.read(fd, buf, bytes - 1);
    if (n < 0) return (int)n;
    buf[n] = '\0';
    return (int)n;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* "xxxxxxxx-xxxx-..." -> 16 bytes. Where /proc is not mounted the id stays zero: equal on this host's processes that
 * cannot see it either, and reachability decides. Read once: it lasts as long as the kernel. Returns -EMFILE or -ENFILE
 * when it is there and a table of descriptors is full. */
static int get_boot_id(uint8_t ret[LEND__ID_BYTES]) {
    static uint8_t known[LEND__ID_BYTES]; /* before has_known; racing threads write the same */
    static uint32_t has_known;
    if (!lend__load_acquire(&has_known)) {
        char text[64];
        int n = read_small("/proc/sys/kernel/random/boot_id", text, sizeof text), digits = 0;
        if (n == -EMFILE || n == -ENFILE) return n;
        uint8_t id[LEND__ID_BYTES] = {0};
        for (int i = 0; i < n && digits < 32; i++) {
            int d = hex_digit(text[i]);
            if (d < 0) continue;
            id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | d);
            digits++;
        }
        for (int i = 0; i < LEND__ID_BYTES; i++) lend__store_relaxed(&known[i], id[i]);
        if (digits) lend__store_release(&has_known, 1u);
    }
    for (int i = 0; i < LEND__ID_BYTES; i++) ret[i] = lend__load_relaxed(&known[i]);
    return 0;
}

/* In the initial user namespace every id maps to itself and the overflow id is an ordinary (if unwise) user. */
static bool is_initial_user_namespace(void) {
    char text[64];
    unsigned long inside = 1, outside = 1, count = 0;
    if (read_small("/proc/self/uid_map", text, sizeof text) < 0) return false;
    return sscanf(text, "%lu %lu %lu", &inside, &outside, &count) == 3 && !inside && !outside && count == 4294967295ul;
}

/* The id under which a user namespace shows all users that it does not know. */
static bool is_overflow(uint32_t uid) {
    char text[32];
    uint32_t overflow = 65534;
    if (read_small("/proc/sys/kernel/overflowuid", text, sizeof text) > 0) overflow = (uint32_t)strtoul(text, NULL, 10);
    return uid == overflow && !is_initial_user_namespace();
}

static uint32_t known_uid = UINT32_MAX; /* atomic; UINT32_MAX: none */
static uint32_t known_is_overflow;      /* atomic; written before known_uid */

int lend__identity_draw(struct lend__identity *ret) {
    struct lend__identity me = {.start_ns = lend__boottime_ns(), .uid = geteuid(), .pid = (uint32_t)getpid()};
    long n = lend__sys.getrandom(me.id, sizeof me.id);
    if (n < 0) return (int)n;
    if (n != sizeof me.id) return -EIO;
    int r = get_boot_id(me.boot_id);
    if (r < 0) return r;
    lend__store_relaxed(&known_is_overflow, (uint32_t)is_overflow(me.uid));
    lend__store_release(&known_uid, me.uid);
    *ret = me;
    return 0;
}

int lend__identity_address(uint32_t uid, const uint8_t id[LEND__ID_BYTES], const char *folder,
                           struct sockaddr_un *ret) {
    char name[64];
    int n = snprintf(name, sizeof name, "lend-%u-", uid);
    for (int i = 0; i < LEND__ID_BYTES; i++) n += snprintf(name + n, sizeof name - (size_t)n, "%02x", id[i]);
    memset(ret, 0, sizeof *ret);
    ret->sun_family = AF_UNIX;
    if (!folder || !*folder) {
        memcpy(ret->sun_path + 1, name, (size_t)n); /* a leading NUL: abstract */
        return (int)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    }
    int r = snprintf(ret->sun_path, sizeof ret->sun_path, "%s/%s", folder, name);
    if (r < 0 || (size_t)r >= sizeof ret->sun_path) return -EINVAL;
    return (int)(offsetof(struct sockaddr_un, sun_path) + (size_t)r + 1);
}

bool lend__identity_is_same_user(uint32_t peer_uid) {
    uint32_t euid = geteuid();
    if (peer_uid != euid) return false;
    /* After setuid or unshare the kept answer is another user's. */
    if (lend__load_acquire(&known_uid) == euid) return !lend__load_relaxed(&known_is_overflow);
    return !is_overflow(euid);
}

bool lend__identity_parse_name(const char *name, uint32_t uid, uint8_t ret_id[LEND__ID_BYTES]) {
    char prefix[32];
    int n = snprintf(prefix, sizeof prefix, "lend-%u-", uid);
    if (strncmp(name, prefix, (size_t)n) != 0 || strlen(name + n) != 32) return false;
    for (int i = 0; i < LEND__ID_BYTES; i++) {
        unsigned byte;
        char pair[3] = {name[n + 2 * i], name[n + 2 * i + 1], '\0'};
        if (strspn(pair, "0123456789abcdef") != 2 || sscanf(pair, "%2x", &byte) != 1) return false;
        ret_id[i] = (uint8_t)byte;
    }
    return true;
}
