/* SPDX-License-Identifier: MIT */
/* The bytes of a handle (docs/wire.md): encode, decode, text. Decoding is total: any bytes give a handle or a typed
 * error; it allocates nothing and is linear in the input. */
#ifndef LEND_SHARE_WIRE_H_
#define LEND_SHARE_WIRE_H_

#include "share/identity.h"

#include <lend/dlpack.h>
#include <lend/error.h>
#include <lend/handle.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A decoded handle. The socket path is borrowed from the bytes and not NUL-terminated. */
struct lend__wire {
    struct lend__identity exporter;
    uint16_t major, minor;
    int32_t device_type;
    uint32_t allocation, allocation_gen;
    uint64_t allocation_bytes;
    uint32_t slot;
    uint64_t slot_gen;
    uint64_t storage_off, storage_bytes;
    uint64_t pin_token; /* 0: no pin */
    uint64_t offset_bits;
    DLDataType dtype;
    bool is_read_only, is_padded, is_contiguous;
    uint32_t ndim;
    const char *socket_path; /* NULL: abstract socket */
    uint32_t socket_path_bytes;
    int64_t dims[2 * LEND_NDIM_MAX]; /* shape[ndim], strides[ndim] (not when is_contiguous) */
};

/* Bytes of the fixed part; dims and sections follow. */
#define LEND__WIRE_FIXED_BYTES 136u

/* Writes the handle; `ret_bytes` also with -ERANGE. */
int lend__wire_encode(const struct lend__wire *wire, void *buf, size_t buf_bytes, size_t *ret_bytes);

/* Reads one. Fills every member but the unused dims. Return: 0, -EBADMSG, -EPROTONOSUPPORT. */
int lend__wire_decode(const void *bytes, size_t n, struct lend__wire *ret, const char *operation,
                      struct lend_error *error);

#endif
