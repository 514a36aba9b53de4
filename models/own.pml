/* SPDX-License-Identifier: MIT */
/* Fork of an exporter while another thread T drops the last reference of a storage that was never lent. Nobody can find
 * such a storage, so T needs no lock: it reads a count of 1 and the function that ends it, lowers the count, and frees
 * the block. The prepare handler (thread F, under the ledger's lock) meanwhile lends the storage (F5): it gets a slot,
 * another function that ends it, and a count in the child's page. Child K then uses the block.
 * Without flags no error is found. Each of these takes one rule away and must give an error (a reused block is
 * seen):
 *   -DNOREF   F5: prepare holds no reference of its own while it lends the storage
 *   -DNOBIT   the count does not say "lent", so T, who has read "1, not lent", cannot tell a later 1 from that one
 *   -DNOLEND  F5: the storage is not lent before the fork: nothing counts for the child */
byte n = 1;           /* the storage's references */
bool lent_bit = false; /* of the same word */
bool lent = false;    /* which function ends it */
bool reused = false, ledger = false, limbo = false;
byte hk = 0;          /* the count in the child's page */
bool pageK = false, Kborn = false, Kdead = false;
#define LEDGER atomic { !ledger -> ledger = true }
#define UNLOCK ledger = false

/* Reuse, under the ledger lock: L5 to L8 in one step; lease.pml has them apart. */
#define TRY d_step { \
        if \
        :: !lent || n > 0 || reused \
        :: lent && n == 0 && !reused && pageK && hk > 0 -> limbo = true \
        :: else -> reused = true; limbo = false \
        fi }

active proctype T() {
    bool was_lent, is_last;
    do
    :: n > 1 -> atomic { if :: n > 1 -> n--; break :: else fi }
    :: n == 1 ->
        was_lent = lent;
        if
        :: was_lent -> LEDGER; n--; TRY; UNLOCK; break
        :: !was_lent ->
#ifdef NOBIT
            d_step { is_last = (n == 1); if :: is_last -> n = 0 :: else fi };
#else
            d_step { is_last = (n == 1 && !lent_bit); if :: is_last -> n = 0 :: else fi };
#endif
            if :: is_last -> reused = true; break :: else fi  /* otherwise look again */
        fi
    od
}

proctype K(bool has) {
    if :: has -> assert(!reused); assert(!reused) :: else fi;
    Kdead = true
}

active proctype F() {
    bool has;
    LEDGER;
#ifdef NOREF
    has = (n > 0);
#else
    d_step { has = (n > 0); if :: has -> n++ :: else fi };
#endif
#ifndef NOLEND
    if
    :: has -> lent = true; lent_bit = true
    :: else
    fi;
#endif
#ifndef NOREF
    if
    :: has -> n--; TRY; has = (n > 0)                          /* T may have gone meanwhile */
    :: else
    fi;
#endif
#ifndef NOLEND
    if :: has -> pageK = true; hk = 1 :: else fi;
#endif
    atomic { run K(has); Kborn = true };
    UNLOCK
}

active proctype Ticker() {
    do
    :: atomic { Kdead && pageK -> pageK = false }
    :: atomic { limbo && !ledger && !pageK -> TRY }
    :: timeout -> assert(reused); break
    od
}
