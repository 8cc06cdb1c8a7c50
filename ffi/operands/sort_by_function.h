// The call of a sort by a compiled function, as its kernels see it.
#pragma once

#include <string_view>

#include "function/item.h"
#include "operands/segmented_sort.h"

namespace mgpu {

struct Call;

// Operands: keys [.., n] as words of 1, 2 or 4 bytes, or [.., n, 2] uint32, which are words of 8; heads, flags and
// count as of segmented_sort; the arrays that the function has captured. Attributes: captures, the number of these, and
// payload, as of segmented_sort, but none is given. Results: keys as they came, and the payload.
struct SortFunctionOperands {
  SegmentedSortOperands sort;
  Captures captures{};

  explicit SortFunctionOperands(const Call& call);
};

}  // namespace mgpu
