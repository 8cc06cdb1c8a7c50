// The problem of the kernels of order_statistics.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/block/partition.cuh"
#include "ops/order_statistics/plan.h"

namespace mgpu::cuda::ranking {

constexpr int kRankThreads = kRankDigits / 4;  // each adds up four digits
constexpr int kRankWarps = kRankThreads / kWarp;

template <typename Order_>
struct RanksTask {
  using Order = Order_;
  using Word = typename Order::Word;

  OrderStatisticsOperands operands;
  OrderStatisticsOperands::Scratch scratch;
  Order order;
  int shift;  // the lowest bit of a pass's digit
  int digit_bits;
  bool is_first;
  int64_t parts;  // the parts of a row
  int64_t part;   // items per block
};

// Whether this block is the last one of its row to finish, which can read what the other blocks wrote. All threads of
// each block call it once.
template <typename Order>
__device__ bool is_last_of_row(const RanksTask<Order>& task, int64_t row) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(task.scratch.counted + row, 1u) == static_cast<unsigned>(task.parts) - 1;
    if (is_last) task.scratch.counted[row] = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

}  // namespace mgpu::cuda::ranking
