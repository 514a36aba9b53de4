/* SPDX-License-Identifier: MIT */
/* Between rebuilding (show.c), the words for what a tensor is (show_words.c), and printing it (show_text.c and
 * show_json.c). */
#ifndef LEND_CLI_SHOW_H_
#define LEND_CLI_SHOW_H_

#include "cli.h"
#include "stats.h"

#include <lend/lend.h>
#include <stdbool.h>

struct shown {
    struct lend_handle_info handle;
    const char *name;           /* of the one tensor of a group that was asked for; NULL: all, or no group */
    struct lend_tensor *tensor; /* NULL: the group */
    struct lend_group *group;
};

#define LAYOUT_BYTES 96
#define MARKS_BYTES 192

const char *layout_name(uint32_t layout); /* "csr" */
/* Names of a tensor's components: "crow_indices"; those of a wrapper are numbers. */
const char *component_name(uint32_t layout, uint32_t index, char buf[FORMAT_BYTES]);
/* What else belongs to a layout: "jagged, ragged along dimension 1". */
const char *format_layout(const struct lend_compound *compound, char buf[LAYOUT_BYTES]);
/* Name of attribute number `i`; NULL: there are no more. */
const char *attribute_name(unsigned i);
const char *format_attributes(uint32_t attrs, char buf[MARKS_BYTES]); /* "requires_grad, parameter" */
/* All that is not a matter of course, each with ", " before it: layout, attributes, meta, a file, read-only. */
const char *format_marks(const struct lend_tensor_info *info, char buf[MARKS_BYTES]);
bool is_meta(const struct lend_tensor_info *info);

/* Each reads the elements that it tells about and returns an exit code. */
int show_text(const struct shown *shown);
int show_json(const struct shown *shown);

#endif
