// Intervals may overlap, and are in any order.
#pragma once

#include "ops/common/operators.h"

namespace mgpu {

class Arguments;

// Operands: x [.., n, width]; starts [.., k]; ends [.., k]; count [.., 1], the number of live rows, or absent.
// Attribute: op. Result [.., k, width]: for each interval, cut to the live rows, the combination of its rows.
struct IntervalReduceOperands : OperatorOperands {
  int64_t width;  // elements of a row
  int64_t count;  // intervals of a problem
  int64_t problems;
  int64_t x_stride;  // rows from problem to problem
  IndexVector starts, ends;
  int64_t starts_stride, ends_stride;
  void* result;
  bool wide_result;

  explicit IntervalReduceOperands(const Call& call);
  IntervalReduceOperands(const Call& call, const Arguments& in);

  // The rows of all problems or, if all problems share them, of one.
  MGPU_HOST_DEVICE int64_t rows() const { return x_stride == 0 ? segments.length : problems * segments.length; }
  MGPU_HOST_DEVICE Range<int64_t> interval(int64_t problem, int64_t i) const {
    const int64_t live = segments.live(problem);
    const int64_t begin = clamp<int64_t>(starts[problem * starts_stride + i], 0, live);
    return {begin, clamp<int64_t>(ends[problem * ends_stride + i], begin, live)};
  }

  // These are for CUDA (plan.h).
  struct Scratch;
  Scratch layout(Workspace& workspace, int64_t state_bytes) const;
};

}  // namespace mgpu
