/* SPDX-License-Identifier: MIT */
/* The data structures under a pool: sizes of classes, the index from an offset to its block, the heap. */
#include "memory/heap.h"
#include "memory/shard.h"
#include "pool_fixture.h"

#include <stdlib.h>

LEND_TEST(classes_grow_and_waste_at_most_an_eighth) {
    CHECK_UINT(lend__class_units(0), 1);
    for (uint32_t c = 0; c < LEND__N_CLASSES; c++) {
        uint64_t units = lend__class_units(c), below = c ? lend__class_units(c - 1) : 0;
        CHECK(units > below);
        CHECK_UINT(lend__class_of(units), c);
        CHECK_UINT(lend__class_of(below + 1), c);
        CHECK((units - below - 1) * 8 < units);
    }
    CHECK_UINT(lend__class_units(LEND__N_CLASSES - 1), LEND__SMALL_BYTES_MAX / 64);
}

LEND_TEST(a_fit_holds_the_request_for_every_alignment) {
    for (uint32_t bits = 6; bits <= 21; bits++) {
        for (uint64_t bytes = 1; bytes < 5 * MIB; bytes += bytes / 3 + 1) {
            struct lend__fit fit = lend__fit_of(bits, bytes);
            CHECK(fit.bytes >= bytes);
            CHECK_UINT(fit.bytes % ((uint64_t)1 << bits), 0);
            CHECK(fit.size_class < LEND__N_STACKS || fit.size_class == LEND__CLASS_NONE);
            CHECK_INT(fit.size_class == LEND__CLASS_NONE, bytes > LEND__RECENT_BYTES_MAX);
        }
    }
}

/* An allocation without memory: the heap never looks at the bytes. */
static struct lend__allocation *allocation_make(uint64_t bytes) {
    struct lend__allocation *allocation = calloc(1, sizeof *allocation);
    allocation->extent.bytes = bytes;
    CHECK_CODE(lend__starts_make(&allocation->starts, bytes), 0);
    return allocation;
}

static void allocation_end(struct lend__allocation *allocation) {
    lend__starts_free(&allocation->starts);
    free(allocation);
}

/* Covers, finds and returns everything. */
static void open_all(struct lend__heap *heap, struct lend__allocation *allocation) {
    CHECK_CODE(lend__heap_cover(heap, allocation, allocation->extent.bytes), 0);
    CHECK_PTR(lend__heap_give(heap, allocation->first), allocation->first);
}

LEND_TEST(an_exact_fit_is_found_behind_smaller_blocks_of_its_list) {
    struct lend__heap heap;
    struct lend__block *a, *b, *c, *d, *found;
    struct lend__allocation *allocation = allocation_make(16 * MIB);
    lend__heap_init(&heap, 6);
    open_all(&heap, allocation);
    /* Two blocks of one list (sizes from 1024 KiB to 1088 KiB), the smaller one in front. */
    CHECK_UINT(lend__heap_take(&heap, MIB + 64, 1, &a), 1);
    CHECK_UINT(lend__heap_take(&heap, 64, 1, &b), 1);
    CHECK_UINT(lend__heap_take(&heap, MIB, 1, &c), 1);
    CHECK_UINT(lend__heap_take(&heap, 64, 1, &d), 1);
    struct lend__block *rest = NULL;
    CHECK_UINT(lend__heap_take(&heap, 16 * MIB - 2 * MIB - 192, 1, &rest), 1);
    CHECK_UINT(heap.free_bytes, 0);
    lend__heap_give(&heap, a);
    lend__heap_give(&heap, c);
    CHECK_UINT(lend__heap_largest(&heap), MIB + 64);
    CHECK_UINT(lend__heap_take(&heap, MIB + 64, 1, &found), 1);
    CHECK_PTR(found, a);
    CHECK_UINT(lend__heap_take(&heap, MIB + 64, 1, &found), 0);
    CHECK_PTR(found, NULL);
    lend__heap_fini(&heap);
    allocation_end(allocation);
}

LEND_TEST(a_batch_is_cut_from_one_piece_and_merges_again) {
    struct lend__heap heap;
    struct lend__block *chain, *blocks[16];
    struct lend__allocation *allocation = allocation_make(64 * KIB);
    lend__heap_init(&heap, 6);
    open_all(&heap, allocation);
    CHECK_UINT(lend__heap_take(&heap, 1024, 16, &chain), 16);
    uint64_t n = 0;
    for (struct lend__block *b = chain; b; b = b->free_next) {
        CHECK_UINT(b->off, n * 1024);
        CHECK_UINT(b->state, LEND__BLOCK_CACHED);
        blocks[n++] = b;
    }
    CHECK_UINT(n, 16);
    CHECK_UINT(heap.free_bytes, 48 * KIB);
    for (unsigned i = 0; i < 16; i++) lend__heap_give(&heap, blocks[i * 7 % 16]);
    CHECK(lend__block_is_whole(allocation->first));
    CHECK_UINT(heap.free_bytes, 64 * KIB);
    /* More than there is: as many as fit, and nothing is left over. */
    CHECK_UINT(lend__heap_take(&heap, 20 * KIB, 9, &chain), 3);
    CHECK_UINT(heap.free_bytes, 4 * KIB);
    lend__heap_fini(&heap);
    allocation_end(allocation);
}

LEND_TEST(every_offset_finds_its_block) {
    struct lend__heap heap;
    const uint64_t bytes = 64 * MIB;
    struct lend__allocation *allocation = allocation_make(bytes);
    struct lend__block *held[512] = {0};
    uint64_t state = 88172645463325252u;
    lend__heap_init(&heap, 6);
    open_all(&heap, allocation);
    for (int i = 0; i < 20000; i++) {
        unsigned at = (unsigned)(random_next(&state) % 512);
        if (held[at]) {
            lend__heap_give(&heap, held[at]);
            held[at] = NULL;
        } else {
            uint64_t size = (random_bytes(&state, 23) + 63) & ~(uint64_t)63;
            if (lend__heap_take(&heap, size, 1, &held[at]) == 0) held[at] = NULL;
        }
        if (i % 64 == 0) CHECK(lend__starts_agree(&allocation->starts, allocation->first, bytes));
        uint64_t off = random_next(&state) % bytes;
        struct lend__block *block = lend__starts_find(&allocation->starts, off);
        CHECK(block->off <= off && off - block->off < block->bytes);
        unsigned probe = (unsigned)(random_next(&state) % 512);
        if (held[probe]) {
            off = random_next(&state) % held[probe]->bytes;
            CHECK_PTR(lend__starts_find(&allocation->starts, held[probe]->off + off), held[probe]);
        }
    }
    uint64_t n, listed;
    CHECK(lend__heap_lists_agree(&heap, &n, &listed));
    CHECK_UINT(listed, heap.free_bytes);
    lend__heap_fini(&heap);
    allocation_end(allocation);
}
