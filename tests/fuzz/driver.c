/* SPDX-License-Identifier: MIT */
/* The targets without libFuzzer: driver SEEDS replays every seed, then mutants of them, the same ones each time. Prints
 * TAP. LEND_FUZZ_RUNS sets the number of mutants (20,000). */
#include "fuzz.h"

#include <dirent.h>

enum { SEEDS_MAX = 256, INPUT_MAX = 8192, RUNS = 20000 };

static struct {
    uint8_t *bytes;
    size_t n;
} seeds[SEEDS_MAX];
static unsigned n_seeds;

/* xorshift64*: any platform, the same numbers. */
static uint64_t state = 0x9e3779b97f4a7c15ull;

static uint32_t draw(uint32_t below) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull >> 32) % below);
}

static void read_seed(const char *folder, const char *name) {
    char path[4096];
    static uint8_t buf[1 << 20];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rbe");
    if (!file || n_seeds == SEEDS_MAX) {
        printf("Bail out! %s cannot be read\n", path);
        exit(1);
    }
    size_t n = fread(buf, 1, sizeof buf, file);
    fclose(file);
    seeds[n_seeds].bytes = malloc(n + 1);
    if (!seeds[n_seeds].bytes) exit(1);
    memcpy(seeds[n_seeds].bytes, buf, n);
    seeds[n_seeds++].n = n;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* In the order of their names, which every file system gives alike. */
static void read_seeds(const char *folder) {
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, NULL, by_name);
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') read_seed(folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

static const uint64_t interesting[] = {0,
                                       1,
                                       0x7f,
                                       0x80,
                                       0xff,
                                       0x7fff,
                                       0xffff,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       0x7fffffffffffffff,
                                       0x8000000000000000,
                                       0xffffffffffffffff};

/* One small change; returns the new length. */
static size_t change(uint8_t *bytes, size_t n) {
    uint32_t at = n ? draw((uint32_t)n) : 0;
    size_t width = (size_t)1 << draw(4);
    switch (draw(7)) {
    case 0: /* a bit */
        if (n) bytes[at] ^= (uint8_t)(1u << draw(8));
        break;
    case 1: /* a byte */
        if (n) bytes[at] = (uint8_t)draw(256);
        break;
    case 2: /* a number at the edge of something */
        if (at + width <= n) memcpy(bytes + at, &interesting[draw(sizeof interesting / sizeof interesting[0])], width);
        break;
    case 3: /* cut */ return at;
    case 4: /* longer */
        if (n + 1 < INPUT_MAX) {
            memmove(bytes + at + 1, bytes + at, n - at);
            bytes[at] = (uint8_t)draw(256);
            return n + 1;
        }
        break;
    case 5: /* a piece of another seed */
        if (n) {
            unsigned other = draw(n_seeds);
            size_t piece = seeds[other].n ? draw((uint32_t)seeds[other].n) : 0;
            if (piece > n - at) piece = n - at;
            memcpy(bytes + at, seeds[other].bytes, piece);
        }
        break;
    default: /* something taken out */
        if (n) {
            memmove(bytes + at, bytes + at + 1, n - at - 1);
            return n - 1;
        }
    }
    return n;
}

static void run_mutant(void) {
    static uint8_t bytes[INPUT_MAX];
    unsigned which = draw(n_seeds);
    size_t n = seeds[which].n < INPUT_MAX ? seeds[which].n : INPUT_MAX;
    memcpy(bytes, seeds[which].bytes, n);
    for (unsigned changes = 1 + draw(4); changes; changes--) n = change(bytes, n);
    /* A block of exactly that length, so that a sanitizer sees the first byte too many. */
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact) exit(1);
    memcpy(exact, bytes, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

int main(int argc, char **argv) {
    const char *value = getenv("LEND_FUZZ_RUNS");
    unsigned runs = value ? (unsigned)atoi(value) : RUNS;
    if (argc != 2) return 2;
    read_seeds(argv[1]);
    printf("TAP version 13\n1..2\n");
    fflush(stdout);
    if (!n_seeds) return 1;
    for (unsigned i = 0; i < n_seeds; i++) LLVMFuzzerTestOneInput(seeds[i].bytes, seeds[i].n);
    printf("ok 1 - %u seeds\n", n_seeds);
    fflush(stdout);
    for (unsigned i = 0; i < runs; i++) run_mutant();
    printf("ok 2 - %u mutants of them\n", runs);
    for (unsigned i = 0; i < n_seeds; i++) free(seeds[i].bytes);
    return 0;
}
