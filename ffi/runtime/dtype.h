#pragma once

#include "algorithm/common.h"

namespace mgpu {

enum class DType : uint8_t { u8, u16, u32, u64, s8, s16, s32, s64, f16, bf16, f32, f64, boolean, c64, c128 };

constexpr int byte_width(DType dtype) {
  switch (dtype) {
    case DType::u8:
    case DType::s8:
    case DType::boolean: return 1;
    case DType::u16:
    case DType::s16:
    case DType::f16:
    case DType::bf16: return 2;
    case DType::u32:
    case DType::s32:
    case DType::f32: return 4;
    case DType::u64:
    case DType::s64:
    case DType::f64:
    case DType::c64: return 8;
    case DType::c128: return 16;
  }
  return 0;
}

constexpr bool is_number(DType dtype) { return dtype <= DType::f64; }

// A key of several columns may come as 64 bits in a c64, its low word as the real part: JAX has no 64-bit integers
// without jax_enable_x64.
constexpr bool is_key(DType dtype) { return is_number(dtype) || dtype == DType::c64; }

}  // namespace mgpu
