// The call of segmented_softmax as its kernels see it.
#pragma once

#include "algorithm/segments.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: x [.., n], of floats, heads [.., m], count [.., 1] or absent. Attribute: log. Result: [.., n].
struct SegmentedSoftmaxOperands {
  DType dtype;
  Segments segments;
  bool log;
  const void* x;
  void* result;

  explicit SegmentedSoftmaxOperands(const Call& call);

  int64_t accumulator_bytes() const { return dtype == DType::f64 ? 8 : 4; }

  // The plan on CUDA (plan.h).
  int64_t tiles() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
