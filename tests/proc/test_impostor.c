/* SPDX-License-Identifier: MIT */
/* A false exporter: it has the right name and says what it likes. Whatever it answers, the importer gets a typed error
 * within its deadline, and keeps no descriptor and no mapping. One that tells the truth shows that the lies are what is
 * refused. */
#include "peer.h"

#include "base/crc32c.h"
#include "share/control.h"
#include "share/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 1 << 20, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

enum lie {
    TRUTH,
    CLOSE_AT_ONCE,
    CLOSE_AFTER_REQUEST,
    SAY_NOTHING,
    SHORT_REPLY,
    LONG_REPLY,
    NOISE,
    WRONG_MAGIC,
    WRONG_SEQUENCE,
    WRONG_TYPE,
    FEWER_DESCRIPTORS,
    MORE_DESCRIPTORS,
    NO_DESCRIPTORS,
    NO_PAGE,
    SWAPPED,
    NOT_MEMFDS,
    UNSEALED_TABLE,
    UNSEALED_PAGE,
    UNSEALED_ALLOCATION,
    SHORT_TABLE,
    SHORT_PAGE,
    SHORT_ALLOCATION,
    BLANK_TABLE,
    BLANK_PAGE,
    OTHER_EXPORTER,
    OTHER_LAYOUT,
    OTHER_NONCE,
    PAGE_INDEX,
    ALLOCATION_GENERATION,
    ALLOCATION_OFFSET,
    SLOT_BEYOND,
    SLOT_OTHER_RANGE,
    ODD_CODE,
    N_LIES
};

struct impostor {
    int listener;
    uint8_t id[16];
    int table, page, allocation;
    struct lend_shm_table *table_at;
    struct lend_shm_page *page_at;
};

static int memfd(const char *name, uint64_t bytes, bool is_sealed, void **ret) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes));
    *ret = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    CHECK(*ret != MAP_FAILED);
    if (is_sealed) CHECK(!fcntl(fd, F_ADD_SEALS, SEALS));
    return fd;
}

static void fill_table(struct impostor *me, enum lie lie) {
    struct lend_shm_table *t = me->table_at;
    struct lend_shm_allocation *allocation = lend__shm_allocations(t);
    t->magic = LEND_SHM_TABLE_MAGIC;
    t->layout = lend__shm_layout() + (lie == OTHER_LAYOUT);
    memcpy(t->exporter_id, me->id, 16);
    t->exporter_id[3] ^= lie == OTHER_EXPORTER;
    t->uid = geteuid();
    t->has_lock = 1;
    t->n_slots = 1;
    allocation->state = (uint64_t)(1 + (lie == ALLOCATION_GENERATION)) << 1;
    allocation->bytes = BYTES;
    allocation->fd_offset = lie == ALLOCATION_OFFSET ? UINT64_MAX - 4095 : 0;
    if (lie == SHORT_TABLE) return; /* it ends before the slots */
    lend__shm_slots(t)[0] = (struct lend_shm_slot){.word = LEND_SHM_WORD(1, LEND_SHM_OPEN),
                                                   .allocation_gen = 1,
                                                   .offset = lie == SLOT_OTHER_RANGE ? 4096 : 0,
                                                   .bytes = lie == SLOT_BEYOND ? 2 * (uint64_t)BYTES : BYTES};
}

static void make(struct impostor *me, enum lie lie) {
    void *at;
    for (int i = 0; i < 16; i++) me->id[i] = (uint8_t)(rand() >> 7);
    struct sockaddr_un address;
    int length = lend__identity_address(geteuid(), me->id, NULL, &address);
    me->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(!bind(me->listener, (struct sockaddr *)&address, (socklen_t)length) && !listen(me->listener, 8));
    me->table =
        memfd("lend-table", lie == SHORT_TABLE ? LEND_SHM_SLOTS_OFF : LEND_SHM_TABLE_BYTES, lie != UNSEALED_TABLE, &at);
    me->table_at = at;
    if (lie != BLANK_TABLE) fill_table(me, lie);
    me->page = memfd("lend-page", lie == SHORT_PAGE ? 65536 : LEND_SHM_PAGE_BYTES, lie != UNSEALED_PAGE, &at);
    me->page_at = at;
    if (lie != BLANK_PAGE) {
        me->page_at->magic = LEND_SHM_PAGE_MAGIC;
        me->page_at->layout = lend__shm_layout();
        me->page_at->nonce = 99;
        me->page_at->index = 5;
    }
    me->allocation = memfd("lend-memory", lie == SHORT_ALLOCATION ? BYTES / 2 : BYTES, lie != UNSEALED_ALLOCATION, &at);
    memset(at, 0x5a, BYTES / 2);
    if (lie != SHORT_ALLOCATION) memset((uint8_t *)at + BYTES / 2, 0x5a, BYTES / 2);
    munmap(at, lie == SHORT_ALLOCATION ? BYTES / 2 : BYTES);
}

static void unmake(struct impostor *me, enum lie lie) {
    munmap(me->table_at, lie == SHORT_TABLE ? LEND_SHM_SLOTS_OFF : LEND_SHM_TABLE_BYTES);
    munmap(me->page_at, lie == SHORT_PAGE ? 65536 : LEND_SHM_PAGE_BYTES);
    close(me->table);
    close(me->page);
    close(me->allocation);
    close(me->listener);
}

/* A handle of that exporter, made from one of this process. */
static const char *forge(const struct impostor *me, const struct handle *model) {
    static struct handle h;
    h = *model;
    memcpy(h.bytes + 32, me->id, 16);
    uint32_t sum = lend__crc32c(lend__crc32c(0, h.bytes, 12), h.bytes + 16, h.n - 16);
    for (int i = 0; i < 4; i++) h.bytes[12 + i] = (uint8_t)(sum >> 8 * i);
    CHECK_OK(lend_handle_format(h.bytes, h.n, h.text, sizeof h.text), NULL);
    return h.text;
}

static void send_with(int fd, const void *bytes, size_t n, const int *fds, unsigned n_fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    (void)sendmsg(fd, &msg, MSG_NOSIGNAL);
}

static void answer(struct impostor *me, int fd, const struct lend__control_request *request, enum lie lie) {
    struct lend__control_reply reply = {.magic = LEND__CONTROL_MAGIC + (lie == WRONG_MAGIC),
                                        .type = (uint16_t)(request->type + (lie == WRONG_TYPE)),
                                        .major = LEND_WIRE_MAJOR,
                                        .sequence = request->sequence + (lie == WRONG_SEQUENCE ? 7 : 0),
                                        .bytes = sizeof reply,
                                        .code = lie == ODD_CODE ? -12345 : 0,
                                        .n_fds = 3,
                                        .has_table = 1,
                                        .has_page = lie != NO_PAGE,
                                        .has_allocation = 1,
                                        .page_index = lie == PAGE_INDEX ? 6 : 5,
                                        .page_nonce = 99 + (lie == OTHER_NONCE)};
    int fds[8] = {me->table,      me->page,       me->allocation, me->allocation,
                  me->allocation, me->allocation, me->page,       me->page};
    uint8_t noise[sizeof reply + 64];
    unsigned n_fds = 3;
    memset(noise, 0xc3, sizeof noise);
    memcpy(reply.exporter_id, me->id, 16);
    if (lie == FEWER_DESCRIPTORS) n_fds = 2;
    if (lie == MORE_DESCRIPTORS) n_fds = 8;
    if (lie == NO_DESCRIPTORS || lie == ODD_CODE) n_fds = 0;
    if (lie == NO_PAGE) {
        fds[1] = me->allocation;
        reply.n_fds = n_fds = 2;
    }
    if (lie == SWAPPED) {
        fds[0] = me->page;
        fds[1] = me->table;
    }
    if (lie == NOT_MEMFDS) fds[0] = fds[1] = fds[2] = me->listener;
    if (lie == NOISE)
        send_with(fd, noise, sizeof reply, fds, n_fds);
    else if (lie == SHORT_REPLY)
        send_with(fd, &reply, sizeof reply - 8, fds, n_fds);
    else if (lie == LONG_REPLY)
        send_with(fd, noise, sizeof noise, fds, n_fds);
    else
        send_with(fd, &reply, sizeof reply, fds, n_fds);
}

/* Plays the exporter until the actor has its answer. */
static int play(struct impostor *me, struct role *actor, enum lie lie) {
    int connections[8], n = 0;
    for (;;) {
        struct pollfd p[10] = {{.fd = actor->fd, .events = POLLIN}, {.fd = me->listener, .events = POLLIN}};
        for (int i = 0; i < n; i++) p[2 + i] = (struct pollfd){.fd = connections[i], .events = POLLIN};
        CHECK(poll(p, (nfds_t)(2 + n), 10000) > 0);
        if (p[0].revents) break;
        if (p[1].revents) {
            int fd = accept4(me->listener, NULL, NULL, SOCK_CLOEXEC);
            if (lie == CLOSE_AT_ONCE || n == 8)
                close(fd);
            else
                connections[n++] = fd;
            continue;
        }
        for (int i = 0; i < n; i++) {
            struct lend__control_request request;
            if (!p[2 + i].revents) continue;
            if (recv(connections[i], &request, sizeof request, 0) != sizeof request || lie == CLOSE_AFTER_REQUEST) {
                close(connections[i]);
                connections[i] = connections[--n];
                break;
            }
            CHECK_UINT(request.magic, LEND__CONTROL_MAGIC);
            if (lie != SAY_NOTHING) answer(me, connections[i], &request, lie);
        }
    }
    const char *line = role_line(actor, 10000);
    int code = 0;
    while (n) close(connections[--n]);
    CHECK(line && (!strncmp(line, "ok", 2) || sscanf(line, "error %d", &code) == 1));
    return code;
}

static void begin(struct lend_pool **ret_pool, struct lend_tensor **ret_tensor, struct handle *ret_model) {
    open_with(NULL);
    *ret_pool = new_pool(NULL);
    *ret_tensor = new_bytes(*ret_pool, BYTES, 1);
    reduce_to(*ret_tensor, NULL, 0, ret_model);
    struct lend_handle_info info = {.size = sizeof info};
    CHECK_OK(lend_handle_describe(ret_model->bytes, ret_model->n, &info, NULL), NULL);
    CHECK_UINT(info.slot, 0);
    CHECK_UINT(info.slot_gen, 1);
    CHECK_UINT(info.allocation_gen, 1);
    CHECK_UINT(info.storage_offset_bytes, 0);
}

LEND_TEST(every_lie_of_a_false_exporter_is_refused) {
    struct lend_pool *pool;
    struct lend_tensor *tensor;
    struct handle model;
    struct role r;
    begin(&pool, &tensor, &model);
    actor_start(&r, NULL, NULL);
    long long fds = actor_int(&r, "count fds"), maps = actor_int(&r, "count lend_maps");
    for (enum lie lie = CLOSE_AT_ONCE; lie < N_LIES; lie++) {
        struct impostor me;
        make(&me, lie);
        uint64_t began = test_now_ms();
        role_send(&r, "rebuild 0 %s ms=400", forge(&me, &model));
        int code = play(&me, &r, lie);
        uint64_t took = test_now_ms() - began;
        if (code >= 0) FAIL("lie %d was believed", (int)lie);
        if (lie == SAY_NOTHING || lie == WRONG_SEQUENCE) CHECK_INT(code, -ETIMEDOUT);
        if (lie == CLOSE_AT_ONCE || lie == CLOSE_AFTER_REQUEST) CHECK_INT(code, -EOWNERDEAD);
        if (lie == MORE_DESCRIPTORS) { /* for the kernel as if our table were full */
            CHECK_INT(code, -EMFILE);
            code = -EBADMSG;
        }
        if (lie >= WRONG_TYPE && lie < ODD_CODE && code != -EBADMSG && code != -ESTALE && code != -ENODEV)
            FAIL("lie %d gave %d", (int)lie, code);
        CHECK(took < 3000);
        unmake(&me, lie);
        /* Contact that was sound but for the slot is kept until the exporter is seen to be gone. */
        if (lie == SLOT_BEYOND || lie == SLOT_OTHER_RANGE) {
            CHECK(actor_int(&r, "count lend_maps") <= maps + 3);
            maps = actor_int(&r, "count lend_maps");
            fds = actor_int(&r, "count fds");
            continue;
        }
        /* Fewer, when one that was kept has been seen to be gone. */
        long long fds_now = actor_int(&r, "count fds"), maps_now = actor_int(&r, "count lend_maps");
        if (maps_now > maps) FAIL("lie %d left a mapping", (int)lie);
        if (fds_now > fds) FAIL("lie %d left a descriptor", (int)lie);
        fds = fds_now;
        maps = maps_now;
    }
    actor_ok(&r, "rebuild 0 %s", model.text); /* the honest one is served as ever */
    CHECK_INT(actor_int(&r, "filled 0"), 1);
    role_end(&r);
    lend_tensor_unref(tensor);
    close_all(pool);
}

LEND_TEST(one_that_tells_the_truth_is_believed) {
    struct lend_pool *pool;
    struct lend_tensor *tensor;
    struct handle model;
    struct role r;
    struct impostor me;
    begin(&pool, &tensor, &model);
    actor_start(&r, NULL, NULL);
    make(&me, TRUTH);
    CHECK(!flock(me.table, LOCK_SH)); /* it lives */
    role_send(&r, "rebuild 0 %s ms=2000", forge(&me, &model));
    CHECK_INT(play(&me, &r, TRUTH), 0);
    CHECK_INT(actor_int(&r, "filled 0"), 0x5a);
    CHECK_UINT(lend__shm_held(me.page_at)[0], 1);
    CHECK_UINT(me.page_at->chunks[0], 1);
    CHECK_UINT(me.page_at->pid, (unsigned)r.pid);
    actor_ok(&r, "drop 0");
    CHECK_UINT(lend__shm_held(me.page_at)[0], 0);
    CHECK_UINT(me.page_at->ring_head, 1);
    CHECK_UINT(me.page_at->ring[0], 0);
    role_end(&r);
    unmake(&me, TRUTH);
    lend_tensor_unref(tensor);
    close_all(pool);
}

/* Refused with the request still unread: the kernel says "reset" before it hands out what was sent, and the reason must
 * not be lost over that. */
LEND_TEST(a_refusal_is_heard_although_the_connection_was_reset) {
    struct lend_pool *pool;
    struct lend_tensor *tensor;
    struct handle model;
    struct role r;
    struct impostor me;
    begin(&pool, &tensor, &model);
    actor_start(&r, NULL, NULL);
    make(&me, TRUTH);
    role_send(&r, "rebuild 0 %s ms=4000", forge(&me, &model));
    int fd = accept4(me.listener, NULL, NULL, SOCK_CLOEXEC);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_INT(poll(&p, 1, 5000), 1);
    struct lend__control_reply reply = {
        .magic = LEND__CONTROL_MAGIC, .type = LEND__CONTROL_HELLO, .bytes = sizeof reply, .code = -EMFILE, .limit = 77};
    send_with(fd, &reply, sizeof reply, NULL, 0);
    close(fd);
    const char *line = role_line(&r, 10000);
    CHECK(line && !strncmp(line, "error -24 ", 10));
    CHECK_CONTAINS(line, "limit of 77 ");
    role_end(&r);
    unmake(&me, TRUTH);
    lend_tensor_unref(tensor);
    close_all(pool);
}
