// Reads arrays of rows.
#pragma once

#include "ops/move_rows/rows.h"
#include "runtime/call.h"

namespace mgpu {

Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name);

Fill read_fill(const Call& call, const Array& array, int64_t problems);

}  // namespace mgpu
