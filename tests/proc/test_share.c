/* SPDX-License-Identifier: MIT */
/* The main job: one process holds tensors, others that are no relatives rebuild them from bytes. */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Rebuilds handles that it hears, keeps them, writes, and gives them back on command. */
LEND_ROLE(importer) {
    enum { N = 64 };
    struct lend_tensor *held[N] = {NULL};
    struct lend_error error = {0};
    CHECK_OK(lend_open(NULL, &error), &error);
    for (const char *line; (line = role_hear());) {
        char copy[4096];
        snprintf(copy, sizeof copy, "%s", line);
        char *word = strtok(copy, " ");
        unsigned i = (unsigned)atoi(strtok(NULL, " "));
        if (!strcmp(word, "rebuild")) {
            int r = rebuild_text(strtok(NULL, " "), NULL, &held[i], &error);
            if (r < 0) {
                role_say("error %d %s", r, error.text);
                continue;
            }
            struct lend_tensor_info info = info_of(held[i]);
            role_say("rebuilt %llu %llu %d", (unsigned long long)info.allocation_inode, (unsigned long long)info.allocation_offset,
                     info.nbytes ? ((uint8_t *)info.data)[0] : -1);
        } else if (!strcmp(word, "write")) {
            ((uint8_t *)lend_tensor_data(held[i]))[0] = (uint8_t)atoi(strtok(NULL, " "));
            role_say("written");
        } else if (!strcmp(word, "read")) {
            role_say("read %d", ((uint8_t *)lend_tensor_data(held[i]))[0]);
        } else if (!strcmp(word, "same")) {
            unsigned j = (unsigned)atoi(strtok(NULL, " "));
            role_say("same %d", info_of(held[i]).storage_id == info_of(held[j]).storage_id);
        } else if (!strcmp(word, "drop")) {
            lend_tensor_unref(held[i]);
            held[i] = NULL;
            role_say("dropped");
        }
        CHECK_OK(lend_check(&error), &error);
    }
    for (unsigned i = 0; i < N; i++) lend_tensor_unref(held[i]);
    CHECK_OK(lend_close(&error), &error);
    return 0;
}

LEND_TEST(one_tensor_to_an_unrelated_process_and_back) {
    struct lend_error error = {0};
    struct lend_pool *pool = NULL;
    CHECK_OK(lend_open(NULL, &error), &error);
    CHECK_OK(lend_pool_new(NULL, &pool, &error), &error);
    struct lend_tensor *tensor = new_bytes(pool, 1000, 7);
    struct role r;
    ROLE_START(&r, NULL, "importer");
    role_send(&r, "rebuild 0 %s", reduce_text(tensor, NULL, 0));
    unsigned long long inode = 0, offset = 0;
    int first = 0;
    CHECK_INT(sscanf(role_expect(&r, "rebuilt "), "%llu %llu %d", &inode, &offset, &first), 3);
    CHECK_UINT(inode, info_of(tensor).allocation_inode);
    CHECK_UINT(offset, info_of(tensor).allocation_offset);
    CHECK_INT(first, 7);
    role_send(&r, "write 0 9");
    role_expect(&r, "written");
    CHECK_INT(((uint8_t *)lend_tensor_data(tensor))[0], 9);
    ((uint8_t *)lend_tensor_data(tensor))[0] = 11;
    role_send(&r, "read 0");
    CHECK_STR(role_expect(&r, "read "), "11");
    role_send(&r, "rebuild 1 %s", reduce_text(tensor, NULL, 0));
    role_expect(&r, "rebuilt ");
    role_send(&r, "same 0 1");
    CHECK_STR(role_expect(&r, "same "), "1");
    /* Dropped here, held there: the block is in limbo. */
    lend_tensor_unref(tensor);
    struct lend_pool_stats stats = {.size = sizeof stats};
    CHECK_OK(lend_pool_stats(pool, &stats), NULL);
    CHECK(stats.limbo_bytes >= 1000);
    CHECK_OK(lend_check(&error), &error);
    role_send(&r, "drop 0");
    role_expect(&r, "dropped");
    role_send(&r, "drop 1");
    role_expect(&r, "dropped");
    CHECK_EVENTUALLY(2000, (lend_pool_stats(pool, &stats), stats.limbo_bytes == 0));
    CHECK_OK(lend_check(&error), &error);
    role_end(&r);
    lend_pool_unref(pool);
    CHECK_OK(lend_close(&error), &error);
}
