/* SPDX-License-Identifier: MIT */
/* Tensors that stay in a file, between processes: the importer maps the same file, for reading; a cut is an error before
 * it is a signal; and nothing of the file is anybody's to give back. The importers here have the file from the protocol
 * alone: it has no name. */
#include "fault.h"
#include "files.h"
#include "share/ledger.h"
#include "share/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* How a child ends that touches the address: its signal, or 0. */
static int signal_of(void *address, bool writes) {
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        if (writes) *(volatile uint8_t *)address = 99;
        _exit(*(volatile uint8_t *)address & 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* --- what the importer gets ----------------------------------------------------------------------------------------- */

/* argv: handle, offset. */
LEND_ROLE(reader) {
    struct lend_tensor *tensor = NULL, *writable = NULL;
    struct lend_error error = {0};
    struct lend_rebuild_opts wants_writable = in_place;
    int fd = -1;
    open_with(NULL);
    CHECK_OK(rebuild_text(argv[0], &in_place, &tensor, &error), &error);
    struct lend_tensor_info info = info_of(tensor);
    CHECK(info.is_read_only && info.is_imported && info.is_shared && info.is_file);
    CHECK_UINT(info.allocation_offset, strtoull(argv[1], NULL, 10));
    CHECK_UINT(info.allocation_bytes, FILE_BYTES);
    CHECK(is_patterned(tensor, info.allocation_offset));
    /* The exporter was given a descriptor that could write. */
    CHECK_UINT(descriptors_of(info.allocation_inode, &fd), 1);
    CHECK_UINT(mappings_of(info.allocation_inode), 1);
    CHECK_INT(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    CHECK_INT(pwrite(fd, "x", 1, 0) < 0 ? errno : 0, EBADF);
    CHECK_INT(ftruncate(fd, 0) ? errno : 0, EINVAL);
    void *page = (void *)((uintptr_t)info.data & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1));
    CHECK_INT(mprotect(page, 1, PROT_READ | PROT_WRITE) ? errno : 0, EACCES);
    CHECK(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK_INT(signal_of(info.data, true), SIGSEGV);
    wants_writable.flags |= LEND_REBUILD_WRITABLE;
    CHECK_CODE(rebuild_text(argv[0], &wants_writable, &writable, &error), -EACCES);
    CHECK_OK(lend_tensor_copy(tensor, NULL, &writable, &error), &error); /* the way out */
    CHECK(!info_of(writable).is_read_only && !info_of(writable).is_file);
    CHECK(is_patterned(writable, info.allocation_offset));
    lend_tensor_unref(writable);
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(tensor);
    close_all(NULL);
    return 0;
}

LEND_TEST(a_file_arrives_as_the_file) {
    struct role r;
    int fd = test_file_patterned(FILE_BYTES);
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *tensor = tensor_at(pool, 4321, 50001);
    ROLE_START(&r, NULL, "reader", reduce_text(tensor, NULL, 0), "4321");
    role_end(&r);
    CHECK(is_patterned(tensor, 4321));
    end_exporter(tensor, pool, fd);
}

/* The consent is the importer's: whoever may write the file can end it by a signal. */
LEND_ROLE(refuser) {
    struct lend_tensor *tensor = NULL;
    struct lend_error error = {0};
    struct lend_rebuild_opts plain = {.size = sizeof plain};
    open_with(NULL);
    CHECK_CODE(rebuild_text(argv[0], NULL, &tensor, &error), -EACCES);
    CHECK_CONTAINS(error.text, "LEND_REBUILD_FILE_IN_PLACE");
    CHECK_CODE(rebuild_text(argv[0], &plain, &tensor, &error), -EACCES);
    CHECK_PTR(tensor, NULL);
    CHECK_OK(lend_check(&error), &error);
    /* A refusal leaves no lease, and does not spoil the handle. */
    CHECK_OK(rebuild_text(argv[0], &in_place, &tensor, &error), &error);
    CHECK(is_patterned(tensor, 0));
    lend_tensor_unref(tensor);
    close_all(NULL);
    return 0;
}

LEND_TEST(a_file_is_refused_unless_it_is_asked_for) {
    struct role r;
    struct lend_error error = {0};
    struct lend_tensor *own = NULL;
    struct handle handle;
    int fd = test_file_patterned(FILE_BYTES);
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *tensor = tensor_at(pool, 0, FILE_BYTES);
    reduce_to(tensor, NULL, 0, &handle);
    ROLE_START(&r, NULL, "refuser", handle.text);
    role_end(&r);
    /* At home it is no secret that it is a file. */
    CHECK_OK(rebuild_text(handle.text, &in_place, &own, &error), &error);
    CHECK_UINT(info_of(own).storage_id, info_of(tensor).storage_id);
    lend_tensor_unref(own);
    end_exporter(tensor, pool, fd);
}

/* argv: handle. Each call of a first contact fails once; what failed works right after. */
LEND_ROLE(unlucky_reader) {
    for (unsigned n = 0;; n++) {
        struct lend_tensor *tensor = NULL;
        struct lend_error error = {0};
        open_with(NULL);
        fault_arm_thread(n);
        int r = rebuild_text(argv[0], &in_place, &tensor, &error);
        const char *failed = fault_disarm();
        if (r < 0 && (!failed || error.code != r || !error.text[0]))
            FAIL("%d after a failed %s: %s", r, failed ? failed : "nothing", error.text);
        if (r < 0) CHECK_OK(rebuild_text(argv[0], &in_place, &tensor, &error), &error);
        CHECK(is_patterned(tensor, 7));
        CHECK_OK(lend_check(&error), &error);
        lend_tensor_unref(tensor);
        close_all(NULL);
        if (failed) continue;
        CHECK(n > 15);
        return 0;
    }
}

LEND_TEST(every_call_of_taking_a_file_fails_once) {
    struct role r;
    int fd = test_file_patterned(FILE_BYTES);
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *tensor = tensor_at(pool, 7, 90000);
    ROLE_START(&r, NULL, "unlucky_reader", reduce_text(tensor, NULL, 0));
    role_end(&r);
    end_exporter(tensor, pool, fd);
}

/* --- many ----------------------------------------------------------------------------------------------------------- */

enum { N_MANY = 1000 };

/* argv: nothing; reads handles. */
LEND_ROLE(keeper) {
    static struct lend_tensor *tensors[N_MANY];
    struct lend_error error = {0};
    uint64_t inode = 0;
    open_with(NULL);
    for (int i = 0; i < N_MANY; i++) {
        const char *text = role_hear();
        CHECK(text != NULL);
        CHECK_OK(rebuild_text(text, &in_place, &tensors[i], &error), &error);
        CHECK(is_patterned(tensors[i], (uint64_t)i * 97));
        inode = info_of(tensors[i]).allocation_inode;
    }
    CHECK_UINT(descriptors_of(inode, NULL), 1);
    CHECK_UINT(mappings_of(inode), 1);
    role_say("has all");
    role_hear();
    CHECK_OK(lend_check(&error), &error);
    for (int i = 0; i < N_MANY; i++) lend_tensor_unref(tensors[i]);
    close_all(NULL);
    return 0;
}

LEND_TEST(a_thousand_tensors_of_a_file_need_one_mapping) {
    static struct lend_tensor *tensors[N_MANY];
    struct role r;
    struct lend_error error = {0};
    struct stat st;
    int fd = test_file_patterned(FILE_BYTES);
    CHECK_INT(fstat(fd, &st), 0);
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    ROLE_START(&r, NULL, "keeper");
    for (int i = 0; i < N_MANY; i++) {
        tensors[i] = tensor_at(pool, (uint64_t)i * 97, 200);
        role_send(&r, "%s", reduce_text(tensors[i], NULL, 0));
    }
    role_expect(&r, "has all");
    CHECK_UINT(descriptors_of(st.st_ino, NULL), 2); /* the caller's and the pool's */
    CHECK_UINT(mappings_of(st.st_ino), 1);
    CHECK_OK(lend_check(&error), &error);
    for (int i = 0; i < N_MANY; i++) lend_tensor_unref(tensors[i]);
    CHECK_UINT(limbo_bytes(pool), N_MANY * 200);
    role_end(&r);
    end_exporter(NULL, pool, fd);
}

/* --- cut ------------------------------------------------------------------------------------------------------------ */

/* argv: the handle of the first half, that of the second. */
LEND_ROLE(holder) {
    struct lend_tensor *first = NULL, *second = NULL, *again = NULL;
    struct lend_error error = {0};
    open_with(NULL);
    CHECK_OK(rebuild_text(argv[0], &in_place, &first, &error), &error);
    CHECK_OK(rebuild_text(argv[1], &in_place, &second, &error), &error);
    role_say("has both");
    role_hear(); /* now it has been cut in the middle */
    CHECK_CODE(rebuild_text(argv[1], &in_place, &again, &error), -ESTALE);
    CHECK_CONTAINS(error.text, "cut to 50000 bytes");
    CHECK_PTR(again, NULL);
    uint8_t buf[LEND_HANDLE_BYTES_MAX];
    size_t n;
    CHECK_CODE(lend_reduce(second, NULL, buf, sizeof buf, &n, &error), -ESTALE); /* nor is it passed on */
    CHECK_OK(rebuild_text(argv[0], &in_place, &again, &error), &error);
    CHECK(is_patterned(again, 0));
    CHECK_INT(signal_of(info_of(first).data, false), 0);
    if (!test_is_emulated())
        CHECK_INT(signal_of((uint8_t *)info_of(second).data + 40000, false), SIGBUS); /* the caveat */
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(again);
    lend_tensor_unref(first);
    lend_tensor_unref(second);
    close_all(NULL);
    return 0;
}

LEND_TEST(a_cut_file_is_stale_at_the_next_rebuild) {
    struct role r, late;
    struct lend_error error = {0};
    struct handle first, second;
    uint8_t buf[LEND_HANDLE_BYTES_MAX];
    size_t n;
    int fd = test_file_patterned(FILE_BYTES);
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *low = tensor_at(pool, 0, 50000), *high = tensor_at(pool, 50000, 50000);
    reduce_to(low, NULL, 0, &first);
    reduce_to(high, NULL, 0, &second);
    ROLE_START(&r, NULL, "holder", first.text, second.text);
    role_expect(&r, "has both");
    CHECK_INT(ftruncate(fd, 50000), 0);
    CHECK_CODE(lend_reduce(high, NULL, buf, sizeof buf, &n, &error), -ESTALE);
    CHECK_CONTAINS(error.text, "cut to 50000 bytes");
    role_send(&r, "cut");
    role_end(&r);
    /* Who comes only now cannot even map what the exporter lends. */
    actor_start(&late, NULL, NULL);
    CHECK_INT(actor_code(&late, "rebuild 0 %s file", second.text), -ESTALE);
    CHECK_CONTAINS(actor_sentence, "cut to 50000 bytes");
    CHECK_INT(ftruncate(fd, FILE_BYTES), 0);
    actor_ok(&late, "rebuild 0 %s file", first.text);
    CHECK_INT(actor_int(&late, "byte 0 1000"), test_file_byte(1000));
    role_end(&late);
    lend_tensor_unref(low);
    end_exporter(high, pool, fd);
}

/* --- ends ----------------------------------------------------------------------------------------------------------- */

/* Lends a tensor of its own file until it is killed. argv: nothing, or the socket to send it over. */
LEND_ROLE(lender) {
    int fd = test_file_patterned(FILE_BYTES);
    struct lend_error error = {0};
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *tensor = tensor_at(pool, 5, 90000);
    if (argc) CHECK_OK(lend_send(atoi(argv[0]), tensor, NULL, 0, &error), &error);
    role_say("lends %s", argc ? "" : reduce_text(tensor, NULL, 0));
    role_hear();
    lend_tensor_unref(tensor);
    close_all(pool);
    close(fd);
    return 0;
}

LEND_TEST(the_file_outlives_its_killed_exporter) {
    struct role r;
    struct lend_tensor *tensor = NULL, *again = NULL;
    struct lend_error error = {0};
    char text[LEND_HANDLE_TEXT_MAX];
    open_with(NULL);
    ROLE_START(&r, NULL, "lender");
    snprintf(text, sizeof text, "%s", role_expect(&r, "lends "));
    CHECK_OK(rebuild_text(text, &in_place, &tensor, &error), &error);
    uint64_t inode = info_of(tensor).allocation_inode;
    role_kill(&r, SIGKILL);
    CHECK(is_patterned(tensor, 5));
    CHECK_OK(rebuild_text(text, &in_place, &again, &error), &error);
    CHECK_UINT(info_of(again).storage_id, info_of(tensor).storage_id);
    CHECK_OK(lend_check(&error), &error);
    lend_tensor_unref(again);
    lend_tensor_unref(tensor);
    close_all(NULL);
    CHECK_UINT(descriptors_of(inode, NULL) + mappings_of(inode), 0); /* and with it the nameless file is gone */
}

/* The descriptor travels with the message, so that the sender need not live. */
LEND_TEST(a_file_is_sent_by_a_process_that_ends) {
    static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
    for (unsigned i = 0; i < 2; i++) {
        int pair[2];
        char number[16];
        struct role r;
        struct lend_tensor *tensor = NULL;
        struct lend_error error = {0};
        CHECK_INT(socketpair(AF_UNIX, types[i], 0, pair), 0);
        snprintf(number, sizeof number, "%d", pair[0]);
        open_with(NULL);
        ROLE_START(&r, NULL, "lender", number);
        role_expect(&r, "lends");
        role_kill(&r, SIGKILL);
        CHECK_OK(lend_recv(pair[1], &in_place, 0, &tensor, &error), &error);
        CHECK(is_patterned(tensor, 5));
        CHECK(info_of(tensor).is_file && info_of(tensor).is_read_only);
        lend_tensor_unref(tensor);
        close_all(NULL);
        close(pair[0]);
        close(pair[1]);
    }
}

/* --- tables that lie ------------------------------------------------------------------------------------------------ */

/* How a process fares that has not met this exporter yet; `why` is part of its error's sentence, NULL: any. */
static int rebuild_elsewhere(const char *text, const char *why) {
    struct role r;
    actor_start(&r, NULL, NULL);
    int code = actor_code(&r, "rebuild 0 %s file", text);
    if (code < 0 && why) CHECK_CONTAINS(actor_sentence, why);
    actor_ok(&r, "drop 0");
    role_end(&r);
    return code;
}

static struct lend_shm_allocation *entry_of(uint32_t index) {
    return &lend__shm_allocations(lend__ledger.table)[index];
}

/* The service reads it under the ledger lock. */
static void send_instead(int *sent, int fd) {
    lend__ledger_lock();
    *sent = fd;
    lend__ledger_unlock();
}

LEND_TEST(what_a_table_calls_a_file_is_looked_at) {
    int fd = test_file_patterned(FILE_BYTES);
    open_with(NULL);
    struct lend_pool *pool = file_pool(fd);
    struct lend_tensor *tensor = tensor_at(pool, 0, 1000);
    struct handle handle;
    reduce_to(tensor, NULL, 0, &handle);
    struct lend_shm_allocation *entry = entry_of(0);
    int *sent = &lend__ledger.allocations[0]->extent.fd, good = *sent, pipes[2];
    CHECK_UINT(entry->flags, LEND_SHM_ALLOCATION_READ_ONLY | LEND_SHM_ALLOCATION_FILE);
    CHECK_INT(rebuild_elsewhere(handle.text, NULL), 0);
    /* Flags that cannot be, and a file that is said to be sealed memory. */
    static const uint64_t wrong[] = {0, 1, 2, 4, 7, UINT64_MAX};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        entry->flags = wrong[i];
        CHECK_INT(rebuild_elsewhere(handle.text, NULL), -EBADMSG);
    }
    entry->flags = LEND_SHM_ALLOCATION_READ_ONLY | LEND_SHM_ALLOCATION_FILE;
    /* Things that are no file. A FIFO would block who opens it, a device may answer anything. */
    CHECK_INT(pipe2(pipes, O_CLOEXEC), 0);
    const int others[] = {pipes[0], open("/tmp", O_RDONLY | O_CLOEXEC), open("/dev/zero", O_RDONLY | O_CLOEXEC),
                          open("/dev/null", O_WRONLY | O_CLOEXEC)};
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++) {
        send_instead(sent, others[i]);
        CHECK_INT(rebuild_elsewhere(handle.text, "not a range of a regular file"), -EBADMSG);
        send_instead(sent, good);
        close(others[i]);
    }
    close(pipes[1]);
    /* Ranges that the file does not have. */
    entry->bytes = FILE_BYTES + 1;
    CHECK_INT(rebuild_elsewhere(handle.text, "cut to 100000 bytes"), -ESTALE);
    entry->bytes = FILE_BYTES;
    entry->fd_offset = UINT64_MAX - 4095;
    CHECK_INT(rebuild_elsewhere(handle.text, "cut to 100000 bytes"), -ESTALE);
    entry->fd_offset = 0;
    CHECK_INT(rebuild_elsewhere(handle.text, NULL), 0);
    end_exporter(tensor, pool, fd);
}
