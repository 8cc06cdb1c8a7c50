// The call of segmented_softmax as its kernels see it.
#pragma once

#include "algorithm/segments.h"
#include "cuda/policy.h"
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
  int64_t tiles() const { return ceil_div<int64_t>(segments.total(), softmax_shape(accumulator_bytes()).tile()); }

  // Scratch memory of the CUDA kernels. Of each tile: the listed heads before it, where its first and its last head
  // are, and the maximum and sum of what it has of the segment that is open at its begin and at its end, first alone,
  // then of the whole segment.
  struct Scratch {
    int64_t* listed;
    int* first_head;
    int* last_head;
    char* opening;
    char* open;
  };
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
