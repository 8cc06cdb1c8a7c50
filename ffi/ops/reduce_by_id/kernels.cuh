// For few results. A slot is an id and a column. Each warp has the states of all slots in shared memory, and combines
// its items in a fixed order. Then the states of a part's warps are combined, and finally those of a problem's parts.
// A block takes a part. If the device has no room for the states of all its warps, it takes some of them at a time.
#pragma once

#include "cuda/block/shuffle.cuh"
#include "cuda/ptx.cuh"
#include "ops/reduce_by_id/plan.h"

namespace mgpu::cuda::id_reducing {

constexpr int kInFlight = 4;  // items per lane
constexpr int kCombineWarps = 32;

template <typename Operator>
struct IdReduction {
  using State = typename Operator::State;
  const typename Operator::Element* x;
  IndexVector ids;
  int64_t x_stride;
  int64_t ids_stride;
  Segments segments;
  int64_t width;
  int64_t size;
  int64_t slots;
  int64_t parts;
  int warps;      // per part; a block with fewer takes several turns
  State* states;  // [problems, parts, slots]
  ResultVector<Operator> result;

  MGPU_HOST_DEVICE int64_t warp_bytes() const {
    return kIdMasks * int64_t{4} + ceil_div<int64_t>(slots * sizeof(State), 16) * 16;
  }
};

template <typename Operator>
__global__ void reduce_parts(IdReduction<Operator> reduction, Operator op) {
  start_next_kernel();
  using State = typename Operator::State;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t slots = reduction.slots;
  char* const memory = reinterpret_cast<char*>(shared);
  const auto table_of = [&](int w) {
    return reinterpret_cast<State*>(memory + w * reduction.warp_bytes() + kIdMasks * 4);
  };
  auto* const masks = reinterpret_cast<unsigned*>(memory + warp * reduction.warp_bytes());
  State* const table = table_of(warp);
  for (int i = lane; i < kIdMasks; i += kWarp) masks[i] = 0;

  const int64_t problem = blockIdx.x / static_cast<unsigned>(reduction.parts);
  const int64_t part = blockIdx.x - problem * reduction.parts;
  const int64_t live = reduction.segments.live(problem);
  const int64_t workers = reduction.parts * reduction.warps;
  const int64_t share = ceil_div(ceil_div(reduction.segments.length, workers), int64_t{kWarp}) * kWarp;
  const auto* const x = reduction.x + problem * reduction.x_stride * reduction.width;
  const IndexVector ids = reduction.ids.from(problem * reduction.ids_stride);

  // A lane with the slot -1 adds nothing.
  const auto add = [&](int slot, const State& state) {
    if (__all_sync(0xffffffffu, slot == __shfl_sync(0xffffffffu, slot, 0))) {
      const State all = fold_warp(state, [&](const State& a, const State& b) { return op.combine(a, b); });
      if (lane == 0 && slot >= 0) table[slot] = op.combine(table[slot], all);
      __syncwarp();
      return;
    }
    unsigned* const lane_mask = masks + slot % kIdMasks;
    if (slot >= 0) atomicOr(lane_mask, 1u << lane);
    __syncwarp();
    const unsigned lanes = slot >= 0 ? *lane_mask : 0;
    __syncwarp();
    if (slot >= 0) *lane_mask = 0;
    const int turn = __popc(lanes & ((1u << lane) - 1));
    for (int i = 0; __any_sync(0xffffffffu, slot >= 0 && turn >= i); ++i) {
      if (slot >= 0 && turn == i) table[slot] = op.combine(table[slot], state);
      __syncwarp();
    }
  };

  const int block_warps = static_cast<int>(blockDim.x) / kWarp;
  State* const to = reduction.states + (problem * reduction.parts + part) * slots;
#pragma unroll 1
  for (int first_warp = 0; first_warp < reduction.warps; first_warp += block_warps) {
    const int warps = minimum(block_warps, reduction.warps - first_warp);
    const int64_t first_row = minimum((part * reduction.warps + first_warp + warp) * share, live);
    const int64_t last_row = minimum(first_row + share, live);
    const int64_t items = warp < warps ? (last_row - first_row) * reduction.width : 0;
    for (int64_t i = lane; i < slots; i += kWarp) table[i] = op.identity();
    __syncwarp();
#pragma unroll 1
    for (int64_t begin = 0; begin < items; begin += kInFlight * kWarp) {
      int places[kInFlight];
      State states[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int64_t item = begin + k * kWarp + lane;
        places[k] = -1;
        states[k] = op.identity();
        if (item >= items) continue;
        const int64_t row = reduction.width == 1 ? item : item / reduction.width;
        const int64_t id = ids[first_row + row];
        if (id >= 0 && id < reduction.size) {
          places[k] = static_cast<int>(id * reduction.width + (item - row * reduction.width));
        }
        states[k] = op.extract(x[first_row * reduction.width + item], first_row + row);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (begin + k * kWarp < items) add(places[k], states[k]);
      }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < slots; i += blockDim.x) {
      State state = first_warp == 0 ? table_of(0)[i] : op.combine(to[i], table_of(0)[i]);
      for (int w = 1; w < warps; ++w) state = op.combine(state, table_of(w)[i]);
      to[i] = state;
    }
    __syncthreads();
  }
}

// A lane has one result, and the warps of a block share the parts.
template <typename Operator>
__global__ void __launch_bounds__(kCombineWarps* kWarp) combine_parts(IdReduction<Operator> reduction, Operator op) {
  wait_for_last_kernel();
  using State = typename Operator::State;
  __shared__ State sums[kCombineWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(reduction.slots, kWarp));
  const int64_t problem = blockIdx.x / blocks;
  const int64_t slot = int64_t{blockIdx.x % blocks} * kWarp + lane;
  State state = op.identity();
  if (slot < reduction.slots) {
    const State* const from = reduction.states + problem * reduction.parts * reduction.slots + slot;
#pragma unroll 8
    for (int64_t part = warp; part < reduction.parts; part += kCombineWarps) {
      state = op.combine(state, from[part * reduction.slots]);
    }
  }
  sums[warp][lane] = state;
  __syncthreads();
  if (warp > 0 || slot >= reduction.slots) return;
  for (int w = 1; w < kCombineWarps; ++w) state = op.combine(state, sums[w][lane]);
  reduction.result.store(problem * reduction.slots + slot, op.finish(state, 0));
}

}  // namespace mgpu::cuda::id_reducing
