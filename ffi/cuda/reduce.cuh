// The kernels of reduce: blocks reduce chunks of a fixed size, then a block a row reduces the chunks' states, so that
// the tree depends on the shape alone. Of short rows, a warp reduces one or several.
#pragma once

#include "cuda/cta/shuffle.cuh"
#include "cuda/cta/vectors.cuh"
#include "operands/reduce.h"

namespace mgpu::cuda::reducing {

constexpr int kThreads = 256;

template <typename Operator>
struct Reduction {
  const typename Operator::Element* x;
  bool aligned;
  Segments segments;
  int64_t chunk_items;
  int64_t chunks;  // of a row
  typename Operator::State* states;
  ResultVector<Operator> result;
};

// The combination of all threads' states, in thread 0. `shared` has room for a state a warp.
template <typename Operator>
__device__ typename Operator::State fold_block(const Operator& op, typename Operator::State state,
                                               typename Operator::State* shared) {
  const auto combine = [&](const auto& a, const auto& b) { return op.combine(a, b); };
  const int lane = threadIdx.x % kWarp;
  state = fold_warp(state, combine);
  if (lane == 0) shared[threadIdx.x / kWarp] = state;
  __syncthreads();
  if (threadIdx.x >= kWarp) return state;
  return fold_warp(lane < blockDim.x / kWarp ? shared[lane] : op.identity(), combine);
}

template <typename Operator>
__global__ void __launch_bounds__(kThreads) reduce_chunks(Reduction<Operator> reduction, Operator op) {
  __shared__ typename Operator::State shared[kThreads / kWarp];
  const int64_t row = blockIdx.x / reduction.chunks;
  const int64_t chunk = blockIdx.x - row * reduction.chunks;
  const int64_t row_begin = row * reduction.segments.length;
  const int64_t live = reduction.segments.live(row);
  const int64_t begin = row_begin + minimum(live, chunk * reduction.chunk_items);
  const int64_t end = row_begin + minimum(live, (chunk + 1) * reduction.chunk_items);
  const auto part = fold_strided(op, reduction.x, reduction.aligned, begin, end, threadIdx.x, kThreads);
  const auto state = fold_block(op, part, shared);
  if (threadIdx.x != 0) return;
  if (reduction.chunks == 1) {
    reduction.result.store(row, op.finish(state, row_begin));
  } else {
    reduction.states[blockIdx.x] = state;
  }
}

template <typename Operator>
__global__ void reduce_states(Reduction<Operator> reduction, Operator op) {
  __shared__ typename Operator::State shared[kWarp];
  const int64_t row = blockIdx.x;
  auto state = op.identity();
  for (int64_t i = threadIdx.x; i < reduction.chunks; i += blockDim.x) {
    state = op.combine(state, reduction.states[row * reduction.chunks + i]);
  }
  state = fold_block(op, state, shared);
  if (threadIdx.x == 0) reduction.result.store(row, op.finish(state, row * reduction.segments.length));
}

// `lanes` neighbouring lanes, a power of two, reduce a row.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) reduce_short_rows(Reduction<Operator> reduction, int lanes, Operator op) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const int64_t row_begin = row * reduction.segments.length;
  auto state = op.identity();
  if (row < reduction.segments.rows) {
    state = fold_strided(op, reduction.x, reduction.aligned, row_begin, row_begin + reduction.segments.live(row),
                         threadIdx.x % lanes, lanes);
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) state = op.combine(state, shuffle_down(state, distance));
  if (row < reduction.segments.rows && threadIdx.x % lanes == 0) {
    reduction.result.store(row, op.finish(state, row_begin));
  }
}

}  // namespace mgpu::cuda::reducing
