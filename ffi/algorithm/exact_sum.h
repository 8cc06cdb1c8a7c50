// Sums of float32 by additions of integers, which are exact, so that any order gives the same bits.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// A superaccumulator (Neal, Fast exact summation using small and large superaccumulators, 2015). From the largest
// exponent of all items down, every `binades` consecutive exponents share a limb, a 64-bit integer with room for the
// sum of all items. A limb's unit is the last mantissa bit at its lowest exponent.
struct ExactSum {
  static constexpr unsigned kMantissaBits = 23;
  static constexpr unsigned kSpecial = 255;  // the exponent of infinities and NaN
  static constexpr unsigned kLargestExponent = kSpecial - 1;

  int binades;
  unsigned factor;  // x * factor >> 16 is x / binades

  // Chooses `binades` such that a limb has room for the sum of up to `items` items.
  MGPU_HOST_DEVICE explicit ExactSum(int64_t items)
      : binades(clamp(63 - static_cast<int>(kMantissaBits) - ceil_log2(items), 1, 32)),
        factor((1u << 16) / static_cast<unsigned>(binades) + 1) {}

  MGPU_HOST_DEVICE int limbs() const { return static_cast<int>(limb(1, kLargestExponent)) + 1; }

  // Subnormal numbers have the exponent of the smallest normal one.
  MGPU_HOST_DEVICE static uint32_t exponent(uint32_t bits) { return maximum(bits >> kMantissaBits & kSpecial, 1u); }

  // `largest` is the exponent of the largest item.
  MGPU_HOST_DEVICE unsigned limb(uint32_t exponent, uint32_t largest) const {
    return ((largest - exponent) * factor) >> 16;
  }

  struct Term {
    unsigned limb;
    uint64_t value;
  };

  // The limb that an item adds to, and the value that it adds. Limb `special_limb` counts infinities: the positive ones
  // in its low half, the negative ones in its high half. A NaN counts in both.
  MGPU_HOST_DEVICE Term term(float x, uint32_t largest, unsigned special_limb) const {
    const unsigned bits = std::bit_cast<uint32_t>(x);
    const unsigned fraction = bits & ((1u << kMantissaBits) - 1), field = bits >> kMantissaBits & kSpecial;
    const bool is_negative = bits >> 31;
    if (field == kSpecial) {
      const uint64_t both = uint64_t{1} << 32 | 1;
      return {special_limb, fraction != 0 ? both : is_negative ? uint64_t{1} << 32 : 1};
    }
    const unsigned below = largest - maximum(field, 1u), at = limb(maximum(field, 1u), largest);
    const unsigned up = static_cast<unsigned>(binades) - 1 - (below - at * static_cast<unsigned>(binades));
    const uint64_t magnitude = uint64_t{fraction | static_cast<unsigned>(field > 0) << kMantissaBits} << up;
    return {at, is_negative ? uint64_t{0} - magnitude : magnitude};
  }

  // Adds a multiple of an exponent's unit, if the limbs are numbered from kLargestExponent.
  // Calls add(limb, value) for one limb or two.
  template <typename Add>
  MGPU_HOST_DEVICE void add_multiple(int64_t multiple, uint32_t exponent, Add add) const {
    const unsigned below = kLargestExponent - exponent, at = limb(exponent, kLargestExponent);
    const int up = binades - 1 - static_cast<int>(below - at * static_cast<unsigned>(binades)), rest = binades - up;
    if (at == 0) return add(at, static_cast<uint64_t>(multiple) << up);
    add(at, (static_cast<uint64_t>(multiple) & ((uint64_t{1} << rest) - 1)) << up);
    add(at - 1, static_cast<uint64_t>(multiple >> rest));
  }

  // The sum, rounded once. limb(i) is a reference to limb i of `used` limbs, which this function changes.
  template <typename Limb>
  MGPU_HOST_DEVICE float round(Limb limb, int used, uint32_t largest) const {
    const uint64_t digit_mask = (uint64_t{1} << binades) - 1;
    for (int i = used - 1; i > 0; --i) {
      const uint64_t sum = limb(i);
      limb(i) = sum & digit_mask;
      limb(i - 1) += static_cast<uint64_t>(static_cast<int64_t>(sum) >> binades);
    }
    // Appends the digits of the next limbs to the first limb as long as they fit. Rounding depends only on whether all
    // further digits are zero.
    auto sum = static_cast<int64_t>(limb(0));
    int last = 0;
    bool has_rest = false;
    for (int i = 1; i < used; ++i) {
      const uint64_t digit = limb(i);
      if ((sum < 0 ? ~sum : sum) >> (62 - binades) == 0) {
        sum = static_cast<int64_t>(static_cast<uint64_t>(sum) << binades | digit);
        last = i;
      } else {
        has_rest |= digit != 0;
      }
    }
    const int unit = static_cast<int>(largest) - binades * (last + 1) + 1 - 127 - static_cast<int>(kMantissaBits);
    const double scale = std::bit_cast<double>(static_cast<int64_t>(unit + 1023) << 52);
    return static_cast<float>(static_cast<double>(static_cast<float>(sum | int64_t{has_rest})) * scale);
  }

  MGPU_HOST_DEVICE static float special(uint64_t counts) {
    const bool positive = static_cast<uint32_t>(counts) != 0, negative = counts >> 32 != 0;
    const unsigned infinity = kSpecial << kMantissaBits;
    return std::bit_cast<float>(positive && negative ? infinity | 1u << (kMantissaBits - 1)
                                                     : infinity | static_cast<unsigned>(negative) << 31);
  }
};

}  // namespace mgpu
