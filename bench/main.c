/* SPDX-License-Identifier: MIT */
/* lend-bench [--quick] [--json FILE] [GROUP ...]: measures, prints a table. Also the program of the second processes
 * that it starts (first argument --role). */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool is_quick;

/* In the order in which they run. "rebuild" gives this process a thread on its way, and "group" wants none. */
static const struct group {
    const char *name;
    void (*run)(void);
} groups[] = {
    {"group", bench_group},     {"rebuild", bench_rebuild}, {"pool", bench_pool},
    {"contact", bench_contact}, {"message", bench_message}, {"fork", bench_fork},
};
#define N_GROUPS (sizeof groups / sizeof groups[0])

static int role_main(const char *role, const char *argument) {
    if (!strcmp(role, "peer")) return peer_main();
    if (!strcmp(role, "raw-server")) return raw_server_main();
    return contact_main(role, argument);
}

static int usage(void) {
    fprintf(stderr, "usage: lend-bench [--quick] [--json FILE] [group|rebuild|pool|contact|message|fork ...]\n");
    return 2;
}

int main(int argc, char **argv) {
    if (argc >= 3 && !strcmp(argv[1], "--role")) return role_main(argv[2], argc > 3 ? argv[3] : "");
    const char *json_path = NULL;
    bool is_wanted[N_GROUPS] = {false}, any = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) {
            is_quick = true;
        } else if (!strcmp(argv[i], "--json") && i + 1 < argc) {
            json_path = argv[++i];
        } else {
            size_t g = 0;
            while (g < N_GROUPS && strcmp(argv[i], groups[g].name) != 0) g++;
            if (g == N_GROUPS) return usage();
            is_wanted[g] = any = true;
        }
    }
    for (size_t g = 0; g < N_GROUPS; g++)
        if (is_wanted[g] || !any) groups[g].run();
    report_end(json_path);
    return 0;
}
