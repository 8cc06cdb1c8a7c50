// Maps run-time element types to the few compiled kinds.
#pragma once

#include "algorithm/key_order.h"
#include "ops/common/payload.h"
#include "runtime/call.h"

namespace mgpu {

constexpr KeyKind key_kind(DType dtype) {
  if (dtype >= DType::f16 && dtype <= DType::f64) return KeyKind::kFloat;
  return dtype >= DType::s8 && dtype <= DType::s64 ? KeyKind::kSigned : KeyKind::kUnsigned;
}

constexpr int mantissa_bits(DType dtype) {
  switch (dtype) {
    case DType::f16: return 10;
    case DType::bf16: return 7;
    case DType::f32: return 23;
    case DType::f64: return 52;
    default: return 0;
  }
}

// There are seven orders for thirteen types.
template <typename Visit>
void dispatch_order(const Call& call, DType dtype, bool descending, Visit visit) {
  call.expect(is_key(dtype), "keys of a type without an order");
  const KeyKind kind = key_kind(dtype);
  const int bits = mantissa_bits(dtype);
  const int width = byte_width(dtype);
  if (kind == KeyKind::kFloat) {
    if (width == 2) return visit(FloatOrder<uint16_t>::make(kind, bits, descending));
    if (width == 4) return visit(FloatOrder<uint32_t>::make(kind, bits, descending));
    return visit(FloatOrder<uint64_t>::make(kind, bits, descending));
  }
  if (width == 1) return visit(IntegerOrder<uint8_t>::make(kind, bits, descending));
  if (width == 2) return visit(IntegerOrder<uint16_t>::make(kind, bits, descending));
  if (width == 4) return visit(IntegerOrder<uint32_t>::make(kind, bits, descending));
  return visit(IntegerOrder<uint64_t>::make(kind, bits, descending));
}

// The same by the width of keys, for kernels in which integers and floats share an order.
template <typename Visit>
void dispatch_key_order(const Call& call, DType dtype, bool descending, Visit visit) {
  call.expect(is_key(dtype), "keys of a type without an order");
  const KeyKind kind = key_kind(dtype);
  const int bits = mantissa_bits(dtype);
  switch (byte_width(dtype)) {
    case 1: return visit(IntegerOrder<uint8_t>::make(kind, bits, descending));
    case 2: return visit(KeyOrder<uint16_t>::make(kind, bits, descending));
    case 4: return visit(KeyOrder<uint32_t>::make(kind, bits, descending));
    default: return visit(KeyOrder<uint64_t>::make(kind, bits, descending));
  }
}

template <typename Visit>
void dispatch_payload(const Call& call, int width, Visit visit) {
  switch (width) {
    case 0: return visit(NoPayload{});
    case 4: return visit(uint32_t{});
    case 8: return visit(uint64_t{});
    default: call.fail("payload: expected items of 4 or 8 bytes, got " + std::to_string(width));
  }
}

}  // namespace mgpu
