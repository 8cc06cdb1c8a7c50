// Floats as integers, whose sums have the same bits in any order.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// Represents each item as a multiple of a fixed unit, which the largest exponent of the items determines.
struct FixedPoint {
  static constexpr unsigned kMantissaBits = 23;
  static constexpr unsigned kSpecial = 255;  // the exponent of infinities and NaN

  int up;  // how many bits the unit lies below the last bit of the largest item

  // Chooses the unit so that no sum of this many items overflows.
  explicit FixedPoint(int64_t items) : up(62 - static_cast<int>(kMantissaBits) - 1 - ceil_log2(items)) {}

  // Subnormal numbers have the exponent of the smallest normal one.
  MGPU_HOST_DEVICE static uint32_t exponent(float x) {
    return maximum(std::bit_cast<uint32_t>(x) >> kMantissaBits & kSpecial, 1u);
  }

  MGPU_HOST_DEVICE uint64_t encode(float x, uint32_t largest) const {
    const unsigned bits = std::bit_cast<uint32_t>(x);
    const unsigned fraction = bits & ((1u << kMantissaBits) - 1), field = bits >> kMantissaBits & kSpecial;
    const bool is_negative = bits >> 31;
    if (largest == kSpecial) {  // counts infinities, one half of the word per sign; a NaN counts in both
      if (field < kSpecial) return 0;
      const uint64_t both = uint64_t{1} << 32 | 1;
      return fraction != 0 ? both : is_negative ? uint64_t{1} << 32 : 1;
    }
    const uint64_t magnitude = uint64_t{field > 0 ? fraction | 1u << kMantissaBits : fraction} << up;
    const unsigned down = largest - maximum(field, 1u);
    const uint64_t rounded = down > 62 ? 0 : (magnitude + (uint64_t{1} << down >> 1)) >> down;
    return is_negative ? uint64_t{0} - rounded : rounded;
  }

  MGPU_HOST_DEVICE float decode(uint64_t sum, uint32_t largest) const {
    if (largest == kSpecial) {
      const bool positive = static_cast<uint32_t>(sum) != 0, negative = sum >> 32 != 0;
      const unsigned infinity = kSpecial << kMantissaBits;
      return std::bit_cast<float>(positive && negative ? infinity | 1u << (kMantissaBits - 1)
                                                       : infinity | static_cast<unsigned>(negative) << 31);
    }
    const int exponent = static_cast<int>(largest) - 127 - static_cast<int>(kMantissaBits) - up;
    const double unit = std::bit_cast<double>(static_cast<int64_t>(exponent + 1023) << 52);
    return static_cast<float>(static_cast<double>(static_cast<int64_t>(sum)) * unit);
  }
};

}  // namespace mgpu
