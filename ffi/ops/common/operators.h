#pragma once

#include "algorithm/operators.h"
#include "algorithm/segments.h"
#include "function/item.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Array;
struct Call;
class Workspace;

// Elements are [.., n], or rows [.., n, width].
struct OperatorOperands {
  OperatorKind kind;
  DType dtype;
  DType sum_dtype;  // the type of sums and products, which may be wider than the elements
  Segments segments;
  const void* x;
  int64_t positions;  // the positions that an operator gets are below this

  OperatorOperands(const Call& call, const Array& elements, const Array* heads, const Array* count, int own_rank = 1);

  // dispatch_operator.h defines it. With kMerged, sum and product are one type of operator.
  template <bool kMerged, typename Visit>
  void dispatch(const Call& call, Visit visit) const;

  // Sums and products of a reduction may have a wider type than the elements.
  template <bool kMerged, typename Visit>
  void dispatch_reduction(const Call& call, Visit visit) const;

  int64_t state_bytes(const Call& call) const;
};

// Results are numbers, or indices of 32 or 64 bits (`wide`).
template <typename Operator>
struct ResultVector {
  using Result = typename Operator::Result;
  void* data;
  bool wide;

  MGPU_HOST_DEVICE bool given() const { return data != nullptr; }
  MGPU_HOST_DEVICE void store(int64_t i, Result result) const {
    if constexpr (Operator::kGivesIndex) {
      if (!wide) {
        static_cast<int32_t*>(data)[i] = static_cast<int32_t>(result);
        return;
      }
    }
    static_cast<Result*>(data)[i] = result;
  }
};

// Results have the type of the elements, or of the states (`wide`).
template <typename Operator>
  requires kIsNarrow<Operator>
struct ResultVector<Operator> {
  using Narrow = typename Operator::Narrow;
  using Result = typename Operator::Result;
  void* data;
  bool wide;

  MGPU_HOST_DEVICE bool given() const { return data != nullptr; }
  MGPU_HOST_DEVICE void store(int64_t i, Result result) const {
    if (wide) {
      static_cast<Result*>(data)[i] = result;
    } else {
      static_cast<Narrow*>(data)[i] = narrow_to(result, Narrow{});
    }
  }
};

// Each leaf of the items has an array.
template <typename Operator>
  requires IsItem<typename Operator::Result>
struct ResultVector<Operator> {
  using Result = typename Operator::Result;
  void* leaves[kMaxLeaves];

  MGPU_HOST_DEVICE bool given() const { return leaves[0] != nullptr; }
  MGPU_HOST_DEVICE void store(int64_t i, const Result& result) const {
    for_each_leaf<Result>([&]<int kLeaf>() {
      const auto& leaf = Result::template leaf<kLeaf>(result);
      using Scalar = std::remove_cvref_t<decltype(leaf[0])>;
      constexpr int kElements = sizeof(leaf) / sizeof(Scalar);
      Scalar* const to = static_cast<Scalar*>(leaves[kLeaf]) + i * kElements;
      MGPU_UNROLL
      for (int e = 0; e < kElements; ++e) to[e] = leaf[e];
    });
  }
};

template <typename Operator, typename Operands>
ResultVector<Operator> results_of(const Operands& operands) {
  return {operands.result, kIsNarrow<Operator> ? operands.sum_dtype != operands.dtype : operands.wide_result};
}

// A caller's function is compiled for one kind of scan; for other operators, the kind is an attribute of the call.
template <typename Operator>
MGPU_HOST_DEVICE constexpr bool scans_exclusively(bool exclusive) {
  if constexpr (requires { Operator::kExclusive; }) {
    return Operator::kExclusive;
  } else {
    return exclusive;
  }
}
template <typename Operator>
MGPU_HOST_DEVICE constexpr bool scans_in_reverse(bool reverse) {
  if constexpr (requires { Operator::kReverse; }) {
    return Operator::kReverse;
  } else {
    return reverse;
  }
}

}  // namespace mgpu
