/* SPDX-License-Identifier: MIT */
/* Floors: what the same job costs when nothing but the unavoidable is done. */
#include "base/crc32c.h"
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

/* --- many under one handle -------------------------------------------------------------------------------------- */

#define BYTES_A_TENSOR 90u

struct floor_record {
    _Alignas(64) uint8_t bytes[64];
};

static void *room_for(size_t n, size_t bytes) {
    void *p = aligned_alloc(64, (n * bytes + 63) / 64 * 64);
    MUST(p, "no memory for %zu records", n);
    memset(p, 0, n * bytes);
    return p;
}

void floor_many_begin(struct floor_many *floor, const uint8_t *handle, size_t bytes, uint32_t n_tensors,
                      uint32_t n_storages) {
    MUST(bytes >= (size_t)BYTES_A_TENSOR * n_tensors, "the handle is shorter than its floor");
    *floor = (struct floor_many){.handle = handle,
                                 .bytes = bytes,
                                 .n_tensors = n_tensors,
                                 .n_storages = n_storages,
                                 .tensors = room_for(n_tensors, sizeof *floor->tensors),
                                 .storages = room_for(n_storages, sizeof *floor->storages),
                                 .counts = room_for(n_storages, sizeof *floor->counts),
                                 .copy = room_for(n_tensors, BYTES_A_TENSOR)};
}

void floor_many_end(struct floor_many *floor) {
    free(floor->tensors);
    free(floor->storages);
    free(floor->counts);
    free(floor->copy);
}

void floor_many(void *arg, uint64_t n) {
    struct floor_many *f = arg;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t crc = lend__crc32c(0, f->handle, f->bytes);
        __asm__ volatile("" : : "r"(crc));
        for (uint32_t t = 0; t < f->n_tensors; t++) {
            uint8_t to[BYTES_A_TENSOR];
            memcpy(to, f->handle + (size_t)t * BYTES_A_TENSOR, sizeof to);
            __asm__ volatile("" : : "r"(to) : "memory");
            memcpy(&f->tensors[t], to, sizeof f->tensors[t]);
        }
        for (uint32_t s = 0; s < f->n_storages; s++) {
            __atomic_fetch_add(&f->counts[s], 1, __ATOMIC_SEQ_CST);
            memcpy(&f->storages[s], f->handle, sizeof f->storages[s]);
        }
        for (uint32_t s = 0; s < f->n_storages; s++) __atomic_fetch_sub(&f->counts[s], 1, __ATOMIC_SEQ_CST);
    }
}

void floor_reduce(void *arg, uint64_t n) {
    struct floor_many *f = arg;
    for (uint64_t i = 0; i < n; i++) {
        for (uint32_t t = 0; t < f->n_tensors; t++)
            memcpy(f->copy + (size_t)t * BYTES_A_TENSOR, f->handle + (size_t)t * BYTES_A_TENSOR, BYTES_A_TENSOR);
        uint32_t crc = lend__crc32c(0, f->copy, (size_t)f->n_tensors * BYTES_A_TENSOR);
        __asm__ volatile("" : : "r"(crc) : "memory");
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
