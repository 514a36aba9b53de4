/* SPDX-License-Identifier: MIT */
/* The `lend` command: finds the subcommand and gives it the rest of the arguments. */
#include "cli.h"

#include <lend/version.h>
#include <stdio.h>
#include <string.h>

static const char main_help[] =
    "Usage: lend COMMAND [OPTION...]\n"
    "Hand tensors from one process to another without copying them.\n"
    "\n"
    "  lend share FILE...   load .safetensors and .npy files and lend their tensors\n"
    "  lend show HANDLE     rebuild a tensor or a group here and tell what it is\n"
    "  lend ls              list who lends what, and who holds it\n"
    "  lend help COMMAND    tell more about a command\n"
    "\n"
    "  -h, --help           this text\n"
    "  -V, --version        versions of library, ABI, handles and shared memory\n"
    "\n"
    "Exit codes: 0 done, 1 failed (stderr says why), 2 wrong usage.\n"
    "The manual is lend(1).\n";

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"share", share_main, share_help},
    {"show", show_main, show_help},
    {"ls", ls_main, ls_help},
};

static int print_version(void) {
    struct lend_version_info v;
    lend_version(&v);
    printf("lend %u.%u.%u\nabi %u\nwire %u.%u\nshared memory layout %016llx\n", v.major, v.minor, v.patch, v.abi,
           v.wire_major, v.wire_minor, (unsigned long long)v.shm_layout);
    return finish_output("");
}

/* argv from "help" on. */
static int print_help(int argc, char **argv) {
    const char *name = argv[1];
    if (argc > 2) {
        fail_text("help", "one command at a time");
        return CLI_USAGE;
    }
    if (!name) {
        fputs(main_help, stdout);
        return finish_output("help");
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, name)) continue;
        fputs(commands[i].help, stdout);
        return finish_output("help");
    }
    fail_text("help", "there is no command '%s'", name);
    return CLI_USAGE;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fputs(main_help, stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "help") || !strcmp(name, "-h") || !strcmp(name, "--help")) return print_help(argc - 1, argv + 1);
    if (!strcmp(name, "version") || !strcmp(name, "-V") || !strcmp(name, "--version")) return print_version();
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, name)) continue;
        char title[16]; /* getopt_long begins its sentences with it */
        snprintf(title, sizeof title, "lend %s", name);
        argv[1] = title;
        return commands[i].main(argc - 1, argv + 1);
    }
    fail_text("", "there is no command '%s'; see 'lend help'", name);
    return CLI_USAGE;
}
