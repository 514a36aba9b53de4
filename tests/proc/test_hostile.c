/* SPDX-License-Identifier: MIT */
/* Bytes that are not handles, handles that lie, and peers that talk nonsense on the exporter's socket: typed errors,
 * nothing mapped, never wrong bytes, and the exporter serves the others all the while. */
#include "peer.h"

#include "base/crc32c.h"
#include "share/control.h"
#include "share/shm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* --- handles -------------------------------------------------------------------------------------------------------- */

static void mend(struct handle *h) {
    uint32_t sum = lend__crc32c(lend__crc32c(0, h->bytes, 12), h->bytes + 16, h->n - 16);
    for (int i = 0; i < 4; i++) h->bytes[12 + i] = (uint8_t)(sum >> 8 * i);
}

static bool is_typed(int code) {
    static const int typed[] = {-EBADMSG, -EPROTONOSUPPORT, -ESTALE, -EOWNERDEAD, -EREMOTE, -EPERM, -ENODEV};
    for (size_t i = 0; i < sizeof typed / sizeof typed[0]; i++)
        if (typed[i] == code) return true;
    return false;
}

/* Rebuilds in this process. What comes out is an error of the list, or a tensor whose elements lie in the storage that
 * the handle named (all its bytes are `fill`). Returns the code. */
static int try(const struct handle *h, int fill) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    int r = lend_rebuild(h->bytes, h->n, NULL, &tensor, &error);
    if (r == 0) {
        struct lend_tensor_info info = info_of(tensor);
        const uint8_t *storage = info.storage_data, *data = info.data;
        for (uint64_t i = 0; i < info.storage_bytes; i++) CHECK_INT(storage[i], fill);
        if (data) CHECK(data >= storage && data < storage + info.storage_bytes);
        sum_of(tensor); /* reads every element: a sanitizer, or the end of the mapping, tells */
        lend_tensor_unref(tensor);
        return 0;
    }
    if (!is_typed(r)) FAIL("%d (%s) is no typed error for a bad handle", r, error.text);
    CHECK_INT(error.code, r);
    CHECK(error.text[0] != '\0');
    return r;
}

/* argv: a handle's text, its fill; a second argument "fresh": no contact with the exporter beforehand. */
LEND_ROLE(victim) {
    struct handle good = {.n = 0}, h;
    int fill = atoi(argv[1]);
    unsigned n_good = 0, n_bad = 0;
    open_with(NULL);
    CHECK_OK(lend_handle_parse(argv[0], good.bytes, sizeof good.bytes, &good.n), NULL);
    unsigned maps = count_lend_maps(), fds = count_fds();
    /* Without the right checksum nothing gets anywhere: every length, and every single bit. */
    for (size_t n = 0; n < good.n; n++) {
        h = good;
        h.n = n;
        CHECK_INT(try(&h, fill), -EBADMSG);
    }
    h = good;
    h.n = good.n + 8;
    CHECK_INT(try(&h, fill), -EBADMSG);
    for (size_t bit = 0; bit < 8 * good.n; bit++) {
        h = good;
        h.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int r = try(&h, fill);
        CHECK(r == -EBADMSG || (r == -EPROTONOSUPPORT && bit / 8 >= 4 && bit / 8 < 6));
    }
    for (unsigned seed = 1; seed < 3000; seed++) {
        unsigned x = seed;
        h.n = (size_t)rand_r(&x) % (LEND_HANDLE_BYTES_MAX + 1);
        for (size_t i = 0; i < h.n; i++) h.bytes[i] = (uint8_t)(rand_r(&x) >> 8);
        CHECK_INT(try(&h, fill), -EBADMSG);
    }
    CHECK_UINT(count_lend_maps(), maps);
    CHECK_UINT(count_fds(), fds);
    if (argc > 2) {
        /* Every field but the address, with a sound checksum, at first contact: each in a state without contact. */
        for (size_t at = 64; at < good.n; at++) {
            h = good;
            h.bytes[at] ^= 0x55;
            mend(&h);
            if (try(&h, fill) == 0) {
                n_good++;
                CHECK_OK(lend_close(NULL), NULL); /* forget the exporter */
                open_with(NULL);
            } else {
                n_bad++;
                CHECK(count_lend_maps() <= maps + 3); /* what the exporter gave stays for the next handle */
            }
        }
    } else {
        struct lend_tensor *held = NULL;
        CHECK_OK(lend_rebuild(good.bytes, good.n, NULL, &held, NULL), NULL);
        maps = count_lend_maps();
        for (size_t bit = 0; bit < 8 * good.n; bit++) {
            if (bit / 8 >= 32 && bit / 8 < 48) continue; /* another exporter: below */
            h = good;
            h.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            mend(&h);
            if (try(&h, fill) == 0)
                n_good++;
            else
                n_bad++;
            CHECK(is_filled(held, fill));
        }
        CHECK_UINT(count_lend_maps(), maps);
        CHECK_OK(lend_check(NULL), NULL);
        for (int i = 0; i < 16; i++) { /* exporters that do not exist */
            h = good;
            h.bytes[32 + i] ^= (uint8_t)(1u << i % 8);
            mend(&h);
            CHECK_INT(try(&h, fill), -EOWNERDEAD);
        }
        CHECK_UINT(count_lend_maps(), maps);
        lend_tensor_unref(held);
    }
    CHECK(n_bad > 40);
    role_say("good %u bad %u", n_good, n_bad);
    close_all(NULL);
    return 0;
}

static void attack(bool is_fresh) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    /* Neighbours whose bytes must never be seen. */
    struct lend_tensor *before = new_bytes(pool, 4096, 0xaa), *tensor = new_bytes(pool, 4096, 0x33),
                       *after = new_bytes(pool, 4096, 0xbb), *view = NULL, *second = NULL;
    struct lend_error error = {0};
    int64_t shape[] = {16, 256};
    reduce_text(before, NULL, 0);
    CHECK_OK(lend_tensor_reshape(tensor, 2, shape, &view, &error), &error);
    CHECK_OK(lend_tensor_slice(view, 1, 3, 200, 2, &second, &error), &error);
    struct role r, honest;
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", reduce_text(second, NULL, 0));
    reduce_text(after, NULL, 0);
    if (is_fresh)
        ROLE_START(&r, NULL, "victim", text, "51", "fresh");
    else
        ROLE_START(&r, NULL, "victim", text, "51");
    actor_start(&honest, NULL, NULL);
    actor_ok(&honest, "rebuild 0 %s", text);
    const char *line = role_line(&r, 50000);
    CHECK(line && !strncmp(line, "good ", 5));
    role_end(&r);
    actor_ok(&honest, "rebuild 1 %s", text);
    role_end(&honest);
    CHECK(is_filled(before, 0xaa) && is_filled(tensor, 0x33) && is_filled(after, 0xbb));
    lend_tensor_unref(second);
    lend_tensor_unref(view);
    lend_tensor_unref(before);
    lend_tensor_unref(tensor);
    lend_tensor_unref(after);
    CHECK_EVENTUALLY(2000, limbo_bytes(pool) == 0);
    close_all(pool);
}

LEND_TEST(changed_handles_in_a_process_that_holds_the_tensor) {
    attack(false);
}

LEND_TEST(changed_handles_at_first_contact) {
    attack(true);
}

LEND_TEST(changed_handles_in_the_exporter_itself) {
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *before = new_bytes(pool, 4096, 0xaa), *tensor = new_bytes(pool, 4096, 0x33);
    struct handle good, h;
    unsigned n_bad = 0;
    reduce_to(before, NULL, 0, &h);
    reduce_to(tensor, NULL, 0, &good);
    for (size_t bit = 0; bit < 8 * good.n; bit++) {
        if (bit / 8 >= 32 && bit / 8 < 48) continue;
        h = good;
        h.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        mend(&h);
        n_bad += try(&h, 0x33) < 0;
        CHECK_OK(lend_check(NULL), NULL);
    }
    CHECK(n_bad > 200);
    lend_tensor_unref(tensor);
    CHECK_INT(try(&good, 0x33), -ESTALE);
    lend_tensor_unref(before);
    close_all(pool);
}

/* --- the socket ----------------------------------------------------------------------------------------------------- */

static int dial(const uint8_t id[16]) {
    struct sockaddr_un address;
    int length = lend__identity_address(geteuid(), id, NULL, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, (socklen_t)length)) FAIL("connect: %s", strerror(errno));
    struct timeval wait = {2, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    return fd;
}

/* An exporter in a process of its own, and an honest importer of it. */
struct victims {
    struct role exporter, honest;
    char text[LEND_HANDLE_TEXT_MAX];
    uint8_t id[16];
    long long fds;
};

static void begin(struct victims *v) {
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    size_t n = 0;
    struct lend_handle_info info = {.size = sizeof info};
    actor_start(&v->exporter, NULL, NULL);
    actor_start(&v->honest, NULL, NULL);
    actor_ok(&v->exporter, "new 0 10000 51");
    snprintf(v->text, sizeof v->text, "%s", actor_ok(&v->exporter, "reduce 0"));
    CHECK_OK(lend_handle_parse(v->text, bytes, sizeof bytes, &n), NULL);
    CHECK_OK(lend_handle_describe(bytes, n, &info, NULL), NULL);
    memcpy(v->id, info.exporter_id, 16);
    actor_ok(&v->honest, "rebuild 0 %s", v->text);
    /* One more answer of the service: what it had to do after the first contact (close what it sent, put the next page
     * in stock) is done by then, so the count below is that of an exporter at rest. */
    char pinned[LEND_HANDLE_TEXT_MAX];
    snprintf(pinned, sizeof pinned, "%s", actor_ok(&v->honest, "reduce 0 pin"));
    actor_ok(&v->honest, "cancel %s", pinned);
    v->fds = actor_int(&v->exporter, "count fds");
}

/* It still serves, quickly, and has kept nothing of the others. */
static void still_serves(struct victims *v) {
    struct role fresh;
    uint64_t began = test_now_ms();
    actor_start(&fresh, NULL, NULL);
    actor_ok(&fresh, "rebuild 0 %s ms=2000", v->text);
    CHECK_INT(actor_int(&fresh, "filled 0"), 51);
    role_end(&fresh);
    CHECK(test_now_ms() < began + test_deadline_ms(3000) - test_now_ms());
    CHECK_INT(actor_int(&v->honest, "filled 0"), 51);
}

static void end(struct victims *v) {
    CHECK_EVENTUALLY(8000, actor_int(&v->exporter, "count fds") == v->fds);
    CHECK_EVENTUALLY(2000, actor_int(&v->exporter, "peers") == 1);
    actor_ok(&v->exporter, "drop 0");
    CHECK(actor_int(&v->exporter, "count limbo") >= 10000);
    role_end(&v->honest);
    CHECK_EVENTUALLY(2000, actor_int(&v->exporter, "count limbo") == 0);
    role_end(&v->exporter);
}

static struct lend__control_request request(const struct victims *v, uint16_t type) {
    struct lend__control_request r = {.magic = LEND__CONTROL_MAGIC,
                                      .type = type,
                                      .major = LEND_WIRE_MAJOR,
                                      .sequence = 1,
                                      .bytes = sizeof r,
                                      .layout = lend__shm_layout(),
                                      .pid = (uint32_t)getpid(),
                                      .allocation = LEND__CONTROL_NONE,
                                      .page_index = LEND__CONTROL_NONE};
    memcpy(r.exporter_id, v->id, 16);
    return r;
}

LEND_TEST(garbage_of_all_sizes_on_the_socket) {
    struct victims v;
    uint8_t noise[20000];
    size_t sizes[] = {0, 1, 2, 4, 8, 111, 112, 113, 200, 4096, 20000};
    begin(&v);
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(i * 131 + 7);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int fd = dial(v.id);
        uint8_t answer[256];
        CHECK(send(fd, noise, sizes[i], MSG_NOSIGNAL) == (ssize_t)sizes[i]);
        CHECK_INT(recv(fd, answer, sizeof answer, 0) > 0, 0); /* closed without a word */
        close(fd);
    }
    still_serves(&v);
    end(&v);
}

/* Every member of a well-formed request, flipped one bit at a time, before and after hello. */
LEND_TEST(requests_with_any_field_changed) {
    struct victims v;
    begin(&v);
    unsigned n_answers = 0;
    for (unsigned type = 0; type < 10; type++)
        for (size_t at = 0; at < sizeof(struct lend__control_request); at += type == 1 ? 1 : 3) {
            struct lend__control_request r = request(&v, (uint16_t)type);
            struct lend__control_reply reply;
            int fd = dial(v.id);
            ((uint8_t *)&r)[at] ^= 0x81;
            CHECK(send(fd, &r, sizeof r, MSG_NOSIGNAL) == sizeof r);
            struct pollfd p = {.fd = fd, .events = POLLIN};
            if (type == LEND__CONTROL_KICK ? poll(&p, 1, 0) > 0 : poll(&p, 1, 2000) > 0) {
                ssize_t n = recv(fd, &reply, sizeof reply, MSG_DONTWAIT);
                if (n == sizeof reply) {
                    CHECK_UINT(reply.magic, LEND__CONTROL_MAGIC);
                    n_answers++;
                }
            } else if (type != LEND__CONTROL_KICK) {
                FAIL("neither an answer nor an end for type %u, byte %zu", type, at);
            }
            close(fd);
        }
    CHECK(n_answers > 50);
    still_serves(&v);
    end(&v);
}

LEND_TEST(requests_that_carry_descriptors) {
    struct victims v;
    begin(&v);
    for (int n = 1; n <= 8; n++) {
        int fd = dial(v.id), fds[8];
        struct lend__control_request r = request(&v, LEND__CONTROL_HELLO);
        struct lend__control_reply reply;
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof fds)];
        } control = {.bytes = {0}};
        struct iovec iov = {&r, sizeof r};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes};
        msg.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
        for (int i = 0; i < n; i++) fds[i] = fd;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
        CHECK(sendmsg(fd, &msg, MSG_NOSIGNAL) == sizeof r);
        CHECK_INT(recv(fd, &reply, sizeof reply, 0), sizeof reply); /* its descriptors are dropped by the kernel */
        CHECK_INT(reply.code, 0);
        close(fd);
    }
    still_serves(&v);
    end(&v);
}

/* Connections that say nothing, and one that never reads what it asks for. */
LEND_TEST(silent_and_flooding_connections) {
    enum { N = 40 };
    struct victims v;
    int silent[N];
    begin(&v);
    for (int i = 0; i < N; i++) silent[i] = dial(v.id);
    int flood = dial(v.id);
    struct lend__control_request r = request(&v, LEND__CONTROL_REPORT);
    unsigned n = 0;
    while (n < 20000 && send(flood, &r, sizeof r, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof r) n++;
    CHECK(n > 1);
    still_serves(&v);
    /* Those that have not said hello are closed in the end. */
    for (int i = 0; i < N; i++) {
        struct pollfd p = {.fd = silent[i], .events = POLLIN};
        CHECK_INT(poll(&p, 1, 9000), 1);
        uint8_t byte;
        CHECK_INT(recv(silent[i], &byte, 1, MSG_DONTWAIT), 0);
        close(silent[i]);
    }
    close(flood);
    end(&v);
}

/* --- a greeted importer that writes nonsense into its page ------------------------------------------------------------ */

static struct lend_shm_page *greet(const struct victims *v, int *ret_connection) {
    int fd = dial(v->id);
    struct lend__control_request r = request(v, LEND__CONTROL_HELLO);
    struct lend__control_reply reply;
    struct lend__control_fds fds;
    CHECK(send(fd, &r, sizeof r, MSG_NOSIGNAL) == sizeof r);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_INT(poll(&p, 1, 2000), 1);
    CHECK_INT(lend__control_recv(fd, &reply, sizeof reply, &fds), sizeof reply);
    CHECK_INT(reply.code, 0);
    CHECK_UINT(fds.n, 2); /* table and page: it asked for no allocation */
    void *at = mmap(NULL, LEND_SHM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fds.fd[1], 0);
    CHECK(at != MAP_FAILED);
    lend__control_drop_fds(&fds);
    *ret_connection = fd;
    return at;
}

LEND_TEST(claims_of_what_was_not_given_do_not_hold_it) {
    struct victims v;
    int connection;
    begin(&v);
    struct lend_shm_page *page = greet(&v, &connection);
    /* All of the first 4,096 slots, and nonsense everywhere else. */
    memset(page->chunks, 0xff, sizeof page->chunks);
    memset(lend__shm_held(page), 0x7f, 4096 * 4);
    memset(page->ring, 0xff, sizeof page->ring);
    memset(page->cells, 0x02, sizeof page->cells);
    page->magic = page->nonce = 0;
    page->index = 77;
    __atomic_store_n(&page->ring_head, 5000, __ATOMIC_RELEASE);
    actor_ok(&v.exporter, "new 1 70000 2");
    actor_ok(&v.exporter, "reduce 1");
    actor_ok(&v.exporter, "drop 1");
    CHECK_INT(actor_int(&v.exporter, "count limbo"), 0);
    /* Heads that jump, back and forth, and counts that wrap. */
    for (int i = 0; i < 30; i++) {
        __atomic_store_n(&page->ring_head, i % 3 ? UINT64_MAX - (uint64_t)i : (uint64_t)i * 1000003, __ATOMIC_RELEASE);
        for (int k = 0; k < 16; k++) page->ring[k] = i % 2 ? LEND_SHM_RING_CELL | 0xffff : 0x00ffffff;
        for (int k = 0; k < 64; k++) lend__shm_held(page)[k] = i % 2 ? UINT32_MAX : 0;
        actor_ok(&v.exporter, "new 1 70000 2");
        actor_ok(&v.exporter, "reduce 1");
        actor_ok(&v.exporter, "drop 1");
        CHECK_INT(actor_int(&v.exporter, "count limbo"), 0);
        usleep(20000);
    }
    still_serves(&v);
    CHECK(munmap(page, LEND_SHM_PAGE_BYTES) == 0);
    close(connection);
    end(&v);
}

/* With the allocation in hand its claims count, as any importer's: until it ends. Others are not stopped. */
LEND_TEST(claims_of_what_was_given_end_with_the_process) {
    struct victims v;
    int connection;
    begin(&v);
    struct lend_shm_page *page = greet(&v, &connection);
    struct lend__control_request r = request(&v, LEND__CONTROL_ALLOCATION);
    struct lend__control_reply reply;
    struct lend__control_fds fds;
    r.allocation = 0;
    r.allocation_gen = 1;
    CHECK(send(connection, &r, sizeof r, MSG_NOSIGNAL) == sizeof r);
    struct pollfd p = {.fd = connection, .events = POLLIN};
    CHECK_INT(poll(&p, 1, 2000), 1);
    CHECK_INT(lend__control_recv(connection, &reply, sizeof reply, &fds), sizeof reply);
    CHECK_UINT(fds.n, 1);
    lend__control_drop_fds(&fds);
    memset(page->chunks, 0xff, sizeof page->chunks);
    memset(lend__shm_held(page), 0x01, 4096 * 4);
    actor_ok(&v.exporter, "new 1 70000 2");
    actor_ok(&v.exporter, "reduce 1");
    actor_ok(&v.exporter, "drop 1");
    CHECK(actor_int(&v.exporter, "count limbo") >= 70000);
    still_serves(&v);
    CHECK(munmap(page, LEND_SHM_PAGE_BYTES) == 0); /* the kernel's word */
    close(connection);
    CHECK_EVENTUALLY(1000, actor_int(&v.exporter, "count limbo") == 0);
    end(&v);
}

/* Tokens that were never its own: guesses end nobody's delivery. */
LEND_TEST(forged_tokens_end_no_pin) {
    struct victims v;
    int connection;
    begin(&v);
    actor_ok(&v.exporter, "new 1 1000 2");
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", actor_ok(&v.exporter, "reduce 1 pin"));
    actor_ok(&v.exporter, "drop 1");
    struct lend_shm_page *page = greet(&v, &connection);
    for (uint64_t i = 0; i < LEND_SHM_CELLS; i++) {
        page->cells[i].intent = i;
        page->cells[i].used = i;
        page->ring[i] = LEND_SHM_RING_CELL | (uint32_t)i;
    }
    __atomic_store_n(&page->ring_head, LEND_SHM_CELLS, __ATOMIC_RELEASE);
    struct lend__control_request kick = request(&v, LEND__CONTROL_KICK);
    CHECK(send(connection, &kick, sizeof kick, MSG_NOSIGNAL) == sizeof kick);
    struct lend__control_request cancel = request(&v, LEND__CONTROL_CANCEL);
    struct lend__control_reply reply;
    for (uint64_t token = 0; token < 500; token++) {
        cancel.token = token;
        CHECK(send(connection, &cancel, sizeof cancel, MSG_NOSIGNAL) == sizeof cancel);
        CHECK_INT(recv(connection, &reply, sizeof reply, 0), sizeof reply);
        CHECK_INT(reply.code, 0);
    }
    CHECK(munmap(page, LEND_SHM_PAGE_BYTES) == 0);
    close(connection);
    CHECK_EVENTUALLY(1000, actor_int(&v.exporter, "peers") == 1);
    CHECK_INT(actor_int(&v.exporter, "pins"), 1);
    actor_ok(&v.honest, "rebuild 1 %s", text);
    CHECK_INT(actor_int(&v.honest, "filled 1"), 2);
    actor_ok(&v.honest, "drop 1");
    CHECK_EVENTUALLY(2000, actor_int(&v.exporter, "pins") == 0);
    end(&v);
}
