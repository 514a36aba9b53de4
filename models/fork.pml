/* SPDX-License-Identifier: MIT */
/* Fork of an importer P that holds a lease of exporter E; child K, grandchild G (src/share/fork.c).
 * P asks E for a spare page (F1), copies its count into it (F2), looks at the word (F3), and forks; afterwards each
 * side unmaps the other's page. Without a spare in time, P's own page counts for both, is kept mapped by the child, and
 * is never lowered by it (F4, "family"). A family child holds what it takes later on a page of its own; when it forks
 * without a spare, its child keeps both pages mapped. A page lives while any process maps it. Everybody may die at any
 * step. Sequentially consistent. Without flags no error is found. Each of these takes one rule away and must give an
 * error:
 *   -DNOCHECK      F3: the copy is not followed by a look at the word
 *   -DMAILED       F1: the child's page is made by P and mailed: E counts it when it reads the mail
 *   -DCOPYLATE     F2: the child copies the counts itself
 *   -DNOTGIVEN     F1: the spare page does not count as given what P's page has been given
 *   -DPIDOFPARENT  D1: the child's page is taken to die with the process that asked for it
 *   -DKEEPBOTH     F7: the parent keeps the child's page mapped                        (block stuck)
 *   -DNOCOUNT      F4: the parent's page is not raised for the child
 *   -DFAMILYUNMAP  F4: the child unmaps the parent's page
 *   -DONEFAMILY    F4: a family child's child keeps only the first of the two pages */
bool free_, closing, own = true;
byte hp = 1, hk;
bool Pdead, Kdead, Gdead, Kborn, Gborn, Pidle, Kfamily;
bool Kmaps_p, Gmaps_p, Gmaps_k, Pmaps_k;
bool pageP = true, pageK, givenK, asked, answered;
bool free2;                   /* a second storage, which a family child takes for itself */
byte hk2;
#define USE assert(!free_)
#define DIE if :: true :: goto die fi

proctype G(bool two) {
    if :: two -> assert(!free2); assert(!free2) :: else -> USE; USE fi;
    Gdead = true
}

proctype K() {
    bool two = false;
#ifdef COPYLATE
    hk = 1;
    (!closing);
#endif
    USE;
    DIE;
    if
    :: !Kfamily
    :: Kfamily ->             /* its has_lease is false; it rebuilds another handle, on a page of its own */
        atomic { pageK = true; givenK = true; if :: !free2 -> hk2 = 1; two = true :: else fi }
    fi;
    DIE;
    if
    :: !Kfamily || two ->     /* it forks without a spare: F4 on its own page */
        if :: two -> hk2++ :: else -> hk++ fi;
        Gmaps_p = Kmaps_p;
#ifdef ONEFAMILY
        Gmaps_k = !Kmaps_p;
#else
        Gmaps_k = true;
#endif
        atomic { run G(two); Gborn = true }
    :: true
    fi;
    DIE;
    USE;
    if :: !Kfamily -> hk-- :: else fi;
die: Kdead = true
}

active proctype P() {
#ifdef MAILED
    hk = 1;
    asked = true;
#else
    asked = true;                                  /* F1 */
    DIE;
#endif
    if
#ifdef MAILED
    :: true ->
#else
    :: answered ->
#endif
        Pmaps_k = true;
        DIE;
#ifndef COPYLATE
        hk = 1;                                    /* F2 */
        DIE;
#ifndef NOCHECK
        if
        :: !closing                                /* F3 */
        :: closing -> Kfamily = true               /* it stays closing for too long */
        fi
#endif
#endif
    :: true -> Kfamily = true                      /* no answer within 10 ms */
    fi;
    if
    :: Kfamily ->
        Pmaps_k = false;                           /* a spare that came late goes back */
#ifndef NOCOUNT
        hp++;                                      /* F4 */
#endif
#ifndef FAMILYUNMAP
        Kmaps_p = true
#endif
    :: else
    fi;
    DIE;
    atomic { if :: Kfamily -> pageK = false; hk = 0; asked = false :: else fi; run K(); Kborn = true };
#ifndef KEEPBOTH
    Pmaps_k = false;                               /* F7 */
#endif
    DIE;
    USE;
    hp--;                                          /* L3 */
    DIE;
    Pidle = true;
    goto idle;
die: Pmaps_k = false; Pdead = true;
idle: skip
}

#define P_MAPPED (!Pdead || (Kborn && Kmaps_p && !Kdead) || (Gborn && Gmaps_p && !Gdead))
#define K_MAPPED ((Kborn && !Kdead) || (Gborn && Gmaps_k && !Gdead) || (!Pdead && (Pmaps_k || !Kborn)))
#define QUIET ((Pdead || Pidle) && (!Kborn || Kdead) && (!Gborn || Gdead) && !asked && \
    !(pageP && !P_MAPPED) && !(pageK && !K_MAPPED))
active proctype E() {
    byte f;
    do
    :: own -> own = false
#ifdef MAILED
    :: atomic { asked && !pageK -> pageK = true; givenK = true; asked = false }
#else
    :: atomic { asked && !Kborn ->                 /* the page is scanned from here on, and sent */
           asked = false; pageK = true; answered = true;
#ifndef NOTGIVEN
           givenK = true
#endif
       }
#endif
    :: atomic { pageP && !P_MAPPED -> pageP = false }
#ifdef PIDOFPARENT
    :: atomic { pageK && Pdead && !Kfamily -> pageK = false }
#endif
    :: atomic { pageK && !K_MAPPED -> pageK = false }
    :: atomic { Kfamily && !free2 && !(pageK && hk2 > 0) -> free2 = true }
    :: !own && !free_ && !QUIET ->
        f = 0;
        closing = true;                            /* L5 */
        if                                         /* L6, in either order */
        :: true ->
            if :: pageP && hp > 0 -> f = 1 :: else fi;
            if :: pageK && givenK && hk > 0 -> f = 1 :: else fi
        :: true ->
            if :: pageK && givenK && hk > 0 -> f = 1 :: else fi;
            if :: pageP && hp > 0 -> f = 1 :: else fi
        fi;
        if
        :: f == 0 -> free_ = true; closing = false /* L7 */
        :: else -> closing = false                 /* L8 */
        fi
    :: QUIET && !own ->
        /* What still counts is "safe, coarse": the parent's page after a family fork, while the parent lives. */
        assert(free_ || !((pageP && hp > 0) || (pageK && hk > 0)) || (Kfamily && Pidle && pageP && hp > 0));
        break
    od
}
