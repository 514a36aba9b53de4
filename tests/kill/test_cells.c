/* SPDX-License-Identifier: MIT */
/* A cell is used again while the exporter looks at all cells, because the ring was overrun: the new token must not be
 * taken for the old one, which is consumed already. The schedule is forced by a stop right after the intent. */
#include "points.h"
#include "role.h"
#include "share/ledger.h"

#include <lend/lend.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CELLS = 256, N_RING = 1024 };

static int rebuild(const char *text, struct lend_error *error) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_handle_parse(text, handle, sizeof handle, &n), NULL);
    int r = lend_rebuild(handle, n, NULL, &tensor, error);
    lend_tensor_unref(tensor);
    return r;
}

/* "once TEXT": rebuilds and gives back. "overrun PLAIN PINNED": overruns the ring with the first, then stops in the
 * rebuild of the second. */
LEND_ROLE(importer) {
    struct lend_error error = {0};
    CHECK_OK(lend_open(NULL, &error), &error);
    for (const char *line; (line = role_hear());) {
        char copy[2 * LEND_HANDLE_TEXT_MAX], *rest = copy;
        snprintf(copy, sizeof copy, "%s", line);
        const char *word = strtok_r(copy, " ", &rest), *first = strtok_r(NULL, " ", &rest),
                   *second = strtok_r(NULL, " ", &rest);
        int r = rebuild(first, &error);
        if (!strcmp(word, "overrun")) {
            for (int i = 0; i < N_RING && r >= 0; i++) r = rebuild(first, &error);
            points_at("P2.intent", 0, POINT_STOP);
            if (r >= 0) r = rebuild(second, &error);
        }
        role_say("code %d %s", r, r < 0 ? error.text : "");
    }
    CHECK_OK(lend_close(&error), &error);
    return 0;
}

static const char *reduce(struct lend_tensor *tensor, uint32_t flags, char text[LEND_HANDLE_TEXT_MAX]) {
    uint8_t handle[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct lend_error error = {0};
    const struct lend_reduce_opts opts = {.size = sizeof opts, .flags = flags};
    CHECK_OK(lend_reduce(tensor, &opts, handle, sizeof handle, &n, &error), &error);
    CHECK_OK(lend_handle_format(handle, n, text, LEND_HANDLE_TEXT_MAX), NULL);
    return text;
}

/* The report drains every page first. */
static uint64_t n_pins(void) {
    struct lend_report *report = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_report_get(NULL, 0, 0, &report, &error), &error);
    uint64_t n = report->totals.n_pins;
    lend_report_free(report);
    return n;
}

LEND_TEST(a_token_is_not_consumed_before_its_lease) {
    static char plain[LEND_HANDLE_TEXT_MAX], pinned[LEND_HANDLE_TEXT_MAX];
    struct lend_error error = {0};
    struct lend_pool *pool = NULL;
    struct lend_tensor *kept = NULL, *dropped = NULL;
    const int64_t shape[] = {100};
    const DLDataType uint8 = {kDLUInt, 8, 1};
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    CHECK_OK(lend_tensor_new(pool, uint8, 1, shape, &kept, &error), &error);
    CHECK_OK(lend_tensor_new(pool, uint8, 1, shape, &dropped, &error), &error);
    struct role importer;
    ROLE_START(&importer, NULL, "importer");
    for (int i = 0; i < N_CELLS; i++) { /* every cell has been used once */
        role_send(&importer, "once %s", reduce(kept, LEND_REDUCE_PIN, pinned));
        CHECK_STR(role_expect(&importer, "code "), "0 ");
    }
    CHECK_UINT(n_pins(), 0);
    reduce(kept, 0, plain);
    reduce(dropped, LEND_REDUCE_PIN, pinned);
    lend_tensor_unref(dropped); /* only the pin holds it */
    lend__ledger_lock();        /* the service must not drain in between; the importer needs nobody */
    role_send(&importer, "overrun %s %s", plain, pinned);
    CHECK_EVENTUALLY(10000, process_state(importer.pid) == 'T');
    lend__ledger_unlock();
    CHECK_UINT(n_pins(), 1);
    kill(importer.pid, SIGCONT);
    CHECK_STR(role_expect(&importer, "code "), "0 ");
    CHECK_EVENTUALLY(2000, n_pins() == 0);
    CHECK_OK(lend_check(&error), &error);
    role_end(&importer);
    lend_tensor_unref(kept);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}
