#pragma once

#include "algorithm/segments.h"
#include "algorithm/sorted_pair.h"
#include "ops/common/dispatch.h"
#include "runtime/call.h"
#include "runtime/operations.h"
#include "runtime/signature.h"
#include "runtime/workspace.h"

namespace mgpu {

inline constexpr Enumeration kPayloadValues{"payload", {"none", "given", "indices"}};
inline constexpr Enumeration kOperatorValues{
    "op", {"add", "mul", "min", "max", "argmin", "argmax", "and", "or", "xor", "logsumexp"}};

SortedPair read_sorted_pair(const Call& call, const Array& a, const Array& b, const Array& a_count,
                            const Array& b_count, int64_t rows);

SegmentBounds read_segment_bounds(const Call& call, const Arguments& in, int64_t rows, int64_t length);

}  // namespace mgpu
