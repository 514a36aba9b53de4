/* SPDX-License-Identifier: MIT */
/* Two-level segregated fit: a list per size range, two levels of bits that say which lists have blocks. A request
 * takes the head of its own list if that is large enough, else any block of a larger list, else it looks through its
 * own list: so a fit that exists is always found, and the usual case looks at two words.
 *
 * Invariants: a FREE block is in exactly one list, that of its size, and has no FREE neighbour; every byte of an
 * allocation lies in one block; `starts` knows every block. Records live outside the shared bytes, in chunks that are
 * never returned before the heap, and are recycled. Locking: the pool's lock. */
#include "memory/heap.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>

#define CHUNK_BLOCKS 255

struct lend__block_chunk {
    struct lend__block_chunk *next;
    uint8_t blocks[(CHUNK_BLOCKS + 1) * sizeof(struct lend__block)]; /* one more: room to align */
};

void lend__heap_init(struct lend__heap *heap, uint32_t quantum_bits) {
    *heap = (struct lend__heap){.quantum_bits = quantum_bits};
}

void lend__heap_fini(struct lend__heap *heap) {
    while (heap->chunks) {
        struct lend__block_chunk *chunk = heap->chunks;
        heap->chunks = chunk->next;
        free(chunk);
    }
}

void lend__heap_record_drop(struct lend__heap *heap, struct lend__block *block) {
    block->state = 0;
    block->free_next = heap->spare;
    heap->spare = block;
}

struct lend__block *lend__heap_record_new(struct lend__heap *heap) {
    if (!heap->spare) {
        struct lend__block_chunk *chunk = lend__zalloc(sizeof *chunk);
        if (!chunk) return NULL;
        chunk->next = heap->chunks;
        heap->chunks = chunk;
        uintptr_t mask = sizeof(struct lend__block) - 1;
        struct lend__block *blocks = (struct lend__block *)(void *)(((uintptr_t)chunk->blocks + mask) & ~mask);
        for (size_t i = CHUNK_BLOCKS; i > 0; i--) lend__heap_record_drop(heap, &blocks[i - 1]);
    }
    struct lend__block *block = heap->spare;
    heap->spare = block->free_next;
    return block;
}

static void list_of(const struct lend__heap *heap, uint64_t bytes, uint32_t *ret_row, uint32_t *ret_step) {
    uint64_t units = bytes >> heap->quantum_bits;
    if (units < LEND__HEAP_STEPS) {
        *ret_row = 0;
        *ret_step = (uint32_t)units;
        return;
    }
    uint32_t top = 63 - (uint32_t)__builtin_clzll(units);
    *ret_row = top - 3;
    *ret_step = (uint32_t)(units >> (top - 4)) - LEND__HEAP_STEPS;
}

static void list_add(struct lend__heap *heap, struct lend__block *block) {
    uint32_t row, step;
    list_of(heap, block->bytes, &row, &step);
    struct lend__block **list = &heap->lists[row][step];
    block->state = LEND__BLOCK_FREE;
    block->free_prev = NULL;
    block->free_next = *list;
    if (*list) (*list)->free_prev = block;
    *list = block;
    heap->row_bits |= (uint64_t)1 << row;
    heap->step_bits[row] |= (uint16_t)(1u << step);
    heap->free_bytes += block->bytes;
}

static void list_remove(struct lend__heap *heap, struct lend__block *block) {
    heap->free_bytes -= block->bytes;
    if (block->free_next) block->free_next->free_prev = block->free_prev;
    if (block->free_prev) {
        block->free_prev->free_next = block->free_next;
        return;
    }
    uint32_t row, step;
    list_of(heap, block->bytes, &row, &step);
    heap->lists[row][step] = block->free_next;
    if (block->free_next) return;
    heap->step_bits[row] &= (uint16_t) ~(1u << step);
    if (!heap->step_bits[row]) heap->row_bits &= ~((uint64_t)1 << row);
}

static struct lend__block *find(const struct lend__heap *heap, uint64_t bytes) {
    uint32_t row, step;
    list_of(heap, bytes, &row, &step);
    struct lend__block *own = heap->lists[row][step];
    if (own && own->bytes >= bytes) return own;
    uint32_t steps = heap->step_bits[row] & ~((2u << step) - 1);
    if (steps) return heap->lists[row][__builtin_ctz(steps)];
    uint64_t rows = heap->row_bits & ~(((uint64_t)2 << row) - 1);
    if (rows) {
        row = (uint32_t)__builtin_ctzll(rows);
        return heap->lists[row][__builtin_ctz(heap->step_bits[row])];
    }
    while (own && own->bytes < bytes) own = own->free_next;
    return own;
}

/* Links a fresh record for the part of `block` behind its first `bytes`. */
static struct lend__block *split(struct lend__heap *heap, struct lend__block *block, uint64_t bytes) {
    struct lend__block *rest = lend__heap_record_new(heap);
    if (!rest) return NULL;
    rest->allocation = block->allocation;
    rest->off = block->off + bytes;
    rest->bytes = block->bytes - bytes;
    rest->prev = block;
    rest->next = block->next;
    rest->state = block->state;
    if (rest->next) rest->next->prev = rest;
    block->next = rest;
    block->bytes = bytes;
    lend__starts_add(&rest->allocation->starts, rest);
    return rest;
}

/* Takes the record of `block` away, whose bytes its left neighbour has. */
static void absorb(struct lend__heap *heap, struct lend__block *left, struct lend__block *block) {
    lend__starts_remove(&left->allocation->starts, block);
    left->bytes += block->bytes;
    left->next = block->next;
    if (left->next) left->next->prev = left;
    lend__heap_record_drop(heap, block);
}

int lend__heap_cover(struct lend__heap *heap, struct lend__allocation *allocation, uint64_t bytes) {
    struct lend__block *block = lend__heap_record_new(heap);
    if (!block) return -ENOMEM;
    *block = (struct lend__block){
        .allocation = allocation,
        .bytes = allocation->extent.bytes,
        .state = LEND__BLOCK_HELD,
    };
    allocation->first = block;
    lend__starts_add(&allocation->starts, block);
    if (bytes == block->bytes || split(heap, block, bytes)) return 0;
    lend__heap_uncover(heap, allocation);
    return -ENOMEM;
}

void lend__heap_uncover(struct lend__heap *heap, struct lend__allocation *allocation) {
    for (struct lend__block *block = allocation->first, *next; block; block = next) {
        next = block->next;
        lend__heap_record_drop(heap, block);
    }
    allocation->first = NULL;
}

uint32_t lend__heap_take(struct lend__heap *heap, uint64_t bytes, uint32_t n, struct lend__block **ret_chain) {
    struct lend__block *block = n > 1 ? find(heap, bytes * n) : NULL;
    if (!block) block = find(heap, bytes);
    *ret_chain = NULL;
    if (!block) return 0;
    list_remove(heap, block);
    uint32_t n_taken = 0;
    struct lend__block **tail = ret_chain;
    while (block && n_taken < n) {
        struct lend__block *rest = NULL;
        if (block->bytes < bytes) break;
        if (block->bytes > bytes && !(rest = split(heap, block, bytes))) break;
        block->state = LEND__BLOCK_CACHED;
        *tail = block;
        tail = &block->free_next;
        block = rest;
        n_taken++;
    }
    *tail = NULL;
    if (block) list_add(heap, block);
    return n_taken;
}

struct lend__block *lend__heap_give(struct lend__heap *heap, struct lend__block *block) {
    struct lend__block *prev = block->prev, *next = block->next;
    if (next && lend__block_is_free(next)) {
        list_remove(heap, next);
        absorb(heap, block, next);
    }
    if (prev && lend__block_is_free(prev)) {
        list_remove(heap, prev);
        absorb(heap, prev, block);
        block = prev;
    }
    list_add(heap, block);
    return block;
}

void lend__heap_hold(struct lend__heap *heap, struct lend__block *block) {
    list_remove(heap, block);
    block->state = LEND__BLOCK_HELD;
}

uint64_t lend__heap_largest(const struct lend__heap *heap) {
    if (!heap->row_bits) return 0;
    uint32_t row = 63 - (uint32_t)__builtin_clzll(heap->row_bits);
    uint32_t step = 31 - (uint32_t)__builtin_clz(heap->step_bits[row]);
    uint64_t largest = 0;
    for (const struct lend__block *b = heap->lists[row][step]; b; b = b->free_next)
        if (b->bytes > largest) largest = b->bytes;
    return largest;
}

bool lend__heap_lists_agree(const struct lend__heap *heap, uint64_t *ret_n, uint64_t *ret_bytes) {
    uint64_t n = 0, bytes = 0;
    for (uint32_t row = 0; row < LEND__HEAP_ROWS; row++) {
        if ((heap->row_bits >> row & 1) != (heap->step_bits[row] != 0)) return false;
        for (uint32_t step = 0; step < LEND__HEAP_STEPS; step++) {
            const struct lend__block *prev = NULL;
            if ((heap->step_bits[row] >> step & 1) != (heap->lists[row][step] != NULL)) return false;
            for (const struct lend__block *b = heap->lists[row][step]; b; prev = b, b = b->free_next) {
                uint32_t own_row, own_step;
                list_of(heap, b->bytes, &own_row, &own_step);
                if (b->state != LEND__BLOCK_FREE || b->free_prev != prev || own_row != row || own_step != step)
                    return false;
                n++;
                bytes += b->bytes;
            }
        }
    }
    *ret_n = n;
    *ret_bytes = bytes;
    return true;
}
