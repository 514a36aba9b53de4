/* SPDX-License-Identifier: MIT */
/* lend_recv and lend_group_recv: anything on the socket, with any descriptors, among them handles in memfds, sealed or
 * not, and what a process left that is gone. Whatever comes, the answer is tensors or a typed error, no descriptor and
 * no mapping stays, and the books are in order. */
#include "share/context.h"
#include "share/ledger.h"
#include "share/parcel.h"
#include "share/peer.h"
#include "share/wire.h"
#include "trees.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { FDS_MAX = 6, HANDLES = 4, MESSAGE_MAX = 12288 };
enum { HOW_STREAM = 1, HOW_GROUP = 2, HOW_WRAP = 4, HOW_MEMFD = 8, HOW_DEAD = 16, HOW_INPUT = 32, HOW_RIGHT = 64 };

/* A message that was really sent, taken off its socket. */
struct letter {
    uint8_t handle[16384];
    uint32_t n;
    uint32_t n_items;
    struct lend__parcel_item items[FDS_MAX];
    int fds[FDS_MAX];
};

static struct lend_pool *pool;
static struct letter letters[2 * HANDLES]; /* of this process: strided, components, group, empty group; of a dead one */

/* --- time ------------------------------------------------------------------------------------------------------------ */

/* An exporter that seems to be just dying is waited for, a second long. Here whoever sleeps wakes at once, and the clock
 * has gone on by so much. libFuzzer's own clock is another one. */
static uint64_t skipped_ns;

int nanosleep(const struct timespec *wanted, struct timespec *left) {
    (void)left;
    uint64_t ns = (uint64_t)wanted->tv_sec * 1000000000u + (uint64_t)wanted->tv_nsec;
    __atomic_fetch_add(&skipped_ns, ns, __ATOMIC_RELAXED);
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *ret) {
    int r = (int)syscall(SYS_clock_gettime, clock, ret);
    if (r < 0 || clock != CLOCK_MONOTONIC) return r;
    uint64_t ns = (uint64_t)ret->tv_nsec + __atomic_load_n(&skipped_ns, __ATOMIC_RELAXED);
    ret->tv_sec += (time_t)(ns / 1000000000u);
    ret->tv_nsec = (long)(ns % 1000000000u);
    return r;
}

/* --- what is sent ---------------------------------------------------------------------------------------------------- */

/* Sends one of each kind, which lives on: a pin is for one receipt. */
static void send_all(int fd, struct lend_pool *of) {
    static struct lend_tensor *plain, *compound;
    static struct lend_group *group, *empty;
    plain = sample_floats(of, SIZES(6, 7));
    compound = sample(of, SAMPLE_WRAPPER);
    group = sample_group(of);
    PROPERTY(lend_group_new(&empty, NULL) == 0);
    PROPERTY(lend_send(fd, plain, NULL, 0, NULL) == 0 && lend_send(fd, compound, NULL, 0, NULL) == 0);
    PROPERTY(lend_group_send(fd, group, NULL, 0, NULL) == 0 && lend_group_send(fd, empty, NULL, 0, NULL) == 0);
}

static void keep(int fd, struct letter *ret) {
    uint8_t bytes[MESSAGE_MAX];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof ret->fds)];
    } control;
    struct iovec iov = {bytes, sizeof bytes};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(fd, &msg, 0);
    struct lend__parcel_header header;
    PROPERTY(n >= (ssize_t)sizeof header);
    memcpy(&header, bytes, sizeof header);
    ret->n = header.handle_bytes;
    ret->n_items = header.n_fds;
    PROPERTY(ret->n_items <= FDS_MAX && ret->n <= sizeof ret->handle);
    memcpy(ret->items, bytes + sizeof header, ret->n_items * sizeof ret->items[0]);
    if (ret->n_items) memcpy(ret->fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), ret->n_items * sizeof(int));
    if (ret->n_items && ret->items[ret->n_items - 1].kind == LEND__PARCEL_HANDLE)
        PROPERTY(pread(ret->fds[--ret->n_items], ret->handle, ret->n, 0) == (ssize_t)ret->n);
    else
        memcpy(ret->handle, bytes + sizeof header + ret->n_items * sizeof ret->items[0], ret->n);
}

/* A process sends everything, and ends. */
static void keep_of_the_dead(int pair[2]) {
    pid_t pid = fork();
    PROPERTY(pid >= 0);
    if (!pid) {
        struct lend_pool *of = NULL;
        if (lend_open(NULL, NULL) < 0 || lend_pool_new(NULL, &of, NULL) < 0) _exit(1);
        send_all(pair[0], of);
        _exit(0);
    }
    for (int i = 0; i < HANDLES; i++) keep(pair[1], &letters[HANDLES + i]);
    PROPERTY(waitpid(pid, NULL, 0) == pid);
}

static void begin(void) {
    const struct lend_opts opts = {.size = sizeof opts, .deadline_ns = 20000000};
    int pair[2];
    if (pool) return;
    PROPERTY(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    keep_of_the_dead(pair);
    PROPERTY(lend_open(&opts, NULL) == 0 && lend_pool_new(NULL, &pool, NULL) == 0);
    send_all(pair[0], pool);
    for (int i = 0; i < HANDLES; i++) keep(pair[1], &letters[i]);
    close(pair[0]);
    close(pair[1]);
}

/* --- descriptors ------------------------------------------------------------------------------------------------------ */

static unsigned n_descriptors(void) {
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

/* Somebody who lists exporters may visit this one meanwhile: he is given time to go. */
static bool has_left_none(unsigned before) {
    for (int ms = 0; ms < 2000; ms++) {
        if (n_descriptors() <= before) return true;
        poll(NULL, 0, 1);
    }
    return false;
}

/* A memfd with these bytes and some of the seals; or shorter than it should be. */
static int new_memfd(const uint8_t *bytes, size_t n, uint8_t how) {
    static const unsigned seals[] = {F_SEAL_SHRINK, F_SEAL_WRITE, F_SEAL_GROW, F_SEAL_SEAL};
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    size_t written = how & 16 && n ? n - 1 : n;
    PROPERTY(fd >= 0 && write(fd, bytes, written) == (ssize_t)written);
    for (int i = 0; i < 4; i++)
        if (!(how >> i & 1)) (void)fcntl(fd, F_ADD_SEALS, seals[i]);
    return fd;
}

/* What should not come: the table of somebody alive, a memfd, a socket. */
static int new_descriptor(uint8_t kind) {
    switch (kind % 3) {
    case 0: return dup(lend__ledger.table_fd);
    case 1: {
        int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        PROPERTY(ftruncate(fd, 8192) == 0);
        return fd;
    }
    default: return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
}

/* --- messages -------------------------------------------------------------------------------------------------------- */

struct message {
    uint8_t bytes[MESSAGE_MAX];
    size_t n;
    int fds[FDS_MAX + 1];
    unsigned n_fds;
};

/* A copy of a kept handle with the input as changes. */
static size_t change_handle(struct input *in, const struct letter *letter, uint8_t *ret) {
    memcpy(ret, letter->handle, letter->n);
    for (unsigned changes = input_byte(in) % 4; changes; changes--) {
        uint16_t at = 0;
        input_take(in, &at, 2);
        ret[at % letter->n] ^= input_byte(in);
    }
    put_sum(ret, letter->n, letter->handle[7]);
    return letter->n;
}

/* The items of a kept message, as they were or with changes, and the descriptors. */
static uint32_t put_items(struct input *in, const struct letter *letter, bool is_right, struct lend__parcel_item *ret,
                          struct message *message) {
    uint32_t n = is_right ? letter->n_items : input_byte(in) % (FDS_MAX + 1);
    for (uint32_t i = 0; i < n; i++) {
        bool is_kept = i < letter->n_items && (is_right || input_byte(in) % 2);
        message->fds[message->n_fds++] = is_kept ? dup(letter->fds[i]) : new_descriptor(input_byte(in));
        ret[i] = is_kept ? letter->items[i] : (struct lend__parcel_item){input_byte(in) % 5, 0};
        if (!is_right) ret[i].index = input_byte(in) % 8;
    }
    return n;
}

/* Header, items, and a handle behind them or in a memfd. */
static void wrap(struct input *in, uint8_t how, struct message *ret) {
    static uint8_t handle[sizeof letters[0].handle];
    const struct letter *letter = &letters[(how & HOW_DEAD ? HANDLES : 0) + input_byte(in) % HANDLES];
    struct lend__parcel_item items[FDS_MAX + 1];
    bool is_right = how & HOW_RIGHT;
    uint8_t seals = how & HOW_MEMFD ? input_byte(in) : 0, lie = is_right ? 0 : input_byte(in);
    uint32_t n_items = put_items(in, letter, is_right, items, ret);
    size_t n = how & HOW_INPUT ? in->left : change_handle(in, letter, handle);
    if (n > MESSAGE_MAX / 2 && how & HOW_INPUT) n = MESSAGE_MAX / 2;
    if (how & HOW_INPUT) {
        input_take(in, handle, n);
        put_sum(handle, n, n > 7 ? handle[7] & 1 : 0);
    }
    if (how & HOW_MEMFD) {
        ret->fds[ret->n_fds++] = new_memfd(handle, n, seals);
        items[n_items++] = (struct lend__parcel_item){LEND__PARCEL_HANDLE, lie % 16 == 7};
    }
    const struct lend__parcel_header header = {.magic = 0x47534d4c,
                                               .handle_bytes = (uint32_t)n + (lie % 16 == 1) - (lie % 16 == 2),
                                               .n_fds = n_items + (lie % 16 == 3) - (lie % 16 == 4),
                                               .reserved = lie % 16 == 5};
    memcpy(ret->bytes, &header, sizeof header);
    memcpy(ret->bytes + sizeof header, items, n_items * sizeof items[0]);
    ret->n = sizeof header + n_items * sizeof items[0];
    if (how & HOW_MEMFD) return;
    if (n > sizeof ret->bytes - ret->n) n = sizeof ret->bytes - ret->n;
    memcpy(ret->bytes + ret->n, handle, n);
    ret->n += n;
}

static void post(int fd, const struct message *message) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof message->fds)];
    } control = {.bytes = {0}};
    struct iovec iov = {(void *)(uintptr_t)message->bytes, message->n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (message->n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(message->n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(message->n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), message->fds, message->n_fds * sizeof(int));
    }
    (void)!sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* --- receiving ------------------------------------------------------------------------------------------------------- */

static void touch(struct lend_tensor *tensor) {
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_compound compound = {.size = sizeof compound};
    struct lend_tensor *copy = NULL;
    PROPERTY(lend_tensor_info(tensor, &info) == 0);
    if (info.layout != LEND_LAYOUT_STRIDED) {
        PROPERTY(lend_tensor_components(tensor, &compound) == 0);
        for (uint32_t i = 0; i < compound.n_components; i++) touch(compound.components[i]);
        return;
    }
    if (info.device.device_type != kDLCPU || info.nbytes > 65536) return;
    PROPERTY(lend_tensor_copy(tensor, NULL, &copy, NULL) == 0);
    lend_tensor_unref(copy);
}

/* Another exporter's handle would be dialled: its id is not of this run, and nobody listens there. */
static void receive(int fd, bool is_group) {
    for (int i = 0; i < 3; i++, is_group = !is_group) {
        struct lend_tensor *tensor = NULL;
        struct lend_group *group = NULL;
        struct lend_error error = {0};
        int r = is_group ? lend_group_recv(fd, NULL, 1000000, &group, &error)
                         : lend_recv(fd, NULL, 1000000, &tensor, &error);
        PROPERTY(r == 0 || (error.code == r && error.text[0] && error.operation[0] && !tensor && !group));
        if (tensor) touch(tensor);
        for (size_t k = 0; group && k < lend_group_count(group); k++) touch(lend_group_get(group, k, NULL));
        lend_tensor_unref(tensor);
        lend_group_unref(group);
        if (r == -EPIPE || r == -ETIMEDOUT) break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct message message;
    struct input in = {data, bytes};
    int pair[2];
    begin();
    unsigned before = n_descriptors();
    uint8_t how = input_byte(&in);
    message.n_fds = 0;
    if (how & HOW_WRAP) {
        wrap(&in, how, &message);
    } else {
        for (unsigned n = input_byte(&in) % (FDS_MAX + 1); n; n--)
            message.fds[message.n_fds++] = new_descriptor(input_byte(&in));
        message.n = in.left < sizeof message.bytes ? in.left : sizeof message.bytes;
        input_take(&in, message.bytes, message.n);
    }
    PROPERTY(socketpair(AF_UNIX, (how & HOW_STREAM ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0, pair) == 0);
    post(pair[0], &message);
    for (unsigned i = 0; i < message.n_fds; i++) close(message.fds[i]);
    close(pair[0]);
    receive(pair[1], how & HOW_GROUP);
    close(pair[1]);
    PROPERTY(has_left_none(before));
    PROPERTY(lend__peers_storages() == 0);
    PROPERTY(lend_check(NULL) == 0);
    return 0;
}
