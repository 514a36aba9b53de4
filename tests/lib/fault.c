/* SPDX-License-Identifier: MIT */
/* Wrappers for every entry of lend__sys, generated from LEND__SYS_TABLE. An entry without an error below does not
 * compile: whoever adds a call says how it fails. Arming and disarming happen while no other thread is inside the
 * library; counting is safe from any thread. */
#include "fault.h"

#include "base/atomic.h"
#include "base/sys.h"

#include <errno.h>
#include <string.h>

/* The error that each call could plausibly have; 0: never failed. poll and epoll_wait have EINTR, since every caller
 * must go on after a signal. */
enum {
    ERROR_memfd_create = EMFILE,
    ERROR_ftruncate = ENOMEM,
    ERROR_fallocate = ENOSPC,
    ERROR_add_seals = EBUSY,
    ERROR_get_seals = EINVAL,
    ERROR_fstat = ENOMEM,
    ERROR_mmap = ENOMEM,
    ERROR_munmap = 0,
    ERROR_mprotect = ENOMEM,
    ERROR_madvise = ENOMEM,
    ERROR_mbind = EPERM,
    ERROR_get_mempolicy = ENOSYS,
    ERROR_open = EMFILE,
    ERROR_close = 0,
    ERROR_dup = EMFILE,
    ERROR_flock = ENOLCK,
    ERROR_read = EIO,
    ERROR_write = EPIPE,
    ERROR_pread = EIO,
    ERROR_unlink = EACCES,
    ERROR_chmod = EPERM,
    ERROR_socket = EMFILE,
    ERROR_bind = EADDRINUSE,
    ERROR_listen = EADDRINUSE,
    ERROR_accept = EMFILE,
    ERROR_connect = ECONNREFUSED,
    ERROR_sendmsg = EPIPE,
    ERROR_recvmsg = ECONNRESET,
    ERROR_getsockopt = ENOPROTOOPT,
    ERROR_poll = EINTR,
    ERROR_epoll_create = EMFILE,
    ERROR_epoll_ctl = ENOSPC,
    ERROR_epoll_wait = EINTR,
    ERROR_eventfd = EMFILE,
    ERROR_pidfd_open = EMFILE,
    ERROR_getrandom = ENOSYS,
    ERROR_thread_create = EAGAIN,
    ERROR_calloc = ENOMEM,
    ERROR_realloc = ENOMEM,
};

static struct lend__sys saved;
static bool is_armed, is_one_thread;
static pthread_t thread;
static const char *only_call; /* NULL: any */
static int only_code;
static unsigned nth_to_fail, n_calls;
static const char *failed_call;

/* 0: go through; else the negative errno to answer. */
static long verdict(const char *call, int error) {
    if (only_call ? strcmp(only_call, call) : !error) return 0;
    if (is_one_thread && !pthread_equal(thread, pthread_self())) return 0;
    if (lend__add_relaxed(&n_calls, 1) != nth_to_fail) return 0;
    lend__store_relaxed(&failed_call, call);
    return only_call ? only_code : -error;
}

#define WRAPPED(name, params, args)            \
    static long fault_##name params {          \
        long r = verdict(#name, ERROR_##name); \
        return r ? r : saved.name args;        \
    }
LEND__SYS_TABLE(WRAPPED)

#define MEMBER(name, params, args) .name = fault_##name,
static const struct lend__sys faulty = {LEND__SYS_TABLE(MEMBER)};

static void arm(unsigned nth, bool has_thread, const char *call, int code) {
    if (is_armed) fault_disarm();
    saved = lend__sys;
    nth_to_fail = nth;
    n_calls = 0;
    is_one_thread = has_thread;
    thread = pthread_self();
    only_call = call;
    only_code = code;
    failed_call = NULL;
    is_armed = true;
    lend__sys = faulty;
}

void fault_arm(unsigned nth) {
    arm(nth, false, NULL, 0);
}

void fault_arm_thread(unsigned nth) {
    arm(nth, true, NULL, 0);
}

void fault_arm_call(const char *call, unsigned nth, int code) {
    arm(nth, false, call, code);
}

const char *fault_disarm(void) {
    if (is_armed) lend__sys = saved;
    is_armed = false;
    return lend__load_relaxed(&failed_call);
}

unsigned fault_count(void) {
    return lend__load_relaxed(&n_calls);
}
