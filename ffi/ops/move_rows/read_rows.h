#pragma once

#include "ops/move_rows/rows.h"
#include "runtime/call.h"

namespace mgpu {

// The rows [.., count, elements] are of `problems` problems, or of one problem that all share. Errors start with
// `name`.
Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name);

// The element has shape [.., 1].
Fill read_fill(const Call& call, const Array& array, int64_t problems);

}  // namespace mgpu
