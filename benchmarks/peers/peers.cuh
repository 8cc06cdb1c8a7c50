#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "cuda/launch/launch.h"
#include "peers.h"

namespace mgpu::peers {

// CUB is called once for the size of its temporary memory and once to work.
template <typename Algorithm>
void run_cub(const Call& call, Scratch& scratch, Algorithm algorithm) {
  size_t bytes = 0;
  cuda::check(call, algorithm(nullptr, bytes));
  cuda::check(call, algorithm(scratch.allocate(bytes), bytes));
}

template <typename T>
inline constexpr DType dtype_of = DType::c128;
template <>
inline constexpr DType dtype_of<uint32_t> = DType::u32;
template <>
inline constexpr DType dtype_of<uint64_t> = DType::u64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::s32;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<__nv_bfloat16> = DType::bf16;

// The type in which sums accumulate, as in XLA.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, float, T>;

template <typename First, typename... Rest, typename Visit>
void visit_type(const Call& call, const Array& array, Visit visit) {
  if (array.dtype == dtype_of<First>) return visit(First{});
  if constexpr (sizeof...(Rest) > 0) {
    visit_type<Rest...>(call, array, visit);
  } else {
    call.fail("not compiled for " + std::string(dtype_name(array.dtype)));
  }
}

// CUB and Thrust are fastest with lengths of 32 bits.
inline int length(const Call& call, const Array& array) {
  call.expect(array.rank() == 1 && array.size() < INT32_MAX, "expected a vector of fewer than 2^31 items");
  return static_cast<int>(array.size());
}

inline void expect_type(const Call& call, const Array& array, DType dtype) {
  if (array.dtype != dtype) {
    call.fail("expected " + std::string(dtype_name(dtype)) + ", got " + std::string(dtype_name(array.dtype)));
  }
}

}  // namespace mgpu::peers
