// The payload that an operation carries along with its keys.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The attribute `payload`.
enum class PayloadMode : int64_t { kNone, kGiven, kIndices };

// The payload of a keys-only call.
struct NoPayload {};

}  // namespace mgpu
