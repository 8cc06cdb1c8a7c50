// join_tiles writes the output rows of light tiles, and join_heavy_tiles those of heavy tiles.
// finish_rows sets the counts, and fills the slots after the rows from A.
#pragma once

#include "cuda/block/tail.cuh"
#include "ops/join/tile.cuh"

namespace mgpu::cuda::joining {

template <typename Order>
__global__ void __launch_bounds__(Problem<Order>::kThreads, Problem<Order>::kBlocksPerProcessor)
    join_tiles(const __grid_constant__ Problem<Order> problem) {
  __shared__ Shared<Order> shared;
  wait_for_last_kernel();
  start_next_kernel();
  const JoinOperands::Scratch& scratch = problem.scratch;
  if (threadIdx.x == 0) shared.plan = plan_tile(problem, static_cast<unsigned>(draw_ticket(scratch.zeroed)));
  __syncthreads();
  Tile<Order> tile(problem, shared);
  const Plan& plan = tile.plan;
  const Sums sums = problem.keep_b ? tile.template find_partners<true>() : tile.template find_partners<false>();
  const bool is_light = sums.rows() <= kJoinHeavy;
  const int64_t total = is_light ? sums.rows() : tile.count_many_rows();
  // The thread that publishes the count also writes the sum to the same word, later, so that the sum cannot overtake
  // the count.
  if (threadIdx.x == 0) publish_count(scratch.row_words, plan.tile, plan.is_first, total);
  if (threadIdx.x == kWarp && problem.keep_b) {
    publish_count(scratch.unmatched_words, plan.tile, plan.is_first, sums.unmatched());
  }
  if (is_light) tile.template place<false>(0, total);

  if (threadIdx.x < kWarp) {
    const int64_t slot = count_before(scratch.row_words, plan.tile, plan.is_first, total);
    if (threadIdx.x == 0) {
      shared.slot = slot;
      if (plan.is_last) scratch.paired[plan.row] = add_counts(slot, total);
    }
  } else if (threadIdx.x < 2 * kWarp && problem.keep_b) {
    const int64_t slot = count_before(scratch.unmatched_words, plan.tile, plan.is_first, sums.unmatched());
    if (threadIdx.x == kWarp) {
      shared.unmatched_slot = slot;
      if (plan.is_last) scratch.unmatched[plan.row] = slot + sums.unmatched();
    }
  }
  __syncthreads();

  if (sums.unmatched() > 0) tile.list_unmatched(shared.unmatched_slot);
  const int64_t rows = clamp<int64_t>(problem.size - shared.slot, 0, total);
  if (rows == 0) return;
  if (is_light && problem.a_indices.wide) {
    tile.template write<false, int64_t>(static_cast<int>(rows), sums.entries(), shared.slot);
  } else if (is_light) {
    tile.template write<false, int32_t>(static_cast<int>(rows), sums.entries(), shared.slot);
  } else if (threadIdx.x == 0) {
    const uint64_t units = ceil_div(rows, kJoinUnit);
    const uint64_t state = atomicAdd(reinterpret_cast<unsigned long long*>(scratch.heavy_state), kHeavyTile + units);
    scratch.heavy[state / kHeavyTile] = {static_cast<int64_t>(state % kHeavyTile), shared.slot, rows, plan.tile};
  }
}

template <typename Order>
__global__ void __launch_bounds__(Problem<Order>::kThreads, 2)
    join_heavy_tiles(const __grid_constant__ Problem<Order> problem) {
  __shared__ Shared<Order> shared;
  wait_for_last_kernel();
  start_next_kernel();
  const uint64_t state = *problem.scratch.heavy_state;
  const int64_t heavy_tiles = static_cast<int64_t>(state / kHeavyTile);
  const int64_t units = static_cast<int64_t>(state % kHeavyTile);
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int64_t next = partition_point(int64_t{0}, heavy_tiles,
                                         [&](int64_t i) { return problem.scratch.heavy[i].first_unit <= unit; });
    const JoinHeavyTile heavy = problem.scratch.heavy[next - 1];
    const int64_t begin = (unit - heavy.first_unit) * kJoinUnit;
    const int64_t end = minimum(begin + kJoinUnit, heavy.rows);
    if (threadIdx.x == 0) shared.plan = plan_tile(problem, static_cast<unsigned>(heavy.tile));
    __syncthreads();
    Tile<Order> tile(problem, shared);
    const Sums sums = tile.template find_partners<false>();
    tile.count_many_rows();
    tile.template place<true>(begin, end);
    if (problem.a_indices.wide) {
      tile.template write<true, int64_t>(static_cast<int>(end - begin), sums.entries(), heavy.slot + begin);
    } else {
      tile.template write<true, int32_t>(static_cast<int>(end - begin), sums.entries(), heavy.slot + begin);
    }
    __syncthreads();
  }
}

static __global__ void finish_rows(const __grid_constant__ JoinOperands operands,
                                   const __grid_constant__ JoinOperands::Scratch scratch) {
  wait_for_last_kernel();
  const int64_t rows = operands.pair.rows;
  const auto unmatched = [&](int64_t row) { return operands.keep_b ? scratch.unmatched[row] : 0; };
  for (int64_t row = blockIdx.x * int64_t{kTailThreads} + threadIdx.x; row < rows;
       row += gridDim.x * int64_t{kTailThreads}) {
    operands.set_count(row, scratch.paired[row] + unmatched(row));
  }
  const IndexVector unmatched_items{scratch.unmatched_items.data, scratch.unmatched_items.wide};
  for_each_tail_slot(
      rows, operands.size, [&](int64_t row) { return scratch.paired[row]; },
      [&](int64_t row, int64_t slot) {
        const int64_t i = slot - scratch.paired[row];
        const int64_t out = row * operands.size + slot;
        operands.a_indices.set(out, -1);
        operands.b_indices.set(out, i < unmatched(row) && i < operands.pair.b.length
                                        ? unmatched_items[row * operands.pair.b.length + i]
                                        : -1);
      });
}

}  // namespace mgpu::cuda::joining
