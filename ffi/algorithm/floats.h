// The 16-bit floats as words, and their conversions to and from float32.
#pragma once

#include "algorithm/common.h"
#ifdef __CUDACC__
#include "cuda/ptx.cuh"
#endif

namespace mgpu {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

MGPU_HOST_DEVICE float widen(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

MGPU_HOST_DEVICE float widen(Half x) {
#ifdef __CUDA_ARCH__
  return cuda::half_to_float(x.bits);
#else
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t shifted = magnitude << 13;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x70000000u | shifted);  // infinity and NaN
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | (shifted + 0x38000000u));
  // XLA's threads flush denormals to zero, so a denormal is converted as a multiple of 2^-24.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
#endif
}

// Rounds to the nearest, ties to even.
MGPU_HOST_DEVICE BFloat16 narrow_to(float x, BFloat16) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

MGPU_HOST_DEVICE Half narrow_to(float x, Half) {
#ifdef __CUDA_ARCH__
  return {cuda::float_to_half(x)};
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // rounds to 2^16, past the largest half
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // denormal: adding 1/2 leaves the rounded multiple of 2^-24 in the low bits
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
#endif
}

template <typename T>
MGPU_HOST_DEVICE T widen(T x) {
  return x;
}
template <typename Wide, typename T>
MGPU_HOST_DEVICE T narrow_to(Wide x, T) {
  return static_cast<T>(x);
}

}  // namespace mgpu
