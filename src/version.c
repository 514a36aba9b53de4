/* SPDX-License-Identifier: MIT */
/* The versions of the library as compiled, with the fingerprint of the structs in shared memory. Constant; no state. */
#include <lend/version.h>

#include "share/shm.h"

void lend_version(struct lend_version_info *ret_info) {
    *ret_info = (struct lend_version_info){
        .major = LEND_VERSION_MAJOR,
        .minor = LEND_VERSION_MINOR,
        .patch = LEND_VERSION_PATCH,
        .abi = LEND_ABI_VERSION,
        .wire_major = LEND_WIRE_MAJOR,
        .wire_minor = LEND_WIRE_MINOR,
        .shm_layout = lend__shm_layout(),
    };
}
