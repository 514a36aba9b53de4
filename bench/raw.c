/* SPDX-License-Identifier: MIT */
/* First contact and messages with descriptors, by bare system calls: the floors of the protocol. */
#include "bench.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The lengths of a slot table, a page and an allocation (docs/shm-layout.md). */
static const size_t lengths[3] = {(size_t)522 << 20, ((size_t)64 << 20) + (64u << 10), (size_t)64 << 20};

union control {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(3 * sizeof(int))];
};

void raw_send(int fd, const void *bytes, size_t n, const int *fds, int n_fds) {
    union control control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int))};
    memset(&control, 0, sizeof control);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
    memcpy(CMSG_DATA(head), fds, (size_t)n_fds * sizeof(int));
    MUST(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)n, "sendmsg");
}

void raw_receive(int fd, void *bytes, size_t n, int *ret_fds, int n_fds) {
    union control control;
    struct iovec part = {.iov_base = bytes, .iov_len = n};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    MUST(recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL) == (ssize_t)n, "recvmsg");
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    MUST(head && head->cmsg_len == CMSG_LEN((size_t)n_fds * sizeof(int)), "no descriptors came");
    memcpy(ret_fds, CMSG_DATA(head), (size_t)n_fds * sizeof(int));
}

static socklen_t address_of(const char *name, struct sockaddr_un *ret) {
    memset(ret, 0, sizeof *ret);
    ret->sun_family = AF_UNIX;
    snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "lend-bench-%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(ret->sun_path + 1));
}

/* Serves until it is told to stop; its name is its pid. Its three memfds are made anew for nobody: a real exporter makes
 * a page for each importer, so that is part of what lend costs above this floor. */
int raw_server_main(void) {
    char name[16], request[64];
    struct sockaddr_un address;
    int fds[3], listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(name, sizeof name, "%d", (int)getpid());
    MUST(bind(listener, (struct sockaddr *)&address, address_of(name, &address)) == 0 && listen(listener, 64) == 0,
         "bind");
    for (int i = 0; i < 3; i++) {
        fds[i] = memfd_create("lend-bench", MFD_CLOEXEC);
        MUST(fds[i] >= 0 && ftruncate(fds[i], (off_t)lengths[i]) == 0, "memfd");
    }
    uint64_t ready = 0;
    send_all(0, &ready, sizeof ready);
    for (;;) {
        int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        MUST(peer >= 0, "accept");
        ssize_t n = recv(peer, request, sizeof request, 0);
        if (n > 1) raw_send(peer, request, sizeof request, fds, 3);
        close(peer);
        if (n == 1) return 0;
    }
}

void raw_server_stop(const char *name) {
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    MUST(connect(fd, (struct sockaddr *)&address, bytes) == 0 && send(fd, "", 1, MSG_NOSIGNAL) == 1, "connect");
    close(fd);
}

uint64_t raw_contact_ns(const char *name) {
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    uint8_t message[64] = {0};
    void *at[3];
    int fds[3];
    uint64_t start = now_ns();
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    MUST(connect(fd, (struct sockaddr *)&address, bytes) == 0, "connect");
    MUST(send(fd, message, sizeof message, MSG_NOSIGNAL) == sizeof message, "send");
    raw_receive(fd, message, sizeof message, fds, 3);
    for (int i = 0; i < 3; i++) {
        at[i] =
            mmap(NULL, lengths[i], i == 0 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fds[i], 0);
        MUST(at[i] != MAP_FAILED, "mmap");
        if (i > 0) close(fds[i]); /* as an importer, which keeps only the table's */
    }
    return now_ns() - start;
}
