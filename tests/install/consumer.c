/* SPDX-License-Identifier: MIT */
/* A program as a user writes it: knows the installed headers and pkg-config only. Strict C99. */
#include <lend/lend.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    struct lend_version_info info;
    memset(&info, 0, sizeof info);
    lend_version(&info);
    if (info.major != LEND_VERSION_MAJOR || info.minor != LEND_VERSION_MINOR || info.abi != LEND_ABI_VERSION) return 1;
    if (info.shm_layout == 0) return 2;
    printf("lend %u.%u.%u: %s\n", (unsigned)info.major, (unsigned)info.minor, (unsigned)info.patch, lend_strerror(0));
    return 0;
}
