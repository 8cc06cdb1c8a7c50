// The values for which the bits of elements stand, computed apart from the code under test.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "runtime/call.h"

namespace mgpu::testing {

inline long double small_float(uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  long double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa ? std::numeric_limits<long double>::quiet_NaN() : std::numeric_limits<long double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<long double>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<long double>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  }
  return bits & 0x8000 ? -value : value;
}

inline long double value_of(const Array& array, int64_t i) {
  switch (array.dtype) {
    case DType::u8: return array.as<uint8_t>()[i];
    case DType::u16: return array.as<uint16_t>()[i];
    case DType::u32: return array.as<uint32_t>()[i];
    case DType::u64: return array.as<uint64_t>()[i];
    case DType::s8: return array.as<int8_t>()[i];
    case DType::s16: return array.as<int16_t>()[i];
    case DType::s32: return array.as<int32_t>()[i];
    case DType::s64: return array.as<int64_t>()[i];
    case DType::f16: return small_float(array.as<uint16_t>()[i], 10);
    case DType::bf16: return small_float(array.as<uint16_t>()[i], 7);
    case DType::f32: return array.as<float>()[i];
    case DType::f64: return array.as<double>()[i];
    default: return 0;
  }
}

// NaNs are equal and above all others, zeros are equal.
inline bool value_less(long double a, long double b, bool descending = false) {
  if (descending) std::swap(a, b);
  return std::isnan(b) ? !std::isnan(a) : a < b;
}

}  // namespace mgpu::testing
