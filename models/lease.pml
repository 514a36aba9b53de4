/* SPDX-License-Identifier: MIT */
/* The lease: one slot, its exporter E, NI importers, TSO store buffers for the word and for every page's count.
 * Labels (L1, L2, ...) are those of the code: src/share/lease.h, ledger.c, page.c; docs/memory-model.md has them all.
 * Wrong bytes are asserted by the importers (the block still has the generation of the lease), "stuck" by E when
 * nothing can move any more. Without flags no error is found. Each of these takes one rule away and must give an error:
 *   -DNOFENCE_E      L5 is not sequentially consistent: the pages are read before "closing" is seen by others
 *   -DNOFENCE_I      L1 is not: the word is read before the count is seen by others
 *   -DSCANFIRST      L6 before L5: the pages are read, then the word says closing
 *   -DSPLIT          generation and state are two words
 *   -DEARLYDEC       L3 is not a release: one access may come after it
 *   -DCHUNKLATE      the bit of the chunk is set after the word was read (lend__lease_mark_chunk comes first)
 *   -DGIVELATE       "was given the allocation" is noted after the descriptor was sent (lend__page_give comes first)
 *   -DCLOSINGSTALE   closing is answered as stale
 *   -DSILENTUNDO     an undone count is not announced                                    (with -DLIVEON)
 *   -DUNLOCKED       rings are drained without the ledger lock                           (with -DLIVEON)
 *   -DNODEATHRETRY   D4: limbo is not tried again after a page was dropped
 *   -DREUSEFIRST     L7: the block is touched before the word says free                  (with -DEDIE)
 *   -DNOREREAD       X1: the word is not read again after the death is known             (with -DEDIE)
 *   -DFROZENALIVE    a take without a page, and the exporter is not known to be dead     (with -DEDIE)
 * Bounds and cases:
 *   -DNI=n importers (2)   -DNT=n rebuilds each (2)   -DMAXG=n generations lent (2)   -DNOFWD without forwarding
 *   -DLIVEON         an importer that is done stays alive, idle
 *   -DCONTACT        importers make first contact, at any time (otherwise they have been given the allocation)
 *   -DEDIE           the exporter may die at any step; a process without a page meets its frozen word
 *   -DREVSCAN        the pages are read in the other order
 *   -DOWNBACK        the exporter rebuilds its own handle out of limbo, once (lend__ledger_find) */
#ifndef NI
#define NI 2
#endif
#ifndef NT
#define NT 2
#endif
#ifndef MAXG
#define MAXG 2
#endif
#define OPEN 0
#define CLOSING 1
#define FREE 2
#ifdef GIVELATE
#define CONTACT
#endif

byte w_gen = 0, w_st = OPEN; /* the word, in memory */
byte bgen = 0;               /* which generation's bytes the block has */
byte pubgen = 0;             /* handles of generations 0..pubgen have been published */
byte held[NI];               /* the counts, in memory */
bool chunk[NI];              /* the bit of the count's chunk */
bool ring[NI];               /* the slot has been announced */
bool dead[NI], live[NI] = true, gone[NI];
#ifdef CONTACT
bool given[NI], met[NI];
#define GIVEN(i) given[i]
#else
#define GIVEN(i) true
#endif
bool edead = false, freed = false;
bool own = true, try = false, limbo = false; /* the exporter's books, under the ledger lock */
#ifdef OWNBACK
bool back = false;
#endif
chan eb = [2] of { byte, byte }; /* E's store buffer: the word */
chan ib[NI] = [2] of { byte };   /* each importer's: its count */
chan fwd = [1] of { byte };
chan ack = [1] of { bit };

active proctype Mem() {
    byte v, s;
end: do
    :: atomic { eb?v,s -> w_gen = v; w_st = s }
    :: atomic { ib[0]?v -> held[0] = v }
    :: atomic { ib[1]?v -> held[1] = v }
#if NI > 2
    :: atomic { ib[2]?v -> held[2] = v }
#endif
    od
}

#ifdef EDIE
#define EX if :: true :: goto edie fi
#else
#define EX skip
#endif
#ifdef REVSCAN
#define PG (NI - 1 - i)
#else
#define PG i
#endif

/* D1 to D4: the kernel says that nobody has the page any more; it is drained, dropped, and limbo is tried. */
#ifdef NODEATHRETRY
#define DROP(i) atomic { dead[i] && live[i] && len(ib[i]) == 0 -> live[i] = false }
#else
#define DROP(i) atomic { dead[i] && live[i] && len(ib[i]) == 0 -> \
        live[i] = false; if :: limbo -> try = true :: else fi }
#endif
/* L9: the tick (or a pool that would grow) drains the rings; only a slot in limbo is tried. */
#define DRAIN(i) atomic { ring[i] -> ring[i] = false; if :: limbo -> try = true :: else fi }

active proctype E() {
    byte i, g = 0;
    bool found;
    do
    :: own -> atomic { own = false; try = true }
#ifdef OWNBACK
    :: atomic { limbo && !back && !freed -> back = true; limbo = false; own = true; try = false }
#endif
    :: !own && try && !freed -> EX;
        try = false;
#ifndef SCANFIRST
        eb!g,CLOSING; EX;                                    /* L5 */
#ifndef NOFENCE_E
        len(eb) == 0;
#endif
#endif
        found = false;
        i = 0;
        do                                                   /* L6 */
        :: i < NI ->
            if
            :: live[PG] && GIVEN(PG) && chunk[PG] -> if :: held[PG] > 0 -> found = true :: else fi
            :: else
            fi;
            i++;
            EX
        :: else -> break
        od;
#ifdef SCANFIRST
        eb!g,CLOSING;
#endif
        if
        :: found -> eb!g,OPEN; EX; limbo = true              /* L8 */
#ifdef UNLOCKED
#else
            ; len(eb) == 0
#endif
        :: !found ->
#ifdef REUSEFIRST
            bgen = g + 1; EX; eb!(g + 1),FREE;
#else
            eb!(g + 1),FREE; EX; len(eb) == 0; bgen = g + 1; /* L7, then the block */
#endif
            limbo = false; EX;
            if
            :: g + 1 < MAXG -> g++; own = true; eb!g,OPEN; len(eb) == 0; pubgen = g  /* A3, A4 */
            :: else -> g++; freed = true
            fi
        fi;
        i = 0
#ifdef CONTACT
#ifdef GIVELATE
    :: !met[0] -> met[0] = true
    :: !met[1] -> met[1] = true
    :: met[0] && !given[0] -> given[0] = true
    :: met[1] && !given[1] -> given[1] = true
#else
    :: atomic { !met[0] -> given[0] = true; met[0] = true }  /* C2: noted and sent under one hold of the lock */
    :: atomic { !met[1] -> given[1] = true; met[1] = true }
#endif
#endif
#ifndef UNLOCKED
    :: DRAIN(0)
    :: DRAIN(1)
#endif
    :: DROP(0)
    :: DROP(1)
#if NI > 2
    :: DRAIN(2)
    :: DROP(2)
#endif
    :: timeout -> assert(freed); break
    od;
    goto fin;
#ifdef EDIE
edie:
    len(eb) == 0;
    edead = true;
#endif
fin: skip
}

#ifdef UNLOCKED
active proctype Svc() {
end: do
    :: ring[0] -> ring[0] = false; if :: limbo -> try = true :: else fi
    :: ring[1] -> ring[1] = false; if :: limbo -> try = true :: else fi
    od
}
#endif

#ifdef EDIE
/* A tensor that came with a message: table and allocation, no page. X1, then the frozen word. */
active proctype Frozen() {
    byte g = 0, rg, rs;
#ifndef FROZENALIVE
endF: edead;
#endif
    if :: true :: pubgen >= 1 -> g = 1 fi;
    d_step { rg = w_gen; rs = w_st };
    if
    :: rg == g && rs != FREE -> assert(bgen == g); assert(bgen == g)
    :: else
    fi
}
#endif

#define DIE if :: true :: goto die fi
inline give_back() { my--; ib[me]!my; DIE; len(ib[me]) == 0; ring[me] = true } /* L3, L4 */

proctype I(byte me) {
    byte n = 0, g = 0, rg = 0, rs = 0, my = 0;
    bool must = false, fw = false, ok = false;
#ifdef CONTACT
    if :: met[me] :: edead -> goto out fi;
#endif
    do
    :: n < NT ->
        n++;
        must = false;
        ok = false;
        if
        :: g = 0
        :: pubgen >= 1 -> g = 1
#ifndef NOFWD
        :: me == 1 && len(fwd) > 0 -> fwd?g; must = true
#endif
        fi;
#ifndef CHUNKLATE
        if :: !chunk[me] -> chunk[me] = true; DIE :: else fi;
#endif
        my++;
        ib[me]!my;                                           /* L1 */
        DIE;
#ifndef NOFENCE_I
        len(ib[me]) == 0;
#endif
again:  skip;
#ifdef SPLIT
        rg = w_gen;
        rs = w_st;
#else
        d_step { rg = w_gen; rs = w_st };                    /* L2 */
#endif
        if
        :: rg == g && rs == OPEN -> ok = true
        :: rg == g && rs == CLOSING ->
#ifdef CLOSINGSTALE
            ok = false
#else
            if
            :: edead ->                                      /* X1: once more, now that nobody can write it */
#ifndef NOREREAD
                d_step { rg = w_gen; rs = w_st };
#endif
                ok = (rg == g && rs != FREE)
            :: !(w_gen == g && w_st == CLOSING) -> goto again /* the count is kept */
            fi
#endif
        :: else -> ok = false
        fi;
#ifdef CHUNKLATE
        chunk[me] = true;
#endif
        if
        :: ok ->
            DIE;
            assert(bgen == g);
            DIE;
            fw = false;
            if
#ifndef NOFWD
            :: me == 0 && len(fwd) == 0 && len(ack) == 0 && !dead[1] && !gone[1] -> /* holds until the next has taken */
                fw = true;
                fwd!g;
                DIE;
                if :: ack?_ :: dead[1] || gone[1] fi;
                assert(bgen == g)
#endif
            :: true
            fi;
#ifdef EARLYDEC
            give_back();
            assert(bgen == g)
#else
            assert(bgen == g);
            give_back()
#endif
        :: !ok ->
            assert(!must || dead[0] || edead);               /* the forwarder still holds: the next must get it */
#ifdef SILENTUNDO
            my--;
            ib[me]!my
#else
            give_back()
#endif
        fi;
        if :: must -> ack!1 :: else fi
    :: me == 1 && len(fwd) > 0 && n >= NT -> fwd?g; ack!1    /* not rebuilt, answered */
    :: me != 1 || len(fwd) == 0 -> break
    od;
out:
#ifdef LIVEON
    len(ib[me]) == 0;
    gone[me] = true;
    goto quiet;
#endif
die:
    len(ib[me]) == 0;
    dead[me] = true;                                         /* an orderly exit is a death too */
quiet: skip
}

init { atomic { byte k = 0; do :: k < NI -> run I(k); k++ :: else -> break od } }
