/* SPDX-License-Identifier: MIT */
/* Floors: what the same job costs when nothing but the unavoidable is done. */
#include "bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The compiler may not leave out the pair. */
static void allocate_and_free(size_t bytes) {
    void *p = malloc(bytes);
    __asm__ volatile("" : "+r"(p) : : "memory");
    free(p);
}

void floor_rebuild(void *arg, uint64_t n) {
    (void)arg;
    static uint8_t from[144];
    static uint32_t count;
    uint8_t to[sizeof from];
    for (uint64_t i = 0; i < n; i++) {
        memcpy(to, from, sizeof to);
        __asm__ volatile("" : : "r"(to) : "memory");
        __atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST);
        allocate_and_free(64);
        __atomic_fetch_sub(&count, 1, __ATOMIC_SEQ_CST);
    }
}

void floor_mutex(void *arg, uint64_t n) {
    (void)arg;
    for (uint64_t i = 0; i < n; i++) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
}

void floor_malloc(void *arg, uint64_t n) {
    const uint64_t *bytes = arg;
    for (uint64_t i = 0; i < n; i++) allocate_and_free(*bytes);
}

void floor_instructions(void *arg, uint64_t n) {
    (void)arg;
    uint64_t a = 1, b = 2, c = 3, d = 4;
    for (uint64_t i = 0; i < 250 * n; i++) {
        a += i;
        b += i;
        c += i;
        d += i;
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
    }
}

/* --- dependent loads ------------------------------------------------------------------------------------------------- */

struct line {
    _Alignas(64) struct line *next;
};

static void walk(void *arg, uint64_t n) {
    struct line **at = arg, *line = *at;
    for (uint64_t i = 0; i < n; i++) line = line->next;
    *at = line;
}

/* One cycle through all lines (Sattolo), in a memfd as the slot table and the pages are. */
struct figure floor_miss(uint64_t bytes) {
    uint64_t n = bytes / sizeof(struct line), state = 1;
    int fd = memfd_create("lend-bench", MFD_CLOEXEC);
    MUST(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, "no memfd");
    struct line *lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(lines != MAP_FAILED, "no mapping");
    for (uint64_t i = 0; i < n; i++) lines[i].next = &lines[i];
    for (uint64_t i = n - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t j = (state >> 33) % i;
        struct line *next = lines[i].next;
        lines[i].next = lines[j].next;
        lines[j].next = next;
    }
    struct line *at = lines;
    struct result r = {.group = ""};
    measure(&r, walk, NULL, &at, 1 << 20);
    munmap(lines, bytes);
    close(fd);
    return r.ours;
}
