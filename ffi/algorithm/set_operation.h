// The four operations on sorted multisets as one walk along the balanced path.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

enum class SetOperation : int64_t { kIntersection, kUnion, kDifference, kSymmetricDifference };

struct SetRule {
  bool pairs;
  bool a_unpaired;
  bool b_unpaired;

  static constexpr SetRule of(SetOperation operation) {
    return {operation == SetOperation::kIntersection || operation == SetOperation::kUnion,
            operation != SetOperation::kIntersection,
            operation == SetOperation::kUnion || operation == SetOperation::kSymmetricDifference};
  }
};

// Takes the smaller of the next two items, or both if they are a pair.
// Members are 0 or 1.
struct SetStep {
  int take_a;
  int take_b;
  int keep;  // whether the result keeps the item taken (of a pair, A's item)
};

// a_first is 1 if A's next item is less than B's, b_first if it is greater; both are 0 if they are equal.
MGPU_HOST_DEVICE SetStep set_step(int a_first, int b_first, SetRule rule) {
  const int pair = (a_first | b_first) ^ 1;
  return {b_first ^ 1, a_first ^ 1, (a_first & rule.a_unpaired) | (b_first & rule.b_unpaired) | (pair & rule.pairs)};
}

}  // namespace mgpu
