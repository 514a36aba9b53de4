/* SPDX-License-Identifier: MIT */
/* The exporter's side, with its real ledger: any messages on any connections, and anything written into the pages that
 * they got. L-4: a peer may spoil its own shares, never the books. */
#include "base/atomic.h"
#include "base/sys.h"
#include "fuzz.h"
#include "share/context.h"
#include "share/control.h"
#include "share/ledger.h"
#include "share/requests.h"
#include "share/shm.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <lend/lend.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 3, STEPS_MAX = 64, TENSORS = 4 };

/* What a step does; the second nibble picks the connection. */
enum { SEND_SOUND, SEND_RAW, WRITE_PAGE, COUNT, DROP_TENSOR, LOOK, N_STEPS };

struct visitor {
    struct lend__connection connection;
    int fd; /* the other end */
    bool is_closed;
    struct lend_shm_page *page;
};

static struct lend_pool *pool;
static struct lend_tensor *tensors[TENSORS];

static void begin(void) {
    static const int64_t shape = 1000;
    if (!pool) {
        struct lend_opts opts = {.size = sizeof opts, .pin_bytes_max = 20000};
        PROPERTY(lend_open(&opts, NULL) == 0 && lend_pool_new(NULL, &pool, NULL) == 0);
        lend__ledger_lock(); /* without the service: its thread would take part */
        PROPERTY(lend__ledger_start(NULL) == 0);
        lend__ledger_unlock();
    }
    for (int i = 0; i < TENSORS; i++) {
        if (tensors[i]) continue;
        PROPERTY(lend_tensor_new(pool, (DLDataType){kDLUInt, 8, 1}, 1, &shape, &tensors[i], NULL) == 0);
        struct lend__storage *storage = NULL;
        PROPERTY(lend__tensor_storage(tensors[i], &storage, "fuzz", NULL) == 0);
        PROPERTY(lend__ledger_lend(storage, "fuzz", NULL) == 0);
    }
}

static void open_visitor(struct visitor *visitor) {
    int pair[2];
    PROPERTY(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    *visitor =
        (struct visitor){.connection = {.fd = pair[0], .uid = getuid(), .pid = (uint32_t)getpid()}, .fd = pair[1]};
}

/* Takes the reply as an importer does, and keeps the page. */
static void hear(struct visitor *visitor) {
    static union {
        struct lend__control_reply reply;
        uint8_t bytes[LEND__CONTROL_BYTES_MAX];
    } message;
    struct lend__control_fds fds;
    int r = lend__control_recv(visitor->fd, &message, sizeof message, &fds);
    if (r < 0) return;
    PROPERTY(r == 0 || (size_t)r >= sizeof message.reply);
    PROPERTY(r == 0 || (message.reply.magic == LEND__CONTROL_MAGIC && message.reply.bytes == (uint32_t)r));
    PROPERTY(r == 0 || message.reply.code <= 0);
    PROPERTY(r == 0 || fds.n == (message.reply.code < 0 ? 0 : message.reply.n_fds));
    if (r > 0 && message.reply.has_page && !visitor->page) {
        void *at = mmap(NULL, LEND_SHM_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        fds.fd[message.reply.has_table], 0);
        visitor->page = at == MAP_FAILED ? NULL : at;
    }
    lend__control_drop_fds(&fds);
}

static void say(struct visitor *visitor, const void *message, size_t bytes) {
    if (visitor->is_closed) return;
    visitor->is_closed = !lend__request_handle(&visitor->connection, message, bytes);
    hear(visitor);
}

/* A request that gets past the first checks; what it asks for is the input's. */
static void send_sound(struct visitor *visitor, struct input *in) {
    struct {
        struct lend__control_request request;
        struct lend__control_slot slots[3];
    } message = {.request = {.magic = LEND__CONTROL_MAGIC, .major = LEND_WIRE_MAJOR, .layout = lend__shm_layout()}};
    struct lend__control_request request = message.request;
    memcpy(request.exporter_id, lend__context.identity.id, LEND__ID_BYTES);
    request.type = input_byte(in) % 9;
    for (unsigned i = 0; i < 3; i++) {
        uint32_t slot = input_byte(in) % (TENSORS + 2);
        uint64_t gen = lend__ledger.slots && slot < lend__ledger.n_slots ? lend__ledger.slots[slot].gen : 7;
        message.slots[i] = (struct lend__control_slot){.slot = slot, .gen = gen + input_byte(in) % 2};
    }
    request.allocation = input_byte(in) % 3 ? 0 : LEND__CONTROL_NONE;
    request.allocation_gen = 1;
    request.page_index = input_byte(in) % 5 ? LEND__CONTROL_NONE : input_byte(in);
    request.report_part = input_byte(in) % 8;
    request.with_all = input_byte(in);
    request.report_from = input_byte(in) % 9 ? 0 : input_u64(in);
    request.pin_ns_max = input_byte(in);
    request.token = input_byte(in) % 2 && lend__ledger.oldest_pin ? lend__ledger.oldest_pin->token : input_u64(in);
    bool has_slots = request.type == LEND__CONTROL_PIN;
    request.bytes = (uint32_t)(sizeof request + (has_slots ? (input_byte(in) % 4) * sizeof message.slots[0] : 0));
    message.request = request;
    say(visitor, &message, request.bytes);
}

static void send_raw(struct visitor *visitor, struct input *in) {
    uint8_t message[sizeof(struct lend__control_request) + 40];
    size_t n = input_byte(in) % 4 ? sizeof(struct lend__control_request) : input_byte(in) % sizeof message;
    input_take(in, message, n);
    say(visitor, message, n);
}

/* Any place of the page's head: chunks, ring, cells, its own magic. */
static void write_page(struct visitor *visitor, struct input *in) {
    if (!visitor->page) return;
    uint32_t at = (uint32_t)input_u64(in) % (uint32_t)(sizeof *visitor->page - 8);
    uint64_t value = input_u64(in);
    memcpy((uint8_t *)visitor->page + at, &value, sizeof value);
}

static void count(struct visitor *visitor, struct input *in) {
    if (!visitor->page) return;
    uint32_t slot = input_byte(in) % (TENSORS + 2);
    visitor->page->chunks[0] |= 1;
    lend__shm_held(visitor->page)[slot] = input_byte(in) % 3;
    visitor->page->ring[visitor->page->ring_head % LEND_SHM_RING] = slot;
    visitor->page->ring_head++;
}

static void look(void) {
    lend__ledger_reclaim();
    PROPERTY(lend_check(NULL) == 0);
}

static void step(struct visitor *visitors, struct input *in) {
    uint8_t what = input_byte(in);
    struct visitor *visitor = &visitors[(what >> 4) % CONNECTIONS];
    switch ((what & 15) % N_STEPS) {
    case SEND_SOUND: send_sound(visitor, in); break;
    case SEND_RAW: send_raw(visitor, in); break;
    case WRITE_PAGE: write_page(visitor, in); break;
    case COUNT: count(visitor, in); break;
    case DROP_TENSOR:
        lend_tensor_unref(tensors[what >> 6]);
        tensors[what >> 6] = NULL;
        break;
    default: look();
    }
}

static void close_visitor(struct visitor *visitor) {
    lend__ledger_lock();
    struct lend__page *page = visitor->connection.page;
    if (page) {
        page->has_connection = false;
        lend__ledger.n_unconnected++;
    }
    lend__ledger_unlock();
    close(visitor->connection.fd);
    close(visitor->fd);
    if (visitor->page) munmap(visitor->page, LEND_SHM_PAGE_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct input in = {data, bytes};
    struct visitor visitors[CONNECTIONS];
    begin();
    for (int i = 0; i < CONNECTIONS; i++) open_visitor(&visitors[i]);
    for (int i = 0; i < STEPS_MAX && in.left; i++) step(visitors, &in);
    look();
    for (int i = 0; i < CONNECTIONS; i++) close_visitor(&visitors[i]);
    lend__ledger_lock(); /* the pages of the dead: nothing of what they claimed is left but pins */
    lend__pages_test(true);
    PROPERTY(lend__ledger.n_pages == 0);
    while (lend__ledger.oldest_pin) lend__pin_consume(lend__ledger.oldest_pin->token);
    PROPERTY(lend__ledger.n_limbo == 0);
    lend__ledger_unlock();
    PROPERTY(lend_check(NULL) == 0);
    return 0;
}
