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

template <ArithmeticKind kKind, typename Visit>
void dispatch_floats(DType dtype, bool multiply, Visit visit) {
  switch (dtype) {
    case DType::f16: return visit(NarrowArithmetic<Half, float, kKind>{{multiply}, {}});
    case DType::bf16: return visit(NarrowArithmetic<BFloat16, float, kKind>{{multiply}, {}});
    case DType::f32: return visit(Arithmetic<float, float, kKind>{multiply});
    default: return visit(Arithmetic<double, double, kKind>{multiply});
  }
}

template <ArithmeticKind kKind, typename Visit>
void dispatch_words(int width, bool multiply, Visit visit) {
  if (width == 4) return visit(Arithmetic<uint32_t, uint32_t, kKind>{multiply});
  visit(Arithmetic<uint64_t, uint64_t, kKind>{multiply});
}

// The sum or product of a reduction. Results have the type of the elements or a wider one: float32 for 16-bit floats,
// 32 or 64 bits of the same signedness for integers.
template <ArithmeticKind kKind, typename Visit>
void dispatch_reduced_arithmetic(const Call& call, DType dtype, DType result, bool multiply, Visit visit) {
  const KeyKind kind = key_kind(dtype);
  call.expect(is_number(dtype), "x: expected an integer or float type");
  if (kind == KeyKind::kFloat) {
    call.expect(result == dtype || (byte_width(dtype) == 2 && result == DType::f32), "result: wrong type");
    return dispatch_floats<kKind>(dtype, multiply, visit);
  }
  const bool is_wider = byte_width(result) > byte_width(dtype) && byte_width(result) >= 4;
  call.expect(result == dtype || (is_wider && key_kind(result) == kind), "result: wrong type");
  const auto dispatch_state = [&]<typename Element>(Element, auto state) {
    const int sign_bit = kind == KeyKind::kSigned ? 8 * sizeof(Element) - 1 : 8 * sizeof(Element);
    const auto sign = static_cast<Element>(uint64_t{1} << sign_bit);
    visit(NarrowArithmetic<Element, decltype(state), kKind>{{multiply}, sign});
  };
  const auto dispatch_element = [&](auto element) {
    byte_width(result) == 8 ? dispatch_state(element, uint64_t{}) : dispatch_state(element, uint32_t{});
  };
  switch (byte_width(dtype)) {
    case 1: return dispatch_element(uint8_t{});
    case 2: return dispatch_element(uint16_t{});
    default: break;
  }
  if (result != dtype) return dispatch_state(uint32_t{}, uint64_t{});
  dispatch_words<kKind>(byte_width(dtype), multiply, visit);
}

// The sum of elements that are multiplied by weights. Elements are floats, or integers of 32 or 64 bits: callers widen
// narrower integers.
template <ArithmeticKind kKind, typename Visit>
void dispatch_weighted(const Call& call, DType dtype, DType result, Visit visit) {
  const bool is_float = is_number(dtype) && key_kind(dtype) == KeyKind::kFloat;
  if (!is_float && (!is_number(dtype) || byte_width(dtype) < 4)) {
    call.fail("weights: expected a float type or an integer type of 32 or 64 bits, got " +
              std::string(dtype_name(dtype)));
  }
  call.expect(result == dtype || (is_float && byte_width(dtype) == 2 && result == DType::f32), "result: wrong type");
  is_float ? dispatch_floats<kKind>(dtype, false, visit) : dispatch_words<kKind>(byte_width(dtype), false, visit);
}

// Neither a sum nor a product.
template <typename Visit>
void dispatch_selection(const Call& call, OperatorKind kind, DType dtype, int64_t positions, Visit visit) {
  switch (kind) {
    case OperatorKind::kMin:
    case OperatorKind::kMax:
    case OperatorKind::kArgmin:
    case OperatorKind::kArgmax: return dispatch_extremum(call, kind, dtype, positions, visit);
    case OperatorKind::kAnd:
    case OperatorKind::kOr:
    case OperatorKind::kXor: return dispatch_bitwise(call, kind, dtype, visit);
    default: call.fail("op: expected 0 to 8");  // logsumexp is only for reductions
  }
}

template <bool kMerged, typename Visit>
void OperatorOperands::dispatch(const Call& call, Visit visit) const {
  using enum ArithmeticKind;
  switch (kind) {
    case OperatorKind::kAdd: return dispatch_arithmetic<kMerged ? kEither : kSum>(call, dtype, false, visit);
    case OperatorKind::kMul: return dispatch_arithmetic<kMerged ? kEither : kProduct>(call, dtype, true, visit);
    default: return dispatch_selection(call, kind, dtype, positions, visit);
  }
}

template <bool kMerged, typename Visit>
void OperatorOperands::dispatch_reduction(const Call& call, Visit visit) const {
  using enum ArithmeticKind;
  switch (kind) {
    case OperatorKind::kAdd:
      return dispatch_reduced_arithmetic<kMerged ? kEither : kSum>(call, dtype, sum_dtype, false, visit);
    case OperatorKind::kMul:
      return dispatch_reduced_arithmetic<kMerged ? kEither : kProduct>(call, dtype, sum_dtype, true, visit);
    default: break;
  }
  call.expect(sum_dtype == dtype, "wide: expected a sum or product");
  if (kind == OperatorKind::kLogsumexp) return dispatch_logsumexp(call, dtype, visit);
  dispatch_selection(call, kind, dtype, positions, visit);
}

}  // namespace mgpu
