/* SPDX-License-Identifier: MIT */
/* `lend ls`: asks every exporter of this user for its books, all at the same time, so that one that is stopped costs
 * the others nothing and the whole answer is there after about 200 ms. */
#include "ls.h"
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME "ls"
#define ANSWER_NS 200000000
#define ASKER_STACK_BYTES (256 * 1024)
#define ASKERS_MAX 256

const char ls_help[] =
    "Usage: lend ls [--all] [--json]\n"
    "List the living exporters of this user: what they lend and who holds it.\n"
    "\n"
    "Totals come first, then for each exporter its allocations, the storages that it\n"
    "has lent, those in limbo (dropped by the exporter, held by others or by pins),\n"
    "its live pins by sender, the processes that hold something, and those that are\n"
    "only in contact. An exporter that does not answer within 200 ms (stopped, say)\n"
    "is shown as 'not answering'.\n"
    "\n"
    "  -a, --all   also every allocation, every pin, and every storage with who holds\n"
    "              it and for how long they have been in contact\n"
    "  -j, --json  one JSON object\n"
    "  -h, --help  this text\n";

/* Exporters are handed out one by one to the askers. */
struct round {
    const struct lend_exporter *exporters;
    struct answer *answers;
    size_t n;
    size_t next; /* under lock */
    pthread_mutex_t lock;
    bool with_all;
};

/* The kernel knows who listens at an address, even when nobody answers there. */
static uint32_t find_listener(const char *text) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred cred = {.pid = 0};
    socklen_t cred_bytes = sizeof cred;
    bool is_abstract = text[0] == '@';
    size_t n = strnlen(text, sizeof address.sun_path - 1);
    memcpy(address.sun_path, text, n);
    if (is_abstract) address.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return 0;
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + !is_abstract);
    if (connect(fd, (const struct sockaddr *)&address, bytes) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) < 0)
        cred.pid = 0;
    close(fd);
    return cred.pid > 0 ? (uint32_t)cred.pid : 0;
}

static void describe_silent(struct answer *a) {
    char path[32];
    a->silent_pid = find_listener(a->exporter.address);
    snprintf(a->silent_command, sizeof a->silent_command, "?");
    snprintf(path, sizeof path, "/proc/%u/comm", (unsigned)a->silent_pid);
    FILE *file = fopen(path, "re");
    if (!file) return;
    if (fgets(a->silent_command, sizeof a->silent_command, file))
        a->silent_command[strcspn(a->silent_command, "\n")] = 0;
    fclose(file);
}

static void *ask(void *arg) {
    struct round *round = arg;
    for (;;) {
        pthread_mutex_lock(&round->lock);
        size_t i = round->next < round->n ? round->next++ : round->n;
        pthread_mutex_unlock(&round->lock);
        if (i == round->n) return NULL;
        struct answer *a = &round->answers[i];
        a->exporter = round->exporters[i];
        a->code = lend_report_get(&round->exporters[i], round->with_all, ANSWER_NS, &a->report, &a->error);
        if (a->report) ls_sort(a->report);
        if (a->code == -ETIMEDOUT) describe_silent(a);
    }
}

/* One thread for each exporter; where threads run out, those that there are go on, and this one helps. */
static void ask_all(struct round *round) {
    pthread_t threads[ASKERS_MAX];
    size_t n_threads = 0;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, ASKER_STACK_BYTES);
    while (n_threads + 1 < round->n && n_threads < ASKERS_MAX &&
           pthread_create(&threads[n_threads], &attr, ask, round) == 0)
        n_threads++;
    ask(round);
    for (size_t i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    pthread_attr_destroy(&attr);
}

/* Exporters that died between being found and being asked are no living exporters. */
static size_t drop_dead(struct answer *answers, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (answers[i].code != -EOWNERDEAD) answers[kept++] = answers[i];
    return kept;
}

static int by_start(const void *left, const void *right) {
    const struct answer *a = left, *b = right;
    if (!a->report || !b->report) return !a->report - !b->report;
    uint64_t x = a->report->totals.start_ns, y = b->report->totals.start_ns;
    return x < y ? -1 : x > y;
}

static int list(bool with_all, bool is_json) {
    struct lend_exporter *exporters = NULL;
    struct lend_error error = {0};
    struct round round = {.lock = PTHREAD_MUTEX_INITIALIZER, .with_all = with_all};
    if (lend_exporters_find(&exporters, &round.n, &error) < 0) return fail(NAME, &error);
    round.exporters = exporters;
    round.answers = calloc(round.n + 1, sizeof *round.answers);
    if (!round.answers) {
        lend_free(exporters);
        return fail_text(NAME, "no memory for %zu exporters", round.n);
    }
    ask_all(&round);
    size_t n = drop_dead(round.answers, round.n);
    qsort(round.answers, n, sizeof *round.answers, by_start);
    int r = is_json ? ls_print_json(round.answers, n, with_all) : ls_print_text(round.answers, n, with_all);
    for (size_t i = 0; i < n; i++) lend_report_free(round.answers[i].report);
    free(round.answers);
    lend_free(exporters);
    return r;
}

int ls_main(int argc, char **argv) {
    static const struct option options[] = {
        {"all", no_argument, NULL, 'a'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    bool with_all = false, is_json = false;
    struct lend_error error = {0};
    for (int c; (c = getopt_long(argc, argv, "ajh", options, NULL)) != -1;) {
        switch (c) {
        case 'a': with_all = true; break;
        case 'j': is_json = true; break;
        case 'h': return fputs(ls_help, stdout), finish_output(NAME);
        default: return fail_usage(NAME);
        }
    }
    if (optind != argc) {
        fail_text(NAME, "takes no arguments");
        return fail_usage(NAME);
    }
    /* The context knows the socket folder. Nothing is lent from here, so no exporter of ours appears. */
    if (lend_open(NULL, &error) < 0) return fail(NAME, &error);
    int r = list(with_all, is_json);
    lend_close(NULL);
    return r;
}
