// One block sorts one cell, of one row or of several short ones.
#pragma once

#include "algorithm/serial_merge.h"
#include "cuda/block/serial_merge.cuh"
#include "cuda/block/sort_lanes.cuh"
#include "cuda/device.h"
#include "ops/segmented_sort/row_problem.cuh"

namespace mgpu::cuda::sorting {

// Sorts the words of a warp. It is not stable.
// Each lane has kItems words, a power of two.
template <int kItems, typename Word>
__device__ void warp_sort(Word (&words)[kItems]) {
  network_sort(words);
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) join_lanes(words, lanes);
}

// Threads take an odd number of items, to avoid conflicts of banks.
template <typename P>
struct SortRowsShared {
  static constexpr int kItems = P::kSort.items;
  static constexpr int kTaken = kItems + 1;
  static constexpr int kWarps = P::kSort.threads / kWarp;
  // A warp's run, then the largest words, which are sentinels for merges.
  static constexpr int kRegion = kWarp * kTaken + 1;
  alignas(16) typename P::Entry entries[kWarps * kRegion];
};

struct EqualItems {
  int zeros, nans;
  int lesser;  // the number of items before zero in the order of the sort
};
template <typename P>
struct RestoringShared : SortRowsShared<P> {
  EqualItems equals[SortRowsShared<P>::kWarps];
};
// Floats without payload, but with negative zeros or NaNs, are sorted by ranks (Order::rank).
// These do not keep the zeros' signs and the NaNs' bits, so the codes are restored afterwards.
template <typename P>
constexpr bool kRestores = !P::Entries::kPlain;
template <typename P>
using CellShared = std::conditional_t<kRestores<P>, RestoringShared<P>, SortRowsShared<P>>;

// Equal words are interchangeable, so a thread's entries may be any of its warp's. `count` entries are sorted together.
template <typename P>
__device__ void sort_entries(typename P::Entry (&entries)[P::kSort.items], int count, SortRowsShared<P>& shared) {
  using Entry = typename P::Entry;
  constexpr int kItems = P::kSort.items;
  constexpr int kTaken = SortRowsShared<P>::kTaken;
  constexpr int kRegion = SortRowsShared<P>::kRegion;
  constexpr Entry kGreatest = static_cast<Entry>(~Entry{0});
  const int lane = threadIdx.x % kWarp;
  warp_sort(entries);
  Entry* const region = shared.entries + threadIdx.x / kWarp * kRegion;
#pragma unroll
  for (int i = 0; i < kItems; ++i) region[lane * kTaken + i] = entries[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int item = i * kWarp + lane;
    entries[i] = region[item / kItems * kTaken + item % kItems];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kItems; ++i) region[i * kWarp + lane] = entries[i];
  region[kItems * kWarp + lane] = kGreatest;
  if (lane == 0) region[kRegion - 1] = kGreatest;
  __syncthreads();

#pragma unroll 1
  for (int warps = 1; warps * kWarp * kItems < count; warps *= 2) {
    const int run = warps * kWarp * kItems;
    const int thread = threadIdx.x & (2 * warps * kWarp - 1);
    Entry* const pair = shared.entries + (threadIdx.x - thread) / kWarp * kRegion;
    const MergeCursor runs{0, run, warps * kRegion, warps * kRegion + run};
    const MergeCursor cursor =
        shared_cursor(pair, runs, minimum(thread * kTaken, 2 * run), run, [](Entry a, Entry b) { return a < b; });
    Entry taken[kTaken];
    take_either<kTaken>(pair, cursor, [&](int i, Entry entry) { taken[i] = entry; });
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTaken; ++i) pair[thread * kTaken + i] = taken[i];
    __syncthreads();
  }
}

// All zeros have one rank, and so do all NaNs. Their codes go to where the sorted ranks have zeros and NaNs, in the
// order of the items.
template <typename P, typename Cell>
__device__ void restore_equals(const typename P::Order& order, const typename P::Word* keys, int live, const Cell& cell,
                               typename P::Word* sorted, RestoringShared<P>& shared) {
  using Word = typename P::Word;
  constexpr int kItems = P::kSort.items;
  const Word zero = order.rank(order.encode(Word{0}));
  const Word nan = order.rank(order.encode(static_cast<Word>(~Word{0} >> 1)));
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int begin = cell.thread() / kWarp * kWarp * kItems + lane;
  const auto for_each = [&](auto take) {
#pragma unroll 1
    for (int i = 0; i < kItems; ++i) {
      const int position = begin + i * kWarp;
      const Word code = order.encode(position < live ? keys[position] : Word{0});
      take(code, order.rank(code), position < live);
    }
  };
  int zeros = 0, nans = 0, lesser = 0;
  for_each([&](Word, Word rank, bool there) {
    zeros += __popc(__ballot_sync(~0u, there && rank == zero));
    nans += __popc(__ballot_sync(~0u, there && rank == nan));
    lesser += __popc(__ballot_sync(~0u, there && rank < zero));
  });
  if (lane == 0) shared.equals[warp] = {zeros, nans, lesser};
  __syncthreads();
  const int first = warp - cell.thread() / kWarp;
  int next_zero = 0, next_nan = 0, all_nans = 0;
  for (int w = first; w < first + cell.threads() / kWarp; ++w) {
    const EqualItems& of_warp = shared.equals[w];
    next_zero += of_warp.lesser + (w < warp ? of_warp.zeros : 0);
    next_nan += w < warp ? of_warp.nans : 0;
    all_nans += of_warp.nans;
  }
  if (nan > zero) next_nan += live - all_nans;
  const unsigned lanes_before = (1u << lane) - 1;
  const auto put = [&](Word code, bool takes_part, int& next) {
    const unsigned lanes = __ballot_sync(~0u, takes_part);
    if (takes_part) sorted[next + __popc(lanes & lanes_before)] = code;
    next += __popc(lanes);
  };
  for_each([&](Word code, Word rank, bool there) {
    put(code, there && rank == zero, next_zero);
    put(code, there && rank == nan, next_nan);
  });
  __syncthreads();
}

template <typename P>
__global__ void __launch_bounds__(P::kSort.threads, 1024 / P::kSort.threads)
    sort_rows(const __grid_constant__ P problem) {
  using Word = typename P::Word;
  using Entries = typename P::Entries;
  constexpr int kItems = P::kSort.items;
  if constexpr (!may_grant(sizeof(CellShared<P>))) return __trap();
  extern __shared__ __align__(16) unsigned char storage[];
  auto& shared = *reinterpret_cast<CellShared<P>*>(storage);
  if (problem.disorder.is_large()) return;

  const auto cell = problem.cell();
  const int64_t row_index = cell.row();
  const bool exists = !P::kPacked || row_index < problem.segments.rows;
  const LiveRow row = exists ? problem.row(row_index) : LiveRow{};
  const int64_t first = cell.begin(row_index);
  const int size = exists ? static_cast<int>(minimum<int64_t>(P::kCell, problem.segments.length - first)) : 0;
  const int live = static_cast<int>(clamp<int64_t>(row.live - first, 0, size));
  const int count = P::kPacked ? static_cast<int>(problem.segments.length) : live;  // one number for the whole block
  const auto order = problem.order;
  const Word* const keys = problem.input.keys + row.begin + first;
  bool plain = true;
  {
    typename P::Entry entries[kItems];
    const int begin = cell.thread() / kWarp * kWarp * kItems + cell.thread() % kWarp;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = begin + i * kWarp;
      entries[i] = static_cast<typename P::Entry>(~typename P::Entry{0});
      if (position < live) {
        const Word key = keys[position];
        plain = plain & order.is_plain(key);
        entries[i] = Entries::make(order, order.encode(key), position);
      }
    }
    if constexpr (!P::Order::kTotal) {
      plain = __syncthreads_and(plain);
      if (!plain && threadIdx.x == 0 && row.rounds > 0) *problem.unplain = 1;
    }
    if constexpr (kRestores<P>) {
      if (!plain) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (begin + i * kWarp < live) entries[i] = order.rank(entries[i]);
        }
      }
    }
    sort_entries<P>(entries, count, shared);
  }
  auto* sorted = shared.entries;
  if constexpr (P::kPacked) sorted += (threadIdx.x - cell.thread()) / kWarp * SortRowsShared<P>::kRegion;
  if constexpr (kRestores<P>) {
    if (!plain) restore_equals<P>(order, keys, live, cell, sorted, shared);
  }

  const Buffer<typename P::Order, typename P::Payload> target = problem.buffers[row.rounds % 2];
  const bool decode = row.rounds == 0;
  [[maybe_unused]] typename P::Payload payload[kItems];
  if constexpr (P::kHasPayload) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * cell.threads() + cell.thread();
      const int place = position < live ? Entries::place(sorted[position]) : position;
      if (position < size) payload[i] = problem.input_payload(row.begin, first + place);
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = i * cell.threads() + cell.thread();
    const int64_t at = row.begin + first + position;
    if (position < live) {
      const typename P::Entry entry = sorted[position];
      Word code;
      if constexpr (P::kHasPayload) {
        code = Entries::rank(entry);
        if (order.has_equals(code)) code = order.encode(keys[Entries::place(entry)]);
        target.payload[at] = payload[i];
      } else {
        code = entry;
      }
      target.keys[at] = decode ? order.decode(code) : code;
    } else if (position < size) {
      problem.buffers[0].keys[at] = keys[position];
      if constexpr (P::kHasPayload) problem.buffers[0].payload[at] = payload[i];
    }
  }
}

}  // namespace mgpu::cuda::sorting
