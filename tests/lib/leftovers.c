/* SPDX-License-Identifier: MIT */
/* Snapshots of /proc/self as text, one thing per line, so that what is left is named as the kernel names it. */
#include "leftovers.h"

#include "runner.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ThreadSanitizer runs a thread of its own, which comes and goes. */
#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#endif
#ifndef HAS_TSAN
#define HAS_TSAN 0
#endif

static void list_descriptors(FILE *out) {
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return;
    for (struct dirent *e; (e = readdir(dir));) {
        char path[64], target[256];
        if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(dir)) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%.16s", e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n < 0) continue;
        target[n] = '\0';
        fprintf(out, "descriptor %s -> %s\n", e->d_name, target);
    }
    closedir(dir);
}

static void list_shared_mappings(FILE *out) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return;
    char line[512];
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:") || strstr(line, "/dev/shm/") || strstr(line, "/SYSV") || strstr(line, "/dev/zero"))
            fprintf(out, "mapping %s", line);
    fclose(maps);
}

static void list_threads(FILE *out) {
    DIR *dir = opendir("/proc/self/task");
    if (!dir || HAS_TSAN) goto end;
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.' && atoi(e->d_name) != getpid()) fprintf(out, "thread %s\n", e->d_name);
end:
    if (dir) closedir(dir);
}

static void list_child(pid_t pid, const char *comm, char state, void *arg) {
    fprintf(arg, "child %d (%s, state %c)\n", (int)pid, comm, state);
}

unsigned leftovers_each_child(void (*fn)(pid_t pid, const char *comm, char state, void *arg), void *arg) {
    unsigned n = 0;
    DIR *dir = opendir("/proc");
    if (!dir) return 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char path[64], stat[512], state;
        int parent, pid = atoi(e->d_name);
        if (pid <= 0) continue;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *file = fopen(path, "re");
        if (!file) continue;
        size_t bytes = fread(stat, 1, sizeof stat - 1, file);
        fclose(file);
        stat[bytes] = '\0';
        char *open = strchr(stat, '('), *close = strrchr(stat, ')');
        if (!open || !close || sscanf(close + 1, " %c %d", &state, &parent) != 2 || parent != getpid()) continue;
        *close = '\0';
        fn(pid, open + 1, state, arg);
        n++;
    }
    closedir(dir);
    return n;
}

char *leftovers_snapshot(void) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) FAIL("no memory for a snapshot");
    list_descriptors(out);
    list_shared_mappings(out);
    list_threads(out);
    leftovers_each_child(list_child, out);
    fclose(out);
    return text;
}

static bool has_line(const char *text, const char *line, size_t bytes) {
    for (; *text; text = strchr(text, '\n') + 1)
        if (!strncmp(text, line, bytes)) return true;
    return false;
}

/* Prints the lines of `a` that `b` lacks (when out is not NULL) and counts them. */
static unsigned subtract(const char *a, const char *b, const char *verb, FILE *out) {
    unsigned n = 0;
    for (const char *end; *a; a = end) {
        end = strchr(a, '\n') + 1;
        if (has_line(b, a, (size_t)(end - a))) continue;
        if (out) fprintf(out, "%s: %.*s", verb, (int)(end - a), a);
        n++;
    }
    return n;
}

void leftovers_check(const char *before) {
    uint64_t deadline = test_deadline_ms(1000);
    for (;;) {
        char *after = leftovers_snapshot();
        bool is_over = test_now_ms() >= deadline;
        FILE *out = is_over ? stderr : NULL;
        unsigned n_left = subtract(after, before, "left behind", out), n_gone = subtract(before, after, "gone", out);
        free(after);
        if (!n_left && !n_gone) return;
        if (is_over) FAIL("%u left behind and %u gone when the test had returned", n_left, n_gone);
        test_pause();
    }
}
