#include "ops/bulk/routes.cuh"
#include "ops/move_rows/launch.h"
#include "runtime/operations.h"

namespace mgpu::cuda {

namespace {

template <bool kInserts>
void run(const Call& call, cudaStream_t stream) {
  const BulkOperands operands(call, kInserts);
  move_rows(call, operands, BulkRoute<kInserts>{operands.x, operands.values, operands.fill, operands.out}, stream);
}

}  // namespace

void bulk_remove(const Call& call, cudaStream_t stream) { run<false>(call, stream); }
void bulk_insert(const Call& call, cudaStream_t stream) { run<true>(call, stream); }

}  // namespace mgpu::cuda
