#pragma once

#include "ops/move_rows/rows.h"
#include "runtime/call.h"

namespace mgpu {

// The array has rows of `problems` problems, or of one that all share. Errors of that number start with `name`.
Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name);

Fill read_fill(const Call& call, const Array& array, int64_t problems);

}  // namespace mgpu
