/* SPDX-License-Identifier: MIT */
/* Two threads of one importer rebuild handles of one slot while its exporter E drops the storage: one page, one import
 * lock, one storage (src/share/rebuild.c: obtain_storage, take_closing, join). Who meets "closing" keeps its count and
 * waits without the lock; meanwhile the other thread may have brought the storage here. Sequentially consistent.
 * Without flags no error is found. Each of these takes one rule away and must give an error:
 *   -DKEPTLOST     who joins does not give its kept count back                          (block stuck)
 *   -DNOKEEP       who meets closing lowers its count and trusts the storage to be there (reused block seen)
 *   -DGENBLIND     who joins does not compare the generations                            (another storage's bytes)
 *   -DLASTUNLOCKED the last reference goes without the import lock: a joiner meets what is about to go
 *   -DADOPTTWICE   who comes back from waiting does not look whether the storage is here (block stuck) */
#define OPEN 0
#define CLOSING 1
#define FREE 2
byte w_gen = 0, w_st = OPEN, bgen = 0, pubgen = 0;
byte held = 0;
bool ring = false, freed = false;
bool lock = false;           /* the import lock */
bool here = false;           /* imported[slot] */
byte here_gen = 0, refs = 0; /* of that storage */
byte n_done = 0;
#define LOCK atomic { !lock -> lock = true }
#define UNLOCK lock = false

active proctype E() { /* all under the ledger lock */
    byte g = 0;
    bool try = true, limbo = false;
    do
    :: try && !freed ->
        try = false;
        w_st = CLOSING;                                           /* L5 */
        if
        :: held > 0 -> w_st = OPEN; limbo = true                  /* L6, L8 */
        :: else ->
            d_step { w_gen = g + 1; w_st = FREE };                /* L7 */
            bgen = g + 1;
            limbo = false;
            if
            :: g == 0 -> g = 1; w_st = OPEN; pubgen = 1; try = true /* A4; dropped at once */
            :: else -> freed = true
            fi
        fi
    :: atomic { ring -> ring = false; if :: limbo -> try = true :: else fi } /* L9 */
    :: timeout -> assert(freed); break
    od
}

inline give_back() { held--; ring = true } /* L3, L4 */

proctype T() {
    byte g, wg, ws, n = 0;
    bool mine;
    do
    :: n < 2 ->
        n++;
        if :: g = 0 :: pubgen == 1 -> g = 1 fi;
        mine = false;
        LOCK;
        if
        :: here -> goto join
        :: else
        fi;
        held++;                                                   /* L1 */
look:   skip;
        d_step { wg = w_gen; ws = w_st };                         /* L2 */
        if
        :: wg == g && ws == OPEN ->
            here = true; here_gen = g; refs++; mine = true        /* adopt */
        :: wg == g && ws == CLOSING ->
#ifdef NOKEEP
            give_back();
#endif
            UNLOCK;
            LOCK;
#ifndef ADOPTTWICE
            if
            :: here ->
#if !defined(KEPTLOST) && !defined(NOKEEP)
                give_back();
#endif
                goto join
            :: else
            fi;
#endif
#ifdef NOKEEP
            d_step { wg = w_gen; ws = w_st };
            if :: wg == g && ws != FREE -> d_step { here = true; here_gen = g; refs++; mine = true; held++ } :: else fi
#else
            goto look
#endif
        :: else -> give_back()                                    /* the undo */
        fi;
        goto end;
join:   skip;
#ifdef GENBLIND
        refs++; mine = true;
#else
        if :: here_gen == g -> refs++; mine = true :: else fi;
#endif
end:    UNLOCK;
        if
        :: mine ->
            assert(bgen == g);
            assert(bgen == g);
#ifdef LASTUNLOCKED
            refs--;
            if :: refs == 0 -> LOCK; here = false; give_back(); UNLOCK :: else fi
#else
            LOCK;
            refs--;
            if :: refs == 0 -> here = false; give_back() :: else fi;
            UNLOCK
#endif
        :: else
        fi
    :: else -> break
    od;
    n_done++
}

init { atomic { run T(); run T() } }
