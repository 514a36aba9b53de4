/* SPDX-License-Identifier: MIT */
/* One test for each mutant, named after it: a schedule, forced by test points, that passes on the right code and fails
 * where the protection is missing. This process exports; actors import. mutants.py runs each test on both. */
#include "base/atomic.h"
#include "base/sys.h"
#include "exporter.h"
#include "points.h"
#include "share/liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BOGUS = 0xffffff };

/* An importer that is to rebuild while the exporter is in the middle of something. */
struct meanwhile {
    struct role *role;
    const char *handle;
};

/* Asks for a rebuild and gives it the time that it needs, if nothing holds it up. */
static void rebuild_meanwhile(void *arg) {
    struct meanwhile *meanwhile = arg;
    role_send(meanwhile->role, "rebuild 1 %d %s", FILL, meanwhile->handle);
    struct pollfd p = {.fd = meanwhile->role->fd, .events = POLLIN};
    poll(&p, 1, 300);
}

/* --- reuse -------------------------------------------------------------------------------------------------------- */

/* A block that an importer holds is not reused. */
LEND_TEST(noscan) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct role r;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, NULL);
    start(&r, NULL);
    rebuild(&r, 0, handle);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_limbo(), 1);
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    finish();
}

/* The importer takes after its page was read as empty. Closing was written before: it must not get the tensor. */
LEND_TEST(scanfirst) {
    char handle[LEND_HANDLE_TEXT_MAX], other[LEND_HANDLE_TEXT_MAX];
    struct role r;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, NULL), *kept = lent(1000, 0, other, NULL);
    start(&r, NULL);
    rebuild(&r, 0, other);
    struct meanwhile meanwhile = {&r, handle};
    points_call_at("L6.page-read", 0, rebuild_meanwhile, &meanwhile);
    lend_tensor_unref(tensor);
    const char *line = role_line(&r, 5000);
    CHECK(line);
    if (!strcmp(line, "ok") && !n_limbo()) FAIL("the importer has what the exporter reuses");
    CHECK_CONTAINS(line, "error -116");
    lend_tensor_unref(kept);
    end(&r);
    finish();
}

/* Another importer holds, so the slot reopens: who takes in between waits, and gets it. */
LEND_TEST(closingstale) {
    char handle[LEND_HANDLE_TEXT_MAX], other[LEND_HANDLE_TEXT_MAX];
    struct role holder, late;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, NULL), *kept = lent(1000, 0, other, NULL);
    start(&holder, NULL);
    start(&late, NULL);
    rebuild(&holder, 0, handle);
    rebuild(&late, 0, other);
    struct meanwhile meanwhile = {&late, handle};
    points_call_at("L5.closing", 0, rebuild_meanwhile, &meanwhile);
    lend_tensor_unref(tensor);
    CHECK_STR(role_line(&late, 5000), "ok");
    lend_tensor_unref(kept);
    end(&holder);
    end(&late);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    finish();
}

/* The importer has read "open" and goes on: its count must be seen, though it is the first of its chunk. */
LEND_TEST(chunklate) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct role r;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, NULL);
    start(&r, "LEND_POINT_AT=L2.word-read 0 stop");
    role_send(&r, "rebuild 0 %d %s", FILL, handle);
    await_stop(&r);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_limbo(), 1);
    role_kill(&r, SIGCONT);
    role_expect(&r, "ok");
    end(&r);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    finish();
}

/* A stale handle's count keeps the slot's next storage in limbo for a moment: the undo must say that it is over. */
LEND_TEST(silentundo) {
    char stale[LEND_HANDLE_TEXT_MAX], fresh[LEND_HANDLE_TEXT_MAX], other[LEND_HANDLE_TEXT_MAX];
    struct lend_handle_info first, second;
    struct role r;
    begin();
    struct lend_tensor *kept = lent(1000, 0, other, NULL), *tensor = lent(1000, 0, stale, &first);
    start(&r, "LEND_POINT_AT=L1.counted 1 stop");
    rebuild(&r, 0, other);
    lend_tensor_unref(tensor);
    tensor = lent(1000, 0, fresh, &second);
    CHECK_UINT(first.slot, second.slot);
    role_send(&r, "rebuild 1 %d %s", FILL, stale);
    await_stop(&r);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_limbo(), 1);
    role_kill(&r, SIGCONT);
    CHECK_CONTAINS(role_line(&r, 5000), "error -116");
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    lend_tensor_unref(kept);
    end(&r);
    finish();
}

struct word {
    uint32_t slot;
    uint64_t seen;
};

static void read_word(void *arg) {
    struct word *word = arg;
    word->seen = lend__load_seq_cst(&lend__shm_slots(lend__ledger.table)[word->slot].word);
}

/* When the block goes back to its pool, the word says so already: who takes from a dead exporter trusts it. */
LEND_TEST(reusefirst) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct lend_handle_info info;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, &info);
    struct word word = {info.slot, 0};
    points_call_at("M8", 0, read_word, &word);
    lend_tensor_unref(tensor);
    CHECK_UINT(word.seen, LEND_SHM_WORD(info.slot_gen + 1, LEND_SHM_FREE));
    finish();
}

/* --- death -------------------------------------------------------------------------------------------------------- */

LEND_TEST(nodeathretry) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct role r;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, NULL);
    start(&r, NULL);
    rebuild(&r, 0, handle);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_limbo(), 1);
    role_kill(&r, SIGKILL);
    CHECK_EVENTUALLY(1000, n_limbo() == 0);
    finish();
}

/* A delivery that a death ends anywhere between its intent and its announcement is over: the pin goes with the page. */
static void die_in_delivery(const char *at) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct role r;
    begin();
    lend_tensor_unref(lent(1000, LEND_REDUCE_PIN, handle, NULL));
    CHECK_UINT(n_pins(), 1);
    start(&r, at);
    role_send(&r, "rebuild 0 %d %s", FILL, handle);
    CHECK_PTR(role_line(&r, 5000), NULL);
    role_wait(&r);
    CHECK_EVENTUALLY(2000, n_pins() == 0 && n_limbo() == 0);
    finish();
}

LEND_TEST(nocells) {
    die_in_delivery("LEND_POINT_AT=P2.used 0 kill");
}

LEND_TEST(nointent) {
    die_in_delivery("LEND_POINT_AT=L2.word-read 0 kill");
}

/* A pin that a forwarder asked for ends some time after the forwarder. */
LEND_TEST(noorphan) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct role r;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, NULL);
    start(&r, NULL);
    rebuild(&r, 0, handle);
    role_send(&r, "reduce 0 1");
    role_expect(&r, "ok ");
    lend_tensor_unref(tensor);
    CHECK_UINT(n_pins(), 1);
    role_kill(&r, SIGKILL);
    CHECK_EVENTUALLY(2000, n_pins() == 0 && n_limbo() == 0);
    finish();
}

static void test_another(void *arg) {
    int *fds = arg;
    fds[2] = lend__life_is_over_shared(fds[1]);
}

/* Two importers test one dead exporter at the same moment: neither may take the other's test for the exporter. */
LEND_TEST(lockex) {
    int memfd = memfd_create("lend-lock", MFD_CLOEXEC), mine = -1, lent_fd = -1;
    CHECK_INT(lend__life_lend(memfd, true, &lent_fd, &mine), 0);
    int fds[3] = {mine, lend__fd_reopen(memfd, O_RDWR), -1};
    CHECK(!lend__life_is_over_shared(fds[0]));
    close(lent_fd);
    points_call_at("sys.flock>", 0, test_another, fds);
    CHECK(lend__life_is_over_shared(fds[0]));
    CHECK_INT(fds[2], 1);
    close(fds[0]);
    close(fds[1]);
    close(memfd);
}

/* --- what a page claims ------------------------------------------------------------------------------------------- */

/* A page of our own making, whose process (this one) claims one count. Locked. */
static struct lend__page *claim(uint32_t slot, int *ret_fd) {
    struct lend__page *page = NULL;
    CHECK_INT(lend__page_new(0, &page, ret_fd), 0);
    page->shm->chunks[slot / LEND_SHM_CHUNK_SLOTS / 64] |= 1ull << slot / LEND_SHM_CHUNK_SLOTS % 64;
    lend__shm_held(page->shm)[slot] = 1;
    return page;
}

static void unclaim(struct lend__page *page, int fd) {
    lend__page_drop(page);
    close(fd);
}

/* Who never got the allocation cannot hold a block of it, whatever it writes. */
LEND_TEST(nogiven) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct lend_handle_info info;
    int fd = -1;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, &info);
    lend__ledger_lock();
    struct lend__page *page = claim(info.slot, &fd);
    lend__ledger_unlock();
    lend_tensor_unref(tensor);
    CHECK_UINT(n_limbo(), 0);
    lend__ledger_lock();
    unclaim(page, fd);
    lend__ledger_unlock();
    finish();
}

/* The ring has just come round: the announcer has written its next entry over our oldest, but not yet the head. */
LEND_TEST(overrunlate) {
    char handle[LEND_HANDLE_TEXT_MAX];
    struct lend_handle_info info;
    int fd = -1;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, &info);
    lend__ledger_lock();
    struct lend__page *page = claim(info.slot, &fd);
    CHECK_INT(lend__page_give(page, info.allocation), 0);
    lend__ledger_unlock();
    lend_tensor_unref(tensor);
    lend__ledger_lock();
    CHECK_UINT(lend__ledger.n_limbo, 1);
    lend__shm_held(page->shm)[info.slot] = 0;
    for (uint32_t i = 0; i < LEND_SHM_RING; i++) page->shm->ring[i] = BOGUS; /* entry 0 was the slot's */
    page->shm->ring_head = page->tail + LEND_SHM_RING;
    lend__page_drain(page);
    uint32_t left = lend__ledger.n_limbo;
    unclaim(page, fd);
    lend__ledger_unlock();
    CHECK_UINT(left, 0);
    finish();
}

/* --- retiring ----------------------------------------------------------------------------------------------------- */

static bool maps_inode(pid_t pid, uint64_t wanted) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    bool found = false;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long long inode;
        if (sscanf(line, "%*s %*s %*s %*s %llu", &inode) == 1 && inode == wanted) found = true;
    }
    if (maps) fclose(maps);
    return found;
}

/* An importer lets a retired allocation go when it next comes by. */
LEND_TEST(noretire) {
    char handle[LEND_HANDLE_TEXT_MAX], other[LEND_HANDLE_TEXT_MAX];
    struct role r;
    begin();
    struct lend_tensor *kept = lent(1000, 0, other, NULL), *tensor = lent(16 << 20, 0, handle, NULL);
    struct lend_tensor_info info = {.size = sizeof info};
    CHECK_OK(lend_tensor_info(tensor, &info), NULL);
    start(&r, NULL);
    rebuild(&r, 0, other);
    rebuild(&r, 1, handle);
    CHECK(maps_inode(r.pid, info.allocation_inode));
    role_send(&r, "drop 1");
    role_expect(&r, "ok");
    lend_tensor_unref(tensor);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    uint64_t bytes = 0;
    CHECK_EVENTUALLY(2000, (lend_pool_trim(pool, 0, &bytes), bytes > 0));
    rebuild(&r, 1, other);
    CHECK(!maps_inode(r.pid, info.allocation_inode));
    lend_tensor_unref(kept);
    end(&r);
    finish();
}

/* --- fork --------------------------------------------------------------------------------------------------------- */

/* The exporter has read the child's page; now the parent forks and lets go. */
static void fork_and_drop(void *arg) {
    struct role *parent = arg;
    role_kill(parent, SIGCONT);
    role_expect(parent, "ok");
    role_send(parent, "drop 0");
    role_expect(parent, "ok");
}

/* The child's page is read before the parent's (a death has changed their order), and the count moves from one to the
 * other in between. The parent's copy is a take: it sees "closing" and does not trust the child's page. */
LEND_TEST(nocheck) {
    char handle[LEND_HANDLE_TEXT_MAX], other[LEND_HANDLE_TEXT_MAX];
    struct role first, parent;
    begin();
    struct lend_tensor *tensor = lent(1000, 0, handle, NULL), *kept = lent(1000, 0, other, NULL);
    start(&first, NULL);
    rebuild(&first, 0, other);
    start(&parent, "LEND_POINT_AT=F1.spares-got 0 stop");
    rebuild(&parent, 0, handle);
    role_send(&parent, "forkwait");
    await_stop(&parent);
    CHECK_UINT(lend__ledger.n_pages, 3);
    role_kill(&first, SIGKILL);
    CHECK_EVENTUALLY(2000, lend__ledger.n_pages == 2);
    CHECK_UINT(lend__ledger.pages[0]->parent_index, lend__ledger.pages[1]->index);
    points_call_at("L6.page-read", 0, fork_and_drop, &parent);
    lend_tensor_unref(tensor);
    CHECK_UINT(n_limbo(), 1);
    role_send(&parent, "join");
    CHECK_STR(role_expect(&parent, "child "), "ok");
    CHECK_STR(role_expect(&parent, "ok "), "0");
    end(&parent);
    CHECK_EVENTUALLY(2000, n_limbo() == 0);
    lend_tensor_unref(kept);
    finish();
}
