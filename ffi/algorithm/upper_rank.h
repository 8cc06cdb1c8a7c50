// Ranks of 16-bit keys (Order::rank in key_order.h) in the upper halves of 32-bit words, whose lower halves are zero.
#pragma once

#include "algorithm/key_order.h"

namespace mgpu {

// order.rank(order.encode(key)), computed in the upper half,
// which saves truncations to 16 bits.
MGPU_HOST_DEVICE uint32_t upper_rank(const FloatOrder<uint16_t>& order, uint16_t key) {
  const auto upper = [](uint32_t word) { return word << 16; };
  constexpr uint32_t kSign = 0x8000'0000;
  const uint32_t bits = upper(key);
  const uint32_t flipped = bits & kSign ? 0xffff'0000 : kSign;
  const uint32_t code = ((bits ^ flipped) - upper(order.mantissa)) ^ upper(order.flip);
  const uint32_t bounded = clamp(code, upper(order.low), upper(order.high));
  return bounded == upper(order.zero + 1) ? upper(order.zero) : bounded;
}

MGPU_HOST_DEVICE uint32_t upper_rank(const IntegerOrder<uint16_t>& order, uint16_t key) {
  return uint32_t{order.encode(key)} << 16;
}

}  // namespace mgpu
