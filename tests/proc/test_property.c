/* SPDX-License-Identifier: MIT */
/* Random trees go to another process and are what they were: the sender says beforehand what must arrive, the mirror
 * what did. Then everything is dropped, and the books of both are as at the beginning.
 *
 * LEND_PROPERTY_SEED and LEND_PROPERTY_COUNT choose other trees, and more of them; tree i is made from seed + i, so the
 * line of a failure gives the one tree that failed. */
#include "peer.h"
#include "picture.h"
#include "random_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SEED = 20240607, COUNT = 2000, BOOKS_EVERY = 10 };

/* --- frames --------------------------------------------------------------------------------------------------------- */

/* What the mirror is asked to do. */
enum op {
    OFFER,        /* a tensor of its own -> its handle */
    REBUILD,      /* a handle -> the picture; argument: flags */
    REBUILD_SOME, /* a handle and, behind it, names; argument: bytes of the handle -> the picture */
    RECEIVE,      /* what lies on the other socket; argument: is it a group? -> the picture */
    LOOK,         /* -> the picture of what it holds */
    REDUCE,       /* -> a handle of what it holds */
    DROP,         /* what it holds */
    BOOKS         /* -> its totals */
};

struct frame {
    uint32_t op;
    uint32_t bytes; /* that follow */
    uint64_t argument;
};

static void put(int fd, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t r = send(fd, (const uint8_t *)bytes + done, n - done, MSG_NOSIGNAL);
        if (r < 0) FAIL("the other process is gone: %s", strerror(errno));
        done += (size_t)r;
    }
}

/* False: there is nothing more. */
static bool take(int fd, void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t r = recv(fd, (uint8_t *)bytes + done, n - done, 0);
        if (r <= 0) return false;
        done += (size_t)r;
    }
    return true;
}

static void put_frame(int fd, enum op op, uint64_t argument, const void *bytes, size_t n) {
    const struct frame frame = {op, (uint32_t)n, argument};
    put(fd, &frame, sizeof frame);
    put(fd, bytes, n);
}

/* The bytes, with a NUL behind them; freed by the caller. NULL at the end. */
static char *take_frame(int fd, struct frame *ret) {
    if (!take(fd, ret, sizeof *ret)) return NULL;
    char *bytes = calloc(1, ret->bytes + 1ull);
    CHECK(bytes && take(fd, bytes, ret->bytes));
    return bytes;
}

/* --- both sides ------------------------------------------------------------------------------------------------------ */

/* A tensor or a group that was rebuilt. */
struct rebuilt {
    struct lend_tensor *tensor;
    struct lend_group *group;
};

static void drop_rebuilt(struct rebuilt *rebuilt) {
    lend_tensor_unref(rebuilt->tensor);
    lend_group_unref(rebuilt->group);
    *rebuilt = (struct rebuilt){NULL, NULL};
}

/* Nothing in it is owned. */
static struct tree tree_of(const struct rebuilt *rebuilt) {
    struct tree tree = {.is_group = rebuilt->group != NULL, .n = 1, .tensors = {rebuilt->tensor}};
    if (!tree.is_group) return tree;
    tree.n = (unsigned)lend_group_count(rebuilt->group);
    CHECK(tree.n <= TREE_ENTRIES_MAX);
    for (unsigned i = 0; i < tree.n; i++) {
        const char *name = NULL;
        tree.tensors[i] = lend_group_get(rebuilt->group, i, &name);
        tree.names[i] = (char *)(uintptr_t)name;
        CHECK_PTR(lend_group_find(rebuilt->group, name), tree.tensors[i]);
    }
    return tree;
}

static void rebuild(const void *handle, size_t n, uint32_t flags, struct rebuilt *ret) {
    const struct lend_rebuild_opts opts = {.size = sizeof opts, .flags = flags};
    struct lend_handle_info info = {.size = sizeof info};
    struct lend_error error = {0};
    CHECK_OK(lend_handle_describe(handle, n, &info, &error), &error);
    if (info.kind == LEND_HANDLE_GROUP)
        CHECK_OK(lend_group_rebuild(handle, n, NULL, 0, &opts, &ret->group, &error), &error);
    else
        CHECK_OK(lend_rebuild(handle, n, &opts, &ret->tensor, &error), &error);
}

/* A handle of any length; freed with lend_free. Returns what reducing did. */
static int reduce(struct lend_tensor *tensor, struct lend_group *group, const struct lend_reduce_opts *opts, void **ret,
                  size_t *ret_n) {
    struct lend_error error = {0};
    int r;
    if (group) {
        r = lend_group_reduce(group, opts, ret, ret_n, &error);
    } else { /* a wrapper's can be longer than LEND_HANDLE_BYTES_MAX: -ERANGE says how long, and leaves nothing */
        r = lend_reduce(tensor, opts, NULL, 0, ret_n, &error);
        CHECK_INT(r, -ERANGE);
        *ret = malloc(*ret_n);
        CHECK(*ret);
        r = lend_reduce(tensor, opts, *ret, *ret_n, ret_n, &error);
    }
    if (r != 0 && r != LEND_COPIED) FAIL("reducing gives %d: %s", r, error.text);
    return r;
}

static char *books(void) {
    struct lend_report *report = NULL;
    struct lend_error error = {0};
    char *text = calloc(1, 128);
    CHECK_OK(lend_check(&error), &error);
    CHECK_OK(lend_report_get(NULL, 1, 0, &report, &error), &error);
    snprintf(text, 128, "storages %llu limbo %llu pins %llu holds %zu", (unsigned long long)report->totals.n_storages,
             (unsigned long long)report->totals.n_limbo, (unsigned long long)report->totals.n_pins, report->n_holds);
    lend_report_free(report);
    return text;
}

/* --- the mirror ------------------------------------------------------------------------------------------------------ */

struct mirror {
    int fd, message_fd;
    struct lend_pool *pool;
    struct lend_tensor *base;
    struct rebuilt held;
};

static void answer_picture(struct mirror *mirror, enum op op) {
    const struct tree tree = tree_of(&mirror->held);
    char *text = picture_of(&tree, NULL, NULL);
    put_frame(mirror->fd, op, 0, text, strlen(text));
    free(text);
}

static void answer_handle(struct mirror *mirror, enum op op, struct lend_tensor *tensor, struct lend_group *group) {
    void *handle = NULL;
    size_t n = 0;
    CHECK_INT(reduce(tensor, group, NULL, &handle, &n), 0);
    put_frame(mirror->fd, op, 0, handle, n);
    lend_free(handle);
}

static void rebuild_some(struct mirror *mirror, const struct frame *frame, const char *bytes) {
    const char *names[TREE_ENTRIES_MAX], *at = bytes + frame->argument;
    struct lend_error error = {0};
    size_t n = 0;
    for (; at < bytes + frame->bytes; at += strlen(at) + 1) names[n++] = at;
    CHECK_OK(lend_group_rebuild(bytes, frame->argument, names, n, NULL, &mirror->held.group, &error), &error);
}

static void receive(struct mirror *mirror, bool is_group) {
    const struct lend_rebuild_opts opts = {.size = sizeof opts, .flags = LEND_REBUILD_CHECK};
    struct lend_error error = {0};
    if (is_group)
        CHECK_OK(lend_group_recv(mirror->message_fd, &opts, 0, &mirror->held.group, &error), &error);
    else
        CHECK_OK(lend_recv(mirror->message_fd, &opts, 0, &mirror->held.tensor, &error), &error);
}

static void obey(struct mirror *mirror, const struct frame *frame, const char *bytes) {
    char *text;
    switch (frame->op) {
    case OFFER: answer_handle(mirror, OFFER, mirror->base, NULL); return;
    case REBUILD: rebuild(bytes, frame->bytes, (uint32_t)frame->argument, &mirror->held); break;
    case REBUILD_SOME: rebuild_some(mirror, frame, bytes); break;
    case RECEIVE: receive(mirror, frame->argument); break;
    case LOOK: break;
    case REDUCE: answer_handle(mirror, REDUCE, mirror->held.tensor, mirror->held.group); return;
    case DROP:
        drop_rebuilt(&mirror->held);
        put_frame(mirror->fd, DROP, 0, NULL, 0);
        return;
    default:
        text = books();
        put_frame(mirror->fd, BOOKS, 0, text, strlen(text));
        free(text);
        return;
    }
    answer_picture(mirror, frame->op);
}

static struct lend_tensor *new_offer(struct lend_pool *pool) {
    const int64_t shape[] = {6, 7};
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_tensor_new(pool, float32, 2, shape, &tensor, NULL), NULL);
    for (int i = 0; i < 42; i++) ((float *)lend_tensor_data(tensor))[i] = (float)i / 3;
    return tensor;
}

LEND_ROLE(mirror) {
    struct mirror mirror = {.fd = atoi(argv[0]), .message_fd = atoi(argv[1])};
    struct frame frame;
    open_with(NULL);
    mirror.pool = new_pool(NULL);
    mirror.base = new_offer(mirror.pool);
    for (char *bytes; (bytes = take_frame(mirror.fd, &frame)); free(bytes)) obey(&mirror, &frame, bytes);
    lend_tensor_unref(mirror.base);
    close_all(mirror.pool);
    return 0;
}

/* --- the sender ------------------------------------------------------------------------------------------------------ */

struct sender {
    struct forest forest;
    struct role mirror, lender;
    int fd, message_fd;
    bool seen[64];
};

static char *ask(struct sender *sender, enum op op, uint64_t argument, const void *bytes, size_t n, size_t *ret_n) {
    struct frame answer;
    put_frame(sender->fd, op, argument, bytes, n);
    char *text = take_frame(sender->fd, &answer);
    if (!text) FAIL("the mirror ended with %d", role_wait(&sender->mirror));
    CHECK_UINT(answer.op, op);
    if (ret_n) *ret_n = answer.bytes;
    return text;
}

static struct lend_group *group_of(const struct tree *tree) {
    struct lend_group *group = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_group_new(&group, &error), &error);
    for (unsigned i = 0; i < tree->n; i++)
        CHECK_OK(lend_group_add(group, tree->names[i], tree->tensors[i], &error), &error);
    return group;
}

/* The text of a handle is as good as its bytes. */
static void check_text(const void *handle, size_t n) {
    size_t n_back = 0, room = LEND_HANDLE_TEXT_BYTES(n);
    char *text = malloc(room);
    uint8_t *back = malloc(n);
    CHECK(text && back);
    CHECK_OK(lend_handle_format(handle, n, text, room), NULL);
    CHECK_OK(lend_handle_parse(text, back, n, &n_back), NULL);
    CHECK_UINT(n_back, n);
    CHECK_MEM(back, handle, n);
    free(text);
    free(back);
}

/* Some of the group's names, behind the handle. */
static char *rebuild_some_of(struct sender *sender, const struct tree *tree, const void *handle, size_t n,
                             bool *wanted) {
    size_t room = n + TREE_ENTRIES_MAX * (LEND_GROUP_NAME_MAX + 1), used = n;
    char *bytes = malloc(room);
    CHECK(bytes);
    memcpy(bytes, handle, n);
    for (unsigned i = 0; i < tree->n; i++) {
        wanted[i] = chance(&sender->forest, 2);
        if (!wanted[i]) continue;
        memcpy(bytes + used, tree->names[i], strlen(tree->names[i]) + 1);
        used += strlen(tree->names[i]) + 1;
    }
    char *picture = ask(sender, REBUILD_SOME, n, bytes, used, NULL);
    free(bytes);
    return picture;
}

/* Sends the tree in one of the ways and gives what the mirror sees; `wanted` is which entries it took. */
static char *deliver(struct sender *sender, const struct tree *tree, const struct lend_reduce_opts *opts,
                     bool *wanted) {
    struct lend_group *group = tree->is_group ? group_of(tree) : NULL;
    struct lend_tensor *tensor = tree->tensors[0];
    struct lend_error error = {0};
    char *picture;
    for (unsigned i = 0; i < tree->n; i++) wanted[i] = true;
    if (chance(&sender->forest, 3)) {
        int r = group ? lend_group_send(sender->message_fd, group, opts, 0, &error)
                      : lend_send(sender->message_fd, tensor, opts, 0, &error);
        if (r < 0) FAIL("sending gives %d: %s", r, error.text);
        picture = ask(sender, RECEIVE, tree->is_group, NULL, 0, NULL);
    } else {
        void *handle = NULL;
        size_t n = 0;
        reduce(tensor, group, opts, &handle, &n);
        check_text(handle, n);
        if (group && chance(&sender->forest, 4))
            picture = rebuild_some_of(sender, tree, handle, n, wanted);
        else
            picture = ask(sender, REBUILD, chance(&sender->forest, 2) ? LEND_REBUILD_CHECK : 0, handle, n, NULL);
        lend_free(handle);
    }
    lend_group_unref(group);
    return picture;
}

/* Storages that crossed as they are come back as themselves. */
static void check_identity(struct lend_tensor *sent, struct lend_tensor *back) {
    struct lend_tensor_info a = info_of(sent), b = info_of(back);
    struct lend_compound parts_a = {.size = sizeof parts_a}, parts_b = {.size = sizeof parts_b};
    CHECK_UINT(a.layout, b.layout);
    if (a.layout == LEND_LAYOUT_STRIDED) {
        if (!a.is_private && !a.is_zero) CHECK_UINT(b.storage_id, a.storage_id);
        return;
    }
    CHECK_OK(lend_tensor_components(sent, &parts_a), NULL);
    CHECK_OK(lend_tensor_components(back, &parts_b), NULL);
    CHECK_UINT(parts_b.n_components, parts_a.n_components);
    for (uint32_t i = 0; i < parts_a.n_components; i++) check_identity(parts_a.components[i], parts_b.components[i]);
}

/* The mirror sends on what it has. */
static void bring_back(struct sender *sender, const struct tree *sent, bool is_whole, const char *picture) {
    struct rebuilt rebuilt = {NULL, NULL};
    size_t n = 0;
    char *handle = ask(sender, REDUCE, 0, NULL, 0, &n);
    rebuild(handle, n, 0, &rebuilt);
    const struct tree back = tree_of(&rebuilt);
    char *again = picture_of(&back, NULL, NULL);
    picture_compare(again, picture);
    for (unsigned i = 0; sent && is_whole && i < sent->n; i++) check_identity(sent->tensors[i], back.tensors[i]);
    free(again);
    free(handle);
    drop_rebuilt(&rebuilt);
}

static struct lend_reduce_opts draw_opts(struct forest *forest) {
    static const uint32_t modes[] = {LEND_MODE_SHARE, LEND_MODE_SHARE, LEND_MODE_SHARE, LEND_MODE_SNAPSHOT,
                                     LEND_MODE_MOVE};
    struct lend_reduce_opts opts = {.size = sizeof opts, .flags = LEND_REDUCE_MATERIALIZE};
    opts.mode = modes[draw(forest, 5)];
    if (chance(forest, 3)) opts.flags |= LEND_REDUCE_PIN;
    if (chance(forest, 4)) opts.flags |= LEND_REDUCE_READ_ONLY;
    return opts;
}

/* Which of the kinds below have been sent: a generator that no longer makes one would go unnoticed. */
static const char *const kinds[] = {
    "layout 0 ", "layout 1 ", "layout 2 ",       "layout 3 ",  "layout 4 ",    "layout 5 ", "layout 6 ",
    "layout 7 ", "layout 8 ", "layout 9 ",       "layout 10 ", "coalesced 1 ", "padded 1 ", "read-only 1 ",
    "in ? ",     "all ?",     "device 1024",     ":512:",      "attrs 30 ",    "attrs 3 ",  "attrs 8 ",
    "attrs 44 ", "shape,0",   "components 16\n", "name \n",    "616161",       "name 1b5b", "components 0\n"};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static void note_kinds(const char *picture, bool *seen) {
    for (int i = 0; i < N_KINDS; i++) seen[i] = seen[i] || strstr(picture, kinds[i]);
    seen[N_KINDS] = seen[N_KINDS] || strstr(picture, "\n              layout 0 "); /* as deep as allowed */
}

static void send_one(struct sender *sender) {
    struct forest *forest = &sender->forest;
    struct lend_error error = {0};
    struct tree tree;
    bool wanted[TREE_ENTRIES_MAX], is_whole = true;
    tree_make(forest, &tree);
    const struct lend_reduce_opts opts = draw_opts(forest);
    const struct sending sending = {&opts, forest->read_only_ids, forest->n_read_only_ids};
    char *all = picture_of(&tree, &sending, NULL); /* before anything is moved away, and the values' sums before that */
    note_kinds(all, sender->seen);
    bool is_alive = opts.mode == LEND_MODE_SHARE, looks_twice = chance(forest, 2);
    char *actual = deliver(sender, &tree, &opts, wanted);
    for (unsigned i = 0; i < tree.n; i++) is_whole &= wanted[i];
    if (is_whole) picture_compare(actual, all);
    if (!is_whole && opts.mode != LEND_MODE_MOVE) {
        char *some = picture_of(&tree, &sending, wanted);
        picture_compare(actual, some);
        free(some);
    }
    if (chance(forest, 2)) bring_back(sender, is_alive ? &tree : NULL, is_whole, actual);
    if (looks_twice) { /* what the mirror holds lives on without the sender */
        tree_drop(forest, &tree);
        char *again = ask(sender, LOOK, 0, NULL, 0, NULL);
        CHECK_STR(again, actual);
        free(again);
    }
    free(ask(sender, DROP, 0, NULL, 0, NULL));
    tree_drop(forest, &tree);
    CHECK_OK(lend_check(&error), &error);
    free(actual);
    free(all);
}

/* --- the books ------------------------------------------------------------------------------------------------------- */

static bool is_settled(struct sender *sender) {
    char *here = books(), *there = ask(sender, BOOKS, 0, NULL, 0, NULL);
    /* The base of the mirror is held by us, all the time. */
    bool is = !strcmp(here, "storages 0 limbo 0 pins 0 holds 0") && !strcmp(there, "storages 1 limbo 0 pins 0 holds 1");
    free(here);
    free(there);
    return is;
}

static void check_pools(struct sender *sender) {
    for (int i = 0; i < FOREST_POOLS; i++) {
        struct lend_pool_stats stats = {.size = sizeof stats};
        CHECK_OK(lend_pool_check(sender->forest.pools[i], NULL), NULL);
        CHECK_OK(lend_pool_stats(sender->forest.pools[i], &stats), NULL);
        CHECK_UINT(stats.allocated_bytes, 0);
        CHECK_UINT(stats.requested_bytes, 0);
        CHECK_UINT(stats.limbo_bytes, 0);
        CHECK_UINT(stats.n_allocs, stats.n_frees);
    }
}

static void check_books(struct sender *sender) {
    CHECK_EVENTUALLY(5000, is_settled(sender));
    check_pools(sender);
}

static struct lend_tensor *borrow(const void *handle, size_t n) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    CHECK_OK(lend_rebuild(handle, n, NULL, &tensor, &error), &error);
    return tensor;
}

/* The second end is inherited by the mirror. */
static int new_socket(int *ret_theirs) {
    int pair[2];
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_INT(fcntl(pair[0], F_SETFD, FD_CLOEXEC), 0);
    *ret_theirs = pair[1];
    return pair[0];
}

static void begin(struct sender *sender) {
    int theirs[2];
    char words[2][16];
    size_t n = 0;
    open_with(NULL);
    forest_begin(&sender->forest);
    sender->fd = new_socket(&theirs[0]);
    sender->message_fd = new_socket(&theirs[1]);
    int least = 1; /* the kernel makes it as small as it goes: what a message may be cut into is then smallest, too */
    CHECK_INT(setsockopt(sender->message_fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
    for (int i = 0; i < 2; i++) snprintf(words[i], sizeof words[i], "%d", theirs[i]);
    ROLE_START(&sender->mirror, NULL, "mirror", words[0], words[1]);
    for (int i = 0; i < 2; i++) close(theirs[i]);
    char *handle = ask(sender, OFFER, 0, NULL, 0, &n);
    sender->forest.borrowed[0] = borrow(handle, n);
    free(handle);
    actor_start(&sender->lender, NULL, NULL);
    actor_ok(&sender->lender, "new 0 500 7");
    uint8_t bytes[LEND_HANDLE_BYTES_MAX];
    CHECK_OK(lend_handle_parse(actor_ok(&sender->lender, "reduce 0"), bytes, sizeof bytes, &n), NULL);
    sender->forest.borrowed[1] = borrow(bytes, n);
}

static void end(struct sender *sender) {
    forest_end(&sender->forest);
    close(sender->fd);
    close(sender->message_fd);
    role_end(&sender->mirror);
    role_end(&sender->lender);
    close_all(NULL);
}

/* What a test wrote is shown when it fails: here the last line only. */
static void tell_seed(uint64_t seed) {
    if (ftruncate(1, 0) == 0) lseek(1, 0, SEEK_SET);
    printf("LEND_PROPERTY_SEED=%llu LEND_PROPERTY_COUNT=1\n", (unsigned long long)seed);
}

LEND_TEST_TIMED(what_arrives_is_what_was_sent, 600) {
    static struct sender sender;
    const char *seed_text = getenv("LEND_PROPERTY_SEED"), *count_text = getenv("LEND_PROPERTY_COUNT");
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 10) : SEED;
    unsigned count = count_text ? (unsigned)strtoul(count_text, NULL, 10) : COUNT;
    begin(&sender);
    for (unsigned i = 0; i < count; i++) {
        tell_seed(seed + i);
        forest_seed(&sender.forest, seed + i);
        send_one(&sender);
        if (i % BOOKS_EVERY == BOOKS_EVERY - 1 || i == count - 1) check_books(&sender);
    }
    for (int i = 0; count >= COUNT && i <= N_KINDS; i++)
        if (!sender.seen[i]) FAIL("no tree had \"%s\"", i < N_KINDS ? kinds[i] : "a tensor at the greatest depth");
    end(&sender);
}
