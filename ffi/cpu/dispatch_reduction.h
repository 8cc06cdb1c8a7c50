// Maps a reduction on the CPU to one of its compiled operators. Sums and products of
// narrow elements learn at run time whether elements are signed, and how wide results are.
#pragma once

#include <string>
#include <type_traits>

#include "ops/common/dispatch_operator.h"

namespace mgpu {

namespace cpu {

template <typename Element_, typename State_, ArithmeticKind kKind>
struct NarrowArithmetic : Arithmetic<Element_, State_, kKind, State_> {
  using Narrow = Element_;

  Element_ sign;  // the highest bit if elements are signed, else 0; unused for floats

  State_ extract(Element_ element, int64_t /*position*/) const {
    if constexpr (std::is_integral_v<Element_>) {
      return State_{static_cast<Element_>(element ^ sign)} - State_{sign};
    } else {
      return widen(element);
    }
  }
};

template <typename Operator>
constexpr bool kIsNarrow = requires { typename Operator::Narrow; };

template <typename Operator, typename Operands>
ResultVector<Operator> results_of(const Operands& operands) {
  return {operands.result, kIsNarrow<Operator> ? operands.sum_dtype != operands.dtype : operands.wide_result};
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

// Results have the type of the elements, or the wider type of the states.
template <ArithmeticKind kKind, typename Visit>
void dispatch_arithmetic(const Call& call, DType dtype, DType result, bool multiply, Visit visit) {
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

template <typename Visit>
void dispatch_reduction(const Call& call, const OperatorOperands& operands, Visit visit) {
  using enum OperatorKind;
  const OperatorKind kind = operands.kind;
  const DType dtype = operands.dtype, result = operands.sum_dtype;
  if (kind == kAdd) return dispatch_arithmetic<ArithmeticKind::kSum>(call, dtype, result, false, visit);
  if (kind == kMul) return dispatch_arithmetic<ArithmeticKind::kProduct>(call, dtype, result, true, visit);
  call.expect(result == dtype, "wide: expected a sum or product");
  switch (kind) {
    case kMin:
    case kMax:
    case kArgmin:
    case kArgmax: return dispatch_extremum(call, kind, dtype, operands.positions, visit);
    case kAnd:
    case kOr:
    case kXor: return dispatch_bitwise(call, kind, dtype, visit);
    case kLogsumexp: return dispatch_logsumexp(call, dtype, visit);
    default: call.fail("op: expected 0 to 9");
  }
}

// Elements and weights are floats, or integers of 32 or 64 bits; callers widen narrower integers.
template <typename Visit>
void dispatch_weighted(const Call& call, DType dtype, DType result, Visit visit) {
  const bool is_float = is_number(dtype) && key_kind(dtype) == KeyKind::kFloat;
  if (!is_float && (!is_number(dtype) || byte_width(dtype) < 4)) {
    call.fail("weights: expected a float type or an integer type of 32 or 64 bits, got " +
              std::string(dtype_name(dtype)));
  }
  call.expect(result == dtype || (is_float && byte_width(dtype) == 2 && result == DType::f32), "result: wrong type");
  is_float ? dispatch_floats<ArithmeticKind::kSum>(dtype, false, visit)
           : dispatch_words<ArithmeticKind::kSum>(byte_width(dtype), false, visit);
}

}  // namespace cpu

template <typename Operator>
  requires cpu::kIsNarrow<Operator>
struct ResultVector<Operator> {
  using Narrow = typename Operator::Narrow;
  void* data;
  bool wide;

  void store(int64_t i, typename Operator::Result result) const {
    if (wide) {
      static_cast<typename Operator::Result*>(data)[i] = result;
    } else {
      static_cast<Narrow*>(data)[i] = narrow_to(result, Narrow{});
    }
  }
};

}  // namespace mgpu
