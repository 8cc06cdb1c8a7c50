// A sample of each row gives a bound: a rank (an unsigned word in the order of the keys) such that probably at
// least k items have this rank or a lower one. A pass over the items sets a bit for each item below the bound.
// A pass over the bits lists these items in input order, then as many items of the bound's rank as are missing.
// If the bound was too low, or if too many items are below it, one block selects from the whole row instead.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/block/scan.cuh"
#include "cuda/block/select_digits.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/top_k_candidates/plan.h"

namespace mgpu::cuda::candidates {

constexpr int kThreads = kCandidateThreads;
constexpr int kWarps = kThreads / kWarp;

template <typename Order_>
struct Task {
  using Order = Order_;
  using Word = typename Order::Word;

  TopKCandidatesOperands operands;
  Order order;
  TopKCandidatesOperands::Parts parts;
  TopKCandidatesOperands::Scratch scratch;

  MGPU_HOST_DEVICE int64_t wanted(int64_t row) const { return minimum(operands.k, operands.live(row)); }
  __device__ const Word* items(int64_t row) const {
    return static_cast<const Word*>(operands.x) + row * operands.length;
  }
};

// One block per row.
template <typename Order>
__global__ void __launch_bounds__(kCandidateSampleThreads) guess_bounds(const __grid_constant__ Task<Order> task) {
  using Word = typename Order::Word;
  __shared__ Word sample[candidate_sample(INT64_MAX, sizeof(Word))];
  __shared__ typename SelectDigits<kCandidateSampleThreads>::Shared digits;
  const int64_t row = blockIdx.x;
  const int64_t live = task.operands.live(row);
  const auto count = static_cast<int>(minimum(candidate_sample(task.operands.length, sizeof(Word)), live));
  const float expected = static_cast<float>(task.operands.k) * static_cast<float>(count) / static_cast<float>(live);
  // For random items, the bound is rarely too low.
  const int wanted = static_cast<int>(minimum(expected + 4 * sqrtf(expected) + 6, 2.0f * static_cast<float>(count)));
  if (live <= task.operands.room || wanted >= count) {
    if (threadIdx.x == 0) task.scratch.bounds[row] = task.order.rank(static_cast<Word>(~Word{0}));
    return;
  }
  SelectDigits<kCandidateSampleThreads> select_digits(digits);
  const Word* const keys = task.items(row);
  const uint64_t step = (static_cast<uint64_t>(live) << 32) / static_cast<uint64_t>(count);
  const auto begin_of = [=](int i) { return static_cast<uint32_t>(static_cast<uint64_t>(i) * step >> 32); };
#pragma unroll 8
  for (int i = threadIdx.x; i < count; i += kCandidateSampleThreads) {
    // The place within each part of the row is random, so that the sample does not match a period of the row.
    const uint32_t begin = begin_of(i);
    const uint32_t place = __umulhi(static_cast<uint32_t>(i + 1) * 0x9e3779b9u, begin_of(i + 1) - begin);
    sample[i] = task.order.rank(task.order.encode(keys[begin + place]));
  }
  __syncthreads();
  const auto known = select_digits.template operator()<Word>(
      count, wanted, [&](int i) { return sample[i]; }, [](int) { return true; },
      [=](const auto& digits) { return digits.matching - digits.rank <= wanted / 16; });
  if (threadIdx.x == 0) task.scratch.bounds[row] = task.order.rank(known.highest());
}

// Codes of one rank, here the bound, are consecutive.
template <typename Order>
struct Bound {
  using Word = typename Order::Word;
  Word first, last;
  __device__ Bound(const Order& order, Word rank)
      : first(order.rank(Word{0}) == rank ? Word{0} : rank), last(order.last_equal(rank)) {}
};

// The block's warps take its part of a row group by group.
template <typename Order>
struct Part {
  using Word = typename Order::Word;
  using Vector = Vector<Word>;
  static constexpr int kItems = Vector::kItems;
  static constexpr int kVectors = kWarp / kItems;  // the vectors of a lane, which has 32 items

  int64_t row, live;
  const Word* items;
  int lead;            // how many items the row's first vector has before the row
  int64_t begin, end;  // groups

  __device__ explicit Part(const Task<Order>& task)
      : row(blockIdx.x / task.parts.parts), live(task.operands.live(row)), items(task.items(row)) {
    lead = static_cast<int>(reinterpret_cast<uintptr_t>(items) % sizeof(Vector) / sizeof(Word));
    begin = (blockIdx.x - row * task.parts.parts) * task.parts.part;
    end = minimum(begin + task.parts.part, ceil_div<int64_t>(live + lead, kCandidateGroup));
  }
  // The position may be outside of the row.
  __device__ __forceinline__ int64_t position(int64_t group, int vector) const {
    return group * kCandidateGroup + (vector * kWarp + static_cast<int>(threadIdx.x % kWarp)) * kItems - lead;
  }
  __device__ __forceinline__ bool is_whole(int64_t group) const {
    return group > 0 && (group + 1) * kCandidateGroup - lead <= live;
  }
};

// Sets the bits of items below the bound. Also counts these items, and those at the bound.
template <typename Order>
__global__ void __launch_bounds__(kThreads, 4) mark_candidates(const __grid_constant__ Task<Order> task) {
  using Word = typename Order::Word;
  using Part = Part<Order>;
  using Vector = Vector<Word>;
  __shared__ int sums[2][kWarps];
  const Part part(task);
  const Bound<Order> bound(task.order, static_cast<Word>(task.scratch.bounds[part.row]));
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int below = 0, within = 0;
#pragma unroll 1
  for (int64_t group = part.begin + warp; group < part.end; group += kWarps) {
    uint32_t marks = 0;
    const auto take = [&](Word key, int i) {
      const Word code = task.order.encode(key);
      marks |= code < bound.first ? 1u << i : 0;
      within += code <= bound.last;
    };
    if (part.is_whole(group)) {
      Vector vectors[Part::kVectors];
#pragma unroll
      for (int v = 0; v < Part::kVectors; ++v) vectors[v] = Vector::load(part.items, part.position(group, v));
#pragma unroll
      for (int i = 0; i < kWarp; ++i) take(vectors[i / Part::kItems].items[i % Part::kItems], i);
    } else {
#pragma unroll 1
      for (int i = 0; i < kWarp; ++i) {
        const int64_t at = part.position(group, i / Part::kItems) + i % Part::kItems;
        if (at >= 0 && at < part.live) take(part.items[at], i);
      }
    }
    task.scratch.marks[(part.row * task.parts.groups + group) * kWarp + lane] = marks;
    below += __popc(marks);
  }
  const int all_below = sum_block<kWarps>(sums[0], below).all;
  const int all_within = sum_block<kWarps>(sums[1], within).all;
  if (threadIdx.x == 0) {
    task.scratch.below[blockIdx.x] = static_cast<uint32_t>(all_below);
    task.scratch.equal[blockIdx.x] = static_cast<uint32_t>(all_within - all_below);
  }
}

template <typename Order>
struct List {
  using Word = typename Order::Word;
  const Task<Order>& task;
  int64_t row, below, wanted;  // `below`: how many items are below the bound

  __device__ __forceinline__ void add(int64_t to, int64_t position, Word key) const {
    static_cast<Word*>(task.operands.values)[row * task.operands.room + to] = key;
    task.operands.positions.set(row * task.operands.room + to, position);
  }
  __device__ __forceinline__ void add_below(int64_t before, int64_t position, Word key) const {
    add(before, position, key);
  }
  __device__ __forceinline__ void add_equal(int64_t before, int64_t position, Word key) const {
    if (below + before < wanted) add(below + before, position, key);
  }
  __device__ int64_t count() const { return maximum(below, wanted); }
};

// Selects from a whole row, if its bound was too low or too many items are below it.
template <typename Order>
__device__ void list_whole_row(const Task<Order>& task, int64_t row) {
  using Word = typename Order::Word;
  __shared__ typename SelectDigits<kThreads>::Shared digits;
  SelectDigits<kThreads> select_digits(digits);
  const auto live = static_cast<int>(task.operands.live(row));
  const auto wanted = static_cast<int>(task.wanted(row));
  if (threadIdx.x == 0) task.operands.found.set(row, wanted);
  if (wanted == 0) return;
  const Word* const keys = task.items(row);
  __syncthreads();
  const auto last = select_digits.template operator()<Word>(
      live, wanted, [&](int i) { return task.order.rank(task.order.encode(keys[i])); }, [](int) { return true; },
      [](const auto&) { return false; });
  const List<Order> list{task, row, wanted - last.rank, wanted};
  int64_t below = 0, equal = 0;
  for (int begin = 0; begin < live; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const Word key = i < live ? keys[i] : Word{0};
    const Word rank = task.order.rank(task.order.encode(key));
    const bool is_below = i < live && rank < last.prefix, is_equal = i < live && rank == last.prefix;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const unsigned lanes_before = (1u << lane) - 1;
    const unsigned belows = __ballot_sync(~0u, is_below), equals = __ballot_sync(~0u, is_equal);
    const Prefix<int> warps = select_digits.before_warp(__popc(belows) | __popc(equals) << 16);
    if (is_below) list.add_below(below + (warps.before & 0xffff) + __popc(belows & lanes_before), i, key);
    if (is_equal) list.add_equal(equal + (warps.before >> 16) + __popc(equals & lanes_before), i, key);
    below += warps.all & 0xffff;
    equal += warps.all >> 16;
  }
}

// count_parts adds these up over the parts before this one, and over all parts.
struct Counts {
  int64_t below, equal;
  MGPU_HOST_DEVICE friend Counts operator+(const Counts& a, const Counts& b) {
    return {a.below + b.below, a.equal + b.equal};
  }
};
template <typename Order>
__device__ Prefix<Counts> count_parts(const Task<Order>& task, int64_t row, int64_t part) {
  __shared__ Counts before_warps[kWarps], all_warps[kWarps];
  const auto add = [](const Counts& a, const Counts& b) { return a + b; };
  Counts before{0, 0}, all{0, 0};
  for (int64_t i = threadIdx.x; i < task.parts.parts; i += kThreads) {
    const Counts own{task.scratch.below[row * task.parts.parts + i], task.scratch.equal[row * task.parts.parts + i]};
    all = all + own;
    if (i < part) before = before + own;
  }
  before = fold_warp(before, add);
  all = fold_warp(all, add);
  before = scan_warps<kWarps>(before_warps, before, Counts{0, 0}, add).all;
  all = scan_warps<kWarps>(all_warps, all, Counts{0, 0}, add).all;
  return {before, all};
}

// Each lane gets the bits of 32 neighbouring items.
template <typename Part>
__device__ __forceinline__ uint32_t neighbours(uint32_t marks) {
  constexpr int kLanes = Part::kVectors;  // so many lanes loaded 32 neighbouring items
  const int lane = threadIdx.x % kWarp;
  uint32_t moved = 0;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t loaded = shuffle(marks, lane % Part::kItems * kLanes + i) >> (lane / Part::kItems * Part::kItems);
    moved |= (loaded & ((1u << Part::kItems) - 1)) << (i * Part::kItems);
  }
  return moved;
}

// Ascending positions of items in a group.
using GroupList = uint16_t[kCandidateGroup];

// Calls put(position, number) for the marked items of a warp's group. Positions are those in the group, and marked
// items are numbered from 0. Neighbouring lanes have neighbouring items.
template <typename Put>
__device__ __forceinline__ void for_each_marked(GroupList& places, uint32_t marks, Put put) {
  const int lane = threadIdx.x % kWarp;
  const int own = __popc(marks);
  const int up_to = sum_up_to(own);
  const int all = shuffle(up_to, kWarp - 1);
  __syncwarp();  // the lanes have read the places of the previous call
#pragma unroll 1
  for (int to = up_to - own; marks != 0; marks &= marks - 1) {
    places[to++] = static_cast<uint16_t>(lane * kWarp + __ffs(static_cast<int>(marks)) - 1);
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < all; i += kWarp) put(int{places[i]}, i);
}

// Each warp takes one group at a time.
template <typename Order>
__global__ void __launch_bounds__(kThreads) list_candidates(const __grid_constant__ Task<Order> task) {
  using Word = typename Order::Word;
  using Part = Part<Order>;
  __shared__ GroupList places[kWarps];
  __shared__ int sums[2][kWarps];
  const Part part(task);
  const bool is_first = part.begin == 0;
  Prefix<Counts> counts = count_parts(task, part.row, blockIdx.x - part.row * task.parts.parts);
  const List<Order> list{task, part.row, counts.all.below, task.wanted(part.row)};
  if (list.below > task.operands.room || list.below + counts.all.equal < list.wanted) {
    if (is_first) list_whole_row(task, part.row);
    return;
  }
  if (is_first && threadIdx.x == 0) task.operands.found.set(part.row, list.count());
  const Bound<Order> bound(task.order, static_cast<Word>(task.scratch.bounds[part.row]));
  const int warp = threadIdx.x / kWarp;
  int turn = 0;
#pragma unroll 1
  for (int64_t begin = part.begin; begin < part.end; begin += kWarps) {
    const int64_t group = begin + warp;
    const bool takes_equals = list.below + counts.before.equal < list.wanted;
    uint32_t belows = 0, equals = 0;
    if (group < part.end) {
      belows = task.scratch.marks[(part.row * task.parts.groups + group) * kWarp + threadIdx.x % kWarp];
#pragma unroll 1
      for (int i = 0; takes_equals && i < kWarp; ++i) {
        const int64_t at = part.position(group, i / Part::kItems) + i % Part::kItems;
        if (at < 0 || at >= part.live) continue;
        const Word code = task.order.encode(part.items[at]);
        equals |= code >= bound.first && code <= bound.last ? 1u << i : 0;
      }
    }
    const int own = __popc(belows) | __popc(equals) << 16;
    turn ^= 1;
    const int in_warp = fold_warp(own, [](int a, int b) { return a + b; });
    const Prefix<int> before = scan_warps<kWarps>(sums[turn], in_warp, 0, [](int a, int b) { return a + b; });
    const int64_t first = group * kCandidateGroup - part.lead;
    if ((in_warp & 0xffff) != 0) {
      for_each_marked(places[warp], neighbours<Part>(belows), [&](int at, int number) {
        list.add_below(counts.before.below + (before.before & 0xffff) + number, first + at, part.items[first + at]);
      });
    }
    if (in_warp >> 16 != 0) {
      for_each_marked(places[warp], neighbours<Part>(equals), [&](int at, int number) {
        list.add_equal(counts.before.equal + (before.before >> 16) + number, first + at, part.items[first + at]);
      });
    }
    counts.before = counts.before + Counts{before.all & 0xffff, before.all >> 16};
  }
}

}  // namespace mgpu::cuda::candidates
