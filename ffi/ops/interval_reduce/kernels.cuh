// If rows are single items, a block first takes a tile of consecutive intervals. If their items
// fit shared memory, they are combined there: by prefixes and suffixes of groups of items and
// of groups of totals (van Herk, 1992; Gil and Werman, 1993), if an interval is longer than a
// group. Other tiles are listed. For these, further kernels combine the totals of groups in
// device memory, and an interval combines totals with the items that fill no group.
// Both methods add an interval's items in the same grouping, so a float sum has the same bits by either.
#pragma once

#include "cuda/block/shuffle.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/interval_reduce/plan.h"

namespace mgpu::cuda::interval_reducing {

constexpr int kThreads = IntervalTile::kThreads;
constexpr int kGroup = kIntervalGroup;

template <typename Operator>
struct Task {
  using Element = typename Operator::Element;
  using State = typename Operator::State;
  IntervalReduceOperands operands;
  IntervalReduceOperands::Scratch scratch;
  GroupLevels groups;
  bool is_aligned;  // whether x is aligned to 16 bytes

  __device__ const Element* x() const { return static_cast<const Element*>(operands.x); }
  __device__ State* level(int level) const {
    return reinterpret_cast<State*>(scratch.groups) + groups.begin[level] * operands.width;
  }
  __device__ void list_tile(int64_t tile) const {
    scratch.far_tiles[atomicAdd(scratch.far_count, 1u)] = static_cast<unsigned>(tile);
  }
};

struct Tile {
  int64_t problem;
  int64_t first;      // its first interval in the problem
  int count;          // of its intervals
  int64_t first_row;  // the problem's first row among the rows of all problems
  int64_t first_result;

  template <typename Operator>
  __device__ Tile(const Task<Operator>& task, int64_t tile) {
    const IntervalReduceOperands& operands = task.operands;
    problem = operands.problems == 1 ? 0 : tile / task.scratch.tiles;
    first = (tile - problem * task.scratch.tiles) * task.scratch.tile;
    count = static_cast<int>(minimum<int64_t>(task.scratch.tile, operands.count - first));
    first_row = problem * operands.x_stride;
    first_result = problem * operands.count + first;
  }
};

// Stores the results of kColumns neighbouring columns, as elements of all results from `to` on.
template <int kColumns, typename Operator>
__device__ __forceinline__ void store_results(const Task<Operator>& task, const Operator& op, const Tile& tile,
                                              const typename Operator::State (&states)[kColumns], int64_t to) {
  using Result = typename Operator::Result;
  Result results[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) results[c] = op.finish(states[c], tile.first_row);
  if constexpr (Operator::kGivesIndex) {
    const ResultVector<Operator> vector{task.operands.result, task.operands.wide_result};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) vector.store(to + c, results[c]);
  } else {
    store_bytes<sizeof(results)>(static_cast<Result*>(task.operands.result) + to, results);
  }
}

// A thread's intervals of a tile, kThreads apart, as ranges of rows of the problem.
template <typename Position, int kCount>
struct ThreadIntervals {
  Range<Position> rows[kCount];

  // Intervals past the tile are empty.
  __device__ void read(const IntervalReduceOperands& operands, const Tile& tile) {
    operands.starts.wide ? read_as<int64_t>(operands, tile) : read_as<int32_t>(operands, tile);
  }

 private:
  // All loads come first.
  template <typename Index>
  __device__ __forceinline__ void read_as(const IntervalReduceOperands& operands, const Tile& tile) {
    const int64_t own = tile.first + threadIdx.x;
    const auto starts = IndicesOf<Index>(operands.starts).from(tile.problem * operands.starts_stride + own);
    const auto ends = IndicesOf<Index>(operands.ends).from(tile.problem * operands.ends_stride + own);
    const int left = tile.count - static_cast<int>(threadIdx.x);
    Index from[kCount], to[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const bool exists = k * kThreads < left;
      from[k] = exists ? starts[k * kThreads] : Index{0};
      to[k] = exists ? ends[k * kThreads] : Index{0};
    }
    constexpr int64_t kMostIndex = sizeof(Index) == 4 ? 0x7fffffff : INT64_MAX;
    const Index live = static_cast<Index>(minimum(operands.segments.live(tile.problem), kMostIndex));
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Index begin = clamp<Index>(from[k], 0, live);
      rows[k] = {static_cast<Position>(begin), static_cast<Position>(clamp<Index>(to[k], begin, live))};
    }
  }
};

// ---- Tiles of close intervals

// The states of level 0, the totals of groups (level 1), and those of groups of groups (level 2).
// A gap after each group avoids bank conflicts between threads that each walk through a group.
// In `own`, states of 4 bytes have no gaps: combine_group loads them by vectors.
template <typename State>
struct TileStates {
  static constexpr int kItems = IntervalTile{sizeof(State)}.room();
  static constexpr int kGroups = kItems / kGroup;
  static constexpr int kSecondGroups = ceil_div(kGroups, kGroup);
  static constexpr int kGap = sizeof(State) == 4 ? 0 : 1;
  static constexpr int kPerGroup = kGroup + 1;
  alignas(16) State own[(kGroups + kSecondGroups + 1) * (kGroup + kGap)];
  State prefix[(kGroups + kSecondGroups) * kPerGroup];
  State suffix[(kGroups + kSecondGroups) * kPerGroup];

  __device__ __forceinline__ static int place(int level, int i) {
    const int groups = level == 0 ? 0 : level == 1 ? kGroups : kGroups + kSecondGroups;
    return groups * (kGroup + kGap) + i + (i >> kIntervalGroupBits) * kGap;
  }
  __device__ __forceinline__ static int spaced(int level, int i) {
    return (level == 0 ? 0 : kGroups * kPerGroup) + i + (i >> kIntervalGroupBits);
  }

  // Computes the prefixes and suffixes of a group, and the group's total as a state of the next level.
  template <typename Operator>
  __device__ void combine_group(const Operator& op, int level, int group) {
    const State* const from = own + place(level, group * kGroup);
    State* const prefixes = prefix + spaced(level, group * kGroup);
    State* const suffixes = suffix + spaced(level, group * kGroup);
    State states[kGroup];
    if constexpr (kGap == 0) {
      load_bytes<sizeof(states)>(states, from);
    } else {
#pragma unroll
      for (int k = 0; k < kGroup; ++k) states[k] = from[k];
    }
    State state = prefixes[0] = states[0];
#pragma unroll
    for (int k = 1; k < kGroup; ++k) prefixes[k] = state = op.combine(state, states[k]);
    own[place(level + 1, group)] = state;
    state = suffixes[kGroup - 1] = states[kGroup - 1];
#pragma unroll
    for (int k = kGroup - 2; k >= 0; --k) suffixes[k] = state = op.combine(states[k], state);
  }

  // x[0] goes to place 0 of level 0. Groups are combined if an interval is longer than a group (has_groups).
  template <typename Operator>
  __device__ __forceinline__ void load(const Operator& op, const typename Operator::Element* x, int items,
                                       int64_t position, bool has_groups) {
    constexpr int kLoads = kItems / kThreads;
    static_assert(kLoads * kThreads == kItems);
    const int thread = static_cast<int>(threadIdx.x);
    typename Operator::Element loaded[kLoads] = {};
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (k * kThreads + thread < items) loaded[k] = x[k * kThreads + thread];
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (k * kThreads >= items) break;  // no interval reads past the items
      const int i = k * kThreads + thread;
      own[place(0, i)] = op.extract(loaded[k], position + i);
    }
    __syncthreads();
    if (!has_groups) return;
    // The last group of a level may have uninitialized states, which no interval reads.
    const int groups = minimum(items / kGroup + 1, kGroups);
    if (thread < groups) combine_group(op, 0, thread);
    __syncthreads();
    if (thread < ceil_div(groups, kGroup)) combine_group(op, 1, thread);
    __syncthreads();
  }

  // The run has at most a group's length.
  template <typename Operator>
  __device__ __forceinline__ State combine_run(const Operator& op, int level, Range<int> run) const {
    constexpr int kAtOnce = 4;
    State state = op.identity();
#pragma unroll 1
    for (int begin = run.begin; begin < run.end; begin += kAtOnce) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (begin + k < run.end) state = op.combine(state, own[place(level, begin + k)]);
      }
    }
    return state;
  }

  template <typename Operator>
  __device__ __forceinline__ State combine_interval(const Operator& op, Range<int> interval) const {
    State state = op.identity();
    cut_into_groups<3>(interval, [&](int level, Range<int> run, GroupRun kind) {
      if (kind == GroupRun::kWithin) {
        state = op.combine(state, combine_run(op, level, run));
      } else if (run.size() > 0) {
        state = op.combine(
            state, kind == GroupRun::kBefore ? suffix[spaced(level, run.begin)] : prefix[spaced(level, run.end - 1)]);
      }
    });
    return state;
  }
};

__device__ __forceinline__ Range<int> join_warp(Range<int> range) {
#if __CUDA_ARCH__ >= 800
  return {__reduce_min_sync(0xffffffffu, range.begin), __reduce_max_sync(0xffffffffu, range.end)};
#else
  return fold_warp(range, [](const Range<int>& a, const Range<int>& b) {
    return Range<int>{minimum(a.begin, b.begin), maximum(a.end, b.end)};
  });
#endif
}

// The smallest range that contains the nonempty intervals among the first `count` of each thread; {0, 0} if all are
// empty. Sets has_groups if one of them is longer than a group.
template <int kCount>
__device__ Range<int> join_ranges(const Range<int> (&intervals)[kCount], int count, bool& has_groups) {
  __shared__ Range<int> warps[kThreads / kWarp];
  Range<int> range{0x7fffffff, 0};
  has_groups = false;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const Range<int> rows = k < count ? intervals[k] : Range<int>{0, 0};
    range.begin = minimum(range.begin, rows.size() > 0 ? rows.begin : 0x7fffffff);
    range.end = maximum(range.end, rows.size() > 0 ? rows.end : 0);
    has_groups |= rows.size() > kGroup;
  }
  range = join_warp(range);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = range;
  has_groups = __syncthreads_or(has_groups);
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) {
    range = {minimum(range.begin, warps[warp].begin), maximum(range.end, warps[warp].end)};
  }
  return {minimum(range.begin, range.end), range.end};
}

// Takes all intervals of a tile at once or, if these span too many items, kThreads at a time, or else lists the tile.
template <typename Operator>
__global__ void __launch_bounds__(kThreads, IntervalTile{sizeof(typename Operator::State)}.blocks())
    reduce_close_intervals(const __grid_constant__ Task<Operator> task, Operator op) {
  using State = typename Operator::State;
  constexpr int kCount = IntervalTile{sizeof(State)}.intervals() / kThreads;
  constexpr int64_t kSpan = kGroup * kGroup;
  __shared__ TileStates<State> states;
  start_next_kernel();
  const IntervalReduceOperands& operands = task.operands;
  const int thread = static_cast<int>(threadIdx.x);
  const Tile tile(task, blockIdx.x);
  // Groups begin at multiples of their length among the rows of all problems.
  const int64_t phase = tile.first_row & (kSpan - 1);
  const auto origin_of = [&](Range<int> extent) { return ((extent.begin + phase) & ~(kSpan - 1)) - phase; };
  const auto fits = [&](Range<int> extent) { return extent.end - origin_of(extent) <= TileStates<State>::kItems; };

  ThreadIntervals<int, kCount> intervals;
  bool has_groups = false;
  int at_once = kCount;
  Range<int> extent{0, 0x7fffffff};
  if (!operands.starts.wide || operands.segments.length <= 0x7fffffff) {
    intervals.read(operands, tile);
    extent = join_ranges(intervals.rows, at_once, has_groups);
    if (!fits(extent)) {
      at_once = 1;
      __syncthreads();
      extent = join_ranges(intervals.rows, at_once, has_groups);
    }
  }
  for (int done = 0;;) {
    if (!fits(extent)) {
      if (thread == 0) task.list_tile(blockIdx.x);
      return;
    }
    const int64_t origin = origin_of(extent);
    const int64_t first_item = tile.first_row + origin;
    states.load(op, task.x() + first_item, static_cast<int>(extent.end - origin), first_item, has_groups);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int i = (done + k) * kThreads + thread;
      if (k >= at_once || i >= tile.count) break;
      const auto from = static_cast<int>(origin);
      const Range<int> rows{intervals.rows[k].begin - from, intervals.rows[k].end - from};
      const State results[1] = {has_groups ? states.combine_interval(op, rows) : states.combine_run(op, 0, rows)};
      store_results(task, op, tile, results, tile.first_result + i);
    }
    done += at_once;
    if (done * kThreads >= tile.count) return;
#pragma unroll
    for (int k = 1; k < kCount; ++k) intervals.rows[k - 1] = intervals.rows[k];
    __syncthreads();
    extent = join_ranges(intervals.rows, at_once, has_groups);
  }
}

// ---- Groups of rows in device memory

constexpr int kMostColumns = 8;  // of a tile
constexpr int kLevelsAtOnce = 3;
constexpr int kTileGroups = kGroup * kGroup;  // a tile's groups in the first of these levels

MGPU_HOST_DEVICE int64_t slices(int64_t width) { return ceil_div<int64_t>(width, kMostColumns); }

template <typename T>
__device__ __forceinline__ void load_group(T (&items)[kGroup], const T* from, int64_t width, bool is_vector) {
  if (is_vector) {
    load_bytes<sizeof(items)>(items, from);
  } else {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) items[k] = from[k * width];
  }
}

// The total of a group in one column, from the level below.
template <bool kFromItems, typename Operator>
__device__ typename Operator::State total_of(const Task<Operator>& task, const Operator& op, int level, int64_t group,
                                             int64_t column) {
  using State = typename Operator::State;
  const int64_t width = task.operands.width, from = group * kGroup * width + column;
  State states[kGroup];
  if constexpr (kFromItems) {
    typename Operator::Element items[kGroup];
    load_group(items, task.x() + from, width, width == 1 && task.is_aligned);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) states[k] = op.extract(items[k], group * kGroup + k);
  } else {
    load_group(states, task.level(level - 1) + from, width, width == 1);
  }
  State state = states[0];
#pragma unroll
  for (int k = 1; k < kGroup; ++k) state = op.combine(state, states[k]);
  return state;
}

// Computes the totals of up to kLevelsAtOnce levels above `level`. A tile has kGroup^3 of its rows and some columns.
template <bool kFromItems, typename Operator>
__global__ void __launch_bounds__(kThreads)
    combine_groups(const __grid_constant__ Task<Operator> task, Operator op, int level) {
  wait_for_last_kernel();
  start_next_kernel();
  if (*task.scratch.far_count == 0) return;
  const int64_t width = task.operands.width, slices = interval_reducing::slices(width);
  const int columns = static_cast<int>(ceil_div(width, slices));
  const int64_t tiles = ceil_div<int64_t>(task.groups.count(level + 1), kTileGroups);
  for (int64_t block = blockIdx.x; block < tiles * slices; block += gridDim.x) {
    const int64_t tile = block / slices, first_column = (block - tile * slices) * columns;
    int groups = kTileGroups;
    for (int up = level + 1; up <= minimum(level + kLevelsAtOnce, task.groups.levels); ++up, groups /= kGroup) {
      for (int unit = static_cast<int>(threadIdx.x); unit < groups * columns; unit += kThreads) {
        const int64_t group = tile * groups + unit / columns, column = first_column + unit % columns;
        if (group >= task.groups.count(up) || column >= width) continue;
        task.level(up)[group * width + column] = kFromItems && up == 1 ? total_of<true>(task, op, up, group, column)
                                                                       : total_of<false>(task, op, up, group, column);
      }
      __syncthreads();
    }
  }
}

// ---- Listed tiles

// Combines a run of at most a group's length. The array has `length` items.
// They are loaded by vectors if it is aligned and the vectors lie within it.
template <typename Operator, typename T, typename Extract>
__device__ __forceinline__ typename Operator::State combine_run(const Operator& op, const T* items, int64_t length,
                                                                bool is_aligned, Range<int64_t> run, bool backwards,
                                                                Extract extract) {
  constexpr int kItems = minimum(4, static_cast<int>(16 / sizeof(T)));
  typename Operator::State state = op.identity();
  const int64_t origin = run.begin & ~int64_t{kItems - 1};
  const int begin = static_cast<int>(run.begin - origin), end = static_cast<int>(run.end - origin);
  const int vectors = ceil_div(end, kItems);
  const bool has_vectors = is_aligned && origin + vectors * kItems <= length;
#pragma unroll 1
  for (int k = 0; k < vectors; ++k) {
    const int first = (backwards ? vectors - 1 - k : k) * kItems;
    T loaded[kItems];
    if (has_vectors) {
      load_bytes<sizeof(loaded)>(loaded, items + origin + first);
    } else {
#pragma unroll
      for (int i = 0; i < kItems; ++i) loaded[i] = items[minimum(origin + first + i, length - 1)];
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int forth = first + i, back = first + kItems - 1 - i, at = backwards ? back : forth;
      const T item = choose(backwards, loaded[kItems - 1 - i], loaded[i]);
      if (at >= begin && at < end) state = op.combine(state, extract(item, origin + at));
    }
  }
  return state;
}

template <typename Operator>
__device__ __forceinline__ typename Operator::State combine_far(const Task<Operator>& task, const Operator& op,
                                                                Range<int64_t> interval) {
  using State = typename Operator::State;
  State state = op.identity();
  cut_into_groups(interval, [&](int level, Range<int64_t> run, GroupRun kind) {
    if (run.size() == 0) return;
    const bool backwards = kind == GroupRun::kBefore;
    const int64_t length = task.groups.count(level);
    const auto extract = [&](const auto& item, int64_t i) { return op.extract(item, i); };
    const auto same = [](const State& item, int64_t) { return item; };
    state = op.combine(state, level == 0 ? combine_run(op, task.x(), length, task.is_aligned, run, backwards, extract)
                                         : combine_run(op, task.level(level), length, true, run, backwards, same));
  });
  return state;
}

template <typename Operator>
__global__ void __launch_bounds__(kThreads)
    reduce_far_intervals(const __grid_constant__ Task<Operator> task, Operator op) {
  constexpr int kCount = IntervalTile{sizeof(typename Operator::State)}.intervals() / kThreads;
  wait_for_last_kernel();
  const int64_t tiles = *task.scratch.far_count;
  for (int64_t entry = blockIdx.x; entry < tiles; entry += gridDim.x) {
    const Tile tile(task, task.scratch.far_tiles[entry]);
    ThreadIntervals<int64_t, kCount> intervals;
    intervals.read(task.operands, tile);
#pragma unroll 1
    for (int k = 0; k < kCount; ++k) {
      const int i = k * kThreads + static_cast<int>(threadIdx.x);
      if (i >= tile.count) break;
      const Range<int64_t> rows{tile.first_row + intervals.rows[k].begin, tile.first_row + intervals.rows[k].end};
      const typename Operator::State results[1] = {combine_far(task, op, rows)};
      store_results(task, op, tile, results, tile.first_result + i);
    }
  }
}

// ---- Intervals of rows

// The columns of a thread have up to 16 bytes of elements and 32 bytes of states.
template <typename Operator>
constexpr int kThreadColumns =
    static_cast<int>(minimum(16 / sizeof(typename Operator::Element), 32 / sizeof(typename Operator::State)));

// Combines a run of rows with `states`. `items` points to row 0.
template <int kColumns, typename Operator, typename T, typename Extract>
__device__ __forceinline__ void combine_rows(const Operator& op, const T* items, int64_t width, Range<int64_t> run,
                                             bool backwards, Extract extract,
                                             typename Operator::State (&states)[kColumns]) {
  typename Operator::State parts[kColumns];
#pragma unroll
  for (auto& part : parts) part = op.identity();
  const int count = static_cast<int>(run.size());
#pragma unroll 4
  for (int k = 0; k < count; ++k) {
    const int64_t row = backwards ? run.end - 1 - k : run.begin + k;
    T loaded[kColumns];
    load_bytes<sizeof(loaded)>(loaded, items + row * width);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) parts[c] = op.combine(parts[c], extract(loaded[c], row));
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) states[c] = op.combine(states[c], parts[c]);
}

// With kListed, reduces the intervals of the listed tiles. Without it, lists each tile that has an interval
// longer than a group, and reduces the intervals of the other tiles.
template <int kColumns, bool kListed, typename Operator>
__global__ void __launch_bounds__(kThreads)
    reduce_intervals_of_rows(const __grid_constant__ Task<Operator> task, Operator op) {
  if constexpr (kListed) {
    wait_for_last_kernel();
  } else {
    start_next_kernel();
  }
  using State = typename Operator::State;
  const IntervalReduceOperands& operands = task.operands;
  const int64_t width = operands.width, parts = width / kColumns;
  const int64_t tiles = kListed ? *task.scratch.far_count : operands.problems * task.scratch.tiles;
  for (int64_t entry = blockIdx.x; entry < tiles; entry += gridDim.x) {
    const int64_t of = kListed ? task.scratch.far_tiles[entry] : entry;
    const Tile tile(task, of);
    if constexpr (!kListed) {
      bool has_groups = false;
#pragma unroll 1
      for (int64_t i = threadIdx.x; i < tile.count; i += kThreads) {
        has_groups |= operands.interval(tile.problem, tile.first + i).size() > kGroup;
      }
      if (__syncthreads_or(has_groups)) {
        if (threadIdx.x == 0) task.list_tile(of);
        continue;
      }
    }
#pragma unroll 1
    for (int64_t unit = threadIdx.x; unit < int64_t{tile.count} * parts; unit += kThreads) {
      // A tile of several intervals has few units: 32 bits are enough.
      const int64_t i = tile.count == 1 ? 0 : static_cast<unsigned>(unit) / static_cast<unsigned>(parts);
      const Range<int64_t> interval = operands.interval(tile.problem, tile.first + i);
      const int64_t column = (unit - i * parts) * kColumns;
      const Range<int64_t> rows{tile.first_row + interval.begin, tile.first_row + interval.end};
      const auto extract = [&](const auto& item, int64_t row) { return op.extract(item, row); };
      State states[kColumns];
#pragma unroll
      for (State& state : states) state = op.identity();
      if constexpr (kListed) {
        cut_into_groups(rows, [&](int level, Range<int64_t> run, GroupRun kind) {
          const bool backwards = kind == GroupRun::kBefore;
          const auto same = [](const State& state, int64_t) { return state; };
          level == 0 ? combine_rows(op, task.x() + column, width, run, backwards, extract, states)
                     : combine_rows(op, task.level(level) + column, width, run, backwards, same, states);
        });
      } else {
        combine_rows(op, task.x() + column, width, rows, false, extract, states);
      }
      store_results(task, op, tile, states, (tile.first_result + i) * width + column);
    }
  }
}

}  // namespace mgpu::cuda::interval_reducing
