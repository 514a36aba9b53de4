/* SPDX-License-Identifier: MIT */
/* The table of system calls: negative errnos, CLOEXEC at birth, deadlines, and open files that are really new. */
#include "base/sys.h"
#include "fault.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static int new_memfd(uint64_t bytes) {
    int fd = (int)lend__sys.memfd_create("lend-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0);
    CHECK_INT(lend__sys.ftruncate(fd, bytes), 0);
    return fd;
}

static bool is_cloexec(int fd) {
    return fcntl(fd, F_GETFD) & FD_CLOEXEC;
}

LEND_TEST(errors_are_negative_errnos) {
    struct stat st;
    void *at = NULL;
    CHECK_INT(lend__sys.fstat(-1, &st), -EBADF);
    CHECK_INT(lend__sys.open("/nowhere/at/all", O_RDONLY), -ENOENT);
    CHECK_INT(lend__sys.mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &at), -EINVAL);
    CHECK_PTR(at, NULL);
    CHECK_INT(lend__sys.close(-1), -EBADF);
    CHECK_INT(lend__sys.get_seals(-1), -EBADF);
}

LEND_TEST(descriptors_are_cloexec_at_birth) {
    int fds[] = {
        new_memfd(1),
        (int)lend__sys.open("/dev/null", O_RDWR),
        (int)lend__sys.socket(AF_UNIX, SOCK_SEQPACKET, 0),
        (int)lend__sys.epoll_create(),
        (int)lend__sys.eventfd(0),
        (int)lend__sys.dup(1),
    };
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        CHECK(fds[i] >= 0);
        CHECK(is_cloexec(fds[i]));
        lend__fd_close(&fds[i]);
        CHECK_INT(fds[i], -1);
    }
}

LEND_TEST(seals_hold_and_are_read_back) {
    int fd = new_memfd(4096);
    CHECK_INT(lend__sys.add_seals(fd, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    CHECK_INT(lend__sys.get_seals(fd), F_SEAL_SHRINK | F_SEAL_GROW);
    CHECK_INT(lend__sys.ftruncate(fd, 8192), -EPERM);
    CHECK_INT(lend__sys.ftruncate(fd, 0), -EPERM);
    lend__fd_close(&fd);
}

LEND_TEST(a_mapping_shows_the_file) {
    size_t bytes = lend__page_bytes();
    int fd = new_memfd(bytes);
    void *at = NULL;
    char got[6] = "";
    CHECK_INT(lend__sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &at), 0);
    memcpy((char *)at + 10, "hello", 5);
    CHECK_INT(lend__sys.pread(fd, got, 5, 10), 5);
    CHECK_STR(got, "hello");
    CHECK_INT(lend__sys.munmap(at, bytes), 0);
    lend__fd_close(&fd);
}

LEND_TEST(reopen_gives_another_open_file_of_the_same_inode) {
    int a = new_memfd(4096), b = lend__fd_reopen(a, O_RDWR);
    struct stat sa, sb;
    CHECK(b >= 0 && is_cloexec(b));
    CHECK_INT(lend__sys.fstat(a, &sa), 0);
    CHECK_INT(lend__sys.fstat(b, &sb), 0);
    CHECK_UINT(sa.st_ino, sb.st_ino);
    CHECK_INT(lend__sys.flock(a, LOCK_EX | LOCK_NB), 0);
    CHECK_INT(lend__sys.flock(b, LOCK_EX | LOCK_NB), -EWOULDBLOCK);
    CHECK_INT(lend__sys.flock(b, LOCK_SH | LOCK_NB), -EWOULDBLOCK);
    lend__fd_close(&a);
    CHECK_INT(lend__sys.flock(b, LOCK_EX | LOCK_NB), 0);
    lend__fd_close(&b);
}

LEND_TEST(an_open_file_is_locked_while_it_is_mapped) {
    size_t bytes = lend__page_bytes();
    int kept = new_memfd(bytes), sent = lend__fd_reopen(kept, O_RDWR);
    void *at = NULL;
    CHECK_INT(lend__sys.flock(sent, LOCK_EX | LOCK_NB), 0);
    CHECK_INT(lend__sys.mmap(NULL, bytes, PROT_READ, MAP_SHARED, sent, 0, &at), 0);
    lend__fd_close(&sent);
    CHECK_INT(lend__sys.flock(kept, LOCK_EX | LOCK_NB), -EWOULDBLOCK);
    CHECK_INT(lend__sys.munmap(at, bytes), 0);
    CHECK_INT(lend__sys.flock(kept, LOCK_EX | LOCK_NB), 0);
    lend__fd_close(&kept);
}

LEND_TEST(take_fd_moves_ownership) {
    int taken;
    {
        LEND__CLEANUP_FD fd = new_memfd(1);
        taken = LEND__TAKE_FD(fd);
        CHECK_INT(fd, -1);
    }
    CHECK(is_cloexec(taken));
    {
        LEND__CLEANUP_FD fd = taken;
        CHECK(fd >= 0);
    }
    CHECK_INT(fcntl(taken, F_GETFD), -1);
}

LEND_TEST(heap_entries_answer_as_calls) {
    uint64_t *p = lend__zalloc(64);
    CHECK(p);
    for (int i = 0; i < 8; i++) CHECK_UINT(p[i], 0);
    void *bigger = NULL;
    p[7] = 42;
    CHECK_INT(lend__sys.realloc(p, 1024, &bigger), 0);
    p = bigger;
    CHECK_UINT(p[7], 42);
    free(p);
    CHECK(!lend__zalloc(SIZE_MAX / 2));
}

LEND_TEST(deadlines) {
    CHECK_UINT(lend__deadline(-1, 5), UINT64_MAX);
    CHECK(!lend__deadline_passed(UINT64_MAX));
    uint64_t now = lend__now_ns(), d = lend__deadline(0, 1000000000);
    CHECK(d >= now + 1000000000 && d <= lend__now_ns() + 1000000000);
    CHECK(!lend__deadline_passed(d));
    CHECK(lend__deadline_passed(lend__deadline(1, 0) - 1000));
    CHECK(lend__boottime_ns() >= now);
}

LEND_TEST(poll_fd_answers_events_or_the_deadline) {
    int fd = (int)lend__sys.eventfd(0);
    uint64_t one = 1, before = lend__now_ns();
    CHECK_INT(lend__poll_fd(fd, POLLIN, lend__deadline(20000000, 0)), -ETIMEDOUT);
    CHECK(lend__now_ns() - before >= 20000000);
    CHECK_INT(lend__sys.write(fd, &one, sizeof one), sizeof one);
    CHECK_INT(lend__poll_fd(fd, POLLIN, UINT64_MAX), POLLIN);
    CHECK_INT(lend__poll_fd(fd, POLLIN, 0), POLLIN);
    lend__fd_close(&fd);
}

LEND_TEST(poll_fd_goes_on_after_a_signal) {
    int fd = (int)lend__sys.eventfd(1);
    fault_arm_call("poll", 0, -EINTR);
    CHECK_INT(lend__poll_fd(fd, POLLIN, UINT64_MAX), POLLIN);
    CHECK_STR(fault_disarm(), "poll");
    lend__fd_close(&fd);
}

static void *signal_mask(void *ret) {
    pthread_sigmask(SIG_SETMASK, NULL, ret);
    return NULL;
}

LEND_TEST(threads_of_ours_block_every_signal) {
    pthread_t thread;
    sigset_t in_thread, before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK_INT(lend__sys.thread_create(&thread, signal_mask, &in_thread), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    pthread_join(thread, NULL);
    static const int signals[] = {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        CHECK(sigismember(&in_thread, signals[i]) == 1);
        CHECK_INT(sigismember(&after, signals[i]), sigismember(&before, signals[i]));
    }
}

LEND_TEST(page_bytes_is_the_machines) {
    CHECK_UINT(lend__page_bytes(), (size_t)sysconf(_SC_PAGESIZE));
    CHECK_UINT(lend__page_bytes(), (size_t)sysconf(_SC_PAGESIZE));
}
