/* SPDX-License-Identifier: MIT */
/* Many storages under one handle, at the worst moments: all of them or none, and a pin that ends once. This process
 * exports; where an exporter must die, it is an actor. */
#include "exporter.h"
#include "points.h"
#include "share/control.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MANY = 100, IN_THREE_MESSAGES = 2500 };

/* --- helpers ------------------------------------------------------------------------------------------------------ */

/* Small tensors from two pools by turns. */
static void fill_tensors(struct lend_pool *second, struct lend_tensor **tensors, unsigned n) {
    for (unsigned i = 0; i < n; i++) tensors[i] = filled(i % 2 ? second : pool, 100, (int)(10 + i));
}

static void unref_all(struct lend_tensor **tensors, unsigned n) {
    for (unsigned i = 0; i < n; i++) lend_tensor_unref(tensors[i]);
}

/* What all importers' pages claim. The ledger lock is held. */
static uint64_t n_held_locked(void) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < lend__ledger.n_pages; i++)
        for (uint32_t slot = 0; slot < lend__ledger.n_slots; slot++) n += lend__page_held(lend__ledger.pages[i], slot);
    return n;
}

static uint64_t n_held(void) {
    lend__ledger_lock();
    uint64_t n = n_held_locked();
    lend__ledger_unlock();
    return n;
}

/* Slots with exactly so many pins. */
static unsigned n_slots_with_pins(uint32_t n_pins_each) {
    unsigned n = 0;
    lend__ledger_lock();
    for (uint32_t slot = 0; slot < lend__ledger.n_slots; slot++)
        n += lend__ledger.slots[slot].storage && lend__ledger.slots[slot].n_pins == n_pins_each;
    lend__ledger_unlock();
    return n;
}

/* The actor refuses, with this code. */
static void expect_refusal(struct role *role, int code) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "error %d ", code);
    const char *line = role_line(role, 10000);
    if (!line) FAIL("it ended");
    CHECK_CONTAINS(line, wanted);
}

/* One that waits for an exporter only so long. */
static void start_with_deadline(struct role *role, int deadline_ms) {
    ROLE_START(role, NULL, "actor");
    TELL(role, "open %d", deadline_ms);
}

static const char *handle_of(struct role *role, char text[LEND_HANDLE_TEXT_MAX]) {
    snprintf(text, LEND_HANDLE_TEXT_MAX, "%s", role_expect(role, "ok "));
    return text;
}

/* --- a slot that is closing, and stays so ------------------------------------------------------------------------- */

struct stuck {
    struct role *role;
    const char *handle;
    uint64_t n_held_after;
};

/* The exporter, held up in the middle of closing a slot: as if it had been stopped there. */
static void rebuild_while_closing(void *arg) {
    struct stuck *stuck = arg;
    role_send(stuck->role, "grebuild 0 0 %s", stuck->handle);
    expect_refusal(stuck->role, -EAGAIN);
    stuck->n_held_after = n_held_locked();
}

LEND_TEST(a_closing_slot_refuses_all_of_a_hundred) {
    char alone[LEND_HANDLE_TEXT_MAX];
    struct lend_tensor *tensors[MANY];
    struct lend_pool *second = NULL;
    struct role holder, late;
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    begin();
    CHECK_OK(lend_pool_new(NULL, &second, &error), &error);
    fill_tensors(second, tensors, MANY);
    struct lend_group *group = group_of(tensors, MANY);
    char *handle = reduced(group, 0);
    lend_group_unref(group);
    CHECK_OK(lend_reduce(tensors[60], NULL, bytes, sizeof bytes, &n, &error), &error);
    CHECK_OK(lend_handle_format(bytes, n, alone, sizeof alone), NULL);
    start(&holder, NULL);
    start_with_deadline(&late, 1000);
    TELL(&holder, "rebuild 0 70 %s", alone);
    TELL(&late, "grebuild 0 0 %s", handle); /* so that it needs nobody's answer any more */
    CHECK_UINT(n_held(), MANY + 1);
    TELL(&late, "gdrop 0");
    CHECK_UINT(n_held(), 1);
    struct stuck stuck = {&late, handle, 0};
    points_call_at("L5.closing", 0, rebuild_while_closing, &stuck);
    lend_tensor_unref(tensors[60]);
    tensors[60] = NULL;
    CHECK_UINT(stuck.n_held_after, 1);
    CHECK_UINT(n_limbo(), 1); /* the holder counts, so it opened again */
    TELL(&late, "grebuild 0 0 %s", handle);
    TELL(&late, "check");
    CHECK_UINT(n_held(), MANY + 1);
    end(&holder);
    TELL(&late, "gdrop 0");
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    role_send(&late, "grebuild 0 0 %s", handle);
    expect_refusal(&late, -ESTALE);
    CHECK_UINT(n_held(), 0);
    end(&late);
    unref_all(tensors, MANY);
    lend_pool_unref(second);
    free(handle);
    finish();
}

/* --- a rebuild that fails, and its pin ---------------------------------------------------------------------------- */

/* A compressed sparse tensor whose first column index is wrong. */
static struct lend_tensor *wrong_csr(struct lend_tensor **ret_columns) {
    static const int64_t rows[] = {0, 1, 2}, columns[] = {7, 1}, shape[] = {2, 2}, n_rows = 3, n = 2;
    const DLDataType int64 = {kDLInt, 64, 1};
    struct lend_tensor *parts[3] = {NULL}, *tensor = NULL;
    CHECK_OK(lend_tensor_new(pool, int64, 1, &n_rows, &parts[0], &error), &error);
    CHECK_OK(lend_tensor_new(pool, int64, 1, &n, &parts[1], &error), &error);
    parts[2] = filled(pool, n, 11);
    memcpy(lend_tensor_data(parts[0]), rows, sizeof rows);
    memcpy(lend_tensor_data(parts[1]), columns, sizeof columns);
    const struct lend_compound compound = {.size = sizeof compound,
                                           .layout = LEND_LAYOUT_CSR,
                                           .n_components = 3,
                                           .components = parts,
                                           .ndim = 2,
                                           .shape = shape};
    CHECK_OK(lend_tensor_new_compound(&compound, &tensor, &error), &error);
    *ret_columns = parts[1];
    lend_tensor_unref(parts[0]);
    lend_tensor_unref(parts[2]);
    return tensor;
}

LEND_TEST(a_pin_outlives_a_rebuild_that_fails) {
    struct lend_tensor *columns = NULL;
    struct role r;
    begin();
    struct lend_tensor *tensors[] = {filled(pool, 100, 10), wrong_csr(&columns)};
    struct lend_group *group = group_of(tensors, 2);
    char *handle = reduced(group, LEND_REDUCE_PIN);
    lend_group_unref(group);
    unref_all(tensors, 2);
    start(&r, NULL);
    for (int i = 0; i < 3; i++) {
        role_send(&r, "grebuild 0 %d %s", LEND_REBUILD_CHECK, handle);
        expect_refusal(&r, -EBADMSG);
        look();
        CHECK_UINT(n_pins(), 1);
        CHECK_UINT(n_held(), 0);
        CHECK_UINT(n_slots_with_pins(1), 4);
    }
    memcpy(lend_tensor_data(columns), &(int64_t){0}, sizeof(int64_t));
    TELL(&r, "grebuild 0 %d %s", LEND_REBUILD_CHECK, handle);
    TELL(&r, "check");
    CHECK_EVENTUALLY(2000, (look(), n_pins()) == 0);
    CHECK_UINT(n_held(), 4);
    CHECK_UINT(n_slots_with_pins(0), 4);
    lend_tensor_unref(columns);
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    free(handle);
    finish();
}

/* --- two exporters, one of which dies ----------------------------------------------------------------------------- */

/* A group of t0, of the other exporter's memory, and of t1, which is ours. This process has the other's as an importer. */
static char *group_of_two(struct role *other) {
    char text[LEND_HANDLE_TEXT_MAX];
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct lend_tensor *tensors[2] = {NULL};
    TELL(other, "new 0 1000 10");
    role_send(other, "reduce 0 0");
    CHECK_OK(lend_handle_parse(handle_of(other, text), bytes, sizeof bytes, &n), NULL);
    CHECK_OK(lend_rebuild(bytes, n, NULL, &tensors[0], &error), &error);
    tensors[1] = filled(pool, 1000, 11);
    struct lend_group *group = group_of(tensors, 2);
    char *handle = reduced(group, LEND_REDUCE_PIN);
    lend_group_unref(group);
    unref_all(tensors, 2);
    CHECK_UINT(n_pins(), 1);
    return handle;
}

/* The importer has met nobody yet, or only one of them. */
static void lose_one_before_contact(const char *at) {
    struct role other, r;
    begin();
    start(&other, NULL);
    char *handle = group_of_two(&other);
    start(&r, at);
    role_send(&r, "grebuild 0 0 %s", handle);
    await_stop(&r);
    role_kill(&other, SIGKILL);
    role_kill(&r, SIGCONT);
    expect_refusal(&r, -EOWNERDEAD);
    look();
    CHECK_UINT(n_pins(), 1);
    CHECK_UINT(n_held(), 0);
    /* What the living one lends is to be had, by the same pin. */
    TELL(&r, "grebuild 0 0 %s 1", handle);
    TELL(&r, "check");
    CHECK_EVENTUALLY(2000, (look(), n_pins()) == 0);
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    free(handle);
    finish();
}

LEND_TEST(one_of_two_exporters_dies_before_the_contact) {
    lose_one_before_contact("LEND_POINT_AT=C3.connected 0 stop");
}

/* Everything is known and mapped: the frozen words decide, and all of it comes. */
LEND_TEST(one_of_two_exporters_dies_between_the_takes) {
    struct role other, r;
    begin();
    start(&other, NULL);
    char *handle = group_of_two(&other);
    start(&r, "LEND_POINT_AT=L2.adopted 0 stop");
    role_send(&r, "grebuild 0 0 %s", handle);
    await_stop(&r);
    role_kill(&other, SIGKILL);
    role_kill(&r, SIGCONT);
    role_expect(&r, "ok");
    TELL(&r, "check");
    CHECK_EVENTUALLY(2000, (look(), n_pins()) == 0);
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    free(handle);
    finish();
}

/* An exporter of two allocations is killed while its importer is stopped at `at`. */
static void lose_the_exporter(const char *at, bool is_good) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct role exporter, r;
    start(&exporter, NULL);
    start(&r, at);
    for (int i = 0; i < 12; i++) TELL(&exporter, "new %d 5000 %d", i, 10 + i);
    TELL(&exporter, "new 12 2500000 22");
    TELL(&exporter, "group 0 0 0 1 2 3 4 5 6 7 8 9 10 11 12");
    role_send(&exporter, "greduce 0 1");
    role_send(&r, "grebuild 0 0 %s", handle_of(&exporter, handle));
    await_stop(&r);
    role_kill(&exporter, SIGKILL);
    role_kill(&r, SIGCONT);
    if (is_good)
        role_expect(&r, "ok");
    else
        expect_refusal(&r, -EOWNERDEAD);
    TELL(&r, "check");
    TELL(&r, "gdrop 0");
    end(&r); /* it could not close if anything were held */
}

LEND_TEST(the_exporter_dies_in_the_middle_of_the_takes) {
    lose_the_exporter("LEND_POINT_AT=L2.adopted 6 stop", true);
    lose_the_exporter("LEND_POINT_AT=L1.counted 12 stop", true);
}

LEND_TEST(the_exporter_dies_before_its_second_allocation_is_there) {
    lose_the_exporter("LEND_POINT_AT=C7.installed 0 stop", false);
}

/* --- a pin of many slots ------------------------------------------------------------------------------------------ */

/* A connection from `from` (NULL: from here, returned) to `to`. */
static int connect_to(struct role *from, struct role *to, int number) {
    char name[64];
    int fd = -1;
    snprintf(name, sizeof name, "%d-%d", (int)getpid(), number);
    TELL(to, "listen %s", name);
    if (from) {
        TELL(from, "connect %s", name);
    } else {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "kill-test-%s", name);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_INT(connect(fd, (struct sockaddr *)&address, (socklen_t)(sizeof(sa_family_t) + 1 + (size_t)n)), 0);
    }
    TELL(to, "accept");
    return fd;
}

/* B holds a group of so many slots that it needs three messages to pin it. */
static struct lend_group *lend_many(struct lend_tensor **tensors, struct role *b) {
    fill_tensors(pool, tensors, IN_THREE_MESSAGES);
    struct lend_group *group = group_of(tensors, IN_THREE_MESSAGES);
    int fd = connect_to(NULL, b, 0);
    CHECK_OK(lend_group_send(fd, group, NULL, 0, &error), &error);
    TELL(b, "grecv 0");
    TELL(b, "hangup");
    close(fd);
    CHECK_EVENTUALLY(2000, (look(), n_pins()) == 0);
    CHECK_UINT(n_held(), IN_THREE_MESSAGES);
    return group;
}

LEND_TEST(a_pin_of_many_slots_ends_once) {
    static struct lend_tensor *tensors[IN_THREE_MESSAGES];
    struct role b, c;
    begin();
    start(&b, NULL);
    start(&c, NULL);
    struct lend_group *group = lend_many(tensors, &b);
    connect_to(&b, &c, 1);
    points_reset();
    TELL(&b, "gsend 0");
    CHECK_UINT(points_count("P6.pinned-for-peer"), 3);
    CHECK_UINT(n_pins(), 1);
    CHECK_UINT(n_slots_with_pins(1), IN_THREE_MESSAGES);
    /* Another pin of the same storages is a pin of its own. */
    const struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_PIN};
    void *ours = NULL;
    size_t n = 0;
    CHECK_OK(lend_group_reduce(group, &opts, &ours, &n, &error), &error);
    CHECK_UINT(n_slots_with_pins(2), IN_THREE_MESSAGES);
    lend_group_unref(group);
    unref_all(tensors, IN_THREE_MESSAGES);
    TELL(&b, "gdrop 0");
    TELL(&c, "grecv 0");
    TELL(&c, "check");
    CHECK_EVENTUALLY(2000, (look(), n_pins()) == 1);
    CHECK_UINT(n_slots_with_pins(1), IN_THREE_MESSAGES);
    CHECK_UINT(n_limbo(), IN_THREE_MESSAGES);
    TELL(&c, "gdrop 0");
    CHECK_UINT(n_held(), 0);
    look();
    CHECK_UINT(n_limbo(), IN_THREE_MESSAGES); /* ours is still good */
    CHECK_OK(lend_pin_cancel(ours, n, 0, &error), &error);
    CHECK_OK(lend_pin_cancel(ours, n, 0, &error), &error);
    CHECK_UINT(n_pins(), 0);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    lend_free(ours);
    end(&b);
    end(&c);
    finish();
}

struct half {
    pid_t forwarder;
    uint32_t n_slots;
};

/* In the service thread, which holds the ledger lock. */
static void kill_forwarder(void *arg) {
    struct half *half = arg;
    half->n_slots = lend__ledger.oldest_pin->n_slots;
    kill(half->forwarder, SIGKILL);
}

/* The forwarder dies when two of its three messages are answered: what it has pinned ends after it. */
LEND_TEST(half_a_pin_ends_with_its_forwarder) {
    static struct lend_tensor *tensors[IN_THREE_MESSAGES];
    struct role b;
    begin();
    start(&b, NULL);
    struct lend_group *group = lend_many(tensors, &b);
    struct half half = {b.pid, 0};
    points_call_at("P6.pinned-for-peer", 1, kill_forwarder, &half);
    role_send(&b, "greduce 0 1");
    CHECK_PTR(role_line(&b, 10000), NULL);
    CHECK_INT(role_wait(&b), 128 + SIGKILL);
    CHECK_UINT(half.n_slots, 2 * LEND__CONTROL_SLOTS_MAX);
    lend_group_unref(group);
    unref_all(tensors, IN_THREE_MESSAGES);
    CHECK_EVENTUALLY(4000, n_pins() == 0 && n_limbo() == 0);
    CHECK_UINT(n_slots_with_pins(1), 0);
    finish();
}
