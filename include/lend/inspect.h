/* SPDX-License-Identifier: MIT */
/* Who lends what to whom: for `lend ls`, for monitoring, and for tests. */
#ifndef LEND_INSPECT_H_
#define LEND_INSPECT_H_

#include <lend/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A living exporter, found by its socket name. */
struct lend_exporter {
    uint8_t id[16];
    uint32_t uid;
    char address[108]; /* "@lend-..." for an abstract name, otherwise a path */
};

/* Finds the exporters of this user in this network namespace and in the context's socket folder.
 *   ret_exporters  returned: an array to give to lend_free; NULL when there are none.
 *   ret_n          its length.
 *   error          borrowed, NULL allowed.
 * Return: 0; -ENOMEM; -EIO (/proc/net/unix cannot be read); -ENOENT, -ENOTDIR, -EACCES (the folder); -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: proc(5), /proc/net/unix. */
LEND_API int lend_exporters_find(struct lend_exporter **ret_exporters, size_t *ret_n, struct lend_error *error);

struct lend_report_totals {
    uint32_t pid; /* a label: as the exporter sees itself */
    uint32_t n_peers;
    uint64_t start_ns; /* CLOCK_BOOTTIME */
    char command[64];
    uint64_t n_allocations, allocation_bytes;
    uint64_t n_storages, storage_bytes; /* those that have been lent and still live */
    uint64_t n_limbo, limbo_bytes;      /* of these: dropped by the exporter, held by others */
    uint64_t n_pins, pin_bytes;
    uint64_t limit_fds, used_fds;
    uint32_t is_answering : 1; /* 0: nothing but the address is known */
};

struct lend_report_allocation {
    uint32_t index, gen;
    uint64_t bytes, used_bytes;
    uint64_t inode;
    uint32_t is_file : 1; /* a file's pages (LEND_FILE_IN_PLACE), which nothing keeps from being cut; no memory of the
                           * exporter's */
};

struct lend_report_storage {
    uint32_t slot, allocation; /* allocation UINT32_MAX: the storage has no memory */
    uint64_t gen, offset, bytes;
    uint32_t n_pins, n_holders;
    uint32_t is_limbo : 1;
};

struct lend_report_pin {
    uint64_t token, bytes, age_ns;
    uint32_t slot, sender_pid; /* slot: of the first storage; sender_pid 0: the exporter itself */
    uint32_t n_storages;
};

struct lend_report_peer {
    uint32_t pid; /* a label, as the peer said; 0: it has not said */
    uint32_t n_storages;
    uint64_t bytes;
    uint64_t since_ns; /* CLOCK_BOOTTIME of its first contact */
    char command[64];  /* /proc/PID/comm as the caller sees it; "?" where the pid means nothing there */
};

struct lend_report_hold {
    uint32_t slot, pid, count;
};

struct lend_report {
    struct lend_exporter exporter;
    struct lend_report_totals totals;
    struct lend_report_allocation *allocations;
    struct lend_report_storage *storages;
    struct lend_report_pin *pins;
    struct lend_report_peer *peers;
    struct lend_report_hold *holds; /* who holds which storage */
    size_t n_allocations, n_storages, n_pins, n_peers, n_holds;
};

/* Asks an exporter for its books. It answers from its service thread; a stopped one does not.
 *   exporter     borrowed, from lend_exporters_find; NULL: this process itself.
 *   with_all     0: totals, allocations, pins and peers; 1: also every storage and who holds it.
 *   deadline_ns  for the whole answer; 0 the context's default.
 *   ret_report   returned: give it to lend_report_free.
 *   error        borrowed, NULL allowed.
 * Return: 0; -ETIMEDOUT; -EOWNERDEAD; -EPERM; -EPROTONOSUPPORT; -EBADMSG; -ENOMEM; -ENOTCONN (NULL, and no context);
 * -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend(1). */
LEND_API int lend_report_get(const struct lend_exporter *exporter, int with_all, int64_t deadline_ns,
                             struct lend_report **ret_report, struct lend_error *error);

/* Frees a report with all its arrays.
 *   report  consumed; NULL allowed.
 * Return: nothing; cannot fail.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_report_get. */
LEND_API void lend_report_free(struct lend_report *report);

/* Frees what a call of lend returned to be freed so: an array, or the handle of lend_group_reduce.
 *   array  consumed; NULL allowed.
 * Return: nothing; cannot fail.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: free(3). */
LEND_API void lend_free(void *array);

/* Lists the processes that hold something of this one: lend_report_get(NULL, 0, ...) without the rest.
 *   ret_peers  returned: an array to give to lend_free; NULL when there are none.
 *   ret_n      its length.
 *   error      borrowed, NULL allowed.
 * Return: 0; -ENOMEM; -ENOTCONN; -ECHILD.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_watch_next. */
LEND_API int lend_peers_list(struct lend_report_peer **ret_peers, size_t *ret_n, struct lend_error *error);

/* Checks the books of this process: slots, limbo, pins, pages, imported storages, mappings, and every pool.
 *   error  borrowed, NULL allowed: names the first thing that is wrong.
 * Return: 0; -EBADMSG; -ENOTCONN; -ECHILD.
 * Threads: any; it holds the locks for O(storages).  Crash: nothing shared is touched.  Since: 0.1.
 * See: lend_pool_check. */
LEND_API int lend_check(struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
