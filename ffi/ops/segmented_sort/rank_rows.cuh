// Sorts few items: each item finds its own position. Items are
// compared by Order::rank, the word that compares as a key does.
#pragma once

#include "cuda/block/partition.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/segmented_sort/row_problem.cuh"

namespace mgpu::cuda::sorting {

constexpr int kRankWarps = 32;

// A block places 32 items: lane i of each of its warps has the block's item i, and counts the items before it in the
// warp's part of the row.
template <typename P>
__global__ void __launch_bounds__(kRankWarps* kWarp) rank_rows(const __grid_constant__ P problem, int64_t row_groups) {
  using Word = typename P::Word;
  using Words = Vector<Word>;
  constexpr Word kGreatest = static_cast<Word>(~Word{0});
  __shared__ alignas(16) Word words[kRankWarps][kWarp];
  __shared__ int counts[kRankWarps][kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  const int64_t row_index = problem.segments.rows == 1 ? 0 : blockIdx.x / row_groups;
  const int group = static_cast<int>(blockIdx.x - row_index * row_groups);
  const int length = static_cast<int>(problem.segments.length);
  const LiveRow row = problem.row(row_index);
  const int live = static_cast<int>(row.live);
  const auto order = problem.order;
  const Word* const keys = problem.input.keys + row.begin;
  const int position = group * kWarp + lane;
  Word key{};
  [[maybe_unused]] typename P::Payload payload{};
  if (position < length) {
    key = keys[position];
    if constexpr (P::kHasPayload) {
      if (warp == 0) payload = problem.input_payload(row.begin, position);
    }
  }
  const Word mine = order.rank(order.encode(key));
  int count = 0;
  for (int part = warp; part * kWarp < live; part += warps) {
    const int other = part * kWarp + lane;
    words[warp][lane] = other < live ? order.rank(order.encode(keys[other])) : kGreatest;
    __syncwarp();
    const auto count_if = [&](auto is_before) {
#pragma unroll
      for (int i = 0; i < kWarp; i += Words::kItems) {
        const Words others = Words::load(words[warp], i);
#pragma unroll
        for (int k = 0; k < Words::kItems; ++k) count += is_before(i + k, others.items[k]);
      }
    };
    if (part < group) {
      count_if([&](int, Word word) { return word <= mine; });
    } else if (part > group) {
      count_if([&](int, Word word) { return word < mine; });
    } else {
      count_if([&](int i, Word word) { return (word < mine) | ((word == mine) & (i < lane)); });
    }
    __syncwarp();
  }
  counts[warp][lane] = count;
  __syncthreads();
  if (warp > 0 || position >= length) return;
  int rank = position;
  if (position < live) {
    rank = 0;
#pragma unroll 8
    for (int w = 0; w < warps; ++w) rank += counts[w][lane];
  }
  const Buffer<typename P::Order, typename P::Payload> target = problem.buffers[0];
  target.keys[row.begin + rank] = key;
  if constexpr (P::kHasPayload) target.payload[row.begin + rank] = payload;
}

// Advances the place of each item in each other run to the first code that is not below the item's limit. All searches
// go in step. The longest one is of `max_width` codes, and no place passes `high`.
template <typename Order, typename Word, int kOthers, int kItems>
__device__ __forceinline__ void narrow(const Order& order, const Word* codes, const Word (&limit)[kOthers][kItems],
                                       const int (&high)[kOthers], int max_width, int (&at)[kOthers][kItems]) {
#pragma unroll 1
  for (int stride = max_width == 0 ? 0 : 1 << (31 - __clz(max_width)); stride > 0; stride /= 2) {
    int next[kOthers][kItems];
    Word words[kOthers][kItems];
#pragma unroll
    for (int r = 0; r < kOthers; ++r) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        next[r][i] = minimum(at[r][i] + stride, high[r]);
        words[r][i] = __ldg(codes + next[r][i] - 1);
      }
    }
#pragma unroll
    for (int r = 0; r < kOthers; ++r) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (order.rank(words[r][i]) < limit[r][i]) at[r][i] = next[r][i];
      }
    }
  }
}

// Merges groups of four runs. A warp takes neighbouring items of one run, and finds the places of the first and the
// last of them in each other run. Each lane searches between these places for its own items.
template <typename P>
__global__ void __launch_bounds__(P::kMerge.threads, 4)
    merge_rows_by_rank(const __grid_constant__ P problem, int round) {
  using Word = typename P::Word;
  constexpr int kItems = P::kMerge.items;
  constexpr int kWarpItems = kWarp * kItems;
  constexpr int kOthers = kRuns - 1;
  constexpr int kLanes = kWarp / (2 * kRuns);  // two edges, four runs
  constexpr int kCellBits = ceil_log2(P::kCell);
  static_assert(P::kCell == 1 << kCellBits && P::kCell % kWarpItems == 0);
  const int lane = threadIdx.x % kWarp;
  const int64_t warp = (blockIdx.x * int64_t{P::kMerge.threads} + threadIdx.x) / kWarp;
  const int64_t row_warps = ceil_div<int64_t>(problem.segments.length, kWarpItems);
  const int64_t row_index = problem.segments.rows == 1 ? 0 : warp / row_warps;
  if (row_index >= problem.segments.rows) return;
  const int64_t first = (warp - row_index * row_warps) * kWarpItems;
  const LiveRow row = problem.row(row_index);
  if (round >= row.rounds || first >= row.live) return;
  const auto order = problem.order;
  const int shift = kCellBits + 2 * round;
  const int64_t group_begin = first >> (shift + 2) << (shift + 2);
  const int begin = static_cast<int>(first - group_begin);  // the warp's first item; positions count from the group
  const int own = begin >> shift;
  const int group_live = static_cast<int>(minimum<int64_t>(row.live - group_begin, int64_t{kRuns} << shift));
  const auto run_length = [&](int run) { return clamp(group_live - (run << shift), 0, 1 << shift); };
  const int count = minimum(kWarpItems, group_live - begin);
  const int source = (row.rounds - round) & 1;
  const Buffer<typename P::Order, typename P::Payload> from = problem.buffers[source];
  const Word* codes = from.keys + row.begin + group_begin;
  keep(codes);  // otherwise, the compiler would compute the address again for each load

  Word code[kItems], mine[kItems];
  [[maybe_unused]] typename P::Payload payload[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = begin + minimum(i * kWarp + lane, count - 1);
    code[i] = __ldg(codes + position);
    if constexpr (P::kHasPayload) payload[i] = from.payload[row.begin + group_begin + position];
    mine[i] = order.rank(code[i]);
  }
  // The place of each item in the other runs, as positions in
  // the group. An empty window lies at the warp's own items.
  int at[kOthers][kItems], high[kOthers];
  Word limit[kOthers][kItems];  // codes below it come before the item
  int rank = begin - (own << shift) + lane;
  int max_width = 0;
  {
    const int search = lane / kLanes;
    const int run = search % kRuns;
    const Word edge = order.rank(__ldg(codes + begin + (search < kRuns ? 0 : count - 1)));
    const Word* const other = codes + (run << shift);
    const int found = warp_partition_point<kLanes>(0, run == own ? 0 : run_length(run), [&](int i) {
      const Word word = order.rank(__ldg(other + i));
      return (word < edge) | ((word == edge) & (run < own));
    });
#pragma unroll
    for (int r = 0; r < kOthers; ++r) {
      const bool earlier = r < own;
      const int other_run = r + !earlier;
      const int low = __shfl_sync(0xffffffffu, found, other_run * kLanes);
      const int width = __shfl_sync(0xffffffffu, found, (kRuns + other_run) * kLanes) - low;
      const int start = width > 0 ? (other_run << shift) + low : begin + 1;
      max_width = maximum(max_width, width);
      high[r] = start + width;
      rank += low - start;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        limit[r][i] = static_cast<Word>(mine[i] + earlier);
        at[r][i] = earlier && limit[r][i] == 0 ? high[r] : start;  // mine + 1 has wrapped: no code exceeds mine
      }
    }
  }
  narrow(order, codes, limit, high, max_width, at);

  const Buffer<typename P::Order, typename P::Payload> target = problem.buffers[1 - source];
  Word* const to_keys = target.keys + row.begin + group_begin;
  [[maybe_unused]] typename P::Payload* const to_payload = target.payload + row.begin + group_begin;
  const bool decode = round + 1 == row.rounds;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    int place = rank + i * kWarp;
#pragma unroll
    for (int r = 0; r < kOthers; ++r) place += at[r][i];
    if (i * kWarp + lane < count) {
      to_keys[place] = decode ? order.decode(code[i]) : code[i];
      if constexpr (P::kHasPayload) to_payload[place] = payload[i];
    }
  }
}

}  // namespace mgpu::cuda::sorting
