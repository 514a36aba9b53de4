/* SPDX-License-Identifier: MIT */
/* Counting by inode: /proc/PID/fd tells what is open, /proc/PID/maps what is mapped. The processes of this run are
 * those with our LEND_TEST_RUN in their environment, whoever their parent is now. */
#include "memory.h"

#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INODES_MAX = 65536 };

struct inodes {
    unsigned n;
    struct entry {
        uint64_t inode, bytes, resident_bytes;
    } * entries;
};

static struct entry *entry_of(struct inodes *set, uint64_t inode) {
    for (unsigned i = 0; i < set->n; i++)
        if (set->entries[i].inode == inode) return &set->entries[i];
    if (set->n == INODES_MAX) FAIL("more than %d shared inodes", INODES_MAX);
    set->entries[set->n] = (struct entry){.inode = inode};
    return &set->entries[set->n++];
}

static void add_stat(struct inodes *set, const struct stat *st) {
    struct entry *e = entry_of(set, st->st_ino);
    e->bytes = (uint64_t)st->st_size;
    e->resident_bytes = (uint64_t)st->st_blocks * 512;
}

static void add_open(struct inodes *set, int pid) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    if (!dir) return;
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = '\0';
        if (strncmp(target, "/memfd:lend", 11) || fstatat(dirfd(dir), e->d_name, &st, 0)) continue;
        add_stat(set, &st);
    }
    closedir(dir);
}

static void add_mapped(struct inodes *set, int pid) {
    char path[96], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    if (!maps) return;
    while (fgets(line, sizeof line, maps)) {
        unsigned long long from, to, off, inode;
        struct stat st;
        if (!strstr(line, "/memfd:lend")) continue;
        if (sscanf(line, "%llx-%llx %*s %llx %*s %llu", &from, &to, &off, &inode) != 4) continue;
        snprintf(path, sizeof path, "/proc/%d/map_files/%llx-%llx", pid, from, to);
        if (!stat(path, &st)) {
            add_stat(set, &st);
        } else {
            struct entry *e = entry_of(set, inode);
            if (off + (to - from) > e->bytes) e->bytes = off + (to - from);
        }
    }
    fclose(maps);
}

static bool is_of_this_run(int pid, const char *mark) {
    char path[64], env[32768];
    if (pid == getpid()) return true;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, env, sizeof env - 1);
    close(fd);
    if (n <= 0) return false;
    env[n] = '\0';
    for (const char *e = env; e < env + n; e += strlen(e) + 1)
        if (!strcmp(e, mark)) return true;
    return false;
}

struct memory_count memory_count(void) {
    const char *run = getenv("LEND_TEST_RUN");
    char mark[64];
    snprintf(mark, sizeof mark, "LEND_TEST_RUN=%s", run ? run : "");
    struct inodes set = {0, calloc(INODES_MAX, sizeof(struct entry))};
    DIR *proc = opendir("/proc");
    if (!proc || !set.entries) FAIL("cannot count shared memory");
    for (struct dirent *e; (e = readdir(proc));) {
        int pid = atoi(e->d_name);
        if (pid <= 0 || !is_of_this_run(pid, mark)) continue;
        add_open(&set, pid);
        add_mapped(&set, pid);
    }
    closedir(proc);
    struct memory_count sum = {.n_inodes = set.n};
    for (unsigned i = 0; i < set.n; i++) {
        sum.bytes += set.entries[i].bytes;
        sum.resident_bytes += set.entries[i].resident_bytes;
    }
    free(set.entries);
    return sum;
}
