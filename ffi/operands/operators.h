// What reductions and scans have alike.
#pragma once

#include "algorithm/operators.h"
#include "algorithm/segments.h"
#include "dtype.h"

namespace mgpu {

struct Array;
struct Call;
class Workspace;

// What every call with an operator has: the elements [.., n], the segments they fall into, and the operator.
struct OperatorOperands {
  OperatorKind kind;
  DType dtype;
  Segments segments;
  const void* x;

  OperatorOperands(const Call& call, const Array& elements, const Array* heads, const Array& count);

  // Calls visit(operator), of a few kinds. With kMerged, sum and product are one type of operator. dispatch_operator.h
  // defines it.
  template <bool kMerged, typename Visit>
  void dispatch(const Call& call, Visit visit) const;

  int64_t state_bytes(const Call& call) const;

  // Results have the elements' type, or are indices.
  void expect_result(const Call& call, const Array& result, int64_t size) const;
};

// Where results go: items of the operator's own type, or indices of 32 or 64 bits.
template <typename Operator>
struct ResultVector {
  using Result = typename Operator::Result;
  void* data;
  bool wide;

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

}  // namespace mgpu
