// The payload that an operation carries along with its keys.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The values of the attribute `payload`: no payload, an operand, or the indices of the items.
enum class PayloadMode : int64_t { kNone, kGiven, kIndices };

// The type of the payload in kernels that sort or merge only keys.
struct NoPayload {};

}  // namespace mgpu
