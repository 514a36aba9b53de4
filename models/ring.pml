/* SPDX-License-Identifier: MIT */
/* The ring of announcements (L4 writes, L9 reads): overwritten, never waited for; the reader's tail is private. Every
 * announcement must be handled, by itself or by "try all of limbo". Without flags no error is found; each of these
 * takes one rule away and must give an error:
 *   -DOVERRUNLATE L9 takes head - tail > N for an overrun (not >=): an overwritten entry is read
 *   -DNOREREAD    L9 does not read the head again after it has copied the entry
 *   -DHEADFIRST   L4 publishes the head before the entry
 * Bound: -DMAXV=n announcements (9). */
#define N 4
#ifndef MAXV
#define MAXV 9
#endif
byte ent[N];
byte head = 0;
bool got[MAXV];
bool wdone = false;

active proctype W() {
    byte n = 0;
    do
    :: n < MAXV ->
#ifdef HEADFIRST
        head = n + 1; ent[n % N] = n + 1;
#else
        ent[n % N] = n + 1; head = n + 1;
#endif
        n++
    :: else -> break
    od;
    wdone = true
}

active proctype R() {
    byte t = 0, x, h;
    do
    :: head > t ->
        h = head;
        x = ent[t % N];
#ifndef NOREREAD
        h = head;
#endif
        if
#ifdef OVERRUNLATE
        :: h - t > N ->
#else
        :: h - t >= N ->
#endif
            /* Everything up to the head: all of limbo is tried. */
            d_step { x = t; do :: x < h -> got[x] = true; x++ :: else -> break od; t = h }
        :: else ->
            assert(x == t + 1);
            got[x - 1] = true;
            t++
        fi
    :: wdone && head == t -> break
    od;
    h = 0;
    do :: h < MAXV -> assert(got[h]); h++ :: else -> break od
}
