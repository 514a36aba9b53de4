/* SPDX-License-Identifier: MIT */
/* As test_calls.c, for what has several storages, and for what a tensor carries: groups, tensors of components, meta
 * tensors, attributes. A failure leaves no pin, no block, no storage and no descriptor. */
#include "books.h"
#include "many.h"
#include "sweep.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum { POOLED = 4, ALL = 9, LONG = 3000 };

static struct lend_pool *pool;
static struct lend_group *group, *rebuilt;
static struct lend_tensor *tensor, *made;
static void *handle;
static size_t handle_bytes;
static int line[2] = {-1, -1};
static const struct lend_reduce_opts pinned = {.size = sizeof pinned,
                                               .flags = LEND_REDUCE_PIN | LEND_REDUCE_MATERIALIZE};
static const struct lend_rebuild_opts checked = {.size = sizeof checked, .flags = LEND_REBUILD_CHECK};

static void open_pool(void) {
    struct lend_error error = {0};
    struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 500000000};
    CHECK_OK(lend_open(&opts, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
}

static void close_pool(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_check(&error), &error);
    lend_pool_unref(pool);
    CHECK_EVENTUALLY(2000, lend_close(&error) == 0);
}

static void cancel(void) {
    struct lend_error error = {0};
    CHECK_OK(lend_pin_cancel(handle, handle_bytes, 0, &error), &error);
    lend_free(handle);
}

/* --- reduce ------------------------------------------------------------------------------------------------------- */

static int call_reduce(struct lend_error *error) {
    return lend_group_reduce(group, &pinned, &handle, &handle_bytes, error);
}

/* Cold: the service has not started, and nothing has been lent. */
static void open_cold(void) {
    open_pool();
    group = pooled_group(pool, 0);
    add_private(group, 0);
}

/* Everything that is made once is there. */
static void open_warm(void) {
    struct lend_error error = {0};
    open_cold();
    CHECK_INT(call_reduce(&error), LEND_COPIED);
    cancel();
    books_remember();
}

static void open_pooled(void) {
    struct lend_error error = {0};
    open_pool();
    group = pooled_group(pool, 0);
    CHECK_INT(call_reduce(&error), 0);
    cancel();
    books_remember();
}

/* The pin alone holds what was copied; with its end that is gone. */
static void end_reduce(void) {
    CHECK_UINT(books_now().n_pins, 1);
    cancel();
    CHECK_UINT(books_now().n_pins, 0);
    CHECK_UINT(books_now().n_limbo, 0);
    check_group(group, lend_group_count(group));
    lend_group_unref(group);
    close_pool();
}

static void end_warm(void) {
    uint64_t used = books_before.used_bytes;
    CHECK(books_now().used_bytes > used);
    cancel();
    books_are_as_before("nothing");
    lend_group_unref(group);
    close_pool();
}

static void end_pooled(void) {
    cancel();
    books_are_as_before("nothing");
    lend_group_unref(group);
    close_pool();
}

LEND_TEST(reduce_of_a_group) {
    sweep_run(&(struct sweep){"the first reduce of a group", open_cold, call_reduce, end_reduce, false, 40});
    sweep_run_and_look(&(struct sweep){"reduce of a group that is copied", open_warm, call_reduce, end_warm, false, 15},
                       books_are_as_before);
    sweep_run_and_look(&(struct sweep){"reduce of a pooled group", open_pooled, call_reduce, end_pooled, false, 10},
                       books_are_as_before);
}

static int call_reduce_compound(struct lend_error *error) {
    static uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    int r = lend_reduce(lend_group_get(group, 3, NULL), &pinned, bytes, sizeof bytes, &handle_bytes, error);
    if (r < 0) return r;
    handle = malloc(handle_bytes);
    CHECK(handle);
    memcpy(handle, bytes, handle_bytes);
    return r;
}

LEND_TEST(reduce_of_a_tensor_of_components) {
    sweep_run_and_look(&(struct sweep){"reduce of a wrapper", open_pooled, call_reduce_compound, end_pooled, false, 10},
                       books_are_as_before);
}

/* --- rebuild, in the exporter itself ------------------------------------------------------------------------------- */

/* Only the pin holds it. */
static void open_pinned(void) {
    struct lend_error error = {0};
    open_cold();
    CHECK_INT(call_reduce(&error), LEND_COPIED);
    lend_group_unref(group);
    books_remember();
}

static int call_rebuild(struct lend_error *error) {
    return lend_group_rebuild(handle, handle_bytes, NULL, 0, &checked, &rebuilt, error);
}

static int call_rebuild_part(struct lend_error *error) {
    static const char *const names[] = {"wrapper", "alone", "meta"};
    return lend_group_rebuild(handle, handle_bytes, names, 3, NULL, &rebuilt, error);
}

static void end_rebuild(void) {
    CHECK_UINT(books_now().n_pins, 0);
    check_group(rebuilt, lend_group_count(rebuilt));
    lend_group_unref(rebuilt);
    CHECK_UINT(books_now().used_bytes, 0);
    lend_free(handle);
    close_pool();
}

/* Names are found without memory, too. */
static int call_find(struct lend_error *error) {
    (void)error;
    CHECK_PTR(lend_group_find(rebuilt, "nobody"), NULL);
    CHECK_PTR(lend_group_find(rebuilt, "meta"), lend_group_get(rebuilt, 2, NULL));
    return 0;
}

static void open_rebuilt(void) {
    struct lend_error error = {0};
    open_pinned();
    CHECK_OK(call_rebuild_part(&error), &error);
}

static int call_names(struct lend_error *error) {
    const char **names = NULL;
    size_t n = 0;
    int r = lend_group_names(handle, handle_bytes, &names, &n, error);
    if (r < 0) return r;
    CHECK_UINT(n, ALL);
    CHECK_STR(names[ALL - 1], "meta");
    lend_free(names);
    return 0;
}

static void end_pinned(void) {
    cancel();
    CHECK_UINT(books_now().used_bytes, 0);
    close_pool();
}

static int call_describe(struct lend_error *error) {
    struct lend_handle_info info = {.size = sizeof info};
    return lend_handle_describe(handle, handle_bytes, &info, error);
}

LEND_TEST(rebuild_of_a_group_at_home) {
    sweep_run_and_look(&(struct sweep){"rebuild of an own group", open_pinned, call_rebuild, end_rebuild, false, 10},
                       books_are_as_before);
    sweep_run_and_look(
        &(struct sweep){"rebuild of a part of a group", open_pinned, call_rebuild_part, end_rebuild, false, 10},
        books_are_as_before);
    sweep_run(&(struct sweep){"lend_group_find", open_rebuilt, call_find, end_rebuild, false, 1});
    sweep_run(&(struct sweep){"lend_group_names", open_pinned, call_names, end_pinned, false, 1});
    sweep_run(&(struct sweep){"lend_handle_describe of a group", open_pinned, call_describe, end_pinned, false, 1});
}

/* --- messages, with handles that are files ------------------------------------------------------------------------- */

static void open_line(void) {
    struct lend_error error = {0};
    open_pool();
    group = pooled_group(pool, LONG);
    add_private(group, LONG);
    CHECK_INT(call_reduce(&error), LEND_COPIED);
    cancel();
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
    books_remember();
}

static int call_send(struct lend_error *error) {
    return lend_group_send(line[0], group, &pinned, 0, error);
}

static int call_recv(struct lend_error *error) {
    return lend_group_recv(line[1], &checked, 0, &rebuilt, error);
}

static void end_line(void) {
    CHECK_UINT(books_now().n_pins, 0);
    if (rebuilt) check_group(rebuilt, ALL);
    lend_group_unref(rebuilt);
    rebuilt = NULL;
    close(line[0]);
    close(line[1]);
    lend_group_unref(group);
    close_pool();
}

static void end_send(void) {
    struct lend_error error = {0};
    CHECK_OK(call_recv(&error), &error);
    end_line();
}

static void open_sent(void) {
    struct lend_error error = {0};
    open_line();
    CHECK_INT(call_send(&error), LEND_COPIED);
    rebuilt = NULL;
    books_remember();
}

/* A descriptor without seals is none of a message of ours, which therefore is taken off the socket; its pin stays. */
static bool is_lost;

static void look_at_recv(const char *failed) {
    is_lost = !strcmp(failed, "get_seals");
    books_are_as_before(failed);
}

static void end_recv(void) {
    CHECK_INT(rebuilt == NULL, is_lost);
    if (is_lost) {
        lend__ledger_lock();
        lend__pin_consume(lend__ledger.oldest_pin->token);
        lend__ledger_unlock();
    }
    is_lost = false;
    end_line();
}

LEND_TEST(groups_as_messages_at_home) {
    sweep_run_and_look(&(struct sweep){"lend_group_send", open_line, call_send, end_send, false, 20},
                       books_are_as_before);
    sweep_run_and_look(&(struct sweep){"lend_group_recv", open_sent, call_recv, end_recv, true, 15}, look_at_recv);
}

/* --- objects ------------------------------------------------------------------------------------------------------- */

static void open_tensor(void) {
    open_pool();
    tensor = sevens(pool, PLAIN_BYTES);
}

static void end_made(void) {
    lend_tensor_unref(made);
    lend_tensor_unref(tensor);
    close_pool();
}

static int call_with_attrs(struct lend_error *error) {
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs,
                                            .flags = LEND_ATTR_PARAMETER,
                                            .user_tag = USER_TAG,
                                            .user = user_attribute,
                                            .user_bytes = sizeof user_attribute};
    return lend_tensor_with_attrs(tensor, &attrs, &made, error);
}

static int call_compound(struct lend_error *error) {
    static const int64_t shape[] = {PLAIN_BYTES};
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = LEND_LAYOUT_QUANTIZED,
                                           .n_components = 1,
                                           .components = &tensor,
                                           .ndim = 1,
                                           .shape = shape,
                                           .scale = 0.5};
    return lend_tensor_new_compound(&compound, &made, error);
}

static int call_meta(struct lend_error *error) {
    static const int64_t n = 1ll << 40;
    return lend_tensor_new_meta((DLDataType){kDLFloat, 32, 1}, 1, &n, &made, error);
}

static int call_group(struct lend_error *error) {
    char name[16];
    int r = lend_group_new(&group, error);
    for (int i = 0; r >= 0 && i < 40; i++) {
        memcpy(name, "t00", 4);
        name[1] = (char)('0' + i / 10);
        name[2] = (char)('0' + i % 10);
        r = lend_group_add(group, name, tensor, error);
    }
    if (r < 0) lend_group_unref(group);
    if (r < 0) group = NULL;
    return r;
}

static void end_group(void) {
    CHECK_UINT(lend_group_count(group), 40);
    lend_group_unref(group);
    lend_tensor_unref(tensor);
    close_pool();
}

static int call_resolve(struct lend_error *error) {
    return lend_tensor_resolve(tensor, pool, &made, error);
}

static void open_negative(void) {
    const struct lend_tensor_attrs attrs = {.size = sizeof attrs, .flags = LEND_ATTR_NEG};
    struct lend_error error = {0};
    open_pool();
    struct lend_tensor *plain = sevens(pool, PLAIN_BYTES);
    CHECK_OK(lend_tensor_with_attrs(plain, &attrs, &tensor, &error), &error);
    lend_tensor_unref(plain);
}

static void end_resolved(void) {
    check_bytes_are(made, (uint8_t)-SEVEN);
    end_made();
}

LEND_TEST(objects) {
    sweep_run(&(struct sweep){"lend_tensor_with_attrs", open_tensor, call_with_attrs, end_made, false, 1});
    sweep_run(&(struct sweep){"lend_tensor_new_compound", open_tensor, call_compound, end_made, false, 1});
    sweep_run(&(struct sweep){"lend_tensor_new_meta", open_tensor, call_meta, end_made, false, 1});
    sweep_run(&(struct sweep){"lend_group_add", open_tensor, call_group, end_group, false, 40});
    sweep_run(&(struct sweep){"lend_tensor_resolve", open_negative, call_resolve, end_resolved, false, 1});
}
