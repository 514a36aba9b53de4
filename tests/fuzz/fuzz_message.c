/* SPDX-License-Identifier: MIT */
/* lend_recv: anything on the socket, with any descriptors. Whatever comes, the answer is a tensor or a typed error, no
 * descriptor stays open, and the books are in order. */
#include "base/crc32c.h"
#include "fuzz.h"
#include "share/context.h"
#include "share/ledger.h"
#include "share/wire.h"

#include <dirent.h>
#include <errno.h>
#include <lend/lend.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FDS_MAX = 5 };

static struct lend_pool *pool;
static struct lend_tensor *tensor;
static uint8_t own[LEND_HANDLE_BYTES_MAX];
static size_t own_bytes;

static void begin(void) {
    static const int64_t shape = 1000;
    struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 20000000};
    if (pool) return;
    PROPERTY(lend_open(&opts, NULL) == 0 && lend_pool_new(NULL, &pool, NULL) == 0);
    PROPERTY(lend_tensor_new(pool, (DLDataType){kDLUInt, 8, 1}, 1, &shape, &tensor, NULL) == 0);
    PROPERTY(lend_reduce(tensor, NULL, own, sizeof own, &own_bytes, NULL) == 0);
}

static unsigned n_descriptors(void) {
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

/* Tables, allocations, and what is neither. */
static int new_descriptor(uint8_t kind) {
    switch (kind % 4) {
    case 0: return dup(lend__ledger.table_fd);
    case 1: {
        int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        PROPERTY(ftruncate(fd, 8192) == 0);
        return fd;
    }
    case 2: return dup(0);
    default: return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
}

static void post(int fd, const void *bytes, size_t n, const int *fds, unsigned n_fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
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
    (void)!sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* A message with a sound header around the input, or around our own handle with the input as changes. */
static size_t wrap(struct input *in, bool is_own, uint8_t *out, size_t room) {
    static const uint32_t magic = 0x47534d4c;
    uint32_t has = input_byte(in) % 5, n = 0, sum;
    uint8_t *handle = out + 16;
    if (is_own) {
        n = (uint32_t)own_bytes;
        memcpy(handle, own, n);
        for (unsigned changes = input_byte(in) % 8; changes; changes--) {
            uint8_t at = input_byte(in);
            handle[at % n] ^= input_byte(in);
        }
    } else {
        n = (uint32_t)(in->left < room - 16 ? in->left : room - 16);
        input_take(in, handle, n);
    }
    if (n >= LEND__WIRE_FIXED_BYTES) {
        memcpy(handle, "LEND\0\0\0\0", 8);
        memcpy(handle + 8, &n, 4);
        sum = lend__crc32c(lend__crc32c(0, handle, 12), handle + 16, n - 16);
        memcpy(handle + 12, &sum, 4);
    }
    memcpy(out, &magic, 4);
    memcpy(out + 4, &n, 4);
    memcpy(out + 8, &has, 4);
    memset(out + 12, 0, 4);
    return 16 + n;
}

/* Another exporter's handle would be dialled: its id is not of this run, and nobody listens there. */
static void receive(int fd) {
    struct lend_tensor *got = NULL;
    struct lend_error error = {0};
    for (int i = 0; i < 3; i++) {
        int r = lend_recv(fd, NULL, 1000000, &got, &error);
        PROPERTY(r == 0 || (error.code == r && error.text[0] && error.operation[0] && !got));
        lend_tensor_unref(got);
        got = NULL;
        if (r == -EPIPE || r == -ETIMEDOUT) break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct input in = {data, bytes};
    uint8_t message[4096];
    int pair[2], fds[FDS_MAX];
    begin();
    unsigned before = n_descriptors();
    uint8_t how = input_byte(&in), kinds = input_byte(&in);
    PROPERTY(socketpair(AF_UNIX, (how & 1 ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0, pair) == 0);
    unsigned n_fds = (how >> 1) % (FDS_MAX + 1);
    for (unsigned i = 0; i < n_fds; i++) fds[i] = new_descriptor((uint8_t)(kinds >> 2 * (i % 4)));
    size_t n = how & 64                   ? wrap(&in, how & 128, message, sizeof message)
               : in.left < sizeof message ? in.left
                                          : sizeof message;
    if (!(how & 64)) input_take(&in, message, n);
    post(pair[0], message, n, fds, n_fds);
    for (unsigned i = 0; i < n_fds; i++) close(fds[i]);
    close(pair[0]);
    receive(pair[1]);
    close(pair[1]);
    PROPERTY(n_descriptors() == before);
    PROPERTY(lend_check(NULL) == 0);
    return 0;
}
