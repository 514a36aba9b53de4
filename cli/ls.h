/* SPDX-License-Identifier: MIT */
/* Between asking the exporters (ls.c) and printing what they said (ls_print.c). */
#ifndef LEND_CLI_LS_H_
#define LEND_CLI_LS_H_

#include <lend/lend.h>
#include <stdbool.h>
#include <stddef.h>

struct answer {
    struct lend_exporter exporter;
    struct lend_report *report; /* owned; NULL when code is not 0 */
    int code;
    struct lend_error error;
};

/* Each returns an exit code. */
int ls_print_text(const struct answer *answers, size_t n, bool with_all);
int ls_print_json(const struct answer *answers, size_t n, bool with_all);

#endif
