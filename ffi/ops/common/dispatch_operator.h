#pragma once

#include "ops/common/dispatch.h"
#include "ops/common/operators.h"

namespace mgpu {

// The sum or product of elements of `dtype`: eight operators for twelve types.
template <ArithmeticKind kKind, typename Visit>
void dispatch_arithmetic(const Call& call, DType dtype, bool multiply, Visit visit) {
  switch (dtype) {
    case DType::u8:
    case DType::s8: return visit(Arithmetic<uint8_t, uint32_t, kKind>{multiply});
    case DType::u16:
    case DType::s16: return visit(Arithmetic<uint16_t, uint32_t, kKind>{multiply});
    case DType::u32:
    case DType::s32: return visit(Arithmetic<uint32_t, uint32_t, kKind>{multiply});
    case DType::u64:
    case DType::s64: return visit(Arithmetic<uint64_t, uint64_t, kKind>{multiply});
    case DType::f16: return visit(Arithmetic<Half, float, kKind>{multiply});
    case DType::bf16: return visit(Arithmetic<BFloat16, float, kKind>{multiply});
    case DType::f32: return visit(Arithmetic<float, float, kKind>{multiply});
    case DType::f64: return visit(Arithmetic<double, double, kKind>{multiply});
    default: call.fail("x: expected an integer or float type, got " + std::string(dtype_name(dtype)));
  }
}

// A minimum or maximum, or the index of one, over positions below `positions`. 32-bit elements have a second operator,
// for more positions than 32 bits can count.
template <typename Visit>
void dispatch_extremum(const Call& call, OperatorKind kind, DType dtype, int64_t positions, Visit visit) {
  call.expect(is_number(dtype), "x: expected an integer or float type");
  const auto dispatch_word = [&](auto word) {
    using Word = decltype(word);
    const auto order =
        ExtremumOrder<Word>::make(key_kind(dtype) != KeyKind::kUnsigned, mantissa_bits(dtype), gives_largest(kind));
    if (!gives_index(kind)) return visit(Extremum<Word>{order});
    if constexpr (sizeof(Word) < 8) {
      using Packed = ArgExtremum<Word, uint64_t>;
      if (sizeof(Word) < 4 || static_cast<uint64_t>(positions) < Packed::kNowhere) return visit(Packed{order});
    }
    if constexpr (sizeof(Word) >= 4) visit(ArgExtremum<Word, CodeAndPosition>{order});
  };
  switch (byte_width(dtype)) {
    case 1: return dispatch_word(uint8_t{});
    case 2: return dispatch_word(uint16_t{});
    case 4: return dispatch_word(uint32_t{});
    default: return dispatch_word(uint64_t{});
  }
}

template <typename Visit>
void dispatch_bitwise(const Call& call, OperatorKind kind, DType dtype, Visit visit) {
  const bool is_bool = dtype == DType::boolean;
  call.expect(is_bool || (is_key(dtype) && mantissa_bits(dtype) == 0), "x: expected an integer type or bool");
  switch (byte_width(dtype)) {
    case 1: return visit(Bitwise<uint8_t>::make(kind, is_bool));
    case 2: return visit(Bitwise<uint16_t>::make(kind, false));
    case 4: return visit(Bitwise<uint32_t>::make(kind, false));
    default: return visit(Bitwise<uint64_t>::make(kind, false));
  }
}

template <typename Visit>
void dispatch_logsumexp(const Call& call, DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f16: return visit(LogSumExp<Half, float>{});
    case DType::bf16: return visit(LogSumExp<BFloat16, float>{});
    case DType::f32: return visit(LogSumExp<float, float>{});
    case DType::f64: return visit(LogSumExp<double, double>{});
    default: call.fail("x: expected a float type, got " + std::string(dtype_name(dtype)));
  }
}

// Results are states of a wider type: float32 for 16-bit floats, 32 or 64 bits of the same signedness for integers.
template <ArithmeticKind kKind, typename Visit>
void dispatch_wide(const Call& call, DType dtype, DType result, bool multiply, Visit visit) {
  const auto dispatch_integer = [&](auto element, DType word, DType long_word) {
    using Element = decltype(element);
    if (result == long_word) return visit(Arithmetic<Element, uint64_t, kKind, uint64_t>{multiply});
    if constexpr (sizeof(Element) < 4) {
      if (result == word) return visit(Arithmetic<Element, uint32_t, kKind, uint32_t>{multiply});
    }
    call.fail("result: wrong type");
  };
  switch (dtype) {
    case DType::u8: return dispatch_integer(uint8_t{}, DType::u32, DType::u64);
    case DType::s8: return dispatch_integer(int8_t{}, DType::s32, DType::s64);
    case DType::u16: return dispatch_integer(uint16_t{}, DType::u32, DType::u64);
    case DType::s16: return dispatch_integer(int16_t{}, DType::s32, DType::s64);
    case DType::u32: return dispatch_integer(uint32_t{}, DType::u32, DType::u64);
    case DType::s32: return dispatch_integer(int32_t{}, DType::s32, DType::s64);
    default: break;
  }
  call.expect(result == DType::f32, "result: wrong type");
  switch (dtype) {
    case DType::f16: return visit(Arithmetic<Half, float, kKind, float>{multiply});
    case DType::bf16: return visit(Arithmetic<BFloat16, float, kKind, float>{multiply});
    default: call.fail("x: expected a narrow type for a wide result, got " + std::string(dtype_name(dtype)));
  }
}

// The sum of elements that are multiplied by weights. Elements are floats, or integers of 32 or 64 bits: callers widen
// narrower integers.
template <ArithmeticKind kKind, typename Visit>
void dispatch_weighted(const Call& call, DType dtype, DType result, Visit visit) {
  call.expect(dtype == result || result == DType::f32, "result: wrong type");
  switch (dtype) {
    case DType::u32:
    case DType::s32: return visit(Arithmetic<uint32_t, uint32_t, kKind>{false});
    case DType::u64:
    case DType::s64: return visit(Arithmetic<uint64_t, uint64_t, kKind>{false});
    case DType::f16:
      return dtype == result ? visit(Arithmetic<Half, float, kKind>{false})
                             : visit(Arithmetic<Half, float, kKind, float>{false});
    case DType::bf16:
      return dtype == result ? visit(Arithmetic<BFloat16, float, kKind>{false})
                             : visit(Arithmetic<BFloat16, float, kKind, float>{false});
    case DType::f32: return visit(Arithmetic<float, float, kKind>{false});
    case DType::f64: return visit(Arithmetic<double, double, kKind>{false});
    default:
      call.fail("weights: expected a float type or an integer type of 32 or 64 bits, got " +
                std::string(dtype_name(dtype)));
  }
}

// With kMerged, sum and product are one type of operator.
template <bool kMerged, typename Visit>
void dispatch_operator(const Call& call, OperatorKind kind, DType dtype, int64_t positions, Visit visit) {
  using enum ArithmeticKind;
  switch (kind) {
    case OperatorKind::kAdd: return dispatch_arithmetic<kMerged ? kEither : kSum>(call, dtype, false, visit);
    case OperatorKind::kMul: return dispatch_arithmetic<kMerged ? kEither : kProduct>(call, dtype, true, visit);
    case OperatorKind::kMin:
    case OperatorKind::kMax:
    case OperatorKind::kArgmin:
    case OperatorKind::kArgmax: return dispatch_extremum(call, kind, dtype, positions, visit);
    case OperatorKind::kAnd:
    case OperatorKind::kOr:
    case OperatorKind::kXor: return dispatch_bitwise(call, kind, dtype, visit);
    case OperatorKind::kLogsumexp: break;  // only for reductions
  }
  call.fail("op: expected 0 to 8");
}

template <bool kMerged, typename Visit>
void OperatorOperands::dispatch(const Call& call, Visit visit) const {
  dispatch_operator<kMerged>(call, kind, dtype, positions, visit);
}

template <bool kMerged, typename Visit>
void OperatorOperands::dispatch_reduction(const Call& call, Visit visit) const {
  using enum ArithmeticKind;
  if (sum_dtype != dtype) {
    const bool multiply = kind == OperatorKind::kMul;
    call.expect(multiply || kind == OperatorKind::kAdd, "wide: expected a sum or product");
    if constexpr (kMerged) {
      return dispatch_wide<kEither>(call, dtype, sum_dtype, multiply, visit);
    } else {
      return multiply ? dispatch_wide<kProduct>(call, dtype, sum_dtype, true, visit)
                      : dispatch_wide<kSum>(call, dtype, sum_dtype, false, visit);
    }
  }
  if (kind == OperatorKind::kLogsumexp) return dispatch_logsumexp(call, dtype, visit);
  dispatch<kMerged>(call, visit);
}

}  // namespace mgpu
