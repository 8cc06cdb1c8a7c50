#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The values of the attribute `payload`: none, an operand, or the indices of the items.
enum class PayloadMode : int64_t { kNone, kGiven, kIndices };

struct NoPayload {};

}  // namespace mgpu
