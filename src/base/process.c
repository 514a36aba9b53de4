/* SPDX-License-Identifier: MIT */
/* The word that a raw clone does not inherit. Written only by lend__process_init, which runs under the context lock
 * or in a fork handler, so by one thread at a time. */
#include "base/process.h"

#include "base/sys.h"

#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static const volatile uint32_t never_wiped = 1;
const volatile uint32_t *lend__process_word = &never_wiped;
uint32_t lend__fork_epoch;

static uint32_t *word;

int lend__process_init(void) {
    if (!word) {
        void *at = NULL;
        long r =
            lend__sys.mmap(NULL, lend__page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &at);
        if (r < 0) return (int)r;
        (void)lend__sys.madvise(at, lend__page_bytes(), MADV_WIPEONFORK);
        word = at;
    }
    *word = 1;
    lend__process_word = word;
    return 0;
}
