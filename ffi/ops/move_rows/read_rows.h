// Reads arrays of rows.
#pragma once

#include "ops/move_rows/rows.h"
#include "runtime/call.h"

namespace mgpu {

// Reads the rows [.., count, elements] of `problems` problems, or of one problem that all share. Errors start with
// `name`.
Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name);

// Reads the element [.., 1] that fills rows.
Fill read_fill(const Call& call, const Array& array, int64_t problems);

}  // namespace mgpu
