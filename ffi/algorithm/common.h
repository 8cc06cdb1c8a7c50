#pragma once

#include "algorithm/standard.h"

#ifdef __CUDACC__
#define MGPU_HOST_DEVICE __host__ __device__ __forceinline__
#define MGPU_HOST_DEVICE_CALL inline __host__ __device__ __noinline__
#define MGPU_UNROLL _Pragma("unroll")
#define MGPU_NO_UNROLL _Pragma("unroll 1")
#else
#define MGPU_HOST_DEVICE inline
#define MGPU_HOST_DEVICE_CALL inline
#define MGPU_UNROLL
#define MGPU_NO_UNROLL
#endif

namespace mgpu {

template <typename Integer>
MGPU_HOST_DEVICE constexpr Integer ceil_div(Integer numerator, Integer denominator) {
  return (numerator + denominator - 1) / denominator;
}

template <typename T>
MGPU_HOST_DEVICE constexpr T minimum(T a, T b) {
  return b < a ? b : a;
}

template <typename T>
MGPU_HOST_DEVICE constexpr T maximum(T a, T b) {
  return a < b ? b : a;
}

template <typename T>
MGPU_HOST_DEVICE constexpr T clamp(T x, T low, T high) {
  return minimum(maximum(x, low), high);
}

// The least n with 2^n >= cells.
MGPU_HOST_DEVICE constexpr int ceil_log2(int64_t cells) {
  int rounds = 0;
  while ((int64_t{1} << rounds) < cells) ++rounds;
  return rounds;
}

}  // namespace mgpu
