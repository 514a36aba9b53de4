/* SPDX-License-Identifier: MIT */
/* Finding exporters and reading their books: what `lend ls` and monitoring use. The answers are another process's
 * bytes: counts and lengths are checked, and the deadline bounds the whole. */
#include "base/error.h"
#include "base/sys.h"
#include "memory/block.h"
#include "share/context.h"
#include "share/control.h"
#include "share/ledger.h"
#include "share/peer.h"
#include "share/report.h"
#include "share/shm.h"

#include <dirent.h>
#include <errno.h>
#include <lend/inspect.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void lend_free(void *array) {
    free(array);
}

/* --- finding ---------------------------------------------------------------------------------------------------------- */

struct found {
    struct lend_exporter *list;
    size_t n, room;
    uint32_t uid;
};

static int add_found(struct found *found, const char *name, const char *address) {
    struct lend_exporter exporter = {.uid = found->uid};
    if (!lend__identity_parse_name(name, found->uid, exporter.id)) return 0;
    if (snprintf(exporter.address, sizeof exporter.address, "%s", address) >= (int)sizeof exporter.address) return 0;
    if (found->n == found->room) {
        size_t room = found->room ? 2 * found->room : 16;
        void *grown = NULL;
        if (lend__sys.realloc(found->list, room * sizeof *found->list, &grown) < 0) return -ENOMEM;
        found->list = grown;
        found->room = room;
    }
    found->list[found->n++] = exporter;
    return 0;
}

/* "Num RefCount Protocol Flags Type St Inode Path"; only listeners (flag 0x10000): accepted sockets bear the name too. */
static int find_abstract(struct found *found) {
    FILE *file = fopen("/proc/net/unix", "re");
    if (!file) return -EIO;
    char line[512];
    int r = 0;
    while (r >= 0 && fgets(line, sizeof line, file)) {
        unsigned flags = 0;
        char path[200] = "";
        if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s %199s", &flags, path) != 2) continue;
        if ((flags & 0x10000) && path[0] == '@') r = add_found(found, path + 1, path);
    }
    fclose(file);
    return r;
}

static int find_in_folder(struct found *found, const char *folder) {
    DIR *dir = opendir(folder);
    int r = dir ? 0 : -errno;
    for (struct dirent *entry; dir && r >= 0 && (entry = readdir(dir));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        r = add_found(found, entry->d_name, path);
    }
    if (dir) closedir(dir);
    return r;
}

int lend_exporters_find(struct lend_exporter **ret_exporters, size_t *ret_n, struct lend_error *error) {
    if (lend__is_raw_clone()) return lend__context_check("lend_exporters_find", error);
    struct found found = {.uid = geteuid()};
    int r = find_abstract(&found);
    const char *folder = lend__context.socket_dir[0] ? lend__context.socket_dir : secure_getenv("LEND_SOCKET_DIR");
    const char *where = "/proc/net/unix";
    if (r >= 0 && folder && *folder) {
        where = folder;
        r = find_in_folder(&found, folder);
    }
    if (r < 0) {
        free(found.list);
        return lend__fail_sys(error, r, "lend_exporters_find", "open", where);
    }
    *ret_exporters = found.list;
    *ret_n = found.n;
    return 0;
}

/* --- asking ----------------------------------------------------------------------------------------------------------- */

union answer {
    struct lend__control_reply reply;
    uint8_t bytes[LEND__CONTROL_BYTES_MAX];
};

/* One part: from the other process, or (fd < 0) from our own books. Returns the bytes of the records. */
static int ask(int fd, struct lend__control_request *request, union answer *answer, uint64_t deadline) {
    const size_t head = sizeof answer->reply;
    if (fd < 0) {
        answer->reply = (struct lend__control_reply){.report_next = UINT64_MAX};
        size_t n = lend__report_fill(request, &answer->reply, answer->bytes + head, sizeof answer->bytes - head);
        return answer->reply.code < 0 ? answer->reply.code : (int)n;
    }
    request->sequence++;
    int r = lend__dial_send(fd, request, deadline);
    if (r >= 0) r = lend__dial_wait(fd, NULL, deadline);
    if (r < 0) return r == -EPIPE || r == -ECONNRESET ? -EOWNERDEAD : r;
    struct lend__control_fds fds;
    r = lend__control_recv(fd, answer->bytes, sizeof answer->bytes, &fds);
    lend__control_drop_fds(&fds);
    if (r == 0 || r == -ECONNRESET) return -EOWNERDEAD;
    if (r < 0) return r;
    if ((size_t)r < head || answer->reply.magic != LEND__CONTROL_MAGIC || answer->reply.bytes != (uint32_t)r)
        return -EBADMSG;
    if (answer->reply.code < 0) return answer->reply.code;
    return r - (int)head;
}

/* Collects all records of a part into a growing array. */
static int collect(int fd, struct lend__control_request *request, uint32_t part, size_t record_bytes, void **ret,
                   size_t *ret_n, uint64_t deadline) {
    union answer *answer = lend__zalloc(sizeof *answer);
    int r = answer ? 0 : -ENOMEM;
    request->report_part = part;
    request->report_from = 0;
    while (r >= 0 && request->report_from != UINT64_MAX) {
        r = ask(fd, request, answer, deadline);
        if (r < 0) break;
        uint64_t n = answer->reply.n_records, next = answer->reply.report_next;
        if (n != (uint64_t)r / record_bytes || n * record_bytes != (uint64_t)r ||
            (next != UINT64_MAX && next <= request->report_from && n == 0)) {
            r = -EBADMSG;
            break;
        }
        void *grown = NULL;
        if (n && lend__sys.realloc(*ret, (*ret_n + n) * record_bytes, &grown) < 0) {
            r = -ENOMEM;
            break;
        }
        if (n) {
            *ret = grown;
            memcpy((uint8_t *)*ret + *ret_n * record_bytes, answer->bytes + sizeof answer->reply, n * record_bytes);
            *ret_n += n;
        }
        request->report_from = next;
    }
    free(answer);
    return r < 0 ? r : 0;
}

static int collect_all(int fd, struct lend__control_request *request, bool with_all, struct lend_report *report,
                       uint64_t deadline) {
    struct lend_report_totals *totals = NULL;
    size_t n = 0;
    int r = collect(fd, request, LEND__REPORT_TOTALS, sizeof *totals, (void **)&totals, &n, deadline);
    if (r >= 0 && n == 1) report->totals = *totals;
    free(totals);
    if (r < 0 || n != 1) return r < 0 ? r : -EBADMSG;
#define PART(part, member) \
    collect(fd, request, part, sizeof *report->member, (void **)&report->member, &report->n_##member, deadline)
    r = PART(LEND__REPORT_ALLOCATIONS, allocations);
    if (r >= 0) r = PART(LEND__REPORT_PINS, pins);
    if (r >= 0) r = PART(LEND__REPORT_PEERS, peers);
    if (r >= 0 && with_all) r = PART(LEND__REPORT_STORAGES, storages);
    if (r >= 0 && with_all) r = PART(LEND__REPORT_HOLDS, holds);
#undef PART
    return r;
}

/* /proc/PID/comm as we see it; "?" where the pid means nothing here. */
static void read_command(uint32_t pid, char *ret, size_t bytes) {
    char path[40];
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    LEND__CLEANUP_FD fd = pid ? (int)lend__sys.open(path, 0) : -1;
    long n = fd >= 0 ? lend__sys.read(fd, ret, bytes - 1) : -1;
    snprintf(n > 0 ? ret + n : ret, n > 0 ? 1 : bytes, "%s", n > 0 ? "" : "?");
    ret[strcspn(ret, "\n")] = '\0';
}

static int connect_exporter(const struct lend_exporter *exporter, uint64_t deadline) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = strnlen(exporter->address, sizeof exporter->address);
    bool is_abstract = exporter->address[0] == '@';
    memcpy(address.sun_path, exporter->address, n < sizeof address.sun_path ? n : sizeof address.sun_path - 1);
    if (is_abstract) address.sun_path[0] = '\0';
    int fd = lend__dial(&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + !is_abstract), deadline);
    uint32_t uid = 0, pid = 0;
    if (fd < 0) return fd;
    int r = lend__control_credentials(fd, &uid, &pid);
    if (r >= 0 && !lend__identity_is_same_user(uid)) r = -EPERM;
    if (r < 0) lend__fd_close(&fd);
    return r < 0 ? r : fd;
}

static int explain(int code, const struct lend_exporter *exporter, struct lend_error *error) {
    const char *name = exporter ? exporter->address : "this process";
    if (code == -ETIMEDOUT)
        return lend__fail(error, code, "lend_report_get", "%.90s did not answer within the deadline (is it stopped?)",
                          name);
    return lend__fail_sys(error, code, "lend_report_get", "report", name);
}

int lend_report_get(const struct lend_exporter *exporter, int with_all, int64_t deadline_ns,
                    struct lend_report **ret_report, struct lend_error *error) {
    if (lend__is_raw_clone() || !exporter) {
        int r = lend__context_check("lend_report_get", error);
        if (r < 0) return r;
    }
    uint64_t deadline =
        lend__deadline(deadline_ns, lend__context.deadline_ns ? lend__context.deadline_ns : 5000000000ll);
    struct lend_report *report = lend__zalloc(sizeof *report);
    if (!report) return explain(-ENOMEM, exporter, error);
    struct lend__control_request request = {.magic = LEND__CONTROL_MAGIC,
                                            .type = LEND__CONTROL_REPORT,
                                            .major = LEND_WIRE_MAJOR,
                                            .bytes = sizeof request,
                                            .layout = lend__shm_layout(),
                                            .allocation = LEND__CONTROL_NONE,
                                            .page_index = LEND__CONTROL_NONE};
    if (exporter) report->exporter = *exporter;
    LEND__CLEANUP_FD fd = exporter ? connect_exporter(exporter, deadline) : -1;
    int r = exporter && fd < 0 ? fd : collect_all(fd, &request, with_all, report, deadline);
    if (r < 0) {
        lend_report_free(report);
        return explain(r, exporter, error);
    }
    read_command(report->totals.pid, report->totals.command, sizeof report->totals.command);
    for (size_t i = 0; i < report->n_peers; i++)
        read_command(report->peers[i].pid, report->peers[i].command, sizeof report->peers[i].command);
    *ret_report = report;
    return 0;
}

void lend_report_free(struct lend_report *report) {
    if (!report) return;
    free(report->allocations);
    free(report->storages);
    free(report->pins);
    free(report->peers);
    free(report->holds);
    free(report);
}

int lend_peers_list(struct lend_report_peer **ret_peers, size_t *ret_n, struct lend_error *error) {
    struct lend_report *report = NULL;
    int r = lend_report_get(NULL, 0, 0, &report, error);
    if (r < 0 || !report) return r;
    *ret_peers = report->peers;
    *ret_n = report->n_peers;
    report->peers = NULL;
    lend_report_free(report);
    return 0;
}
