/* SPDX-License-Identifier: MIT */
/* lend: hand tensors from one process to another without copying. Includes every public header. */
#ifndef LEND_LEND_H_
#define LEND_LEND_H_

#include <lend/attributes.h>
#include <lend/context.h>
#include <lend/dlpack.h>
#include <lend/dtype.h>
#include <lend/error.h>
#include <lend/group.h>
#include <lend/handle.h>
#include <lend/inspect.h>
#include <lend/layout.h>
#include <lend/message.h>
#include <lend/pool.h>
#include <lend/tensor.h>
#include <lend/version.h>
#include <lend/watch.h>

#endif
