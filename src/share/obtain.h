/* SPDX-License-Identifier: MIT */
/* From what a handle names to storages that are held: all of them or none. */
#ifndef LEND_SHARE_OBTAIN_H_
#define LEND_SHARE_OBTAIN_H_

#include "share/mapping.h"
#include "share/wire.h"
#include "tensor/storage.h"

#include <lend/handle.h>

/* One storage of a handle, and what becomes of it. */
struct lend__wanted {
    struct lend__wire_storage wire;
    uint32_t exporter;             /* index in `exporters` */
    bool is_skipped;               /* by a subset of a group: not to be touched */
    struct lend__mapping *mapping; /* found on the way */
    struct lend__storage *got;     /* with a reference of the caller's */
    bool is_taken;                 /* the caller has put that reference into a tensor: it is not to be given back */
};

/* What obtain.c knows of each exporter. Zeroed by the caller. */
struct lend__source {
    struct lend__peer *peer; /* NULL: this process itself, or nothing is wanted of it */
    int cell;                /* 1 + the pin cell under way; 0: none */
    bool is_needed, is_own;
};

struct lend__obtain {
    const struct lend__wire_exporter *exporters;
    struct lend__source *sources; /* one for each exporter */
    struct lend__wanted *wanted;
    uint32_t n_exporters, n_wanted;
    bool is_final;       /* nothing after lend__obtain_begin can fail: pins end at once, and there is no end to call */
    bool wants_writable; /* -EACCES when the memory is lent read-only */
    bool accepts_files;  /* otherwise -EACCES for a file's memory of another process */
    int64_t deadline_ns; /* as in lend_rebuild_opts */
    struct lend_error *error;
    /* Inside: */
    uint64_t deadline; /* 0: the clock has not been asked yet (it never is on the warm path) */
    uint32_t cursor;   /* storages below it were warm when last seen */
    bool is_open;      /* begun and not final: lend__obtain_end must be called */
    bool waits_for_cell, has_waited, has_foreign;
    struct lend__mapping *retired; /* to be unmapped after the lock */
};

/* Gets a reference of every wanted storage, contacting exporters where need be. Warm it makes no system call. On error
 * nothing is held and every pin is still good.
 * Return: as lend_rebuild. */
int lend__obtain_begin(struct lend__obtain *job);

/* Ends what was begun with success, unless it was final: pins end, or (false) are still good and the storages are
 * given back. */
void lend__obtain_end(struct lend__obtain *job, bool is_good);

#endif
