/* SPDX-License-Identifier: MIT */
/* Handles: reduce a tensor to bytes, rebuild it in any process.
 *
 * A handle is plain data: it may travel by pipe, queue, HTTP, Redis or environment. It may be rebuilt any number of
 * times by any number of processes while its storage lives; afterwards the answer is -ESTALE, never wrong bytes.
 * A handle can also hold a pin, a token for one delivery, so that the sender may drop its tensor at once. */
#ifndef LEND_HANDLE_H_
#define LEND_HANDLE_H_

#include <lend/error.h>
#include <lend/tensor.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No handle of one tensor is longer, unless it is a wrapper (LEND_LAYOUT_WRAPPER), that is, a tree of any tensors:
 * -ERANGE then says how long it is. A strided tensor's takes 136 bytes and its shape: with an abstract address, 256
 * bytes hold 7 dimensions of any sizes and strides, or 15 when these fit 32 bits. A group's is as long as it must. */
#define LEND_HANDLE_BYTES_MAX 8192
/* The text form of a handle of so many bytes ("lend1:" and base64url without padding), with the NUL. */
#define LEND_HANDLE_TEXT_BYTES(bytes) ((bytes) / 3 * 4 + 12)
#define LEND_HANDLE_TEXT_MAX LEND_HANDLE_TEXT_BYTES(LEND_HANDLE_BYTES_MAX)

enum lend_mode {
    LEND_MODE_SHARE = 0,    /* both sides see each other's writes */
    LEND_MODE_SNAPSHOT = 1, /* a copy is lent: later writes are not seen; the handle is pinned */
    LEND_MODE_MOVE = 2      /* the handle is pinned and the sender's tensor is dead afterwards (-ESTALE) */
};

enum lend_reduce_flags {
    LEND_REDUCE_PIN = 1u << 0,        /* this handle keeps the storage alive until it is rebuilt once, cancelled or
                                     * expired; n deliveries are n handles */
    LEND_REDUCE_NO_COPY = 1u << 1,    /* refuse private memory (-EOPNOTSUPP) instead of copying it */
    LEND_REDUCE_READ_ONLY = 1u << 2,  /* importers get a tensor marked read-only (in a pool that peers may write, the
                                     * mark binds only well-behaved peers; the pool flag binds all) */
    LEND_REDUCE_MATERIALIZE = 1u << 3 /* give zero tensors memory (as private memory: copied and pinned) instead of
                                       * refusing them; NO_COPY does not forbid that */
};

struct lend_reduce_opts {
    size_t size;         /* sizeof(struct lend_reduce_opts) */
    uint32_t mode;       /* enum lend_mode */
    uint32_t flags;      /* enum lend_reduce_flags */
    uint64_t pin_ns_max; /* longest life of the pin; 0: no limit of its own */
    int64_t deadline_ns; /* pin of an imported tensor asks the exporter: 0 the context's default, negative no limit */
};

/* Reduces a tensor of any layout to a handle. What is refused is refused before anything is shared.
 *   tensor     borrowed. Its storages become shared and can no longer be resized.
 *   opts       borrowed; NULL: share, no pin.
 *   buf        returned bytes; LEND_HANDLE_BYTES_MAX are always enough.
 *   buf_bytes  room in buf.
 *   ret_bytes  length of the handle; also written with -ERANGE.
 *   error      borrowed, NULL allowed.
 * Return: 0; LEND_COPIED: the memory was private, this view of it was copied into a pool of the context, and the
 * handle is pinned; -ERANGE (buf too small); -EOPNOTSUPP (LEND_REDUCE_NO_COPY; a device that cannot be shared; a
 * non-leaf tensor that requires grad; named dimensions; an uninitialised tensor; a zero tensor without
 * LEND_REDUCE_MATERIALIZE);
 * -ESTALE (moved away); -ENOSPC (pin budget, naming the oldest pin; or no slot left); -ENOMEM; -EMFILE; -EFBIG (RLIMIT_FSIZE); what
 * bind answers for a socket folder (-ENOENT, -ENOTDIR, -EACCES, -ETIMEDOUT: another process keeps its lock);
 * -EOWNERDEAD, -ETIMEDOUT, -EAGAIN (pin of an imported tensor); -ENOTCONN; -ECHILD.
 * Threads: any; during LEND_MODE_MOVE no other thread may use the tensor.
 * Crash: before the return nothing holds the storage; a pin whose handle was lost ends by expiry.  Since: 0.1.
 * See: torch.multiprocessing.reductions.reduce_tensor, docs/wire.md. */
LEND_API int lend_reduce(struct lend_tensor *tensor, const struct lend_reduce_opts *opts, void *buf, size_t buf_bytes,
                         size_t *ret_bytes, struct lend_error *error);

enum lend_rebuild_flags {
    LEND_REBUILD_READ_ONLY = 1u << 0,    /* mark the tensor read-only here */
    LEND_REBUILD_WRITABLE = 1u << 1,     /* -EACCES when the memory is lent read-only */
    LEND_REBUILD_CHECK = 1u << 2,        /* lend_tensor_check what was rebuilt: -EBADMSG when it does not hold */
    LEND_REBUILD_FILE_IN_PLACE = 1u << 3 /* also take memory that is a file's (LEND_FILE_IN_PLACE): whoever may write
                                          * that file can cut it short, and the next access is SIGBUS. Without it such
                                          * a tensor is refused (-EACCES) */
};

struct lend_rebuild_opts {
    size_t size;         /* sizeof(struct lend_rebuild_opts) */
    uint32_t flags;      /* enum lend_rebuild_flags */
    uint32_t reserved;   /* 0 */
    int64_t deadline_ns; /* first contact and closing slots: 0 the context's default, negative no limit */
};

/* Rebuilds a tensor from a handle: all of it or nothing. Warm (exporter and allocation known) it makes no system call,
 * but for memory that is a file's, whose size is looked at every time.
 *   handle, bytes  borrowed; any bytes are safe.
 *   opts           borrowed; NULL: defaults.
 *   ret_tensor     returned: one reference. Two rebuilds of one storage share it (equal storage_id); a rebuild in the
 *                  exporter itself gives the original storage.
 *   error          borrowed, NULL allowed.
 * Return: 0; -EINVAL (opts; or the handle is a group's: lend_group_rebuild); -EBADMSG; -EPROTONOSUPPORT; -ESTALE;
 * -EOWNERDEAD; -EAGAIN; -ETIMEDOUT; -EREMOTE; -EPERM; -EACCES;
 * -EMFILE; -ENOMEM; -ENODEV; -ENOTCONN; -ECHILD. After an error no lease is held and a pin is still good; what a
 * contact brought stays cached, as after a success.
 * Threads: any.  Crash: the kernel's word ends the lease; a pin that reached this call is consumed.  Since: 0.1.
 * See: torch.multiprocessing.reductions.rebuild_tensor, docs/leases.md. */
LEND_API int lend_rebuild(const void *handle, size_t bytes, const struct lend_rebuild_opts *opts,
                          struct lend_tensor **ret_tensor, struct lend_error *error);

/* Ends a handle's pin without a rebuild: the delivery will not happen.
 *   handle, bytes  borrowed.
 *   deadline_ns    when another process owns the storage; 0 the context's default, negative no limit.
 *   error          borrowed, NULL allowed.
 * Return: 0, also when the pin had ended already; -EINVAL: the handle has no pin; -EBADMSG; -EPROTONOSUPPORT;
 * -EOWNERDEAD (nothing is left to cancel); -ETIMEDOUT; -EREMOTE; -EMFILE; -ENOTCONN; -ECHILD.
 * Threads: any.  Crash: the pin ends or it does not; calling again is safe.  Since: 0.1.
 * See: docs/leases.md. */
LEND_API int lend_pin_cancel(const void *handle, size_t bytes, int64_t deadline_ns, struct lend_error *error);

/* Writes the text form of a handle, for shells and JSON.
 *   handle, bytes   borrowed.
 *   text            returned, NUL-terminated; LEND_HANDLE_TEXT_BYTES(bytes) are always enough.
 * Return: 0; -EBADMSG (not a handle); -ERANGE (text too small).
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: RFC 4648 section 5 (base64url). */
LEND_API int lend_handle_format(const void *handle, size_t bytes, char *text, size_t text_bytes);

/* Reads the text form.
 *   text       borrowed, NUL-terminated; white space around it is skipped.
 *   buf        returned bytes; undefined after an error. As many as the text has characters are always enough;
 *              LEND_HANDLE_BYTES_MAX are not for a group's.
 *   ret_bytes  length of the handle; written on success.
 * Return: 0; -EBADMSG (not the text of a handle, or damaged); -EPROTONOSUPPORT; -ERANGE (buf too small).
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: RFC 4648 section 5 (base64url). */
LEND_API int lend_handle_parse(const char *text, void *buf, size_t buf_bytes, size_t *ret_bytes);

enum lend_handle_kind { LEND_HANDLE_TENSOR = 0, LEND_HANDLE_GROUP = 1 };

/* What a handle says; nothing of it has been checked against its exporter. */
struct lend_handle_info {
    size_t size; /* in: sizeof(struct lend_handle_info) */
    uint32_t wire_major, wire_minor;
    uint32_t kind;        /* enum lend_handle_kind; of a group, what follows is its first exporter and no tensor */
    uint32_t n_tensors;   /* entries of a group; 1 */
    uint32_t n_storages;  /* distinct ones */
    uint32_t n_exporters; /* whom they belong to; what is said of one below is said of the first */
    uint32_t layout;      /* enum lend_layout: with another than strided, there are no strides and no storage below */
    uint32_t attrs;       /* enum lend_attr */
    uint8_t boot_id[16];
    uint8_t exporter_id[16];
    uint64_t exporter_start_ns; /* a label: CLOCK_BOOTTIME when the exporter opened its context */
    uint32_t exporter_uid;
    uint32_t exporter_pid; /* a label: as the exporter sees itself */
    int32_t device_type;
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[LEND_NDIM_MAX];
    int64_t strides[LEND_NDIM_MAX];
    uint64_t storage_offset_bits;
    uint64_t storage_offset_bytes; /* of the storage in its allocation */
    uint64_t storage_bytes;
    uint32_t allocation, allocation_gen;
    uint64_t allocation_bytes;
    uint32_t slot;
    uint64_t slot_gen;
    uint64_t pin_token; /* 0: no pin */
    uint32_t is_read_only : 1;
    uint32_t is_padded : 1;
    char socket_path[108]; /* empty: abstract socket */
};

/* Decodes a handle without touching anything else.
 *   handle, bytes  borrowed.
 *   ret_info       its `size` is read first; only that many bytes are written.
 *   error          borrowed, NULL allowed.
 * Return: 0; -EBADMSG; -EPROTONOSUPPORT; -EINVAL (size).
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: docs/wire.md. */
LEND_API int lend_handle_describe(const void *handle, size_t bytes, struct lend_handle_info *ret_info,
                                  struct lend_error *error);

#ifdef __cplusplus
}
#endif
#endif
