/* SPDX-License-Identifier: MIT */
/* lend-as-uid UID NOFILE PROGRAM [ARGUMENT...]: runs a program as a user without capabilities, under a limit of
 * descriptors. */
#include "drop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: lend-as-uid UID NOFILE PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    int r = drop_to((uid_t)strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10));
    if (r < 0) {
        fprintf(stderr, "lend-as-uid: cannot become user %s: %s\n", argv[1], strerror(-r));
        return 2;
    }
    execvp(argv[3], argv + 3);
    perror(argv[3]);
    return 127;
}
