#pragma once

#include "algorithm/segments.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;
struct SoftmaxTiling;

// The function of rows x. The last three are linear maps of tangents t, where x is the result of the softmax or of its
// logarithm: the derivative of the softmax, which is its own transpose; the derivative of the logarithm; and the
// transpose of this derivative.
enum class SoftmaxRule { kSoftmax, kLogSoftmax, kSoftmaxTangent, kLogTangent, kLogCotangent };

// Operands: x [.., n, width], of floats; t, the tangents, like x, or absent if the rule has none; heads [.., m]; count
// [.., 1] or absent. Attribute: rule. Result: [.., n, width].
struct SegmentedSoftmaxOperands {
  DType dtype;
  Segments segments;
  int64_t width;
  SoftmaxRule rule;
  const void* x;
  const void* t;
  void* result;

  explicit SegmentedSoftmaxOperands(const Call& call);

  // These are for CUDA (plan.h).
  SoftmaxTiling tiling() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
