#pragma once

#include "cuda/block/count_look_back.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/tail.cuh"
#include "ops/sets/problem.cuh"
#include "ops/sets/walk.cuh"

namespace mgpu::cuda::set_operations {

// Publishes the number of the tile's kept items for later tiles, and returns it.
template <typename P, typename Order>
__device__ int keep_in_tile(const P& problem, const Plan& plan, const Order& order, Buffer<P>& buffer, int* warp_sums) {
  using Word = typename P::Word;
  using Taken = std::conditional_t<P::kHasPayload, uint32_t, Word>;
  constexpr int kItems = P::kItems;
  const int a_count = plan.runs.a_count, a_place = plan.runs.a_place;
  const int b_count = plan.runs.b_count, b_place = plan.runs.b_place;
  const auto less = [&](Word x, Word y) { return order.less(x, y); };
  const int total = a_count + b_count;
  const int diagonal = minimum(static_cast<int>(threadIdx.x) * kItems, total);
  bool open;
  const MergeCursor runs{a_place, a_place + a_count, b_place, b_place + b_count};
  const MergeCursor merge = shared_cursor<Buffer<P>::kRoom>(buffer.keys, runs, diagonal, less);
  const Split<int> split = balanced_cursor(buffer.keys, runs, merge, diagonal, open, less);
  const MergeCursor cursor{a_place + split.a, runs.a_end, b_place + split.b, runs.b_end};
  const MergeHeads<Word> heads(buffer.keys, cursor);
  Taken taken[kItems];
  const auto note = [&](int i, bool in_b, const MergeHeads<Word>& heads) {
    if constexpr (P::kHasPayload) {
      taken[i] = in_b ? heads.b : heads.a;
    } else {
      taken[i] = in_b ? heads.b_key : heads.a_key;
    }
  };
  const unsigned keep = walk<kItems>(heads, open, total - diagonal, kItems, problem.rule, less, note);
  const auto in_block = sum_block<P::kThreads / kWarp>(warp_sums, __popc(keep));
  int slot = in_block.before;
  const int kept = in_block.all;
  if (threadIdx.x == 0) publish_count(problem.counts_before, plan.tile, plan.is_first, kept);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!((keep >> i) & 1)) continue;
    if constexpr (P::kHasPayload) {
      buffer.sources[slot] = static_cast<uint16_t>(position_of(taken[i], buffer.keys));
    } else {
      buffer.keys[slot] = taken[i];
    }
    ++slot;
  }
  return kept;
}

template <typename P, typename Payload>
__device__ void load_payload(const P& problem, const Plan& plan, const Buffer<P>& buffer, int kept,
                             Payload (&moved)[P::kItems]) {
  // The position of the item at a place in shared memory is that place plus a_item or b_item.
  const int64_t a_item = plan.begin.a - plan.runs.a_place;
  const int64_t b_item = plan.begin.b - plan.runs.b_place;
  const auto values = [&](const SetsOperands::Rows& rows, int64_t item) {
    return static_cast<const Payload*>(rows.data) + plan.row * rows.stride + item;
  };
  const Payload* const a_values = values(problem.a_values, a_item);
  const Payload* const b_values = values(problem.b_values, b_item);
#pragma unroll
  for (int i = 0; i < P::kItems; ++i) {
    const int position = i * P::kThreads + threadIdx.x;
    if (position >= kept) continue;
    const int source = buffer.sources[position];
    const bool in_a = source < plan.runs.b_chunk;
    if (problem.gives_indices) {
      moved[i] = static_cast<Payload>(source + (in_a ? a_item : problem.tiles.pair.a.length + b_item));
    } else {
      moved[i] = (in_a ? a_values : b_values)[source];
    }
  }
}

template <typename P, typename Order>
__device__ void store_tile(const P& problem, const Plan& plan, const Order& order, const Buffer<P>& buffer, int kept,
                           int64_t& shared_slot) {
  [[maybe_unused]] typename P::Value moved[P::kItems];
  if constexpr (P::kHasPayload) load_payload(problem, plan, buffer, kept, moved);  // in flight during the look-back
  if (threadIdx.x < kWarp) {
    const int64_t before = count_before(problem.counts_before, plan.tile, plan.is_first, kept);
    if (threadIdx.x == 0) {
      shared_slot = before;
      if (plan.is_last) problem.counts.set(plan.row, before + kept);
    }
  }
  __syncthreads();
  const int64_t first = plan.row * problem.size + shared_slot;
  const int stored = static_cast<int>(clamp<int64_t>(problem.size - shared_slot, 0, kept));
#pragma unroll 4
  for (int position = threadIdx.x; position < stored; position += P::kThreads) {
    problem.keys[first + position] = order.decode(buffer.keys[P::kHasPayload ? buffer.sources[position] : position]);
  }
  if constexpr (P::kHasPayload) {
#pragma unroll
    for (int i = 0; i < P::kItems; ++i) {
      const int position = i * P::kThreads + threadIdx.x;
      if (position < stored) problem.payload[first + position] = moved[i];
    }
  }
}

// Without a payload, a block stores a tile after it has
// published the count of its next tile, so that the look-back
// seldom waits. With a payload, a block has one tile.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kThreads, Problem<Order, Payload>::kBlocksPerProcessor)
    keep_items(const __grid_constant__ Problem<Order, Payload> problem) {
  using P = Problem<Order, Payload>;
  constexpr int kPlanner = P::kThreads - 1;  // a thread of the last warp, because the first warp looks back
  extern __shared__ uint4 dynamic_shared[];
  Shared<P>& shared = *reinterpret_cast<Shared<P>*>(dynamic_shared);
  wait_for_last_kernel();
  start_next_kernel();
  const Order order = problem.tiles.order;
  const auto draw = [&] { return static_cast<unsigned>(draw_ticket(problem.ticket)); };
  const auto copy = [&](const Plan& plan, Buffer<P>& buffer) {
    start_copy<P::kThreads, Buffer<P>::kRoom>(problem.tiles.pair, plan.runs, buffer.keys);
  };

  if (threadIdx.x == kPlanner) shared.plans[0] = plan_tile(problem, draw());
  __syncthreads();
  copy(shared.plans[0], shared.buffers[0]);
  int kept_before = 0;
  for (unsigned turn = 0;; ++turn) {
    const Plan& plan = shared.plans[turn % 4];
    Plan& next = shared.plans[(turn + 1) % 4];
    Buffer<P>& buffer = shared.buffers[turn % P::kBuffers];
    Buffer<P>& other = shared.buffers[(turn + 1) % P::kBuffers];
    const bool exists = plan.exists;
    int kept = 0;
    if (exists) {
      unsigned ticket = 0;
      if (P::kBuffers > 1 && threadIdx.x == kPlanner) ticket = draw();
      finish_copy<P::kThreads>(plan.runs, order, buffer.keys);
      kept = keep_in_tile(problem, plan, order, buffer, shared.warp_sums);
      if (P::kBuffers > 1 && threadIdx.x == kPlanner) next = plan_tile(problem, ticket);
    }
    if constexpr (P::kBuffers == 1) {
      __syncthreads();
      store_tile(problem, plan, order, buffer, kept, shared.slot);
      break;
    }
    if (turn > 0) store_tile(problem, shared.plans[(turn - 1) % 4], order, other, kept_before, shared.slot);
    if (!exists) break;
    __syncthreads();
    copy(next, other);
    kept_before = kept;
  }
}

// A missing fill value means -1.
template <typename Word>
__global__ void fill_tails(Word* out, int64_t rows, int64_t size, IndexVector counts, SetsOperands::Rows fill) {
  wait_for_last_kernel();
  start_next_kernel();
  for_each_tail_slot(
      rows, size, [&](int64_t row) { return counts[row]; },
      [&](int64_t row, int64_t slot) {
        out[row * size + slot] =
            fill.data ? static_cast<const Word*>(fill.data)[row * fill.stride] : static_cast<Word>(-1);
      });
}

}  // namespace mgpu::cuda::set_operations
