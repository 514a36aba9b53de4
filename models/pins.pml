/* SPDX-License-Identifier: MIT */
/* Pins of a forwarder. Exporter A has lent a storage; importer B holds it, asks A for two pins (h0, h1) by message,
 * gives its lease back and sends the handles on; B may die at any step, before and after the answer. C rebuilds h0
 * twice and may die; D rebuilds h1 once, later. All pins stand in A's ledger (P1, P6); what a dead forwarder asked for
 * gets an end when its page is dropped (D3), never before. The cell's own steps are in cell.pml.
 * Sequentially consistent: orders are checked here, fences in lease.pml. Without flags no error is found. Each of these
 * takes one rule away and must give an error:
 *   -DCOUNTER       a pin is a bare count: consumption says "one less"
 *   -DUSEDFIRST     P2: "used" is announced before the lease is taken
 *   -DNOINTENT      P2: nothing stands in the cell before the lease is taken
 *   -DNOCELLS       D2: a dropped page's cells are not consumed
 *   -DTWODELIV      one pin is meant to be good for two deliveries
 *   -DREPLYFIRST    P6: the answer goes out before the pin stands in the ledger
 *   -DGIVEBACKFIRST the forwarder gives its lease back before it has the answer
 *   -DDROPPINS      D3: pins end with the page of their forwarder
 *   -DNOORPHAN      D3: pins of a dead forwarder get no end
 *   -DEXPIREALIVE   pins get an end while their forwarder lives */
#define C 0
#define D 1
#define B 2
#define NONE 0
#define LIVE 1
#define ENDED 2
bool free_ = false, own = true;
byte held[3], pin[2], n_pins = 0, intent[2];
bool live[3] = true, dead[3], orphan[2], expired[2], started[2];
chan note[2] = [4] of { byte }; /* announcements of used cells; they survive their writer */
chan ask = [2] of { byte };
chan reply[2] = [1] of { bit };
chan sent[2] = [2] of { bit };
#ifdef REPLYFIRST
bool pending[2];
#endif

inline end_pin(t) {
#ifdef COUNTER
    if :: n_pins > 0 -> n_pins-- :: else fi
#else
    if :: pin[t] == LIVE -> pin[t] = ENDED; n_pins-- :: else fi
#endif
}

#define DIEC if :: true :: mayd -> goto die fi
proctype Rebuilder(byte me; byte t; byte times; bool mayd) {
    byte n = 0;
    bool ok;
endW: sent[t]?_;
    do
    :: n < times ->
        n++;
        DIEC;
        started[t] = true;
#ifndef NOINTENT
        intent[me] = t + 1;                                    /* P2: intent */
        DIEC;
#endif
#ifdef USEDFIRST
        note[me]!t;
        DIEC;
#endif
        held[me]++;                                            /* L1 */
        DIEC;
        ok = !free_;                                           /* L2 */
        if
        :: ok ->
            DIEC;
#ifndef USEDFIRST
            note[me]!t;                                        /* P2: used */
            DIEC;
#endif
            intent[me] = 0;
            assert(!free_);
            DIEC;
            held[me]--
        :: else ->
            assert(mayd || expired[t]);                        /* D's first rebuild must succeed */
            held[me]--;
            intent[me] = 0
        fi
    :: else -> break
    od;
die: dead[me] = true
}

#ifdef TWODELIV
#define LAST 0
#else
#define LAST 1
#endif
#define DIEB if :: true :: goto die fi
proctype Forwarder() {
    byte t;
    held[B] = 1;
    for (t : 0 .. LAST) {
        DIEB;
        ask!t;
        DIEB;
#ifdef GIVEBACKFIRST
        held[B] = 0;
#endif
        reply[t]?_;
        DIEB
    }
    held[B] = 0;                                               /* L3 */
    DIEB;
#ifdef TWODELIV
    sent[0]!1;
    sent[0]!1;
#else
    sent[0]!1;
    DIEB;
    sent[1]!1;
#endif
    if :: true -> goto idle :: true fi;
die: dead[B] = true;
idle: skip
}

active proctype A() {
    byte t;
    held[B] = 1; /* taken while A still held it */
    atomic {
        run Forwarder();
        run Rebuilder(C, 0, 2, true);
#ifdef TWODELIV
        run Rebuilder(D, 0, 1, false)
#else
        run Rebuilder(D, 1, 1, false)
#endif
    }
    do
    :: own -> own = false
#ifdef REPLYFIRST
    :: atomic { ask?t -> reply[t]!1; pending[t] = true }
    :: atomic { pending[0] -> pending[0] = false; if :: live[B] && !free_ -> pin[0] = LIVE; n_pins++ :: else fi }
    :: atomic { pending[1] -> pending[1] = false; if :: live[B] && !free_ -> pin[1] = LIVE; n_pins++ :: else fi }
#else
    :: atomic { ask?t ->                                       /* P6, P1; a dropped page's request is refused */
           if
           :: live[B] && !free_ -> pin[t] = LIVE; n_pins++; reply[t]!1
           :: live[B] && free_ -> reply[t]!1                   /* refused: B does not hold it */
           :: else
           fi }
#endif
    :: atomic { note[C]?t -> end_pin(t) }                      /* P3 */
    :: atomic { note[D]?t -> end_pin(t) }
    :: atomic { dead[C] && live[C] && len(note[C]) == 0 ->     /* D1: drained; D2: intents; D4 */
#ifndef NOCELLS
           if :: intent[C] > 0 -> t = intent[C] - 1; end_pin(t) :: else fi;
#endif
           live[C] = false }
    :: atomic { dead[D] && live[D] && len(note[D]) == 0 ->
           if :: intent[D] > 0 -> t = intent[D] - 1; end_pin(t) :: else fi;
           live[D] = false }
    :: atomic { dead[B] && live[B] ->
           live[B] = false;
#ifdef DROPPINS
           end_pin(0); end_pin(1);
#else
#ifndef NOORPHAN
           orphan[0] = (pin[0] == LIVE); orphan[1] = (pin[1] == LIVE)  /* D3 */
#endif
#endif
       }
    :: atomic { orphan[0] && pin[0] == LIVE && !expired[0] -> expired[0] = true; end_pin(0) }
    :: atomic { orphan[1] && pin[1] == LIVE && !expired[1] -> expired[1] = true; end_pin(1) }
#ifdef EXPIREALIVE
    :: atomic { live[B] && pin[1] == LIVE -> end_pin(1) }
#endif
    :: atomic { !free_ && !own && n_pins == 0 && !(live[C] && held[C] > 0) && !(live[D] && held[D] > 0) &&
           !(live[B] && held[B] > 0) -> free_ = true }
    :: timeout ->
        assert(free_ || (pin[0] == LIVE && !started[0]));      /* a handle that nobody rebuilds: cancel */
        break
    od
}
