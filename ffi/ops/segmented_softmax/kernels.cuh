// After list_heads (ops/scan), normalize_tiles or differentiate_tiles finishes each segment that lies
// between two heads of one tile. For a tile's first and last segments, it stores a Part of each column.
// join_parts joins these parts along each segment, and close_tiles writes the rows of such segments.
#pragma once

#include "algorithm/floats.h"
#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/scan/scan_segments.cuh"
#include "ops/segmented_softmax/plan.h"

namespace mgpu::cuda::softmax {

constexpr int kThreads = kSoftmaxThreads;
constexpr int kWarps = kThreads / kWarp;

template <typename Element>
using Accumulator = std::conditional_t<std::is_same_v<Element, double>, double, float>;

template <typename Element>
constexpr int kThreadRows = sizeof(Element) == 8 ? 16 : 32;
constexpr int kBlocks = 3;

// Sums of exponentials below this lose precision, if the maximum is not the segment's own.
constexpr float kLeastSum = 0x1p-24f;

// For a part of a segment: a number m, and the sum of exp(x - m) over the part's items x; for tangents, 0 and a sum.
template <typename Float>
struct Part {
  Float max;
  Float sum;
};

// The maximum of no items: finite, as -inf minus -inf is undefined.
template <typename Float>
__device__ __forceinline__ Float least() {
  return sizeof(Float) == 4 ? Float(-0x1.fffffep127) : Float(-0x1.fffffffffffffp1023);
}

// exp(x); for float, approximately.
__device__ __forceinline__ float power(float x) { return exp2_approximately(x * 0x1.715476p0f); }
__device__ __forceinline__ double power(double x) { return exponential(x); }

// The fast reciprocal suffices: sums whose results
// are stored are 0, or neither tiny nor huge.
__device__ __forceinline__ float reciprocal(float sum) { return reciprocal_approximately(sum); }
__device__ __forceinline__ double reciprocal(double sum) { return 1 / sum; }

// If all items of a part are -inf, the part's sum is 0.
template <typename Float>
__device__ __forceinline__ Part<Float> join(const Part<Float>& a, const Part<Float>& b) {
  const Float max = a.max < b.max ? b.max : a.max;
  return {max, a.sum * power(a.max - max) + b.sum * power(b.max - max)};
}

template <typename Float>
struct Largest {
  __device__ __forceinline__ Float identity() const { return least<Float>(); }
  // A NaN is lost here, but makes the sum NaN.
  __device__ __forceinline__ float combine(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double combine(double a, double b) const { return a < b ? b : a; }
};
template <typename Float>
struct Sum {
  __device__ __forceinline__ Float identity() const { return 0; }
  __device__ __forceinline__ Float combine(Float a, Float b) const { return a + b; }
};

template <typename Element>
struct Softmax {
  using Float = Accumulator<Element>;
  const Element* x;
  const Element* t;  // tangents, if the rule has them
  Element* result;
  SoftmaxRule rule;
  SoftmaxTiling tiling;
  Divisor group_items;  // items of the rows of a thread, in all columns
  bool is_aligned;
  Segments segments;
  Segments restarts;  // the same segments without counts
  int64_t tiles;
  const int64_t* listed;
  int* first_head;  // one for each tile; the tile's size if it has no head
  int* last_head;
  Part<Float>* opening;  // for each tile and column, the part of the segment that is open at the tile's start
  Part<Float>* open;

  __device__ __forceinline__ int64_t begin(int64_t tile) const { return tile * tiling.tile_rows; }
  __device__ __forceinline__ int size(int64_t tile) const {
    return static_cast<int>(minimum<int64_t>(segments.total() - begin(tile), tiling.tile_rows));
  }
  __device__ __forceinline__ bool has_head(int64_t tile) const { return first_head[tile] < size(tile); }
  __device__ __forceinline__ bool is_live(int64_t position) const {
    const int64_t row = segments.row(position);
    return position - row * segments.length < segments.live(row);
  }
  // The tile in which the segment that is open at the start of `tile` begins.
  __device__ __forceinline__ int64_t owner(int64_t tile) const {
    const int64_t head = restarts.flat_head(maximum<int64_t>(listed[tile] - 1, 0));
    return clamp<int64_t>(head / tiling.tile_rows, 0, maximum<int64_t>(tile - 1, 0));
  }

  // A segment's scale is a factor of the exponential, or a term of the logarithm.
  __device__ __forceinline__ Float scale_of(Float sum) const {
    return rule == SoftmaxRule::kLogSoftmax ? logarithm(sum) : reciprocal(sum);
  }
  // `kept` is the shifted item for the logarithm, else its exponential.
  __device__ __forceinline__ Float result_of(Float kept, Float scale) const {
    return rule == SoftmaxRule::kLogSoftmax ? kept - scale : kept * scale;
  }
  // y is the softmax or its logarithm.
  __device__ __forceinline__ Float term_of(Float y, Float tangent) const {
    if (rule == SoftmaxRule::kLogCotangent) return tangent;
    return (rule == SoftmaxRule::kLogTangent ? power(y) : y) * tangent;
  }
  __device__ __forceinline__ Float tangent_of(Float y, Float tangent, Float total) const {
    if (rule == SoftmaxRule::kSoftmaxTangent) return y * (tangent - total);
    return tangent - (rule == SoftmaxRule::kLogCotangent ? power(y) * total : total);
  }
};

template <typename Float>
struct Exchange {
  unsigned heads[kWarps];  // for each warp, the lanes whose rows have a head
  // By column, each warp's state since its last head.
  Float open[kWarps][kWarp];
  // The totals of the segments that end at each thread's first
  // head; then those of the segments open at the tile's end.
  Float totals[kThreads + kWarp];
};

template <typename Float>
struct Slots {
  Float* first;
  int stride;
  __device__ __forceinline__ Float& operator[](int i) const { return first[i * stride]; }
};

template <typename Element>
struct Group {
  using Float = Accumulator<Element>;
  static constexpr int kRows = kThreadRows<Element>;

  int lanes;           // the number of neighbouring threads that have the same rows
  unsigned heads;      // bit i: the thread's row i starts a segment; 0 if the thread has no column
  unsigned ballot;     // lanes of the warp with a head
  int first_warp;      // the last warp before this one with a head, or 0
  bool begins_before;  // whether a segment starts in the tile before the thread's rows
  int next;            // the next thread of the column that has a head; if there is none, kThreads + the column

  __device__ __forceinline__ Group(Exchange<Float>& exchange, int lanes, unsigned heads)
      : lanes(lanes), heads(heads), ballot(__ballot_sync(~0u, heads != 0)) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (lane == 0) exchange.heads[warp] = ballot;
    __syncthreads();
    const int across = lane & (lanes - 1);
    const unsigned after = ballot & ~((2u << (lane | (lanes - 1))) - 1);
    const unsigned warps = __ballot_sync(~0u, lane < kWarps && exchange.heads[lane % kWarps] != 0);
    const unsigned warps_before = warps & ((1u << warp) - 1), warps_after = warps >> warp >> 1;
    first_warp = warps_before ? 31 - __clz(warps_before) : 0;
    begins_before = earlier() != 0 || warps_before != 0;
    next = kThreads + across;
    if (after) {
      next = warp * kWarp + __ffs(after) - 1 + across;
    } else if (warps_after) {
      const int other = warp + __ffs(warps_after);
      next = other * kWarp + __ffs(exchange.heads[other]) - 1 + across;
    }
  }

  __device__ __forceinline__ int first_head() const { return __ffs(heads) - 1; }
  __device__ __forceinline__ int last_head() const { return 31 - __clz(heads); }
  __device__ __forceinline__ bool ends_after() const { return next < kThreads; }
  __device__ __forceinline__ bool is_cut() const { return ballot != 0 || begins_before || ends_after(); }
  __device__ __forceinline__ unsigned earlier() const {
    return ballot & ((1u << (static_cast<int>(threadIdx.x) % kWarp & ~(lanes - 1))) - 1);
  }
  // The thread's rows whose segments lie between two heads of the tile.
  __device__ __forceinline__ unsigned finished() const {
    unsigned rows = ~0u;
    if (!begins_before) rows &= heads ? ~0u << first_head() : 0u;
    if (!ends_after()) rows &= heads ? (1u << last_head()) - 1 : 0u;
    return rows;
  }

  // Contains a barrier.
  __device__ __forceinline__ Float column_max(Exchange<Float>& exchange, Float max) const {
    const Largest<Float> op;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int distance = lanes; distance < kWarp; distance *= 2) {
      max = op.combine(max, shuffle_words(max, [=](unsigned word) { return __shfl_xor_sync(~0u, word, distance); }));
    }
    exchange.totals[warp * kWarp + lane] = max;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) max = op.combine(max, exchange.totals[w * kWarp + lane]);
    return max;
  }

  // Combines value(i) of the rows i of each segment, over all threads. Then calls put(opening, open): `opening`
  // is the total of the segment before the thread's first head, or of its only segment if it has no head; `open`
  // is that of the segment of its last row. Last, calls take(i, map(total)) for the thread's rows, from the last to
  // the first, with the total of row i's segment. `slots` keeps totals at the thread's heads. Contains two barriers.
  template <typename Operator, typename Value, typename Put, typename Map, typename Take>
  __device__ __forceinline__ void total(const Operator& op, Exchange<Float>& exchange, const Slots<Float>& slots,
                                        Value value, Put put, Map map, Take take) const {
    Float running = op.combine(op.identity(), value(0));
#pragma unroll
    for (int i = 1; i < kRows; ++i) {
      if (heads >> i & 1) {
        slots[i] = running;
        running = op.identity();
      }
      running = op.combine(running, value(i));
    }
    const int first = first_head();
    Float opening = first > 0 ? slots[first] : op.identity();
    running = exchange_states(op, exchange, running, opening);
    if (first > 0) slots[first] = opening;
    put(opening, running);
    running = map(running);
    // From reversed bits, ptxas makes new predicates instead of keeping those of the loop above.
    const unsigned reversed = __brev(heads);
#pragma unroll
    for (int i = kRows - 1; i >= 0; --i) {
      take(i, running);
      if (i > 0 && (reversed >> (31 - i) & 1)) running = map(slots[i]);
    }
  }

 private:
  // `since` is the state of the thread's rows since its last head, and `opening` that
  // of its rows before its first head. Replaces `opening` by the total of its segment
  // over all threads. Returns the total of the segment of the thread's last row.
  template <typename Operator>
  __device__ __forceinline__ Float exchange_states(const Operator& op, Exchange<Float>& exchange, Float since,
                                                   Float& opening) const {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int across = lane & (lanes - 1);
    const unsigned here = ballot & ((2u << lane) - 1);
    const int restart = here ? (31 - __clz(here)) & ~(lanes - 1) : 0;
    for (int distance = lanes; distance < kWarp; distance *= 2) {
      const Float below = shuffle_up(since, distance);
      if (lane - distance >= restart) since = op.combine(below, since);
    }
    const bool is_last = lane >= kWarp - lanes;
    if (is_last) exchange.open[warp][across] = since;
    __syncthreads();
    Float before = op.identity();  // the state since the last head before the thread's rows
    if (earlier() == 0) {
      for (int w = first_warp; w < warp; ++w) before = op.combine(before, exchange.open[w][across]);
    }
    if (is_last && warp == kWarps - 1) {
      // `since` lacks the warps before this one if the warp has no head.
      exchange.totals[kThreads + across] = here ? since : op.combine(before, since);
    }
    const Float below = shuffle_up(since, lanes & (kWarp - 1));
    if (lane >= lanes) before = op.combine(before, below);
    opening = op.combine(before, opening);
    if (heads != 0) exchange.totals[threadIdx.x] = opening;
    __syncthreads();
    const Float total = exchange.totals[next];
    if (heads == 0) opening = total;
    return total;
  }
};

template <typename Element>
struct StagedTile {
  using Float = Accumulator<Element>;
  static constexpr int kRows = kThreadRows<Element>;
  static constexpr int kVector = Vector<Element>::kItems;

  const Softmax<Element>& task;
  Float* places;
  int items;

  // The items of a vector have neighbouring places, because a thread's rows are whole vectors.
  __device__ __forceinline__ Float* place(int i) const {
    return places + i + static_cast<int>(task.group_items.quotient(i)) * task.tiling.gap(sizeof(Float));
  }

  template <typename Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    if (task.is_aligned && items == task.tiling.tile_rows * static_cast<int>(task.tiling.width)) {
#pragma unroll 4
      for (int i = threadIdx.x * kVector; i < items; i += kThreads * kVector) visit.template operator()<kVector>(i);
    } else {
#pragma unroll 4
      for (int i = threadIdx.x; i < items; i += kThreads) visit.template operator()<1>(i);
    }
  }
};

template <int kCount, typename Element, typename Float>
__device__ __forceinline__ void load_items(const Element* from, Float (&to)[kCount]) {
  Element items[kCount];
  load_bytes<sizeof(items)>(items, from);
#pragma unroll
  for (int k = 0; k < kCount; ++k) to[k] = widen(items[k]);
}
template <int kCount, typename Element, typename Float>
__device__ __forceinline__ void store_items(Element* to, const Float (&from)[kCount]) {
  Element items[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) items[k] = narrow_to(from[k], Element{});
  store_bytes<sizeof(items)>(to, items);
}

template <typename Element>
struct Share {
  using Float = Accumulator<Element>;
  static constexpr int kRows = kThreadRows<Element>;

  const Softmax<Element>& task;
  int64_t tile;
  int64_t slab;
  int64_t column;
  int first;  // the thread's first row in the tile
  int size;
  bool has_column;
  unsigned rows;  // bit i: the thread has an item in its row i

  __device__ __forceinline__ explicit Share(const Softmax<Element>& task)
      : task(task),
        tile(blockIdx.x / static_cast<unsigned>(task.tiling.slabs)),
        slab(blockIdx.x - tile * task.tiling.slabs),
        first((static_cast<int>(threadIdx.x) >> task.tiling.lane_bits) * kRows),
        size(task.size(tile)) {
    const int lane = static_cast<int>(threadIdx.x) & (task.tiling.lanes() - 1);
    column = slab * task.tiling.slab_columns + lane;
    has_column = lane < task.tiling.slab_columns && column < task.tiling.width;
    const int count = has_column ? clamp(size - first, 0, kRows) : 0;
    rows = count == 0 ? 0u : ~0u >> (32 - count);
  }

  __device__ __forceinline__ int64_t offset() const { return (task.begin(tile) + first) * task.tiling.width + column; }
  __device__ __forceinline__ StagedTile<Element> stage(void* shared) const {
    return {task, static_cast<Float*>(shared), size * static_cast<int>(task.tiling.width)};
  }
  template <bool kStaged>
  __device__ __forceinline__ Slots<Float> slots(const StagedTile<Element>& stage) const {
    if constexpr (kStaged) {
      const int width = static_cast<int>(task.tiling.width);
      return {stage.place(first * width) + column, width};
    } else {
      return {stage.places + threadIdx.x, kThreads};
    }
  }

  // Rows outside the bitmap `live` get `nothing`. Rows of one
  // column are moved by vectors, to avoid conflicts of banks.
  __device__ __forceinline__ void load_staged(const Slots<Float>& slots, unsigned live, Float nothing,
                                              Float (&items)[kRows]) const {
    if (task.tiling.width == 1) {
      load_bytes<sizeof(items)>(items, slots.first);
#pragma unroll
      for (int i = 0; i < kRows; ++i) items[i] = live >> i & 1 ? items[i] : nothing;
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) items[i] = live >> i & 1 ? slots[i] : nothing;
    }
  }
  __device__ __forceinline__ void store_staged(const Slots<Float>& slots, const Float (&items)[kRows]) const {
    if (!has_column) return;
    if (task.tiling.width == 1) {
      store_bytes<sizeof(items)>(slots.first, items);
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) slots[i] = items[i];
    }
  }

  __device__ __forceinline__ unsigned dead() const {
    unsigned dead = 0;
    if (!task.segments.counts.given()) return dead;
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      if (first + i < size && !task.is_live(task.begin(tile) + first + i)) dead |= 1u << i;
    }
    return dead;
  }

  // Calls visit(i, item) for the rows i of a bitmap. A pointer
  // from row to row takes fewer instructions than offsets.
  template <typename Array, typename Visit>
  __device__ __forceinline__ void for_each_row(Array* array, unsigned bits, Visit visit) const {
    array += offset();
#pragma unroll
    for (int i = 0; i < kRows; ++i, array += task.tiling.width) {
      if (bits >> i & 1) visit(i, *array);
    }
  }

  template <typename Visit>
  __device__ __forceinline__ void for_each_tangent(unsigned bits, Visit visit) const {
    constexpr int kInFlight = 8;
    const int64_t width = task.tiling.width;
    const Element *x = task.x + offset(), *t = task.t + offset();
    Element* result = task.result + offset();
#pragma unroll
    for (int first = 0; first < kRows; first += kInFlight) {
      Float items[kInFlight], tangents[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k, x += width, t += width) {
        items[k] = tangents[k] = 0;
        if (!(bits >> (first + k) & 1)) continue;
        items[k] = widen(*x);
        tangents[k] = widen(*t);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k, result += width) {
        if (bits >> (first + k) & 1) visit(first + k, items[k], tangents[k], *result);
      }
    }
  }

  // Contains barriers.
  __device__ __forceinline__ Group<Element> group(unsigned* words, Exchange<Float>& exchange) const {
    const int64_t begin = task.begin(tile);
    for (int i = threadIdx.x; i < kThreads * kRows / 32; i += kThreads) words[i] = 0;
    __syncthreads();
    task.restarts.mark_heads({begin, begin + size}, {task.listed[tile], task.listed[tile + 1]}, threadIdx.x, kThreads,
                             [&](int64_t position) {
                               const int i = static_cast<int>(position - begin);
                               atomicOr(&words[i / 32], 1u << (i % 32));
                             });
    __syncthreads();
    const int lanes = task.tiling.lanes();
    const unsigned heads = words[first / 32] >> (first % 32) & (~0u >> (32 - kRows));
    const Group<Element> group(exchange, lanes, has_column ? heads : 0);
    if (slab == 0 && (static_cast<int>(threadIdx.x) & (lanes - 1)) == 0) {
      if (group.heads && !group.begins_before) task.first_head[tile] = first + group.first_head();
      if (group.heads && !group.ends_after()) task.last_head[tile] = first + group.last_head();
      if (threadIdx.x == 0 && !group.is_cut()) task.first_head[tile] = task.last_head[tile] = size;
    }
    return group;
  }

  __device__ __forceinline__ void put_parts(Float Part<Float>::* member, Float opening, Float open) const {
    if (!has_column) return;
    const int64_t at = tile * task.tiling.width + column;
    if (static_cast<int>(threadIdx.x) < task.tiling.lanes()) task.opening[at].*member = opening;
    if (static_cast<int>(threadIdx.x) >= kThreads - task.tiling.lanes()) task.open[at].*member = open;
  }
};

// Items are shifted by the maximum of their segment if kExact, else by that of their
// column of the tile. In the second case, if the sum of a segment is so small that it
// has lost precision, or is NaN, this function returns false and stores no results.
template <bool kExact, bool kStaged, typename Element>
__device__ __forceinline__ bool normalize_tile(const Softmax<Element>& task) {
  using Float = Accumulator<Element>;
  using Part = Part<Float>;
  constexpr int kRows = kThreadRows<Element>;
  const Float nothing = static_cast<Float>(std::bit_cast<float>(0xff800000u));  // -inf, with exponential 0
  __shared__ unsigned words[kThreads * kRows / 32];
  __shared__ Exchange<Float> exchange;
  extern __shared__ uint4 shared[];
  const Share<Element> share(task);
  const auto stage = share.stage(shared);
  const auto slots = share.template slots<kStaged>(stage);
  const int64_t tile_offset = task.begin(share.tile) * task.tiling.width;

  // Dead rows, and places after the last row, are -inf.
  Float kept[kRows];
  if constexpr (kStaged) {
    stage.for_each([&]<int kCount>(int i) {
      Float items[kCount];
      load_items(task.x + tile_offset + i, items);
      store_bytes<sizeof(items)>(stage.place(i), items);
    });
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) kept[i] = nothing;
    share.for_each_row(task.x, share.rows, [&](int i, const Element& x) { kept[i] = widen(x); });
  }
  wait_for_last_kernel();  // the loads above read only rows, which that kernel does not write
  const Group<Element> group = share.group(words, exchange);
  const unsigned dead = share.dead();
  if constexpr (kStaged) {
    share.load_staged(slots, share.rows & ~dead, nothing, kept);
  } else if (dead != 0) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) kept[i] = dead >> i & 1 ? nothing : kept[i];
  }

  const bool log = kExact && task.rule == SoftmaxRule::kLogSoftmax;
  Float column_max = least<Float>();
  if constexpr (kExact) {
    group.total(
        Largest<Float>{}, exchange, slots, [&](int i) { return kept[i]; },
        [&](Float opening, Float open) { share.put_parts(&Part::max, opening, open); }, [](Float max) { return max; },
        [&](int i, Float max) { kept[i] -= max; });
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) column_max = Largest<Float>{}.combine(column_max, kept[i]);
    column_max = group.column_max(exchange, column_max);
#pragma unroll
    for (int i = 0; i < kRows; ++i) kept[i] -= column_max;
  }
  if (!log) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) kept[i] = power(kept[i]);
  }
  bool is_small = false;
  group.total(
      Sum<Float>{}, exchange, slots, [&](int i) { return log ? power(kept[i]) : kept[i]; },
      [&](Float opening, Float open) {
        // A part without live items must not raise the maximum of its segment.
        if (!kExact) share.put_parts(&Part::max, opening == 0 ? least<Float>() : column_max, column_max);
        share.put_parts(&Part::sum, opening, open);
      },
      [&](Float sum) {
        if (!kExact && !(sum >= kLeastSum)) is_small = true;
        return log ? logarithm(sum) : reciprocal(sum);
      },
      [&](int i, Float scale) { kept[i] = log ? kept[i] - scale : kept[i] * scale; });
  if constexpr (!kExact) {
    if (__syncthreads_or(is_small && (share.rows & ~dead) != 0)) return false;
  }
  if (dead != 0) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) kept[i] = dead >> i & 1 ? Float{0} : kept[i];
  }

  if (!group.is_cut()) return true;
  if constexpr (kStaged) {
    share.store_staged(slots, kept);
    __syncthreads();
    // This also stores rows that close_tiles overwrites.
    stage.for_each([&]<int kCount>(int i) {
      Float items[kCount];
      load_bytes<sizeof(items)>(items, stage.place(i));
      store_items(task.result + tile_offset + i, items);
    });
  } else {
    share.for_each_row(task.result, share.rows & group.finished(),
                       [&](int i, Element& result) { result = narrow_to(kept[i], Element{}); });
  }
  return true;
}

// This is not inlined, so that the usual case keeps its registers.
template <bool kStaged, typename Element>
__device__ __noinline__ void normalize_exactly(const Softmax<Element>& task) {
  normalize_tile<true, kStaged>(task);
}

template <bool kStaged, typename Element>
__global__ void __launch_bounds__(kThreads, kBlocks) normalize_tiles(const __grid_constant__ Softmax<Element> task) {
  start_next_kernel();
  if (task.rule == SoftmaxRule::kSoftmax && normalize_tile<false, kStaged>(task)) return;
  normalize_exactly<kStaged>(task);
}

// Both operands
// are read twice.
template <bool kStaged, typename Element>
__global__ void __launch_bounds__(kThreads, kBlocks) differentiate_tiles(Softmax<Element> task) {
  using Float = Accumulator<Element>;
  using Part = Part<Float>;
  constexpr int kRows = kThreadRows<Element>;
  __shared__ unsigned words[kThreads * kRows / 32];
  __shared__ Exchange<Float> exchange;
  extern __shared__ uint4 shared[];
  const Share<Element> share(task);
  const auto stage = share.stage(shared);
  const auto slots = share.template slots<kStaged>(stage);
  const bool knows_counts = task.segments.counts.given();
  const int64_t begin = task.begin(share.tile), tile_offset = begin * task.tiling.width;

  start_next_kernel();

  Float terms[kRows] = {};
  if constexpr (kStaged) {
    stage.for_each([&]<int kCount>(int i) {
      Float items[kCount], tangents[kCount];
      load_items(task.x + tile_offset + i, items);
      load_items(task.t + tile_offset + i, tangents);
#pragma unroll
      for (int k = 0; k < kCount; ++k) items[k] = task.term_of(items[k], tangents[k]);
      store_bytes<sizeof(items)>(stage.place(i), items);
    });
  } else {
    share.for_each_tangent(share.rows,
                           [&](int i, Float y, Float tangent, Element&) { terms[i] = task.term_of(y, tangent); });
  }
  wait_for_last_kernel();
  const Group<Element> group = share.group(words, exchange);
  const unsigned dead = share.dead();
  if constexpr (kStaged) {
    share.load_staged(slots, share.rows & ~dead, Float{0}, terms);
  } else if (dead != 0) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) terms[i] = dead >> i & 1 ? Float{0} : terms[i];
  }

  group.total(
      Sum<Float>{}, exchange, slots, [&](int i) { return terms[i]; },
      [&](Float opening, Float open) {
        share.put_parts(&Part::max, 0, 0);  // so parts are joined as sums
        share.put_parts(&Part::sum, opening, open);
      },
      [](Float sum) { return sum; }, [&](int i, Float total) { terms[i] = total; });

  if (!group.is_cut()) return;
  if constexpr (kStaged) {
    share.store_staged(slots, terms);
    __syncthreads();
    stage.for_each([&]<int kCount>(int i) {
      Float items[kCount], tangents[kCount], totals[kCount];
      load_items(task.x + tile_offset + i, items);
      load_items(task.t + tile_offset + i, tangents);
      load_bytes<sizeof(totals)>(totals, stage.place(i));
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        items[k] = task.tangent_of(items[k], tangents[k], totals[k]);
        if (knows_counts && !task.is_live(begin + (i + k) / static_cast<int>(task.tiling.width))) items[k] = 0;
      }
      store_items(task.result + tile_offset + i, items);
    });
  } else {
    share.for_each_tangent(share.rows & group.finished(), [&](int i, Float y, Float tangent, Element& result) {
      const Float value = task.tangent_of(y, tangent, terms[i]);
      result = narrow_to(dead >> i & 1 ? Float{0} : value, Element{});
    });
  }
}

constexpr int kJoinThreads = 1024;
constexpr int kJoinWarps = kJoinThreads / kWarp;
constexpr int kJoinColumns = 8;
constexpr int kJoinSerial = 16;  // the most tiles that a lane joins, if one warp joins a segment's parts

// Joins the parts of each segment that extends past the tile
// in which it starts. `open` of that tile gets the total.
template <typename Element>
__global__ void __launch_bounds__(kJoinThreads, 1) join_parts(Softmax<Element> task, int column_bits) {
  using Part = Part<Accumulator<Element>>;
  __shared__ Part warp_parts[kJoinWarps][kJoinColumns];
  __shared__ int64_t long_ends[kJoinWarps];  // the end of the segment that starts in each warp's tile, or -1
  const int64_t width = task.tiling.width;
  const int across = 1 << column_bits;
  const auto slices = static_cast<unsigned>(ceil_div<int64_t>(width, across));
  const int64_t first_tile = int64_t{blockIdx.x / slices} * kJoinWarps;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = int64_t{blockIdx.x % slices} * across + (lane & (across - 1));
  const bool is_active = column < width;
  wait_for_last_kernel();
  start_next_kernel();

  const auto add_tiles = [&](int64_t begin, int64_t end, int step) {
    Part part{least<Accumulator<Element>>(), 0};
    if (!is_active) return part;
#pragma unroll 8
    for (int64_t tile = begin; tile < end; tile += step) part = join(part, task.opening[tile * width + column]);
    return part;
  };
  const auto fold_lanes = [&](Part part) {
    for (int distance = across; distance < kWarp; distance *= 2) part = join(part, shuffle_down(part, distance));
    return shuffle(part, lane & (across - 1));
  };
  const auto add_to_open = [&](int64_t tile, const Part& part) {
    if (!is_active || lane >= across) return;
    Part& open = task.open[tile * width + column];
    open = join(open, part);
  };

  const int64_t tile = first_tile + warp;
  int64_t end = tile + 1;  // the tile after those that have parts of the segment
  if (tile + 1 < task.tiles && task.has_head(tile)) {
    const int64_t next = task.listed[tile + 1];
    const int64_t head =
        next < task.restarts.flat_heads_count() ? task.restarts.flat_head(next) : task.segments.total();
    end = clamp<int64_t>(head / task.tiling.tile_rows + 1, tile + 1, task.tiles);
  }
  const int parts = kWarp / across;
  const bool is_long = end - tile > kJoinSerial * parts;
  if (lane == 0) long_ends[warp] = is_long ? end : -1;
  if (!is_long && end > tile + 1) add_to_open(tile, fold_lanes(add_tiles(tile + 1 + lane / across, end, parts)));
  if (!__syncthreads_or(is_long)) return;
  for (int w = 0; w < kJoinWarps; ++w) {
    if (long_ends[w] < 0) continue;
    const int64_t begin = first_tile + w + 1 + static_cast<int>(threadIdx.x) / across;
    const Part part = fold_lanes(add_tiles(begin, long_ends[w], kJoinThreads / across));
    if (lane < across) warp_parts[warp][lane] = part;
    __syncthreads();
    if (warp == 0) {
      Part all = warp_parts[0][lane & (across - 1)];
      for (int other = 1; other < kJoinWarps; ++other) all = join(all, warp_parts[other][lane & (across - 1)]);
      add_to_open(first_tile + w, all);
    }
    __syncthreads();
  }
}

constexpr int kCloseThreads = 256;
constexpr int kCloseColumns = 32;
constexpr int kCloseRows = 8;

template <bool kTangents, typename Element>
__global__ void __launch_bounds__(kCloseThreads) close_tiles(Softmax<Element> task, int column_bits) {
  using Float = Accumulator<Element>;
  const int64_t width = task.tiling.width;
  const auto slices = static_cast<unsigned>(ceil_div<int64_t>(width, int64_t{1} << column_bits));
  const int64_t tile = blockIdx.x / slices;
  const int lane = static_cast<int>(threadIdx.x) & ((1 << column_bits) - 1);
  const int64_t column = (int64_t{blockIdx.x % slices} << column_bits) + lane;
  const int64_t begin = task.begin(tile);
  const int size = task.size(tile), rows = static_cast<int>(blockDim.x) >> column_bits;
  const bool knows_counts = task.segments.counts.given();
  wait_for_last_kernel();
  const int first_head = task.first_head[tile];
  const int last_head = first_head < size ? task.last_head[tile] : size;
  const int all = first_head + size - last_head;
  if (all == 0 || column >= width) return;

  const int64_t offset = begin * width + column;
  Float items[kCloseRows], tangents[kCloseRows];
  int j = static_cast<int>(threadIdx.x) >> column_bits;
  const auto row_of = [&](int n) {
    const int i = j + n * rows;
    return i < first_head ? i : i - first_head + last_head;
  };
  const auto load = [&] {
#pragma unroll
    for (int n = 0; n < kCloseRows; ++n) {
      if (j + n * rows >= all) continue;
      items[n] = widen(task.x[offset + row_of(n) * width]);
      if constexpr (kTangents) tangents[n] = widen(task.t[offset + row_of(n) * width]);
    }
  };
  load();  // before the search for the parts of the segments
  const auto get = [&](int64_t of) {
    const Part<Float> part = task.open[of * width + column];
    return Part<Float>{part.max, kTangents ? part.sum : task.scale_of(part.sum)};
  };
  const Part<Float> opening = get(task.owner(tile)), open = get(tile);  // without tangents, `sum` is a scale
  while (true) {
#pragma unroll
    for (int n = 0; n < kCloseRows; ++n) {
      if (j + n * rows >= all) break;
      const int row = row_of(n);
      const Float scale = row < first_head ? opening.sum : open.sum;
      Float value;
      if constexpr (kTangents) {
        value = task.tangent_of(items[n], tangents[n], scale);
      } else {
        const Float shifted = items[n] - (row < first_head ? opening.max : open.max);
        value = task.result_of(task.rule == SoftmaxRule::kLogSoftmax ? shifted : power(shifted), scale);
      }
      const bool is_dead = knows_counts && !task.is_live(begin + row);
      task.result[offset + row * width] = narrow_to(is_dead ? Float{0} : value, Element{});
    }
    j += kCloseRows * rows;
    if (j >= all) return;
    load();
  }
}

}  // namespace mgpu::cuda::softmax
