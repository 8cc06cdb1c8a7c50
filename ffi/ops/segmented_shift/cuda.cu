#include "ops/move_rows/launch.h"
#include "ops/segmented_shift/routes.cuh"
#include "runtime/operations.h"

namespace mgpu::cuda {

void segmented_shift(const Call& call, cudaStream_t stream) {
  const SegmentedShiftOperands operands(call);
  operands.work.offsets.wide ? move_rows(call, operands, ShiftRoute<int64_t>(operands), stream)
                             : move_rows(call, operands, ShiftRoute<int32_t>(operands), stream);
}

}  // namespace mgpu::cuda
