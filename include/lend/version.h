/* SPDX-License-Identifier: MIT */
/* Versions of the library, of its binary interface, and of the bytes that processes exchange. */
#ifndef LEND_VERSION_H_
#define LEND_VERSION_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LEND_API __attribute__((visibility("default")))
#else
#define LEND_API
#endif

#define LEND_VERSION_MAJOR 0
#define LEND_VERSION_MINOR 1
#define LEND_VERSION_PATCH 0
#define LEND_VERSION_STRING "0.1.0"

/* Rises when a program must be compiled again. It is the number in liblend.so.N. */
#define LEND_ABI_VERSION 0

/* The format of handles and of messages on lend's sockets. Another major is refused with
 * -EPROTONOSUPPORT; a higher minor may add sections that an older reader skips. */
#define LEND_WIRE_MAJOR 0
#define LEND_WIRE_MINOR 0

struct lend_version_info {
    uint32_t major, minor, patch;
    uint32_t abi;
    uint32_t wire_major, wire_minor;
    uint64_t shm_layout; /* fingerprint of the structs in shared memory; peers compare it in hello */
};

/* Tells the versions of the library that is loaded (the macros tell those it was compiled against).
 *   ret_info  written always.
 * Return: nothing.
 * Threads: any.  Crash: nothing shared is touched.  Since: 0.1.
 * See: Semantic Versioning 2.0. */
LEND_API void lend_version(struct lend_version_info *ret_info);

#ifdef __cplusplus
}
#endif
#endif
