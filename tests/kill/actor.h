/* SPDX-License-Identifier: MIT */
/* The actor: a process that does what the lines of a script say. Its words for single tensors, messages and fork are in
 * actor.c, those for groups and tensors of components in many.c. */
#ifndef LEND_TESTS_KILL_ACTOR_H_
#define LEND_TESTS_KILL_ACTOR_H_

#include <lend/lend.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { TENSORS = 16, GROUPS = 4, PINS = 16, SEND_PIN_MS = 1500 };

extern struct actor {
    struct lend_pool *pool;
    struct lend_tensor *tensor[TENSORS];
    uint8_t fill[TENSORS];
    struct lend_group *group[GROUPS];
    char *pinned[PINS]; /* handles with pins that were made here: cancelled at the end, if nobody used them */
    int n_pinned;
    int listener, connection; /* for lend_send and lend_recv */
    char child_label[96];
    unsigned child_nth;
    pid_t child;   /* one that waits for "join" */
    int child_end; /* closing it lets the child go on */
    struct lend_error error;
} me;

/* What a word answers: "ok", or "error CODE SENTENCE". */
void answer(int code);
/* The next word of a line ("" when there is none), and as a number. */
char *next(char **rest);
int number(char **rest);

/* Answers "ok HANDLE", and remembers it if it has a pin. */
void answer_handle(const void *handle, size_t bytes, bool with_pin);

/* --- many.c ----------------------------------------------------------------------------------------------------------- */

/* Does every byte have this value? Of a tensor of components: is it sound, and are its values so? */
bool is_filled(struct lend_tensor *tensor, uint8_t fill);

/* In a group, the tensor tI (its name may go on behind the number) has the fill 10 + I. */
bool is_group_filled(const struct lend_group *group);

/* Rebuilds the group of a handle, looks at its bytes and lets it go. */
int probe_group(const void *handle, size_t bytes);

/* A word for groups and tensors of components; false: it is none. */
bool obey_many(const char *word, char **rest);

#endif
