#pragma once

#include "ops/move_rows/rows.h"
#include "runtime/call.h"

namespace mgpu {

// The rows of `problems` problems, or rows that all problems share. Errors of `Call::row_stride` start with `name`.
Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name);

Fill read_fill(const Call& call, const Array& array, int64_t problems);

}  // namespace mgpu
