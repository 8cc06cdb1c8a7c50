// The columns of segments of rows are reduced separately.
#pragma once

#include "ops/reduce/operands.h"

namespace mgpu {

struct RowOperator;
struct RowTiling;

// Item i of a problem is row i of the problem's x or, with `indices`, row indices[i], or none if x has no such row.
struct RowSources {
  int64_t width;   // elements of a row
  int64_t count;   // rows of a problem's x
  int64_t length;  // items of a problem
  int64_t problems;
  IndexVector indices;  // [problems, length], or null

  static constexpr int64_t kNone = -1;

  // Whether the numbers of rows that items have by index may need more than 32 bits.
  MGPU_HOST_DEVICE bool has_long_numbers() const { return indices.data && problems * count > int64_t{~0u}; }
  MGPU_HOST_DEVICE int64_t problem_begin(int64_t i) const { return problems == 1 ? 0 : i / length * count; }

  // The row of item i among the rows of all problems, or kNone.
  MGPU_HOST_DEVICE int64_t operator()(int64_t i) const {
    if (!indices.data) return i;
    const int64_t row = indices[i];
    return row >= 0 && row < count ? problem_begin(i) + row : kNone;
  }
};

// Operands: x [.., n, width]; heads [.., m], where segments begin; indices [.., k] of rows, or absent; count [.., 1],
// the number of live items, or absent. Attributes: op, wide. Result: [.., m, width].
struct ReduceRowsOperands : OperatorOperands {
  RowSources sources;
  void* result;
  bool wide_result;

  explicit ReduceRowsOperands(const Call& call);
  ReduceRowsOperands(const Call& call, const Arguments& in);

  SegmentEnds ends() const { return {segments}; }
  bool is_empty() const { return segments.rows * segments.heads_count * sources.width == 0; }

  // These are for CUDA (plan.h).
  RowTiling tiling(const RowOperator& op) const;
  struct Scratch;
  Scratch layout(Workspace& workspace, const RowOperator& op) const;
};

// gathered_rows has one more operand: weights [.., items, groups] of x's type, or absent. Each item has a weight for
// each group of neighbouring columns. Only sums have weights.
struct GatheredRowsOperands : ReduceRowsOperands {
  const void* weights = nullptr;
  int64_t groups = 0;

  explicit GatheredRowsOperands(const ReduceRowsOperands& unweighted) : ReduceRowsOperands(unweighted) {}
  explicit GatheredRowsOperands(const Call& call);
  GatheredRowsOperands(const Call& call, const Arguments& in);
};

}  // namespace mgpu
