/* SPDX-License-Identifier: MIT */
/* From what a handle names to storages that are held: all of them or none. */
#ifndef LEND_SHARE_OBTAIN_H_
#define LEND_SHARE_OBTAIN_H_

#include "share/mapping.h"
#include "share/wire.h"
#include "tensor/storage.h"

#include <lend/handle.h>

/* An allocation of a handle; storages name it by its row. */
struct lend__row {
    uint32_t exporter; /* index in `exporters` */
    int32_t device_type;
    uint32_t allocation, allocation_gen;
    bool is_needed;                /* inside: something in it is wanted */
    struct lend__mapping *mapping; /* inside: found on the way */
};

/* One storage of a handle, and what becomes of it. */
struct lend__wanted {
    uint32_t row, slot;
    uint64_t slot_gen, off, bytes;
    struct lend__storage *got; /* with a reference of the caller's */
    bool is_skipped;           /* by a subset of a group: not to be touched */
    bool is_taken;             /* the caller has put that reference into a tensor: it is not to be given back */
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
    struct lend__row *rows;
    struct lend__wanted *wanted;
    uint32_t n_exporters, n_rows, n_wanted;
    bool is_final;       /* nothing after lend__obtain_begin can fail: pins end at once, and there is no end to call */
    bool wants_writable; /* -EACCES when the memory is lent read-only */
    bool accepts_files;  /* otherwise -EACCES for a file's memory of another process */
    int64_t deadline_ns; /* as in lend_rebuild_opts */
    struct lend_error *error;
    uint32_t failed; /* after an error: 1 + the storage that it is about; 0: none of them */
    /* Inside: */
    uint64_t deadline; /* 0: the clock has not been asked yet (it never is on the warm path) */
    uint32_t cursor;   /* rows below it were warm when last seen */
    bool is_open;      /* begun and not final: lend__obtain_end must be called */
    bool waits_for_cell, has_waited, has_files;
    struct lend__mapping *retired; /* to be unmapped after the lock */
};

/* 0 or -EINVAL. */
int lend__obtain_check_opts(const struct lend_rebuild_opts *opts, struct lend_error *error);

/* Checks the options (NULL: defaults) and fills what obtaining needs of them. 0 or -EINVAL. */
int lend__obtain_read_opts(const struct lend_rebuild_opts *opts, struct lend__obtain *job);

/* The case that counts: one storage of another process, no pin, exporter and allocation known, the slot open. Everything
 * else gives 1, with nothing held and nothing said: lend__obtain_begin then does the same at length. */
int lend__obtain_warm(const struct lend__wire_exporter *exporter, const struct lend__wire_storage *wire,
                      bool wants_writable, struct lend__storage **ret);

/* Row and storage of what a wire says. */
void lend__obtain_fill(const struct lend__wire_storage *wire, struct lend__row *ret_row, struct lend__wanted *ret);

/* Gets a reference of every wanted storage, contacting exporters where need be. Warm it makes no system call. On error
 * nothing is held and every pin is still good.
 * Return: as lend_rebuild. */
int lend__obtain_begin(struct lend__obtain *job);

/* Ends what was begun with success, unless it was final: pins end, or (false) are still good and the storages are
 * given back. */
void lend__obtain_end(struct lend__obtain *job, bool is_good);

#endif
