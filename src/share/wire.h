/* SPDX-License-Identifier: MIT */
/* The bytes of a handle (docs/wire.md): what a handle says, and the form that names one strided tensor. The form for
 * everything else is tree.h's. Decoding is total: any bytes give a handle or a typed error; it allocates nothing and is
 * linear in the input. */
#ifndef LEND_SHARE_WIRE_H_
#define LEND_SHARE_WIRE_H_

#include "share/identity.h"

#include <lend/attributes.h>
#include <lend/dlpack.h>
#include <lend/error.h>
#include <lend/handle.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whose storage. The path is borrowed from the bytes and not NUL-terminated. */
struct lend__wire_exporter {
    struct lend__identity identity;
    uint64_t pin_token;      /* 0: no pin. It covers all of the handle's storages at this exporter */
    const char *socket_path; /* NULL: abstract socket */
    uint32_t socket_path_bytes;
};

/* Which storage of that exporter. */
struct lend__wire_storage {
    int32_t device_type;
    uint32_t allocation, allocation_gen; /* LEND__CONTROL_NONE: the storage has no bytes, or no memory (meta) */
    uint32_t slot;
    uint64_t slot_gen; /* meta: the storage's number at its exporter */
    uint64_t allocation_bytes;
    uint64_t off, bytes;
};

/* What lies in the storage. */
struct lend__wire_tensor {
    DLDataType dtype;
    bool is_read_only, is_padded, is_contiguous;
    uint32_t attrs; /* of LEND__ATTRS_CARRIED */
    uint32_t ndim;
    uint64_t offset_bits;
    uint32_t user_tag, user_bytes;
    const void *user;                /* borrowed; NULL: none */
    int64_t dims[2 * LEND_NDIM_MAX]; /* shape[ndim], strides[ndim] (not when is_contiguous) */
};

/* A handle of one strided tensor. */
struct lend__wire {
    uint16_t major, minor;
    struct lend__wire_exporter exporter;
    struct lend__wire_storage storage;
    struct lend__wire_tensor tensor;
};

enum lend__wire_form { LEND__WIRE_TENSOR = 0, LEND__WIRE_TREE = 1 };

/* Bytes of the fixed part; dims and sections follow. */
#define LEND__WIRE_FIXED_BYTES 136u
/* sun_path without its NUL. */
#define LEND__WIRE_PATH_MAX 107u

/* Writes the handle; `ret_bytes` also with -ERANGE. */
int lend__wire_encode(const struct lend__wire *wire, void *buf, size_t buf_bytes, size_t *ret_bytes);

/* Reads one. Fills every member but the unused dims. Return: 0, -EBADMSG, -EPROTONOSUPPORT; -EINVAL: it is a tree. */
int lend__wire_decode(const void *bytes, size_t n, struct lend__wire *ret, const char *operation,
                      struct lend_error *error);

/* --- what both forms have in common ---------------------------------------------------------------------------------- */

/* Does it claim to be a tree? Only the form's byte is looked at. */
bool lend__wire_is_tree(const void *bytes, size_t n);

/* Length, magic, version and checksum: what must hold before anything else is read. Return as lend__wire_decode. */
int lend__wire_open(const uint8_t *p, size_t n, enum lend__wire_form form, const char *operation,
                    struct lend_error *error);
/* Writes all that lend__wire_open reads; last, because of the checksum. */
void lend__wire_close(uint8_t *p, uint32_t total, enum lend__wire_form form);

/* "these bytes are not a handle of lend: WHAT" */
int lend__wire_bad(struct lend_error *error, const char *operation, const char *what) __attribute__((cold));

/* Reads one section. Returns 1 when its type is unknown, 0, or -EBADMSG. */
typedef int (*lend__wire_section_fn)(void *user, uint32_t type, const uint8_t *payload, uint32_t bytes,
                                     const char *operation, struct lend_error *error);

/* Reads n sections, which end exactly at `end`. Unknown ones are skipped, unless they are critical. */
int lend__wire_take_sections(const uint8_t *at, const uint8_t *end, uint32_t n, lend__wire_section_fn take, void *user,
                             const char *operation, struct lend_error *error);

/* Flags of a tensor, in 16 bits. A tree's nodes may have one more. */
#define LEND__WIRE_FLAG_COALESCED 0x800u
uint32_t lend__wire_flags(const struct lend__wire_tensor *tensor);
#define LEND__WIRE_FLAGS_KNOWN 0x7ffu

/* The dims with their padding. */
uint32_t lend__wire_dims_bytes(const struct lend__wire_tensor *tensor);
void lend__wire_put_dims(const struct lend__wire_tensor *tensor, uint8_t *at);
#endif
