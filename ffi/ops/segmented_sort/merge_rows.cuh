// A round of a sort of whole rows merges groups of four runs,
// or of two. A block computes a tile of the output at a time.
#pragma once

#include "cuda/block/copy_run.cuh"
#include "cuda/block/partition.cuh"
#include "cuda/block/serial_merge.cuh"
#include "cuda/device.h"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/plan_tiles.cuh"
#include "ops/segmented_sort/row_problem.cuh"

namespace mgpu::cuda::sorting {

// Merges a group of at most kShortItems items in place. One warp calls it; `codes` has room for the group's codes.
template <typename P>
__device__ void merge_short_group(const P& problem, const RunGroup& run_group, typename P::Word* codes) {
  constexpr int kEach = kShortItems / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t begin = run_group.row_begin + run_group.runs.begin();
  auto* const keys = problem.buffers[0].keys + begin;
  auto* const payloads = P::kHasPayload ? problem.buffers[0].payload + begin : nullptr;
  int bounds[kRuns + 1];
#pragma unroll
  for (int k = 0; k <= kRuns; ++k) bounds[k] = static_cast<int>(run_group.runs.bounds[k] - run_group.runs.begin());
  const int size = bounds[kRuns];
  typename P::Payload payload[P::kHasPayload ? kEach : 1];
  __syncwarp();  // the warp's previous merge has read its codes
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = k * kWarp + lane;
    if (i >= size) break;
    codes[i] = keys[i];
    if constexpr (P::kHasPayload) payload[k] = payloads[i];
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = k * kWarp + lane;
    if (i >= size) break;
    const int place = merged_place<kRuns>(problem.order, codes, bounds, i);
    keys[place] = run_group.decode ? problem.order.decode(codes[i]) : codes[i];
    if constexpr (P::kHasPayload) payloads[place] = payload[k];
  }
}

template <typename P>
__device__ void merge_short_groups(const P& problem) {
  constexpr int kWarps = kPlanThreads / kWarp;
  __shared__ typename P::Word codes[kWarps][kShortItems];
  const int count = *problem.short_groups_count;
  const int warp = threadIdx.x / kWarp;
  for (int64_t i = blockIdx.x * int64_t{kWarps} + warp; i < count; i += gridDim.x * int64_t{kWarps}) {
    merge_short_group(problem, problem.groups[problem.most_groups() - 1 - i], codes[warp]);
  }
}

template <typename P>
__global__ void __launch_bounds__(kPlanThreads, 4) split_rows(const __grid_constant__ P problem, int round) {
  wait_for_last_kernel();
  if (problem.groups && round == 0) merge_short_groups(problem);
  const int64_t edge = (blockIdx.x * int64_t{kPlanThreads} + threadIdx.x) / kSplitLanes;
  const RowMerge merge = problem.merge(edge, round);
  const MergeGroup<int64_t>& group = merge.group;
  int64_t split[kRuns];
  const int64_t rank = merge.first - group.begin();
  const auto* const codes = problem.buffers[merge.source].keys + merge.row_begin;
  if (__any_sync(0xffffffffu, group.end() - group.begin() > (int64_t{1} << 30))) {
    split_runs<int64_t>(problem.order, codes, group, rank, split);
  } else {
    split_runs<int>(problem.order, codes, group, rank, split);
  }
  if (merge.size > 0 && threadIdx.x % kSplitLanes == 0) {
#pragma unroll
    for (int j = 0; j < kRuns; ++j) problem.splits[edge * kRuns + j] = split[j];
  }
}

// Items [from, from + count) of a run are copied to `at` in shared memory.
struct TileRuns {
  int at[kRuns];
  int count[kRuns];
  int64_t from[kRuns];
};

// Each run is followed by `kItems` copies of the
// largest word, which are sentinels for merges.
template <typename P>
struct MergeRowsShared {
  static_assert(P::kCell % P::kTile == 0);
  static constexpr int kItems = P::kMerge.items;
  static constexpr int kChunk = kChunkBytes / sizeof(typename P::Word);
  static constexpr int kRoom = P::kTile + kRuns * (kItems + 2 * kChunk) + kItems;
  // The merges of the first level each
  // take a whole number of threads.
  static constexpr int kMiddle = ((P::kTile + 2 * (kItems - 1)) / kItems + 2) * kItems;
  alignas(kChunkBytes) typename P::Word codes[kRoom];
  typename P::Word middle[P::kPairs ? 1 : kMiddle];
  // The low half of the shared address that a merged item came from.
  uint16_t from[P::kHasPayload ? ceil_div(P::kTile, kItems) * kItems : 1];
  uint16_t middle_from[P::kHasPayload && !P::kPairs ? kMiddle : 1];
  // Payload as wide as the codes is copied to shared memory too: to `payload` or,
  // with two levels of merging, over the codes once the first level has read them.
  static constexpr bool kStaged = P::kHasPayload && sizeof(typename P::Payload) == sizeof(typename P::Word);
  alignas(kChunkBytes) typename P::Payload payload[kStaged && P::kPairs ? kRoom : 1];
  static_assert(sizeof(codes) <= 1 << 16);
  alignas(kChunkBytes) TileRuns runs;
  int64_t splits[2][kRuns];
};

// Finds where a tile's runs lie, and where they go in shared memory. The first warp calls it.
template <typename P>
__device__ void place_runs(int64_t row_begin, const MergeGroup<int64_t>& group, const int64_t* start,
                           const int64_t* stop, int size, const typename P::Word* keys, TileRuns& runs) {
  const int run = threadIdx.x % kRuns;
  const auto pick = [&](int j) {
    const auto& bounds = group.bounds;
    return j == 0 ? bounds[0] : j == 1 ? bounds[1] : j == 2 ? bounds[2] : j == 3 ? bounds[3] : bounds[4];
  };
  const int64_t bound = pick(run);
  const int64_t begin = start[run];
  const int64_t end = stop ? stop[run] : pick(run + 1) - bound;
  const int count = static_cast<int>(clamp<int64_t>(end - begin, 0, size));
  const int64_t from = row_begin + bound + begin;
  const int place = place_in_chunk(keys, from);
  const int width = round_up_to_chunk<typename P::Word>(place + count + P::kMerge.items);
  int at = place;
#pragma unroll
  for (int k = 0; k + 1 < kRuns; ++k) {
    const int other = __shfl_sync(0xffffffffu, width, k);
    if (k < run) at += other;
  }
  if (threadIdx.x < kRuns) {
    runs.at[run] = at;
    runs.count[run] = count;
    runs.from[run] = from;
  }
}

// Memory outside of the runs' group may never have been written, and is not read.
template <typename P, typename T>
__device__ void copy_runs(const T* array, Range<int64_t> group, const TileRuns& runs, T* to) {
  constexpr int kChunk = kChunkBytes / sizeof(T);
#pragma unroll 1
  for (int k = 0; k < kRuns; ++k) {
    start_copy<P::kMerge.threads>(array, group, runs.from[k], runs.count[k], to + runs.at[k] / kChunk * kChunk);
  }
}

// Calls put(i, code, address) for each of a thread's merged items. With payload, `address` is the shared address that
// the item came from. `plain` says that codes compare as words and, with payload, that no code is the largest word.
template <typename P, typename Put>
__device__ void take_codes(const typename P::Order& order, bool plain, const typename P::Word* codes,
                           const MergeCursor& runs, int diagonal, Put put) {
  using Word = typename P::Word;
  constexpr int kItems = P::kMerge.items;
  if (plain) {
    const MergeCursor cursor = shared_cursor<P::kTile>(codes, runs, diagonal, [](Word a, Word b) { return a < b; });
    if constexpr (P::kHasPayload) {
      take_in_order<kItems>(codes, cursor, put);
    } else {
      take_either<kItems>(codes, cursor, [&](int i, Word code) { put(i, code, 0u); });
    }
  } else if constexpr (P::kHasPayload || !P::Order::kTotal) {
    const auto less = [&](Word a, Word b) { return order.less(a, b); };
    const MergeCursor cursor = shared_cursor<P::kTile>(codes, runs, diagonal, less);
    take_first<kItems>(codes, cursor, less, put);
  }
}

// Splits a pair of runs at both edges of a tile, one warp per edge.
// A step of a search has 32 probes.
template <typename P>
__device__ void split_pair(const P& problem, const typename P::Word* codes, const RowMerge& merge,
                           int64_t (&splits)[2][kRuns]) {
  const int edge = threadIdx.x / kWarp;
  if (edge < 2) {
    const auto order = problem.order;
    const MergeGroup<int64_t>& group = merge.group;
    const int a_count = static_cast<int>(group.length(0));
    const int b_count = static_cast<int>(group.length(1));
    const int rank = static_cast<int>(merge.first - group.begin()) + (edge ? merge.size : 0);
    const auto* const a = codes + group.bounds[0];
    const auto* const b = codes + group.bounds[1] + (rank - 1);
    const int split = warp_partition_point(maximum(0, rank - b_count), minimum(rank, a_count),
                                           [&](int i) { return !order.less(b[-i], a[i]); });
    const int lane = threadIdx.x % kWarp;
    if (lane < kRuns) splits[edge][lane] = lane == 0 ? split : lane == 1 ? rank - split : 0;
  }
  __syncthreads();
}

struct PlacedRuns {
  int at[kRuns];
  int count[kRuns];
};

// With payload, `from` has the low half of the shared address that each code came from.
template <typename P>
struct MergedTile {
  const typename P::Word* codes;
  const uint16_t* from;
};

// Copies the tile's runs, and puts sentinels after each. Returns what take_codes gets as `plain`.
template <typename P>
__device__ __forceinline__ bool bring_runs(const P& problem, const RowMerge& merge, int64_t tile,
                                           Range<int64_t> written, MergeRowsShared<P>& shared, PlacedRuns& runs) {
  using Word = typename P::Word;
  constexpr Word kGreatest = static_cast<Word>(~Word{0});
  constexpr bool kPayloadNow = MergeRowsShared<P>::kStaged && P::kPairs;
  const MergeGroup<int64_t>& group = merge.group;
  const Buffer<typename P::Order, typename P::Payload> from = problem.buffers[merge.source];
  const int64_t* start = problem.splits + tile * kRuns;
  const int64_t* stop = merge.first + merge.size == group.end() ? nullptr : start + kRuns;
  if constexpr (P::kPairs) {
    split_pair(problem, from.keys + merge.row_begin, merge, shared.splits);
    start = shared.splits[0];
    stop = shared.splits[1];
  }
  if (threadIdx.x < kWarp) place_runs<P>(merge.row_begin, group, start, stop, merge.size, from.keys, shared.runs);
  bool plain = true;
  if constexpr (!P::Order::kTotal) plain = *problem.unplain == 0;
  __syncthreads();
  copy_runs<P>(from.keys, written, shared.runs, shared.codes);
  copy_commit();
  if constexpr (kPayloadNow) {
    copy_runs<P>(from.payload, written, shared.runs, shared.payload);
    copy_commit();
  }
#pragma unroll
  for (int k = 0; k < kRuns; ++k) {
    runs.at[k] = shared.runs.at[k];
    runs.count[k] = shared.runs.count[k];
  }
  copy_wait<kPayloadNow ? 1 : 0>();
  __syncthreads();
  if constexpr (P::kHasPayload) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      plain = plain & (runs.count[k] == 0 || shared.codes[runs.at[k] + runs.count[k] - 1] != kGreatest);
    }
  }
  const int thread = threadIdx.x;
  if (thread < P::kMerge.items) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) shared.codes[runs.at[k] + runs.count[k] + thread] = kGreatest;
  }
  __syncthreads();
  return plain;
}

template <typename P>
__device__ __forceinline__ MergedTile<P> merge_two(const P& problem, bool plain, int size, const PlacedRuns& placed,
                                                   MergeRowsShared<P>& shared) {
  using Word = typename P::Word;
  constexpr int kItems = P::kMerge.items;
  const auto& [at, count] = placed;
  const int diagonal = static_cast<int>(threadIdx.x) * kItems;
  Word taken[kItems];
  if (diagonal < size) {
    const MergeCursor runs{at[0], at[0] + count[0], at[1], at[1] + count[1]};
    take_codes<P>(problem.order, plain, shared.codes, runs, diagonal, [&](int i, Word code, uint32_t address) {
      taken[i] = code;
      if constexpr (P::kHasPayload) shared.from[diagonal + i] = static_cast<uint16_t>(address);
    });
  }
  __syncthreads();
  if (diagonal < size) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) shared.codes[diagonal + i] = taken[i];
  }
  __syncthreads();
  return {shared.codes, shared.from};
}

// Calls bring_payload() when the copied codes are no longer needed.
template <typename P, typename BringPayload>
__device__ __forceinline__ MergedTile<P> merge_four(const P& problem, bool plain, int size, const PlacedRuns& placed,
                                                    MergeRowsShared<P>& shared, BringPayload bring_payload) {
  using Word = typename P::Word;
  constexpr int kItems = P::kMerge.items;
  constexpr Word kGreatest = static_cast<Word>(~Word{0});
  const auto& [at, count] = placed;
  const int thread = threadIdx.x;
  // Each pair is merged by as many whole threads as it needs.
  const int first_count = count[0] + count[1];
  const int second_count = count[2] + count[3];
  const int first_threads = ceil_div(first_count, kItems);
  const int second_threads = ceil_div(second_count, kItems);
  const int second_begin = (first_threads + 1) * kItems;
  if (thread < first_threads + second_threads) {
    const bool second = thread >= first_threads;
    const int diagonal = (second ? thread - first_threads : thread) * kItems;
    const MergeCursor runs = second ? MergeCursor{at[2], at[2] + count[2], at[3], at[3] + count[3]}
                                    : MergeCursor{at[0], at[0] + count[0], at[1], at[1] + count[1]};
    const int to = (second ? second_begin : 0) + diagonal;
    take_codes<P>(problem.order, plain, shared.codes, runs, diagonal, [&](int i, Word code, uint32_t address) {
      shared.middle[to + i] = code;
      if constexpr (P::kHasPayload) shared.middle_from[to + i] = static_cast<uint16_t>(address);
    });
  }
  if (thread < kItems) {
    shared.middle[first_threads * kItems + thread] = kGreatest;
    shared.middle[second_begin + second_threads * kItems + thread] = kGreatest;
  }
  __syncthreads();
  bring_payload();
  const int begin = first_count == 0 ? second_begin : 0;
  MergedTile<P> merged{shared.middle + begin, shared.middle_from + begin};
  if (first_count > 0 && second_count > 0) {
    const int diagonal = thread * kItems;
    constexpr uint32_t kWidth = sizeof(Word);
    const uint32_t middle = shared_address(shared.middle);
    const MergeCursor runs{0, first_count, second_begin, second_begin + second_count};
    if constexpr (P::kHasPayload) {
      Word taken[kItems];
      if (diagonal < size) {
        take_codes<P>(problem.order, plain, shared.middle, runs, diagonal, [&](int i, Word code, uint32_t address) {
          taken[i] = code;
          shared.from[diagonal + i] = shared.middle_from[(address - middle) / kWidth];
        });
      }
      __syncthreads();
      if (diagonal < size) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) shared.middle[diagonal + i] = taken[i];
      }
      merged.from = shared.from;
    } else {
      if (diagonal < size) {
        take_codes<P>(problem.order, plain, shared.middle, runs, diagonal,
                      [&](int i, Word code, uint32_t) { shared.codes[diagonal + i] = code; });
      }
      merged.codes = shared.codes;
    }
    __syncthreads();
  }
  return merged;
}

// In the last round, codes become keys.
template <typename P>
__device__ __forceinline__ void store_codes(const P& problem, const RowMerge& merge, const MergedTile<P>& merged) {
  constexpr int kThreads = P::kMerge.threads;
  const int thread = threadIdx.x;
  const bool decode = merge.decode;
  const auto order = problem.order;
  auto* const keys = problem.buffers[merge.target].keys + merge.row_begin + merge.first;
  const auto store = [&](int i) {
    const int position = i * kThreads + thread;
    keys[position] = decode ? order.decode(merged.codes[position]) : merged.codes[position];
  };
  constexpr int kWhole = P::kTile / kThreads;
  if (merge.size == P::kTile) {
#pragma unroll
    for (int i = 0; i < kWhole; ++i) store(i);
    if (kWhole * kThreads + thread < merge.size) store(kWhole);
  } else {
    for (int i = 0; i * kThreads + thread < merge.size; ++i) store(i);
  }
}

// With kStaged, copies of the payload to shared memory have been started.
template <typename P>
__device__ __forceinline__ void store_payload(const P& problem, const RowMerge& merge, const MergedTile<P>& merged,
                                              const PlacedRuns& placed, MergeRowsShared<P>& shared) {
  using Word = typename P::Word;
  using Payload = typename P::Payload;
  constexpr int kThreads = P::kMerge.threads;
  const int thread = threadIdx.x;
  const int size = merge.size;
  Payload* const payload = problem.buffers[merge.target].payload + merge.row_begin + merge.first;
  const uint16_t base = static_cast<uint16_t>(shared_address(shared.codes));
  const auto place_of = [&](int position) {
    return static_cast<uint16_t>(merged.from[position] - base) / static_cast<unsigned>(sizeof(Word));
  };
  if constexpr (MergeRowsShared<P>::kStaged) {
    copy_wait<0>();
    __syncthreads();
    const Payload* const staged = P::kPairs ? shared.payload : reinterpret_cast<const Payload*>(shared.codes);
#pragma unroll 4
    for (int i = thread; i < size; i += kThreads) payload[i] = staged[place_of(i)];
  } else {
    const Payload* const source = problem.buffers[merge.source].payload;
    const auto& at = placed.at;
    constexpr int kBatch = 4;
    for (int begin = thread; begin < size; begin += kBatch * kThreads) {
      Payload fetched[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int position = begin + i * kThreads;
        if (position >= size) break;
        const int place = place_of(position);
        const int run = (place >= at[1]) + (place >= at[2]) + (place >= at[3]);
        fetched[i] = source[shared.runs.from[run] + place - shared.runs.at[run]];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int position = begin + i * kThreads;
        if (position < size) payload[position] = fetched[i];
      }
    }
  }
}

// Returns false if there is nothing to merge.
template <typename P>
__device__ __forceinline__ bool merge_tile(const P& problem, int64_t tile, int round, MergeRowsShared<P>& shared) {
  const RowMerge merge = problem.merge(tile, round);
  if (merge.size == 0) return false;
  const Range<int64_t> written{merge.row_begin + merge.group.begin(), merge.row_begin + merge.group.end()};
  PlacedRuns runs;
  const bool plain = bring_runs(problem, merge, tile, written, shared, runs);
  MergedTile<P> merged;
  if constexpr (P::kPairs) {
    merged = merge_two(problem, plain, merge.size, runs, shared);
  } else {
    merged = merge_four(problem, plain, merge.size, runs, shared, [&] {
      // The payload overwrites the codes while the second level is merged.
      if constexpr (MergeRowsShared<P>::kStaged) {
        const auto* const payload = problem.buffers[merge.source].payload;
        copy_runs<P>(payload, written, shared.runs, reinterpret_cast<typename P::Payload*>(shared.codes));
        copy_commit();
      }
    });
  }
  store_codes(problem, merge, merged);
  if constexpr (P::kHasPayload) store_payload(problem, merge, merged, runs, shared);
  return true;
}

// For nearly sorted rows, earlier kernels have found the number of tiles, and a few blocks take all of them in turn.
template <typename P>
__global__ void __launch_bounds__(P::kMerge.threads, 3) merge_rows(const __grid_constant__ P problem, int round) {
  if constexpr (!may_grant(row_shared_bytes(sizeof(typename P::Word), P::kHasPayload))) return __trap();
  extern __shared__ __align__(16) unsigned char storage[];
  auto& shared = *reinterpret_cast<MergeRowsShared<P>*>(storage);
  wait_for_last_kernel();
  if constexpr (P::kPairs) {
    merge_tile(problem, blockIdx.x, round, shared);
  } else {
    for (int64_t tile = blockIdx.x; merge_tile(problem, tile, round, shared); tile += gridDim.x) {
      if (!problem.groups) return;
      __syncthreads();
    }
  }
}

}  // namespace mgpu::cuda::sorting
