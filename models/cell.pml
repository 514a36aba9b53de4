/* SPDX-License-Identifier: MIT */
/* One cell of a page, used for the tokens 1..NTOK one after another, against an exporter that may look at any time: an
 * overrun ring makes it look at every cell, whatever was announced. A token may be consumed once its lease is taken, or
 * when the page is dropped; every token whose delivery has reached a process must be consumed in the end. A cell is two
 * words, each a token of its own: "intent" and "used" (cell.c; consume_cell in page.c). Without flags no error is found.
 * Each of these takes one rule away and must give an error:
 *   -DTOKENSTATE a cell is a token and a state, two words read one after the other: the old "used" vouches for the next token
 *   -DUSEDFIRST  P2: "used" stands there before the lease is taken
 *   -DNOINTENT   P2: "intent" does not stand there before the lease is taken: a crash in between leaves no trace
 *   -DNOACK      P4: the cell is used again before its token was acknowledged: a used token is lost
 *   -DNOINTENTS  D2: a dropped page's intents are not consumed
 *   -DNODROP     D2: a dropped page's used cells are not looked at again */
#ifndef NTOK
#define NTOK 3
#endif
byte intent = 0, used = 0, acked = 0; /* TOKENSTATE: intent is the token, used the state (0 free, 1 intent, 2 used) */
bool took[NTOK + 1];                  /* the lease of this token's rebuild is taken */
bool begun[NTOK + 1];                 /* a crash from here on must leave a trace */
bool consumed[NTOK + 1];
bool dead = false, dropped = false;
#define DIE if :: true :: goto die fi

active proctype Importer() {
    byte t = 1;
    do
    :: t <= NTOK ->
#ifndef NOACK
#ifdef TOKENSTATE
        (used == 0 || acked == intent);
#else
        (intent == 0 || (used == intent && acked == used));                 /* P4 */
#endif
#endif
        DIE;
#ifdef USEDFIRST
        used = t;
        DIE;
#endif
#ifdef TOKENSTATE
        intent = t;
        DIE;
        d_step { used = 1; begun[t] = true };
#else
#ifdef NOINTENT
        begun[t] = true;
#else
        d_step { intent = t; begun[t] = true };                             /* P2 */
#endif
#endif
        DIE;
        took[t] = true;                                                     /* L1, L2 */
        DIE;
        if
#ifdef TOKENSTATE
        :: used = 2
        :: d_step { took[t] = false; begun[t] = false; used = 0 }
#else
        :: d_step { used = t; intent = t }                                  /* P2: used; announced */
        :: d_step { took[t] = false; begun[t] = false; intent = 0 }         /* it failed after all: the pin is good */
#endif
        fi;
        DIE;
        t++
    :: else -> break
    od;
die: dead = true
}

inline consume(x) { assert(took[x] || dead); consumed[x] = true; acked = x }

active proctype Exporter() {
    byte u, t;
    do
    :: !dropped ->                                                          /* P3 */
        u = used;
#ifdef TOKENSTATE
        t = intent;
        if :: u == 2 && t != 0 -> consume(t) :: else fi
#else
        if :: u != 0 && !consumed[u] -> consume(u) :: else fi
#endif
    :: dead && !dropped ->                                                  /* D2 */
#ifdef TOKENSTATE
        if :: used != 0 && intent != 0 -> consumed[intent] = true :: else fi;
#else
#ifndef NODROP
        if :: used != 0 -> consumed[used] = true :: else fi;
#endif
#if !defined(NOINTENTS)
        if :: intent != 0 && intent != used -> consumed[intent] = true :: else fi;
#endif
#endif
        dropped = true;
        for (t : 1 .. NTOK) { assert(!begun[t] || consumed[t]) }
        break
    od
}
