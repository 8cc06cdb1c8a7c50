// Plans a round: finds the tiles that have something to merge, and splits the runs at their edges.
#pragma once

#include "cuda/block/copy_run.cuh"
#include "cuda/block/shuffle.cuh"
#include "ops/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

template <typename Order, typename Payload>
struct TileGroup {
  using P = Problem<Order, Payload>;
  bool active;
  int source;  // the buffer to read
  bool last_round;
  MergeGroup<int64_t> group;

  __device__ TileGroup(const TileDescriptor& descriptor, int64_t tile, int round)
      : active(round < descriptor.rounds),
        source((descriptor.rounds - round) & 1),
        last_round(round + 1 == descriptor.rounds),
        group(merge_group<int64_t>(descriptor.segment, descriptor.first_tile, P::kTile, tile, round)) {}

  // The items that the merge takes from the runs between two splits, for the outputs from `begin` on. `at` is the first
  // free place in shared memory, and is advanced.
  __device__ MergePiece piece(const P& problem, int begin, int end, const int64_t* split_begin,
                              const int64_t* split_end, int& at) const {
    using Word = typename Order::Word;
    constexpr int kItems = kChunkBytes / sizeof(Word);
    MergePiece piece;
    piece.begin = begin;
    piece.source = static_cast<int16_t>(source);
    piece.decode = last_round;
    const auto* const codes = problem.buffers[source].keys;
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      // Heads that contradict each other may make runs that are not sorted, so splits are clamped to the runs.
      const int64_t first = split_begin ? minimum(split_begin[k], group.length(k)) : 0;
      const int64_t last = split_end ? minimum(split_end[k], group.length(k)) : group.length(k);
      const int count = static_cast<int>(clamp<int64_t>(last - first, 0, maximum(end - begin, 0)));
      const int64_t position = group.bounds[k] + first;
      const int chunk = round_up_to_chunk<Word>(at);
      at = chunk + (count > 0 ? place_in_chunk(codes, position) : 0);
      piece.at[k] = static_cast<uint16_t>(at);
      piece.count[k] = static_cast<uint16_t>(count);
      piece.from[k] = position - at;
      if (k == 0) piece.whole_begin = chunk + (piece.from[k] + chunk < group.begin() ? kItems : 0);
      at += count;
      begin += count;
      const int end = round_up_to_chunk<Word>(at);
      if (count > 0 || k == 0) piece.whole_end = end - (piece.from[k] + end > group.end() ? kItems : 0);
    }
    piece.end = begin;
    return piece;
  }
};

constexpr int kPlanThreads = 256;

// kSplitLanes lanes split the runs
// at an edge, with one sample each.
constexpr int kSamples = 4;
constexpr int kSplitLanes = kRuns * kSamples;
constexpr int kPlanEdges = kPlanThreads / kSplitLanes;
constexpr int kPlanTiles = kPlanEdges - 1;  // the tiles of a block, which share the edges between them

// Finds how many items of each run are among the group's first `rank` items. kSplitLanes neighbouring lanes share a
// group and its answer. All lanes of the warp take part.
template <typename Index, typename Order>
__device__ void split_runs(const Order& order, const typename Order::Word* codes, const MergeGroup<int64_t>& group,
                           int64_t rank, int64_t (&answer)[kRuns]) {
  using Word = typename Order::Word;
  constexpr unsigned kGroup = (1u << kSplitLanes) - 1;
  const int lane = threadIdx.x % kSplitLanes;
  const int shift = threadIdx.x % kWarp - lane;
  const int run = lane / kSamples;
  const int s = lane % kSamples;
  const auto pick = [&](const auto& values) {
    return run == 0 ? values[0] : run == 1 ? values[1] : run == 2 ? values[2] : values[3];
  };
  Index lengths[kRuns];
#pragma unroll
  for (int j = 0; j < kRuns; ++j) lengths[j] = static_cast<Index>(group.length(j));
  RunSplit<Index, kSamples> split(lengths, static_cast<Index>(rank));
  const Word* const own = codes + pick(group.bounds);
  for (;;) {
    const Index begin = pick(split.begin);
    const Index end = pick(split.end);
    const bool open = begin < end;
    if (!__any_sync(0xffffffffu, open)) break;
    const Word code = open ? own[split.sample(begin, end, s)] : Word{0};
    const int verdict = split.judge(
        run, s, code,
        [&](int j, int other) {
          const int from = shift + j * kSamples + other;
          if constexpr (sizeof(Word) == 16) {
            return shuffle(code, from);
          } else {
            return static_cast<Word>(__shfl_sync(0xffffffffu, code, from));
          }
        },
        [&](Word a, Word b) { return order.less(a, b); });
    const unsigned in = __ballot_sync(0xffffffffu, open && verdict > 0);
    const unsigned out = __ballot_sync(0xffffffffu, open && verdict < 0);
    if ((in | out) == 0) break;  // the runs are not sorted
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      constexpr unsigned kOfRun = (1u << kSamples) - 1;
      split.narrow(j, __popc((in >> shift & kGroup) >> (j * kSamples) & kOfRun),
                   __popc((out >> shift & kGroup) >> (j * kSamples) & kOfRun));
    }
  }
  split.finish(lengths);
#pragma unroll
  for (int j = 0; j < kRuns; ++j) answer[j] = split.begin[j];
}

// A segment that crosses one edge, and has at most this many bytes of codes, is merged by a warp of the planning
// kernel.
constexpr int kShortBytes = 2560;

template <typename Order>
__device__ bool is_short(const TileDescriptor& descriptor) {
  return descriptor.rounds == 1 &&
         descriptor.segment.size() <= kShortBytes / static_cast<int>(sizeof(typename Order::Word));
}

// The place of item i in the merge of sorted runs: its place in its own run plus the number of items before it in each
// other run. Run k is codes[bounds[k] .. bounds[k + 1]).
template <int kCount, typename Order>
__device__ __forceinline__ int merged_place(const Order& order, const typename Order::Word* codes,
                                            const int (&bounds)[kCount + 1], int i) {
  const auto code = codes[i];
  int place = bounds[0];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int begin = bounds[k], end = bounds[k + 1];
    int rank = i - begin;
    if (i < begin) {
      rank = partition_point(begin, end, [&](int j) { return order.less(codes[j], code); }) - begin;
    } else if (i >= end) {
      rank = partition_point(begin, end, [&](int j) { return !order.less(code, codes[j]); }) - begin;
    }
    place += rank;
  }
  return place;
}

// One warp calls it; `codes` has room for the segment's codes.
template <typename Order, typename Payload>
__device__ void merge_by_rank(const Problem<Order, Payload>& problem, Range<int64_t> segment, int64_t edge,
                              typename Order::Word* codes) {
  const Buffer<Order, Payload>& source = problem.buffers[1];
  const Buffer<Order, Payload>& target = problem.buffers[0];
  const Order order = problem.order;
  const int size = static_cast<int>(segment.size());
  const int bounds[3] = {0, static_cast<int>(edge - segment.begin), size};
  __syncwarp();  // the warp's previous merge has read its codes
  for (int i = threadIdx.x % kWarp; i < size; i += kWarp) codes[i] = source.keys[segment.begin + i];
  __syncwarp();
  for (int i = threadIdx.x % kWarp; i < size; i += kWarp) {
    const int place = merged_place<2>(order, codes, bounds, i);
    target.keys[segment.begin + place] = order.decode(codes[i]);
    if constexpr (Problem<Order, Payload>::kHasPayload) {
      target.payload[segment.begin + place] = source.payload[segment.begin + i];
    }
  }
}

template <typename Order, typename Payload>
__global__ void __launch_bounds__(kPlanThreads, 4)
    plan_tiles(const __grid_constant__ Problem<Order, Payload> problem, int round) {
  using P = Problem<Order, Payload>;
  constexpr int kWarps = kPlanThreads / kWarp;
  __shared__ typename Order::Word short_codes[kWarps][kShortBytes / sizeof(typename Order::Word)];
  __shared__ int64_t splits[kPlanEdges][kRuns];
  if (round >= *problem.rounds) return;
  const int64_t first_tile = blockIdx.x * int64_t{kPlanTiles};
  {
    const int edge = threadIdx.x / kSplitLanes;
    const int64_t tile = minimum(first_tile + edge, problem.tiles);
    const TileDescriptor descriptor = problem.descriptors[tile];
    const TileGroup<Order, Payload> at(descriptor, tile, round);
    MergeGroup<int64_t> group{};
    int64_t rank = 0;
    if (at.active && !is_short<Order>(descriptor) && at.group.begin() < tile * P::kTile) {
      group = at.group;
      rank = tile * P::kTile - group.begin();
    }
    int64_t split[kRuns];
    const auto* const codes = problem.buffers[at.source].keys;
    if (__any_sync(0xffffffffu, group.end() - group.begin() > (int64_t{1} << 30))) {
      split_runs<int64_t>(problem.order, codes, group, rank, split);
    } else {
      split_runs<int>(problem.order, codes, group, rank, split);
    }
    if (threadIdx.x % kSplitLanes == 0) {
#pragma unroll
      for (int j = 0; j < kRuns; ++j) splits[edge][j] = split[j];
    }
  }
  if (round == 0) {
    for (int edge = threadIdx.x / kWarp; edge < kPlanTiles; edge += kWarps) {
      const int64_t tile = first_tile + edge;
      if (tile >= problem.tiles) break;
      const TileDescriptor descriptor = problem.descriptors[tile];
      if (is_short<Order>(descriptor) && descriptor.segment.begin < tile * P::kTile) {
        merge_by_rank(problem, descriptor.segment, tile * P::kTile, short_codes[threadIdx.x / kWarp]);
      }
    }
  }
  __syncthreads();
  const int64_t tile = first_tile + threadIdx.x;
  if (threadIdx.x >= kPlanTiles || tile >= problem.tiles) return;
  const int64_t origin = tile * P::kTile;
  const int64_t tile_end = origin + problem.tile_size(tile);
  const TileDescriptor left_of = problem.descriptors[tile];
  const TileDescriptor right_of = problem.descriptors[tile + 1];
  const bool other = right_of.segment.begin < tile_end && right_of.segment.begin >= left_of.segment.end;
  const TileGroup<Order, Payload> left(left_of, tile, round);
  const TileGroup<Order, Payload> right(right_of, tile, round);
  const bool left_active = left.active && !is_short<Order>(left_of);
  const bool right_active = right.active && other && !is_short<Order>(right_of);
  if (!left_active && !right_active) return;
  MergePlan plan{origin, {{0, 0}, {P::kTile, 0}}};
  int at = 0;
  if (left_active) {
    plan.pieces[0] = left.piece(problem, 0, static_cast<int>(minimum(tile_end, left.group.end()) - origin),
                                left.group.begin() < origin ? splits[threadIdx.x] : nullptr,
                                left.group.end() > tile_end ? splits[threadIdx.x + 1] : nullptr, at);
  }
  if (right_active) {
    plan.pieces[1] = right.piece(problem, static_cast<int>(right.group.begin() - origin),
                                 static_cast<int>(minimum(tile_end, right.group.end()) - origin), nullptr,
                                 right.group.end() > tile_end ? splits[threadIdx.x + 1] : nullptr, at);
  }
  problem.plans[atomicAdd(&problem.planned[round], 1)] = plan;
}

}  // namespace mgpu::cuda::sorting
