// Sums of weighted items of one column: the product of a sparse matrix and a vector. The kernel takes the tiles of
// kernels.cuh, of one problem whose indices, heads, positions and states have 32 bits.
#pragma once

#include "ops/reduce_rows/kernels.cuh"

namespace mgpu::cuda::row_reducing {

// A thread's weighted items. All indices and weights are loaded before the first item.
template <typename Operator>
struct ThreadItems {
  using Element = typename Operator::Element;
  using State = typename Operator::State;
  static constexpr int kItems = kReduceRowsStagedUnits;
  const Element* x;
  uint32_t count;
  int left;  // items of the tile from the thread's first one on
  uint32_t indices[kItems];
  Element weights[kItems];

  __device__ __forceinline__ ThreadItems(const RowReduction<Operator>& reduction, const TileUnits& tile)
      : x(reduction.x),
        count(static_cast<uint32_t>(minimum(reduction.sources.count, int64_t{1} << 31))),
        left(tile.items - static_cast<int>(threadIdx.x)) {
    const auto* const from =
        static_cast<const uint32_t*>(reduction.sources.indices.data) + tile.first_item + threadIdx.x;
    const Element* const weights_from = reduction.weights + tile.first_item + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      indices[i] = kNoRow;
      if (i * kThreads < left) indices[i] = load_once(from + i * kThreads);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (i * kThreads < left) weights[i] = load_once(weights_from + i * kThreads);
    }
  }

  __device__ __forceinline__ void stage(const Operator& op, State* staged) const {
    Element items[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (indices[i] < count) items[i] = x[indices[i]];
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (i * kThreads >= left) break;
      const bool exists = indices[i] < count;
      staged[i * kThreads + threadIdx.x] = exists ? op.extract(items[i], 0) * op.extract(weights[i], 0) : State{};
    }
  }
};

// ends[i] becomes the number of the tile's items before its end i, and end_before the position of the end before end 0.
template <typename Operator>
__device__ __forceinline__ void list_column_ends(const RowReduction<Operator>& reduction, const TileUnits& tile,
                                                 int64_t& end_before, uint32_t* ends) {
  const Segments& segments = reduction.tiles.ends.segments;
  const int live = static_cast<int>(segments.live(0)), length = static_cast<int>(segments.length);
  const int count = static_cast<int>(segments.heads_count);
  const int first_end = static_cast<int>(tile.first_end), first_item = static_cast<int>(tile.first_item);
  const auto* const heads = static_cast<const int32_t*>(segments.heads.data);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) - 1; i < tile.ends; i += kThreads) {
    const int place = first_end + i;
    int position = place > count ? length : live;
    if (place >= 0 && place < count) position = clamp(heads[place], 0, live);
    if (i < 0) {
      end_before = position;
      continue;
    }
    ends[i] = static_cast<uint32_t>(clamp(position - first_item, 0, tile.items));
  }
}

// Completes the first closed sum of each thread with an end by the sums
// of earlier threads. Stores what the tile leaves for its neighbours.
template <typename Operator, typename State = typename Operator::State>
__device__ __forceinline__ void join_threads(const RowReduction<Operator>& reduction, bool has_end, State sum,
                                             uint32_t* first_closed) {
  __shared__ State warp_sums[kWarps];
  __shared__ bool warp_ended[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned ended_lanes = __ballot_sync(~0u, has_end);
  const unsigned ended_before = ended_lanes & ((1u << lane) - 1);
  const int first_lane = maximum(kWarp - 1 - __clz(ended_before | (has_end ? 1u << lane : 0)), 0);
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const State before = shuffle_up(sum, distance);
    if (lane - distance >= first_lane) sum = before + sum;
  }
  State before = shuffle_up(sum, 1);
  if (lane == 0) before = State{};
  if (lane == kWarp - 1) {
    warp_sums[warp] = sum;
    warp_ended[warp] = ended_lanes != 0;
  }
  __syncthreads();
  const auto add_warps = [&](State& state, bool has_ended) {
    for (int w = warp - 1; w >= 0 && !has_ended; --w) {
      state = warp_sums[w] + state;
      has_ended = warp_ended[w];
    }
    return has_ended;
  };
  if (has_end) {
    const bool before_ended = add_warps(before, ended_before != 0);
    const State closed = before + std::bit_cast<State>(*first_closed);
    if (before_ended) {
      *first_closed = std::bit_cast<uint32_t>(closed);
    } else {
      reduction.opening[blockIdx.x] = closed;
    }
  }
  if (threadIdx.x == kThreads - 1) {
    add_warps(sum, ended_lanes != 0);
    reduction.open[blockIdx.x] = sum;
  }
}

// A closed sum takes the place of its end in shared memory. Neighbouring threads then store neighbouring results.
template <typename Operator>
__global__ void __launch_bounds__(kThreads, kReduceRowsStagedBlocks)
    sum_weighted_column(RowReduction<Operator> reduction, Operator op) {
  using State = typename Operator::State;
  extern __shared__ uint4 shared[];
  __shared__ int worker_ends[kThreads + 1];
  __shared__ int64_t end_before;
  wait_for_last_kernel();
  start_next_kernel();
  const TileUnits tile = find_tile(reduction, blockIdx.x);
  uint32_t* const ends = reinterpret_cast<uint32_t*>(shared);
  State* const staged = reinterpret_cast<State*>(shared) + (reduction.tiles.units - tile.items);
  const ThreadItems<Operator> items(reduction, tile);
  list_column_ends(reduction, tile, end_before, ends);
  items.stage(op, staged);
  __syncthreads();
  share_ends(tile, ends, kThreads, reduction.worker_units, worker_ends);

  const int worker = static_cast<int>(threadIdx.x);
  const int first_end = worker_ends[worker], last_end = worker_ends[worker + 1];
  const int last_row = minimum((worker + 1) * reduction.worker_units, tile.size) - last_end;
  int end = first_end, next = end < last_end ? static_cast<int>(ends[end]) : kReduceRowsStagedBytes;
  State sum{};
#pragma unroll 1
  for (int row = minimum(worker * reduction.worker_units, tile.size) - end; row < last_row; ++row) {
    while (next <= row) {
      ends[end++] = std::bit_cast<uint32_t>(sum);
      sum = State{};
      next = end < last_end ? static_cast<int>(ends[end]) : kReduceRowsStagedBytes;
    }
    sum += staged[row];
  }
  for (; end < last_end; sum = State{}) ends[end++] = std::bit_cast<uint32_t>(sum);
  if (worker == 0) note_split(reduction, tile, blockIdx.x, end_before);
  join_threads(reduction, first_end < last_end, sum, ends + first_end);
  __syncthreads();
  // join_tiles stores what the first end closes. The first and the last end of the problem close nothing.
  const int64_t results_end = reduction.tiles.ends.segments.heads_count + 1 - tile.first_end;
  for (int i = 1 + worker; i < tile.ends && i < results_end; i += kThreads) {
    reduction.result.store(tile.first_end - 1 + i, op.finish(std::bit_cast<State>(ends[i]), 0));
  }
}

}  // namespace mgpu::cuda::row_reducing
