/* SPDX-License-Identifier: MIT */
/* Pins: one token for one delivery; how each ends, the budget, and the modes that imply one. */
#include "peer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct lend_reduce_opts pin = {.size = sizeof pin, .flags = LEND_REDUCE_PIN};

static uint64_t n_pins(void) {
    struct lend_report *report = NULL;
    CHECK_OK(lend_report_get(NULL, 0, 0, &report, NULL), NULL);
    uint64_t n = report->totals.n_pins;
    CHECK_UINT(report->n_pins, n);
    lend_report_free(report);
    return n;
}

LEND_TEST(n_deliveries_are_n_handles) {
    enum { N = 5 };
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9);
    struct handle handles[N];
    struct role r[N];
    for (int i = 0; i < N; i++) {
        reduce_to(tensor, &pin, 0, &handles[i]);
        for (int j = 0; j < i; j++) CHECK(memcmp(handles[i].bytes, handles[j].bytes, handles[i].n) != 0);
    }
    lend_tensor_unref(tensor);
    CHECK_UINT(n_pins(), N);
    for (int i = 0; i < N; i++) {
        actor_start(&r[i], NULL, NULL);
        actor_ok(&r[i], "rebuild 0 %s", handles[i].text);
        CHECK_EVENTUALLY(1500, n_pins() == (uint64_t)(N - 1 - i));
        CHECK_INT(actor_int(&r[i], "filled 0"), 9);
        role_end(&r[i]);
        if (i < N - 1) CHECK(limbo_bytes(pool) >= 1000);
    }
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

LEND_TEST(a_pinned_handle_rebuilt_twice_uses_one_token) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9);
    struct handle first, second;
    struct role r;
    reduce_to(tensor, &pin, 0, &first);
    reduce_to(tensor, &pin, 0, &second);
    lend_tensor_unref(tensor);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", first.text);
    actor_ok(&r, "rebuild 1 %s", first.text);
    CHECK_INT(actor_int(&r, "same 0 1"), 1);
    CHECK_EVENTUALLY(1500, n_pins() == 1);
    role_end(&r);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", second.text); /* its own token still holds */
    CHECK_INT(actor_int(&r, "filled 0"), 9);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    CHECK_UINT(n_pins(), 0);
    close_all(pool);
}

LEND_TEST(a_pin_is_cancelled_by_the_exporter_or_by_anyone) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9);
    struct lend_error error = {0};
    struct handle first, second, plain;
    struct role r;
    reduce_to(tensor, &pin, 0, &first);
    reduce_to(tensor, &pin, 0, &second);
    reduce_to(tensor, NULL, 0, &plain);
    CHECK_CODE(lend_pin_cancel(plain.bytes, plain.n, 0, &error), -EINVAL);
    CHECK_CODE(lend_pin_cancel(plain.bytes, 20, 0, &error), -EBADMSG);
    lend_tensor_unref(tensor);
    CHECK_OK(lend_pin_cancel(first.bytes, first.n, 0, &error), &error);
    CHECK_UINT(n_pins(), 1);
    CHECK_OK(lend_pin_cancel(first.bytes, first.n, 0, &error), &error); /* again: it has ended already */
    CHECK_UINT(n_pins(), 1);
    CHECK(limbo_bytes(pool) >= 1000);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "cancel %s", second.text);
    CHECK_UINT(n_pins(), 0);
    CHECK_UINT(limbo_bytes(pool), 0);
    actor_ok(&r, "cancel %s", second.text);
    CHECK_INT(actor_code(&r, "rebuild 0 %s", second.text), -ESTALE);
    role_end(&r);
    close_all(pool);
}

/* Also in a process that nobody has contacted and where nothing else happens. */
LEND_TEST(a_pin_ends_with_its_lifetime) {
    struct lend_reduce_opts brief = {.size = sizeof brief, .flags = LEND_REDUCE_PIN, .pin_ns_max = 300000000};
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9), *again = NULL;
    struct handle handle, opener;
    reduce_to(tensor, NULL, 0, &opener);
    usleep(200000); /* the service sleeps */
    uint64_t began = test_now_ms();
    reduce_to(tensor, &brief, 0, &handle);
    lend_tensor_unref(tensor);
    CHECK(limbo_bytes(pool) >= 1000);
    CHECK_EVENTUALLY(1500, limbo_bytes(pool) == 0);
    CHECK(test_now_ms() - began >= 300);
    CHECK_CODE(lend_rebuild(handle.bytes, handle.n, NULL, &again, NULL), -ESTALE);
    close_all(pool);
}

/* pin_orphan_ns: an importer's pin outlives it by that much. */
LEND_TEST(a_pin_ends_a_while_after_its_senders_death) {
    struct lend_opts opts = {.size = sizeof opts, .pin_orphan_ns = 600000000};
    open_with(&opts);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9);
    struct handle handle;
    char text[LEND_HANDLE_TEXT_MAX];
    struct role b, c;
    reduce_to(tensor, NULL, 0, &handle);
    actor_start(&b, NULL, NULL);
    actor_start(&c, NULL, NULL);
    actor_ok(&b, "rebuild 0 %s", handle.text);
    snprintf(text, sizeof text, "%s", actor_ok(&b, "reduce 0 pin"));
    lend_tensor_unref(tensor);
    actor_ok(&b, "drop 0");
    usleep(800000); /* longer than the orphan's time, but the sender lives */
    CHECK_UINT(n_pins(), 1);
    role_kill(&b, SIGKILL);
    uint64_t began = test_now_ms();
    CHECK(limbo_bytes(pool) >= 1000);
    CHECK_EVENTUALLY(3000, limbo_bytes(pool) == 0);
    CHECK(test_now_ms() - began >= 500);
    CHECK_UINT(n_pins(), 0);
    CHECK_INT(actor_code(&c, "rebuild 0 %s", text), -ESTALE);
    role_end(&c);
    close_all(pool);
}

LEND_TEST(the_budget_of_pins_names_the_oldest) {
    struct lend_opts opts = {.size = sizeof opts, .pin_bytes_max = 2500};
    struct lend_error error = {0};
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    open_with(&opts);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9);
    struct handle first, second, third;
    struct role r;
    char part[32];
    reduce_to(tensor, &pin, 0, &first);
    reduce_to(tensor, &pin, 0, &second);
    CHECK_CODE(lend_reduce(tensor, &pin, bytes, sizeof bytes, &n, &error), -ENOSPC);
    CHECK_UINT(error.asked, 1000);
    CHECK_UINT(error.available, 500);
    snprintf(part, sizeof part, "pid %d", (int)getpid());
    CHECK_CONTAINS(error.text, part);
    CHECK_CONTAINS(error.text, "2000 of 2500");
    /* An importer that asks gets the same answer, and the plain handle still works. */
    actor_start(&r, NULL, NULL);
    reduce_to(tensor, NULL, 0, &third);
    actor_ok(&r, "rebuild 0 %s", third.text);
    CHECK_INT(actor_code(&r, "reduce 0 pin"), -ENOSPC);
    CHECK_CONTAINS(actor_sentence, "oldest");
    CHECK_CONTAINS(actor_sentence, part);
    CHECK_OK(lend_pin_cancel(first.bytes, first.n, 0, &error), &error);
    actor_ok(&r, "reduce 0 pin");
    CHECK_UINT(n_pins(), 2);
    CHECK_CODE(lend_reduce(tensor, &pin, bytes, sizeof bytes, &n, &error), -ENOSPC);
    struct lend_tensor *large = new_bytes(pool, 3000, 1);
    CHECK_CODE(lend_reduce(large, &pin, bytes, sizeof bytes, &n, &error), -ENOSPC);
    CHECK_UINT(error.asked, 3000);
    lend_tensor_unref(large);
    role_end(&r);
    lend_tensor_unref(tensor);
    close_all(pool);
}

LEND_TEST(a_failed_rebuild_leaves_the_pin) {
    open_with(NULL);
    struct lend_pool_opts pool_opts = {.size = sizeof pool_opts, .flags = LEND_POOL_PEERS_READ_ONLY};
    struct lend_pool *pool = new_pool(&pool_opts);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9);
    struct handle handle;
    struct role r;
    reduce_to(tensor, &pin, 0, &handle);
    lend_tensor_unref(tensor);
    actor_start(&r, NULL, NULL);
    for (int i = 0; i < 600; i++) /* more often than there are cells */
        CHECK_INT(actor_code(&r, "rebuild 0 %s writable", handle.text), -EACCES);
    usleep(300000); /* several ticks */
    CHECK_UINT(n_pins(), 1);
    CHECK(limbo_bytes(pool) >= 1000);
    actor_ok(&r, "rebuild 0 %s", handle.text);
    CHECK_INT(actor_int(&r, "filled 0"), 9);
    CHECK_EVENTUALLY(1500, n_pins() == 0);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

LEND_TEST(move_takes_the_senders_tensor) {
    struct lend_reduce_opts move = {.size = sizeof move, .mode = LEND_MODE_MOVE};
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_error error = {0};
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9), *view = NULL, *none = NULL;
    struct handle handle;
    struct role r;
    /* Too small a buffer: nothing has moved. */
    CHECK_CODE(lend_reduce(tensor, &move, bytes, 10, &n, &error), -ERANGE);
    CHECK_UINT(n_pins(), 0);
    CHECK(is_filled(tensor, 9));
    reduce_to(tensor, &move, 0, &handle);
    CHECK_UINT(n, handle.n);
    CHECK_CODE(lend_tensor_info(tensor, &info), -ESTALE);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
    CHECK_CODE(lend_tensor_slice(tensor, 0, 0, 1, 1, &view, &error), -ESTALE);
    CHECK_CODE(lend_tensor_copy(tensor, NULL, &none, &error), -ESTALE);
    CHECK_CODE(lend_reduce(tensor, NULL, bytes, sizeof bytes, &n, &error), -ESTALE);
    CHECK(limbo_bytes(pool) >= 1000);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", handle.text);
    CHECK_INT(actor_int(&r, "filled 0"), 9);
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    CHECK_UINT(n_pins(), 0);
    lend_tensor_unref(tensor);
    close_all(pool);
}

LEND_TEST(a_snapshot_does_not_see_later_writes) {
    struct lend_reduce_opts snapshot = {.size = sizeof snapshot, .mode = LEND_MODE_SNAPSHOT};
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 9);
    struct handle handle;
    struct role r;
    reduce_to(tensor, &snapshot, 0, &handle);
    CHECK_UINT(n_pins(), 1);
    memset(lend_tensor_data(tensor), 10, 1000);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", handle.text);
    CHECK_INT(actor_int(&r, "filled 0"), 9);
    actor_ok(&r, "fill 0 11");
    CHECK(is_filled(tensor, 10));
    CHECK_EVENTUALLY(1500, n_pins() == 0);
    role_end(&r);
    lend_tensor_unref(tensor);
    close_all(pool);
}

/* Private memory: only the view is copied, the outcome says so, and the handle is pinned whatever was asked. */
LEND_TEST(private_memory_is_copied_and_pinned) {
    struct lend_reduce_opts refuse = {.size = sizeof refuse, .flags = LEND_REDUCE_NO_COPY};
    struct lend_reduce_opts move = {.size = sizeof move, .mode = LEND_MODE_MOVE};
    struct lend_error error = {0};
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *shared = new_bytes(pool, 10000, 9), *tensor = NULL, *view = NULL;
    struct handle handle, moved;
    struct role r;
    CHECK_OK(lend_tensor_copy(shared, NULL, &tensor, &error), &error);
    lend_tensor_unref(shared);
    CHECK_INT(info_of(tensor).is_private, 1);
    CHECK_CODE(lend_reduce(tensor, &refuse, bytes, sizeof bytes, &n, &error), -EOPNOTSUPP);
    CHECK_CONTAINS(error.text, "NO_COPY");
    CHECK_OK(lend_tensor_slice(tensor, 0, 100, 300, 2, &view, &error), &error);
    reduce_to(view, NULL, LEND_COPIED, &handle);
    CHECK_UINT(n_pins(), 1);
    memset(lend_tensor_data(tensor), 1, 10000);
    reduce_to(tensor, &move, LEND_COPIED, &moved);
    CHECK_PTR(lend_tensor_data(tensor), NULL);
    lend_tensor_unref(view);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_pins(), 2);
    actor_start(&r, NULL, NULL);
    actor_ok(&r, "rebuild 0 %s", handle.text);
    CHECK_CONTAINS(actor_ok(&r, "describe 0"), "shape,100 strides,1 ");
    CHECK_CONTAINS(actor_ok(&r, "describe 0"), "storage 100 ");
    CHECK_INT(actor_int(&r, "filled 0"), 9);
    actor_ok(&r, "rebuild 1 %s", moved.text);
    CHECK_INT(actor_int(&r, "filled 1"), 1);
    CHECK_EVENTUALLY(1500, n_pins() == 0);
    role_end(&r);
    close_all(pool);
}

/* Ten thousand pinned handles through 256 cells: they wrap, and each use waits for its acknowledgement. */
LEND_ROLE(consumer_of_many) {
    int n = atoi(argv[0]);
    open_with(NULL);
    role_say("ready");
    for (int i = 0; i < n; i++) {
        const char *text = role_hear();
        struct lend_tensor *tensor = NULL;
        struct lend_error error = {0};
        CHECK(text != NULL);
        CHECK_OK(rebuild_text(text, NULL, &tensor, &error), &error);
        CHECK(is_filled(tensor, i & 0xff));
        lend_tensor_unref(tensor);
        if (i % 100 == 99) role_say("done %d", i + 1);
    }
    close_all(NULL);
    return 0;
}

LEND_TEST(ten_thousand_pinned_handles_in_a_row) {
    enum { N = 10000 };
    struct lend_pool_opts pool_opts = {.size = sizeof pool_opts, .budget_bytes = 64 << 20};
    open_with(NULL);
    struct lend_pool *pool = new_pool(&pool_opts);
    struct role r;
    ROLE_START(&r, NULL, "consumer_of_many", "10000");
    role_expect(&r, "ready");
    for (int i = 0; i < N; i++) {
        struct lend_tensor *tensor = new_bytes(pool, 2000, i & 0xff);
        role_send(&r, "%s", reduce_text(tensor, &pin, 0));
        lend_tensor_unref(tensor);
        if (i % 100 == 99) {
            char expected[16];
            snprintf(expected, sizeof expected, "%d", i + 1);
            CHECK_STR(role_expect(&r, "done "), expected);
        }
    }
    role_end(&r);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    CHECK_UINT(n_pins(), 0);
    close_all(pool);
}
