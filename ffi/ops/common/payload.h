#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The values of the attribute `payload`: none, an operand, or the indices of the items.
enum class PayloadMode : int64_t { kNone, kGiven, kIndices };

struct NoPayload {};

template <typename Payload>
constexpr int kPayloadWidth = std::is_same_v<Payload, NoPayload> ? 0 : sizeof(Payload);

}  // namespace mgpu
