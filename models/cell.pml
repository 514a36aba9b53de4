/* SPDX-License-Identifier: MIT */
/* One cell of a page, used by two threads of an importer, against an exporter that may look at any time: an overrun
 * ring makes it look at every cell, whatever was announced. Thread 0 rebuilds the handle with token 1 twice, then 2 to
 * NTOK - 1; thread 1 the one with token NTOK. A token pins two slots, which are taken one after the other; the second may
 * be refused, and then the first is given back. A token may be consumed once both leases are taken, or when the page is
 * dropped; every token whose delivery has reached a process must be consumed in the end. A cell is two words, each a
 * token of its own: "intent" and "used" (cell.c; consume_cell in page.c). Without flags no error is found. Each of
 * these takes one rule away and must give an error:
 *   -DTOKENSTATE a cell is a token and a state, read one after the other: the old "used" vouches for the next token
 *   -DUSEDFIRST  P2: "used" stands there before any lease is taken
 *   -DCELLSEARLY P2: "used" stands there when the first of the two leases is taken
 *   -DNOINTENT   P2: "intent" does not stand there before the lease is taken: a crash in between leaves no trace
 *   -DNOACK      P4: the cell is used again before its token was acknowledged: a used token is lost
 *   -DNOBUSY     a cell in which a rebuild is under way is told by its words alone: a handle that is rebuilt again
 *                finds its own token there, used and acknowledged, and another thread takes the cell too
 *   -DNOINTENTS  D2: a dropped page's intents are not consumed
 *   -DNODROP     D2: a dropped page's used cells are not looked at again */
#ifndef NTOK
#define NTOK 3
#endif
byte intent = 0, used = 0, acked = 0; /* TOKENSTATE: intent is the token, used the state (0 free, 1 intent, 2 used) */
bool busy = false;                    /* private to the importer, under the import lock */
bool took[NTOK + 1], took2[NTOK + 1]; /* the leases of this token's rebuild are taken */
bool begun[NTOK + 1];                 /* a crash from here on must leave a trace */
bool was_used[NTOK + 1], consumed[NTOK + 1];
bool stop[2], dropped = false;
#define DEAD (stop[0] && stop[1])
#define DIE if :: true :: goto die fi

#ifdef NOACK
#define ACKED true
#else
#ifdef TOKENSTATE
#define ACKED (used == 0 || acked == intent)
#else
#define ACKED (intent == 0 || (used == intent && acked == used)) /* P4 */
#endif
#endif
#ifdef NOBUSY
#define BUSY false
#else
#define BUSY busy
#endif

inline give_back(t) {
    if
    :: !was_used[t] -> took[t] = false; took2[t] = false; begun[t] = false
    :: else
    fi
}

inline rebuild(t) {
#ifdef TOKENSTATE
    if
    :: atomic { ACKED && !BUSY -> busy = true }
    :: stop[1 - me] -> goto die
    fi;
    intent = t;
    DIE;
    d_step { used = 1; begun[t] = true };
#else
    if
#ifdef NOINTENT
    :: atomic { ACKED && !BUSY -> busy = true; begun[t] = true }
#else
    :: atomic { ACKED && !BUSY -> busy = true; intent = t; begun[t] = true }    /* P2 */
#endif
    :: stop[1 - me] -> goto die
    fi;
#endif
    DIE;
#ifdef USEDFIRST
    used = t;
    DIE;
#endif
    took[t] = true;                                                             /* L1, L2 */
    DIE;
#ifdef CELLSEARLY
    used = t;
    DIE;
#endif
    if
    :: took2[t] = true                                                          /* L1, L2 of the other slot */
    :: true                                                                     /* or it is refused */
    fi;
    DIE;
    if
#ifdef TOKENSTATE
    :: d_step { took2[t] -> used = 2; was_used[t] = true; busy = false }
    :: d_step { used = 0; busy = false; give_back(t) }
#else
#ifdef NOINTENT
    :: d_step { took2[t] -> used = t; intent = t; was_used[t] = true; busy = false }
#else
    :: d_step { took2[t] -> used = t; was_used[t] = true; busy = false }        /* P2: used; announced */
#endif
    :: d_step { intent = 0; busy = false; give_back(t) }                        /* it failed: the pin is good */
#endif
    fi;
    DIE
}

active proctype Thread0() {
    byte n = 1, me = 0;
    rebuild(1);
    do
    :: n < NTOK -> rebuild(n); n++
    :: else -> break
    od;
die: stop[0] = true
}

active proctype Thread1() {
    byte me = 1;
    rebuild(NTOK);
die: stop[1] = true
}

inline consume(x) { assert((took[x] && took2[x]) || DEAD); consumed[x] = true; acked = x }

active proctype Exporter() {
    byte u, t;
    do
    :: !dropped ->                                                              /* P3 */
        u = used;
#ifdef TOKENSTATE
        t = intent;
        if :: u == 2 && t != 0 -> consume(t) :: else fi
#else
        if :: u != 0 && u != acked -> consume(u) :: else fi
#endif
    :: DEAD && !dropped ->                                                      /* D2 */
#ifdef TOKENSTATE
        if :: used != 0 && intent != 0 -> consumed[intent] = true :: else fi;
#else
#ifndef NODROP
        if :: used != 0 -> consumed[used] = true :: else fi;
#endif
#ifndef NOINTENTS
        if :: intent != 0 && intent != used -> consumed[intent] = true :: else fi;
#endif
#endif
        dropped = true;
        for (t : 1 .. NTOK) { assert(!begun[t] || consumed[t]) }
        break
    od
}
