#pragma once

#include "cuda/block/row_tile.cuh"

namespace mgpu::cuda {

// Replaces the thread's states of a row, lane.begin to `end`, by their scan, which restarts where is_head is true.
// Contains barriers, the last one after all states are written.
template <typename Operator, typename IsHead>
__device__ void scan_states(const Operator& op, const RowLane& lane, int end, typename Operator::State* states,
                            IsHead is_head) {
  using State = typename Operator::State;
  using Sums = Sums<Operator, true>;
  using Sum = typename Sums::Value;
  constexpr int kWarps = kRowThreads / kWarp;
  __shared__ Sum warp_sums[kWarps];
  State sum = op.identity();
  int first_head = end;  // the first head among the thread's items
  for (int i = lane.begin; i < end; ++i) {
    const bool restarts = is_head(i);
    sum = restarts || i == lane.begin ? states[i] : op.combine(sum, states[i]);
    states[i] = sum;
    if (restarts) first_head = minimum(first_head, i);
  }
  const Sums sums{op};
  const bool restarts = lane.begin == 0 || first_head < end;
  const auto in_warp = scan_warp<true>(op, sum, __ballot_sync(~0u, restarts));
  const Sum before_warp = scan_warps<kWarps>(warp_sums, in_warp.all, sums.identity(), sums).before;
  if (lane.begin > 0) {
    const State before = sums(before_warp, in_warp.before).state;
    for (int i = lane.begin; i < first_head; ++i) states[i] = op.combine(before, states[i]);
  }
  __syncthreads();
}

}  // namespace mgpu::cuda
