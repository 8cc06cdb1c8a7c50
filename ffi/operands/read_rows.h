// Arrays of rows, read.
#pragma once

#include "call.h"
#include "operands/rows.h"

namespace mgpu {

Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name);

Fill read_fill(const Call& call, const Array& array, int64_t problems);

}  // namespace mgpu
