// Rows are combined by their ids, which are in any order.
#pragma once

#include "ops/common/operators.h"

namespace mgpu {

class Arguments;

// Operands: x [.., n, width]; ids [.., n]; count [.., 1], the number of live rows, or absent. Attributes: op, wide,
// size. Result: [.., size, width]. A row whose id is not in [0, size) is ignored.
struct ReduceByIdOperands : OperatorOperands {
  int64_t width;
  int64_t size;
  int64_t x_stride;  // from problem to problem, in rows
  IndexVector ids;
  int64_t ids_stride;
  void* result;
  bool wide_result;

  explicit ReduceByIdOperands(const Call& call);
  ReduceByIdOperands(const Call& call, const Arguments& in);

  // The number of states of a problem's results.
  int64_t slots() const { return size * width; }

  // The number of parts of a problem's rows on CUDA, one per block, if items are combined in order.
  int64_t parts() const;

  // Whether CUDA combines states by atomic operations (combine_by_id.cuh).
  bool in_any_order(const Call& call) const;

  // Whether these are sums of floats of up to 32 bits, which CUDA adds up as integers.
  bool sums_exactly() const;

  // Whether the shapes are those for tables of digits (sum_by_digits.cuh).
  bool sums_many() const;

  // Whether there are few enough items for sum_ranges (sum_by_id.cuh).
  bool sums_few() const;

  // Scratch memory of the CUDA kernels: the states of all results, once or for each part of the rows; for exact sums,
  // the limbs of all results, and a mask of those in use.
  char* layout(Workspace& workspace, const Call& call) const;
};

}  // namespace mgpu
