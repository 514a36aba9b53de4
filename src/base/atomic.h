/* SPDX-License-Identifier: MIT */
/* Atomics by the name of their order. Everything shared between threads or processes goes through these; a use that
 * is part of the protocol carries a label (L1, L2, ...) that docs/memory-model.md and models/ explain. */
#ifndef LEND_BASE_ATOMIC_H_
#define LEND_BASE_ATOMIC_H_

#include <stdint.h>

_Static_assert(__atomic_always_lock_free(sizeof(uint64_t), 0), "shared words need lock-free 64-bit atomics");
_Static_assert(__atomic_always_lock_free(sizeof(uint32_t), 0), "shared counts need lock-free 32-bit atomics");

#define lend__load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define lend__load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define lend__load_seq_cst(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define lend__store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define lend__store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define lend__store_seq_cst(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define lend__add_relaxed(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define lend__add_seq_cst(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define lend__sub_release(p, v) __atomic_fetch_sub((p), (v), __ATOMIC_RELEASE)
#define lend__sub_acq_rel(p, v) __atomic_fetch_sub((p), (v), __ATOMIC_ACQ_REL)
#define lend__sub_seq_cst(p, v) __atomic_fetch_sub((p), (v), __ATOMIC_SEQ_CST)
#define lend__or_seq_cst(p, v) __atomic_fetch_or((p), (v), __ATOMIC_SEQ_CST)
#define lend__exchange_acquire(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQUIRE)
#define lend__cas_acq_rel(p, expected, v) \
    __atomic_compare_exchange_n((p), (expected), (v), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#define lend__cas_relaxed(p, expected, v) \
    __atomic_compare_exchange_n((p), (expected), (v), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

#endif
