// The kernels of segmented_softmax. The first kernel finishes the segments that begin and end in a tile, and reads and
// writes its items once. For the two segments that cross the tile's edges, it stores maximum and sum. A second kernel
// joins these along each segment, and a third one writes the items of such segments, so that no tile waits for another.
#pragma once

#include "algorithm/floats.h"
#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/scan/scan_segments.cuh"
#include "ops/segmented_softmax/plan.h"

namespace mgpu::cuda::softmax {

// float16 and bfloat16 are computed in float32.
template <typename Element>
using Accumulator = std::conditional_t<std::is_same_v<Element, double>, double, float>;

template <typename Element>
struct Shape {
  static constexpr int kThreads = softmax_shape(sizeof(Accumulator<Element>)).threads;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kItems = softmax_shape(sizeof(Accumulator<Element>)).items;
  static constexpr int kTile = kThreads * kItems;
  static constexpr int kVector = Vector<Element>::kItems;
  static constexpr int kWords = kTile / 32;
  // A thread's items in shared memory are 16 bytes apart from the next thread's, so that the banks differ.
  static constexpr int kGap = 16 / sizeof(Accumulator<Element>);
  static constexpr int kPlaces = kThreads * (kItems + kGap);
  __device__ __forceinline__ static int place(int i) { return i + i / kItems * kGap; }
  static_assert(kItems <= 16 && kItems % kVector == 0 && kTile <= kPlaces);
};

// The state of a part of a segment: the maximum m, and the sum of exp(x - m) over its items x. Without items, -inf and
// 0.
template <typename Float>
struct Part {
  Float max;
  Float sum;
};

// Divides by a sum of exponentials, which is never so large that the fast division is inexact.
template <typename Float>
__device__ __forceinline__ Float divide(Float x, Float sum) {
  if constexpr (sizeof(Float) == 4) {
    return __fdividef(x, sum);
  } else {
    return x / sum;
  }
}
template <typename Float>
__device__ __forceinline__ Float least() {
  return static_cast<Float>(std::bit_cast<float>(0xff800000u));  // -inf
}

// The number to subtract from items before their exponentials. If all items of a part are -inf, it is 0, so that their
// exponentials are 0, as another part may have numbers.
template <typename Float>
__device__ __forceinline__ Float shift_of(Float max) {
  return max == least<Float>() ? Float{0} : max;
}

// Joins two parts. A part with a sum of 0 is left out, as -inf minus -inf is undefined.
template <typename Float>
__device__ __forceinline__ Part<Float> join(const Part<Float>& a, const Part<Float>& b) {
  if (a.sum == 0) return b;
  if (b.sum == 0) return a;
  const Float max = a.max < b.max ? b.max : a.max;
  return {max, a.sum * exponential(a.max - max) + b.sum * exponential(b.max - max)};
}

template <typename Float>
struct Largest {
  using State = Float;
  __device__ __forceinline__ Float identity() const { return least<Float>(); }
  __device__ __forceinline__ Float combine(Float a, Float b) const { return a < b ? b : a; }
};
template <typename Float>
struct Sum {
  using State = Float;
  __device__ __forceinline__ Float identity() const { return 0; }
  __device__ __forceinline__ Float combine(Float a, Float b) const { return a + b; }
};

template <typename Element>
struct Softmax {
  using Float = Accumulator<Element>;
  const Element* x;
  Element* result;
  bool aligned;  // x and result
  Segments segments;
  Segments restarts;  // without counts, as a dead item is in no sum, and needs no segment
  int64_t tiles;
  const int64_t* listed;
  int* first_head;  // per tile; the tile's size if it has no head
  int* last_head;
  Part<Float>* opening;
  Part<Float>* open;

  // Whether a segment starts in a tile.
  __device__ __forceinline__ bool has_head(int64_t tile) const {
    return first_head[tile] < minimum<int64_t>(segments.total() - tile * Shape<Element>::kTile, Shape<Element>::kTile);
  }
  __device__ __forceinline__ bool is_live(int64_t position) const {
    const int64_t row = segments.row(position);
    return position - row * segments.length < segments.live(row);
  }
};

// The result of an item from the sum of its segment's exponentials. `kept` is the shifted item if kLog, else its
// exponential.
template <bool kLog, typename Float>
__device__ __forceinline__ Float result_of(Float kept, Float sum) {
  return kLog ? kept - logarithm(sum) : divide(kept, sum);
}

// A thread's neighbouring items, and the heads among them.
template <typename Element>
struct ThreadItems {
  static constexpr int kItems = Shape<Element>::kItems;
  using Float = Accumulator<Element>;
  unsigned heads;  // bit i: item i starts a segment
  int before;      // heads of the tile before the thread
  Float* own;      // the thread's places in shared memory

  // Combines `states` from head to head. Then calls take(i, total) with the total of each item's segment, from the last
  // item to the first. `totals` has room for one value per segment of the tile. Contains barriers.
  template <typename Operator, typename Take>
  __device__ __forceinline__ void total(const Operator& op, Float (&states)[kItems], Float* totals, int all_heads,
                                        SinceRestart<Float>* warp_sums, Take take) const {
    using Sums = Sums<Operator, true>;
    constexpr int kWarps = Shape<Element>::kWarps;
#pragma unroll
    for (int i = 1; i < kItems; ++i) {
      states[i] = heads >> i & 1 ? states[i] : op.combine(states[i - 1], states[i]);
    }
    // The position of the first head varies, so states are read there from shared memory, as registers cannot be
    // indexed.
    store_vector(own, 0, states);
    const int first_head = __ffs(heads) - 1;
    const Float last = first_head > 0 ? own[first_head - 1] : op.identity();
    const Sums sums{op};
    const auto in_warp = scan_warp<true>(op, states[kItems - 1], __ballot_sync(~0u, heads != 0));
    __syncthreads();  // earlier totals have been read
    const auto in_block = scan_warps<kWarps>(warp_sums, in_warp.all, sums.identity(), sums);
    // Items before the thread's first head belong to an earlier segment, which ends there.
    if (heads != 0) totals[before] = op.combine(sums(in_block.before, in_warp.before).state, last);
    if (threadIdx.x == 0) totals[all_heads] = in_block.all.state;
    __syncthreads();
    Float running = totals[before + __popc(heads)];
    if (first_head > 0) own[first_head - 1] = totals[before];
    load_own(states);
#pragma unroll
    for (int i = kItems - 1; i >= 0; --i) {
      take(i, running);
      if (i > 0) running = heads >> i & 1 ? states[i - 1] : running;
    }
  }

  __device__ __forceinline__ void load_own(Float (&items)[kItems]) const {
    constexpr int kWords = kItems * sizeof(Float) / sizeof(uint4);
    uint4 words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint4*>(own)[i];
    memcpy(items, words, sizeof(items));
  }
};

// A bitmap of a tile's heads, and the number of heads before each of its words.
template <typename Element>
struct HeadBits {
  unsigned words[Shape<Element>::kWords];
  int before[Shape<Element>::kWords + 1];
};

template <typename Element>
__device__ __forceinline__ void mark_heads(HeadBits<Element>& bits, const Softmax<Element>& task, int64_t tile) {
  using Shape = Shape<Element>;
  const int64_t begin = tile * Shape::kTile;
  for (int i = threadIdx.x; i < Shape::kWords; i += Shape::kThreads) bits.words[i] = 0;
  __syncthreads();
  task.restarts.mark_heads({begin, minimum(begin + Shape::kTile, task.segments.total())},
                           {task.listed[tile], task.listed[tile + 1]}, threadIdx.x, Shape::kThreads,
                           [&](int64_t position) {
                             const int i = static_cast<int>(position - begin);
                             atomicOr(&bits.words[i / 32], 1u << (i % 32));
                           });
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  constexpr int kShare = Shape::kWords / kWarp;
  int counts[kShare], count = 0;
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    counts[i] = count;
    count += __popc(bits.words[threadIdx.x * kShare + i]);
  }
  const int up_to = sum_up_to(count);
#pragma unroll
  for (int i = 0; i < kShare; ++i) bits.before[threadIdx.x * kShare + i] = up_to - count + counts[i];
  if (threadIdx.x == kWarp - 1) bits.before[Shape::kWords] = up_to;
}

template <bool kLog, typename Element>
__global__ void __launch_bounds__(Shape<Element>::kThreads, kLog ? 3 : 4) normalize_tiles(Softmax<Element> task) {
  using Shape = Shape<Element>;
  using Float = Accumulator<Element>;
  using Items = Vector<Element>;
  constexpr int kItems = Shape::kItems;
  constexpr int kVector = Shape::kVector;
  __shared__ HeadBits<Element> bits;
  __shared__ alignas(16) Float places[Shape::kPlaces];  // items, then the totals of segments, then results
  __shared__ SinceRestart<Float> warp_sums[Shape::kWarps];
  __shared__ Float totals[Shape::kTile + 1];

  // Load: interleaved vectors for the block, then a thread's own items.
  const int64_t tile = blockIdx.x;
  const int64_t begin = tile * Shape::kTile;
  const int size = static_cast<int>(minimum<int64_t>(task.segments.total() - begin, Shape::kTile));
  const bool whole = task.aligned && size == Shape::kTile && !task.segments.counts.given();
  const Element* const x = task.x + begin;
  const auto vector_of = [](int row) { return (row * Shape::kThreads + static_cast<int>(threadIdx.x)) * kVector; };
  if (whole) {
    Items vectors[kItems / kVector];
#pragma unroll
    for (int row = 0; row < kItems / kVector; ++row) vectors[row] = Items::load(x, vector_of(row));
#pragma unroll
    for (int row = 0; row < kItems / kVector; ++row) {
      alignas(16) Float items[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) items[k] = widen(vectors[row].items[k]);
      store_vector(places + Shape::place(vector_of(row)), 0, items);
    }
  } else {
    for (int i = threadIdx.x; i < size; i += Shape::kThreads) places[Shape::place(i)] = widen(x[i]);
  }
  wait_for_last_kernel();  // the loads above read only items, which that kernel does not write
  mark_heads(bits, task, tile);
  __syncthreads();

  const int first = threadIdx.x * kItems;
  const ThreadItems<Element> items{
      bits.words[first / 32] >> (first % 32) & ((1u << kItems) - 1),
      bits.before[first / 32] + __popc(bits.words[first / 32] & ((1u << (first % 32)) - 1)),
      places + Shape::place(first)};
  const int all_heads = bits.before[Shape::kWords];
  if (items.heads != 0) {
    if (items.before == 0) task.first_head[tile] = first + __ffs(items.heads) - 1;
    if (items.before + __popc(items.heads) == all_heads) task.last_head[tile] = first + 31 - __clz(items.heads);
  }
  if (all_heads == 0 && threadIdx.x == 0) task.first_head[tile] = task.last_head[tile] = size;

  // Shift the items by their segment's maximum. Dead items, and places after the last item, are -inf, with exponential
  // 0.
  const Largest<Float> largest;
  const Sum<Float> sum;
  Float kept[kItems], states[kItems];
  items.load_own(kept);
  const bool all_live = size == Shape::kTile && !task.segments.counts.given();
  if (!all_live) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (first + i >= size || !task.is_live(begin + first + i)) kept[i] = largest.identity();
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) states[i] = kept[i];
  items.total(largest, states, totals, all_heads, warp_sums, [&](int i, Float max) { kept[i] -= shift_of(max); });
  Float first_max = 0, last_max = 0;
  if (threadIdx.x == 0) {
    first_max = totals[0];
    last_max = totals[all_heads];
  }

  // Divide their exponentials by the segment's sum.
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    states[i] = exponential(kept[i]);
    if (!kLog) kept[i] = states[i];
  }
  items.total(sum, states, totals, all_heads, warp_sums,
              [&](int i, Float total) { kept[i] = result_of<kLog>(kept[i], total); });
  if (threadIdx.x == 0) {
    task.opening[tile] = {first_max, bits.words[0] & 1 ? Float{0} : totals[0]};
    task.open[tile] = {last_max, totals[all_heads]};
  }
  if (all_heads == 0) return;  // in one segment, which extends past the tile

  // Store.
  store_vector(items.own, 0, kept);
  __syncthreads();
  Element* const result = task.result + begin;
  if (whole) {
#pragma unroll
    for (int row = 0; row < kItems / kVector; ++row) {
      Element narrow[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) narrow[k] = narrow_to(places[Shape::place(vector_of(row)) + k], Element{});
      store_vector(result, vector_of(row), narrow);
    }
  } else {
    for (int i = threadIdx.x; i < size; i += Shape::kThreads) {
      const bool is_live = all_live || task.is_live(begin + i);
      result[i] = narrow_to(is_live ? places[Shape::place(i)] : Float{0}, Element{});
    }
  }
}

constexpr int kJoinThreads = 128;
constexpr int kJoinTiles = 4;  // per thread at a time

// Joins the parts of a segment that is in three or more tiles. The block of the tile in which it starts does this, and
// all of these tiles get the total of the segment.
template <typename Element>
__global__ void __launch_bounds__(kJoinThreads) join_parts(Softmax<Element> task) {
  using Part = Part<Accumulator<Element>>;
  constexpr int kWarps = kJoinThreads / kWarp;
  constexpr int kSpan = kJoinThreads * kJoinTiles;
  __shared__ Part warp_parts[kWarps];
  __shared__ int warp_ends[kWarps];
  const int64_t own = blockIdx.x;
  wait_for_last_kernel();
  if (!task.has_head(own) || own + 1 == task.tiles || task.has_head(own + 1)) return;

  Part all = task.open[own];
  int64_t end = own + 1;  // after the last tile with a part of the segment
  for (int64_t begin = own + 1; begin < task.tiles; begin += kSpan) {
    // The tiles up to the first one with a head have parts.
    const int64_t first = begin + threadIdx.x * kJoinTiles;
    const int limit = static_cast<int>(minimum<int64_t>(task.tiles - begin, kSpan));
    int last = kSpan;
#pragma unroll
    for (int k = kJoinTiles - 1; k >= 0; --k) {
      const int i = threadIdx.x * kJoinTiles + k;
      if (i < limit && task.has_head(first + k)) last = i;
    }
    last = fold_warp(last, [](int a, int b) { return minimum(a, b); });
    if (threadIdx.x % kWarp == 0) warp_ends[threadIdx.x / kWarp] = last;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) last = minimum(last, warp_ends[w]);
    Part part{0, 0};
#pragma unroll
    for (int k = 0; k < kJoinTiles; ++k) {
      const int i = threadIdx.x * kJoinTiles + k;
      if (i <= last && i < limit) part = join(part, task.opening[begin + i]);
    }
    part = fold_warp(part, [](const Part& a, const Part& b) { return join(a, b); });
    if (threadIdx.x % kWarp == 0) warp_parts[threadIdx.x / kWarp] = part;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all = join(all, warp_parts[w]);
    end = begin + minimum(last + 1, limit);
    if (last < kSpan) break;
    __syncthreads();  // the next turn writes the warps' parts
  }
  __syncthreads();  // all parts have been read
  if (threadIdx.x == 0) task.open[own] = all;
  for (int64_t tile = own + 1 + threadIdx.x; tile < end; tile += kJoinThreads) task.opening[tile] = all;
}

constexpr int kCloseThreads = 64;  // usually there are few items to write

// Writes the items of the segments that are open at a tile's start and at its end.
template <bool kLog, typename Element>
__global__ void __launch_bounds__(kCloseThreads) close_tiles(Softmax<Element> task) {
  using Shape = Shape<Element>;
  using Float = Accumulator<Element>;
  using Part = Part<Float>;
  constexpr int kInFlight = 4;
  const int64_t tile = blockIdx.x;
  const int64_t begin = tile * Shape::kTile;
  const int size = static_cast<int>(minimum<int64_t>(task.segments.total() - begin, Shape::kTile));
  const bool knows_counts = task.segments.counts.given();
  const int64_t before = maximum<int64_t>(tile - 1, 0), after = minimum(tile + 1, task.tiles - 1);
  wait_for_last_kernel();
  const int first_head = task.first_head[tile];
  const int last_head = first_head < size ? task.last_head[tile] : size;
  // If a segment is in two tiles, each holds its part; if it is in more, each holds the total.
  Part opening = task.opening[tile], open = task.open[tile];
  const Part open_before = task.open[before], opening_after = task.opening[after];
  const bool joins_before = before < tile && task.has_head(before) && first_head < size;
  const bool joins_after = tile < after && task.has_head(after);
  if (joins_after) open = join(open, opening_after);
  if (joins_before) opening = join(open_before, opening);

  const int all = first_head + size - last_head;
  for (int first = threadIdx.x; first < all; first += kInFlight * kCloseThreads) {
    const auto place = [&](int k) {
      const int i = first + k * kCloseThreads;
      return i < first_head ? i : i - first_head + last_head;
    };
    Element items[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * kCloseThreads < all) items[k] = task.x[begin + place(k)];
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * kCloseThreads >= all) break;
      const int64_t position = begin + place(k);
      const Part& part = place(k) < first_head ? opening : open;
      const Float shifted = widen(items[k]) - shift_of(part.max);
      const Float value = result_of<kLog>(kLog ? shifted : exponential(shifted), part.sum);
      const bool dead = knows_counts && !task.is_live(position);
      task.result[position] = narrow_to(dead ? Float{0} : value, Element{});
    }
  }
}

}  // namespace mgpu::cuda::softmax
