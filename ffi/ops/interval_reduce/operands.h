// The call of interval_reduce as its kernel sees it: intervals of rows, which may overlap and are in any order.
#pragma once

#include "ops/common/operators.h"

namespace mgpu {

class Arguments;

// Operands: x [.., n, width], low [.., k], widths [.., k]. Attribute: op. Result [.., k, width]: for each interval, the
// combination of its rows. `low` is its first row, and `widths` the number of its rows.
struct IntervalReduceOperands : OperatorOperands {
  int64_t width;  // elements of a row
  int64_t count;  // intervals of a problem
  int64_t problems;
  int64_t x_stride;  // rows from problem to problem
  IndexVector low, widths;
  int64_t low_stride, widths_stride;
  void* result;
  bool wide_result;

  explicit IntervalReduceOperands(const Call& call);
  IntervalReduceOperands(const Call& call, const Arguments& in);

  int64_t length() const { return segments.length; }

  // The rows of interval i of a problem.
  Range<int64_t> interval(int64_t problem, int64_t i) const {
    const int64_t begin = clamp<int64_t>(low[problem * low_stride + i], 0, length());
    const int64_t rows = maximum<int64_t>(widths[problem * widths_stride + i], 0);
    return {begin, begin + minimum(rows, length() - begin)};
  }
};

}  // namespace mgpu
