/* SPDX-License-Identifier: MIT */
/* How much memory may this process still take? Inside a memory cgroup a shortage is not an error of the call that
 * meets it: the kernel kills. So before pages are reserved the request is compared with what every ancestor group
 * leaves (version 1 and 2), with what the machine has, and with RLIMIT_FSIZE (which would send SIGXFSZ).
 * What cannot be read is no limit. Stateless: a process may be moved between groups at any time. */
#include "base/error.h"
#include "base/sys.h"
#include "device/cpu/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define PATH_ROOM 1024
/* What processors charge ahead, and the records of the object itself. */
#define FIXED_BYTES ((uint64_t)256 << 10)
/* Version 1 writes LONG_MAX rounded down to pages for "unlimited". */
#define UNLIMITED ((uint64_t)1 << 62)

static void narrow(struct lend__cpu_room *room, uint64_t bytes, const char *kind, const char *name) {
    if (bytes >= room->bytes) return;
    room->bytes = bytes;
    int n = snprintf(room->limit, sizeof room->limit, "%s%s", kind, name);
    /* Of a long group name the end says more than the beginning. */
    if (n >= (int)sizeof room->limit) {
        size_t left = sizeof room->limit - strlen(kind) - 4, length = strlen(name);
        snprintf(room->limit, sizeof room->limit, "%s...%s", kind, name + (length > left ? length - left : 0));
    }
}

/* The first number in DIR/FILE; false when there is none ("max", no such file). */
static bool number_read(const char *dir, const char *file, uint64_t *ret) {
    char path[2 * PATH_ROOM + 32], line[64], *end;
    struct lend__lines lines;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (lend__lines_open(&lines, path) < 0) return false;
    bool is_read = lend__lines_next(&lines, line, sizeof line);
    lend__lines_close(&lines);
    if (!is_read) return false;
    *ret = strtoull(line, &end, 10);
    return end != line;
}

/* The number behind KEY in a file of "key value" lines; 0 when it is not there. */
static uint64_t key_read(const char *path, const char *key) {
    struct lend__lines lines;
    char line[128];
    size_t n = strlen(key);
    uint64_t value = 0;
    if (lend__lines_open(&lines, path) < 0) return 0;
    while (lend__lines_next(&lines, line, sizeof line)) {
        if (strncmp(line, key, n) != 0 || (line[n] != ' ' && line[n] != ':')) continue;
        value = strtoull(line + n + 1, NULL, 10);
        break;
    }
    lend__lines_close(&lines);
    return value;
}

static void group_check(struct lend__cpu_room *room, const char *dir, bool is_v2) {
    uint64_t limit, usage = 0;
    if (!number_read(dir, is_v2 ? "memory.max" : "memory.limit_in_bytes", &limit) || limit >= UNLIMITED) return;
    number_read(dir, is_v2 ? "memory.current" : "memory.usage_in_bytes", &usage);
    char path[2 * PATH_ROOM + 32];
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t cache = key_read(path, is_v2 ? "inactive_file" : "total_inactive_file");
    usage = usage > cache ? usage - cache : 0;
    narrow(room, limit > usage ? limit - usage : 0, "memory cgroup ", dir);
}

/* Turns the \040 of mountinfo back into characters, in place. */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] && from[3]) {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

static bool has_option(char *options, const char *wanted) {
    char *save = NULL;
    for (char *o = strtok_r(options, ",", &save); o; o = strtok_r(NULL, ",", &save))
        if (strcmp(o, wanted) == 0) return true;
    return false;
}

/* Finds where the memory hierarchy of that version is mounted, and which group is the root of the mount. */
static bool mount_find(bool is_v2, char *point, char *root, size_t room) {
    struct lend__lines lines;
    char line[2 * PATH_ROOM + 512];
    bool is_found = false;
    if (lend__lines_open(&lines, "/proc/self/mountinfo") < 0) return false;
    while (!is_found && lend__lines_next(&lines, line, sizeof line)) {
        /* id parent major:minor root point options [tags...] - type source super-options */
        char *tail = strstr(line, " - "), *save = NULL;
        if (!tail) continue;
        *tail = '\0';
        char *type = strtok_r(tail + 3, " ", &save);
        char *source = strtok_r(NULL, " ", &save), *super = strtok_r(NULL, " ", &save);
        if (!type || !source || !super || strcmp(type, is_v2 ? "cgroup2" : "cgroup") != 0) continue;
        if (!is_v2 && !has_option(super, "memory")) continue;
        char *field = strtok_r(line, " ", &save);
        for (int i = 0; i < 3 && field; i++) field = strtok_r(NULL, " ", &save);
        char *at = field ? strtok_r(NULL, " ", &save) : NULL;
        if (!at || strlen(field) >= room || strlen(at) >= room) continue;
        unescape(field);
        unescape(at);
        strcpy(root, field);
        strcpy(point, at);
        is_found = true;
    }
    lend__lines_close(&lines);
    return is_found;
}

/* Looks at GROUP (as /proc/self/cgroup names it) and at every ancestor that is visible through the mount. */
static void hierarchy_check(struct lend__cpu_room *room, const char *group, bool is_v2) {
    char point[PATH_ROOM], root[PATH_ROOM], dir[2 * PATH_ROOM];
    if (!mount_find(is_v2, point, root, sizeof point)) return;
    size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    bool is_inside = strncmp(group, root, n) == 0 && (group[n] == '/' || group[n] == '\0') && !strstr(group, "/..");
    int written = snprintf(dir, sizeof dir, "%s%s", point, is_inside ? group + n : "");
    if (written >= PATH_ROOM) return;
    for (size_t top = strlen(point);;) {
        size_t end = strlen(dir);
        while (end > top && dir[end - 1] == '/') dir[--end] = '\0';
        group_check(room, dir, is_v2);
        if (end <= top) return;
        while (end > top && dir[end - 1] != '/') end--;
        dir[end] = '\0';
    }
}

static void groups_check(struct lend__cpu_room *room) {
    struct lend__lines lines;
    char line[PATH_ROOM];
    if (lend__lines_open(&lines, "/proc/self/cgroup") < 0) return;
    while (lend__lines_next(&lines, line, sizeof line)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = '\0';
        *group++ = '\0';
        bool is_v2 = strcmp(line, "0") == 0 && !*controllers;
        if (is_v2 || has_option(controllers, "memory")) hierarchy_check(room, group, is_v2);
    }
    lend__lines_close(&lines);
}

void lend__cpu_room_read(struct lend__cpu_room *ret) {
    *ret = (struct lend__cpu_room){.bytes = UINT64_MAX};
    uint64_t available = key_read("/proc/meminfo", "MemAvailable");
    if (available) narrow(ret, available * 1024, "MemAvailable of /proc/meminfo", "");
    groups_check(ret);
}

int lend__cpu_room_check(uint64_t bytes, uint64_t asked, const char *operation, struct lend_error *error) {
    struct lend__cpu_room room;
    lend__cpu_room_read(&room);
    if (room.bytes == UINT64_MAX) return 0;
    /* Page tables and the page cache's tree are charged too: about 0.4 % of the pages; 1/128 is kept for them. */
    uint64_t usable = room.bytes > FIXED_BYTES ? room.bytes - FIXED_BYTES : 0, available = usable - usable / 128;
    if (bytes > available)
        return lend__fail_bytes(error, -ENOMEM, operation, asked, available,
                                "no memory for %llu bytes: %llu are available (%s); ask for less or raise the limit",
                                (unsigned long long)asked, (unsigned long long)available, room.limit);
    return 0;
}

int lend__cpu_file_check(uint64_t asked, const char *operation, struct lend_error *error) {
    struct rlimit file;
    if (getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur != RLIM_INFINITY && asked > file.rlim_cur)
        return lend__fail_bytes(error, -ENOMEM, operation, asked, file.rlim_cur,
                                "no memory for %llu bytes: RLIMIT_FSIZE allows %llu; ask for less or raise it",
                                (unsigned long long)asked, (unsigned long long)file.rlim_cur);
    return 0;
}

uint64_t lend__cpu_huge_page_bytes(void) {
    return key_read("/proc/meminfo", "Hugepagesize") * 1024;
}
