/* SPDX-License-Identifier: MIT */
/* Who may reach whom: other users, user namespaces, other hosts, and sockets in folders. */
#include "peer.h"

#include "base/crc32c.h"
#include "share/control.h"
#include "share/identity.h"
#include "share/shm.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STRANGER = 12345, OTHER_STRANGER = 23456 };

/* The handle with bytes of a field changed, and a sound checksum. */
static struct handle changed(const struct handle *from, size_t at, const void *bytes, size_t n) {
    struct handle h = *from;
    memcpy(h.bytes + at, bytes, n);
    uint32_t sum = lend__crc32c(lend__crc32c(0, h.bytes, 12), h.bytes + 16, h.n - 16);
    for (int i = 0; i < 4; i++) h.bytes[12 + i] = (uint8_t)(sum >> 8 * i);
    CHECK_OK(lend_handle_format(h.bytes, h.n, h.text, sizeof h.text), NULL);
    return h;
}

static void parse(struct handle *h, const char *text) {
    snprintf(h->text, sizeof h->text, "%s", text);
    CHECK_OK(lend_handle_parse(text, h->bytes, sizeof h->bytes, &h->n), NULL);
}

/* Connects to an exporter's socket past the library and says what it gets for a hello. argv: uid in the name, handle. */
LEND_ROLE(knocker) {
    struct handle h;
    struct lend_handle_info info = {.size = sizeof info};
    struct sockaddr_un address;
    parse(&h, argv[1]);
    CHECK_OK(lend_handle_describe(h.bytes, h.n, &info, NULL), NULL);
    int length = lend__identity_address((uint32_t)atoi(argv[0]), info.exporter_id, NULL, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, (socklen_t)length)) {
        role_say("connect %d", -errno);
    } else {
        struct lend__control_request hello = {.magic = LEND__CONTROL_MAGIC, .type = LEND__CONTROL_HELLO, .sequence = 1};
        struct lend__control_reply reply = {.code = 1};
        hello.bytes = sizeof hello;
        hello.layout = lend__shm_layout();
        hello.allocation = hello.page_index = LEND__CONTROL_NONE;
        memcpy(hello.exporter_id, info.exporter_id, 16);
        (void)send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        struct lend__control_fds fds = {.n = 0};
        if (poll(&p, 1, 9000) > 0) (void)lend__control_recv(fd, &reply, sizeof reply, &fds);
        role_say("code %d descriptors %u", reply.code, fds.n);
        lend__control_drop_fds(&fds);
    }
    close(fd);
    return 0;
}

LEND_TEST(another_user_is_refused_on_both_sides) {
    if (geteuid()) SKIP("only root can start a process of another user");
    struct role a, b, k;
    struct handle h;
    uint32_t stranger = STRANGER;
    char uid[16];
    actor_start(&a, NULL, NULL);
    actor_start(&b, &(struct role_opts){.uid = STRANGER}, NULL);
    actor_ok(&a, "new 0 1000 1");
    parse(&h, actor_ok(&a, "reduce 0"));
    long long maps = actor_int(&b, "count lend_maps");
    CHECK_INT(actor_code(&b, "rebuild 0 %s", h.text), -EPERM);
    CHECK_CONTAINS(actor_sentence, "12345");
    CHECK_INT(actor_code(&b, "cancel %s", h.text), -EINVAL);
    /* A handle that says it is this user's leads to a name that nobody has. */
    struct handle forged = changed(&h, 56, &stranger, 4);
    CHECK_INT(actor_code(&b, "rebuild 0 %s", forged.text), -EOWNERDEAD);
    CHECK_INT(actor_int(&b, "count lend_maps"), maps);
    /* And who knocks himself is sent away by the exporter. */
    snprintf(uid, sizeof uid, "%d", (int)geteuid());
    ROLE_START(&k, &(struct role_opts){.uid = STRANGER}, "knocker", uid, h.text);
    CHECK_STR(role_expect(&k, "code "), "-1 descriptors 0");
    role_end(&k);
    CHECK_INT(actor_int(&a, "peers"), 0);
    actor_ok(&a, "drop 0");
    CHECK_INT(actor_int(&a, "count limbo"), 0);
    role_end(&a);
    role_end(&b);
}

LEND_TEST(a_squatter_on_an_exporters_name_is_refused) {
    if (geteuid()) SKIP("only root can start a process of another user");
    struct role a;
    struct handle h;
    open_with(NULL);
    actor_start(&a, NULL, NULL);
    actor_ok(&a, "new 0 1000 1");
    parse(&h, actor_ok(&a, "reduce 0"));
    role_kill(&a, SIGKILL);
    /* Root's importers ask for "lend-0-..."; another user can take that abstract name. */
    struct lend_handle_info info = {.size = sizeof info};
    struct sockaddr_un address;
    struct lend_tensor *tensor = NULL;
    CHECK_OK(lend_handle_describe(h.bytes, h.n, &info, NULL), NULL);
    int length = lend__identity_address(0, info.exporter_id, NULL, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !seteuid(STRANGER));
    CHECK(!bind(fd, (struct sockaddr *)&address, (socklen_t)length) && !listen(fd, 5));
    CHECK(!seteuid(0));
    struct lend_error error = {0};
    CHECK_CODE(lend_rebuild(h.bytes, h.n, NULL, &tensor, &error), -EPERM);
    CHECK_CONTAINS(error.text, "another user");
    close(fd);
    close_all(NULL);
}

/* --- user namespaces ------------------------------------------------------------------------------------------------- */

/* In a user namespace without a map every id is the overflow id, so "equal" means nothing. argv: "export" or "import". */
LEND_ROLE(in_a_user_namespace) {
    if (unshare(CLONE_NEWUSER)) {
        role_say("cannot %s", strerror(errno));
        return 0;
    }
    role_say("unshared %u", geteuid());
    open_with(NULL);
    if (!strcmp(argv[0], "export")) {
        struct lend_pool *pool = new_pool(NULL);
        struct lend_tensor *tensor = new_bytes(pool, 100, 1);
        role_say("%s", reduce_text(tensor, NULL, 0));
        role_hear();
        lend_tensor_unref(tensor);
        close_all(pool);
        return 0;
    }
    for (const char *line; (line = role_hear());) {
        struct lend_tensor *tensor = NULL;
        struct lend_error error = {0};
        int r = rebuild_text(line, NULL, &tensor, &error);
        lend_tensor_unref(tensor);
        role_say("code %d %s", r, error.text);
    }
    close_all(NULL);
    return 0;
}

LEND_TEST(the_overflow_id_is_nobody) {
    struct role a, b, outside;
    struct handle inside, real;
    ROLE_START(&a, NULL, "in_a_user_namespace", "export");
    ROLE_START(&b, NULL, "in_a_user_namespace", "import");
    const char *line = role_line(&a, 10000);
    if (!line || strncmp(line, "unshared ", 9)) {
        role_end(&a);
        role_end(&b);
        SKIP("user namespaces cannot be made here: %s", line ? line : "(ended)");
    }
    unsigned overflow = (unsigned)atoi(line + 9);
    char expected[16];
    snprintf(expected, sizeof expected, "%u", overflow);
    CHECK_STR(role_expect(&b, "unshared "), expected);
    parse(&inside, role_expect(&a, ""));
    /* Both have the overflow id, and the handle too: refused by the importer, which cannot tell who that is. */
    role_send(&b, "%s", inside.text);
    CHECK_CONTAINS(role_expect(&b, "code -1 "), "another user");
    /* Across the border the ids differ. */
    open_with(NULL);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 100, 1);
    reduce_to(tensor, NULL, 0, &real);
    role_send(&b, "%s", real.text);
    CHECK_CONTAINS(role_expect(&b, "code -1 "), "user");
    actor_start(&outside, NULL, NULL);
    CHECK_INT(actor_code(&outside, "rebuild 0 %s", inside.text), -EPERM);
    role_end(&outside);
    lend_tensor_unref(tensor);
    close_all(pool);
    role_end(&a);
    role_end(&b);
}

/* --- other hosts ------------------------------------------------------------------------------------------------------ */

LEND_TEST(a_handle_of_another_host) {
    struct role a, b;
    struct handle h;
    uint8_t other[16];
    actor_start(&a, NULL, NULL);
    actor_start(&b, NULL, NULL);
    actor_ok(&a, "new 0 1000 1");
    parse(&h, actor_ok(&a, "reduce 0"));
    memcpy(other, h.bytes + 16, 16);
    other[5] ^= 1;
    struct handle remote = changed(&h, 16, other, 16);
    long long maps = actor_int(&b, "count lend_maps"), fds = actor_int(&b, "count fds");
    CHECK_INT(actor_code(&b, "rebuild 0 %s", remote.text), -EREMOTE);
    CHECK_CONTAINS(actor_sentence, "another host");
    CHECK_INT(actor_int(&b, "count lend_maps"), maps);
    CHECK_INT(actor_int(&b, "count fds"), fds);
    struct handle pinned;
    parse(&pinned, actor_ok(&a, "reduce 0 pin"));
    remote = changed(&pinned, 16, other, 16);
    CHECK_INT(actor_code(&b, "cancel %s", remote.text), -EREMOTE);
    CHECK_INT(actor_int(&a, "pins"), 1);
    actor_ok(&b, "rebuild 0 %s", h.text);
    role_end(&a);
    role_end(&b);
}

/* --- sockets in a folder ------------------------------------------------------------------------------------------------ */

static void make_folder(char folder[64], mode_t mode) {
    snprintf(folder, 64, "/tmp/lend-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    CHECK(!chmod(folder, mode));
}

static unsigned count_entries(const char *folder) {
    DIR *dir = opendir(folder);
    unsigned n = 0;
    CHECK(dir != NULL);
    for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

LEND_TEST(a_path_socket_in_a_private_folder) {
    char folder[64], options[96];
    struct role a, b;
    struct handle h;
    struct lend_handle_info info = {.size = sizeof info};
    make_folder(folder, 0700);
    snprintf(options, sizeof options, "socket_dir=%s", folder);
    actor_start(&a, NULL, options);
    actor_start(&b, NULL, NULL); /* the handle says where */
    actor_ok(&a, "new 0 1000 1");
    parse(&h, actor_ok(&a, "reduce 0"));
    CHECK_OK(lend_handle_describe(h.bytes, h.n, &info, NULL), NULL);
    CHECK(!strncmp(info.socket_path, folder, strlen(folder)));
    struct stat st;
    CHECK(!stat(info.socket_path, &st) && S_ISSOCK(st.st_mode));
    actor_ok(&b, "rebuild 0 %s", h.text);
    CHECK_INT(actor_int(&b, "filled 0"), 1);
    char text[LEND_HANDLE_TEXT_MAX];
    snprintf(text, sizeof text, "%s", actor_ok(&b, "reduce 0")); /* forwarded: the path travels */
    struct role c;
    actor_start(&c, NULL, NULL);
    actor_ok(&c, "rebuild 0 %s", text);
    role_end(&c);
    role_end(&a);
    CHECK_UINT(count_entries(folder), 0);
    role_end(&b);
    CHECK(!rmdir(folder));
}

/* Only what an exporter of this user left is swept: sockets, with exactly such a name. */
LEND_TEST(other_files_in_the_folder_are_left_alone) {
    char folder[64], path[160], name[80];
    struct lend_error error = {0};
    make_folder(folder, 0700);
    snprintf(name, sizeof name, "lend-%u-0123456789abcdef0123456789abcdef", (unsigned)geteuid());
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(!mkfifo(path, 0600));
    snprintf(path, sizeof path, "%s/lend-%u-notes.txt", folder, (unsigned)geteuid());
    FILE *file = fopen(path, "w");
    CHECK(file && fputs("precious", file) >= 0 && !fclose(file));
    const struct lend_opts opts = {.size = sizeof opts, .socket_dir = folder};
    CHECK_OK(lend_open(&opts, &error), &error);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 10, 1);
    reduce_text(tensor, NULL, 0);
    CHECK_UINT(count_entries(folder), 3);
    lend_tensor_unref(tensor);
    close_all(pool);
    CHECK_UINT(count_entries(folder), 2);
    CHECK(!unlink(path));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(!unlink(path));
    CHECK(!rmdir(folder));
}

/* A handle goes to processes with other working folders. */
LEND_TEST(a_relative_folder_is_made_absolute) {
    char folder[64];
    struct lend_error error = {0};
    struct handle h;
    struct lend_handle_info info = {.size = sizeof info};
    make_folder(folder, 0700);
    CHECK(!chdir("/tmp"));
    const struct lend_opts opts = {.size = sizeof opts, .socket_dir = folder + strlen("/tmp/")};
    CHECK_OK(lend_open(&opts, &error), &error);
    struct lend_pool *pool = new_pool(NULL);
    struct lend_tensor *tensor = new_bytes(pool, 10, 1);
    reduce_to(tensor, NULL, 0, &h);
    CHECK_OK(lend_handle_describe(h.bytes, h.n, &info, NULL), NULL);
    CHECK(!strncmp(info.socket_path, folder, strlen(folder)));
    lend_tensor_unref(tensor);
    close_all(pool);
    CHECK(!rmdir(folder));
}

/* The name of one that was killed stays, answers -EOWNERDEAD, and goes with the next one to open there. */
LEND_TEST(the_name_of_a_killed_exporter_is_removed_by_the_next) {
    char folder[64], options[96];
    struct role a, b;
    struct handle h;
    make_folder(folder, 0700);
    snprintf(options, sizeof options, "socket_dir=%s", folder);
    actor_start(&a, NULL, options);
    actor_ok(&a, "new 0 1000 1");
    parse(&h, actor_ok(&a, "reduce 0"));
    role_kill(&a, SIGKILL);
    CHECK_UINT(count_entries(folder), 1);
    actor_start(&b, NULL, NULL);
    CHECK_INT(actor_code(&b, "rebuild 0 %s", h.text), -EOWNERDEAD);
    actor_start(&a, NULL, options);
    actor_ok(&a, "new 0 1000 1");
    actor_ok(&a, "reduce 0");
    CHECK_UINT(count_entries(folder), 1);
    role_end(&a);
    CHECK_UINT(count_entries(folder), 0);
    role_end(&b);
    CHECK(!rmdir(folder));
}

LEND_TEST(a_group_folder_admits_whom_its_permissions_let_in) {
    if (geteuid()) SKIP("only root can start a process of another user");
    char folder[64], options[96];
    struct role a, b, c, d;
    struct handle h;
    make_folder(folder, 0755);
    snprintf(options, sizeof options, "group socket_dir=%s", folder);
    actor_start(&a, &(struct role_opts){.uid = STRANGER}, NULL);
    role_end(&a); /* can such a process run at all here? */
    actor_start(&a, NULL, options);
    actor_start(&b, &(struct role_opts){.uid = STRANGER}, options);
    actor_start(&c, &(struct role_opts){.uid = STRANGER}, NULL); /* it has not said that it wants to */
    actor_start(&d, &(struct role_opts){.uid = OTHER_STRANGER}, options);
    actor_ok(&a, "new 0 1000 1");
    parse(&h, actor_ok(&a, "reduce 0"));
    actor_ok(&b, "rebuild 0 %s", h.text);
    CHECK_INT(actor_int(&b, "filled 0"), 1);
    actor_ok(&b, "poke 0 5 9");
    CHECK_INT(actor_int(&a, "byte 0 5"), 9);
    CHECK_INT(actor_code(&c, "rebuild 0 %s", h.text), -EPERM);
    CHECK(!chmod(folder, 0700)); /* from now on nobody comes in; who is in goes on */
    int code = actor_code(&d, "rebuild 0 %s", h.text);
    CHECK(code == -EACCES || code == -EPERM);
    CHECK_INT(actor_int(&b, "byte 0 5"), 9);
    role_end(&b);
    role_end(&c);
    role_end(&d);
    CHECK(!chmod(folder, 0755));
    role_end(&a);
    CHECK(!rmdir(folder));
}

LEND_TEST(the_group_policy_needs_a_folder) {
    struct lend_opts opts = {.size = sizeof opts, .peers = LEND_PEERS_GROUP};
    struct lend_error error = {0};
    CHECK_CODE(lend_open(&opts, &error), -EINVAL);
    CHECK_CONTAINS(error.text, "socket_dir");
}
