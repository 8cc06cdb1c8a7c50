// interval_move with `adds`: a block has a tile of the result. Intervals begin and end in
// the result in their order, so those that contain a row are consecutive; a scan of marks
// at begins and ends finds them. Rows of x are added in the order of the intervals.
#pragma once

#include "algorithm/row_tiles.h"
#include "cuda/block/scan.cuh"
#include "function/item.h"
#include "ops/intervals/operands.h"

namespace mgpu::cuda::adding {

constexpr int kThreads = 256;
constexpr int kIntervals = 1024;  // the most intervals that are marked and added at a time

template <typename Element>
using Sum = std::conditional_t<std::is_same_v<Element, double>, double, float>;

// A unit is kColumns elements of a row. A thread has up to kUnits of them.
template <int kColumns>
constexpr int kUnits = kColumns == 1 ? 8 : 4;
template <int kColumns, typename Element>
constexpr int kBlocks = kColumns == 1 && sizeof(Element) < 8 ? 6
                        : kColumns == 8                      ? 3
                                                             : 4;

struct AddTiles {
  int rows;
  int units;  // the most units of a tile
  int64_t row_units;
  int64_t slices;  // tiles that share a row
  int64_t tiles;   // the tiles of a problem, if all slices of a row count as one
  Divisor parts;   // the most units of a row in a tile

  // Tiles are smaller if there would be few of them.
  AddTiles(int64_t problems, int64_t count, int64_t row_units, int most_units) : row_units(row_units) {
    const int64_t share = ceil_div<int64_t>(problems * count * row_units, 512);
    units = static_cast<int>(clamp<int64_t>(ceil_div<int64_t>(share, kThreads), 1, most_units) * kThreads);
    rows = static_cast<int>(maximum<int64_t>(units / row_units, 1));
    slices = ceil_div<int64_t>(row_units, units);
    tiles = ceil_div<int64_t>(count, rows);
    parts = Divisor(minimum<int64_t>(row_units, units));
  }
  int64_t blocks(int64_t problems) const { return problems * tiles * slices; }
};

struct Addition {
  IntervalMoveOperands operands;
  AddTiles tiles;
  int64_t width;  // elements of a row
  float density;  // intervals per row
};

struct AddTile {
  int64_t problem;
  int64_t begin;
  int rows;
  int units;
  int64_t first_unit;  // counted in the row

  __device__ AddTile(const Addition& task, int64_t block) {
    const AddTiles& tiles = task.tiles;
    const int64_t tile = tiles.slices == 1 ? block : block / tiles.slices;
    first_unit = (block - tile * tiles.slices) * tiles.units;
    problem = task.operands.work.problems == 1 ? 0 : tile / tiles.tiles;
    begin = (tile - problem * tiles.tiles) * tiles.rows;
    rows = static_cast<int>(minimum<int64_t>(tiles.rows, task.operands.out.count - begin));
    units = tiles.slices == 1 ? rows * static_cast<int>(tiles.row_units)
                              : static_cast<int>(minimum<int64_t>(tiles.units, tiles.row_units - first_unit));
  }
};

// Finds the first interval for which `before` is false.
// A warp first probes intervals on both sides of `guess`, at distances that grow about fourfold.
template <typename Before>
__device__ int64_t find_interval(int64_t count, int64_t guess, Before before) {
  constexpr int kHalf = kWarp / 2;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t probe =
      lane < kHalf ? guess - (int64_t{1} << 2 * (kHalf - 1 - lane)) : guess + (int64_t{1} << 2 * (lane - kHalf)) - 1;
  const bool is_before = probe < 0 || (probe < count && before(probe));
  const int part = __popc(__ballot_sync(~0u, is_before));
  const int64_t low = shuffle(probe, maximum(part - 1, 0)) + 1, high = shuffle(probe, minimum(part, kWarp - 1));
  return warp_partition_point(part == 0 ? 0 : clamp<int64_t>(low, 0, count),
                              part == kWarp ? count : minimum(high, count), before);
}

// Finds the tile's intervals, [bounds[0], bounds[1]). A warp finds each bound. A barrier must follow.
template <typename Intervals>
__device__ void find_tile_intervals(const Intervals& intervals, const AddTile& tile, float density,
                                    int64_t (&bounds)[2]) {
  if (threadIdx.x >= 2 * kWarp) return;
  const bool is_end = threadIdx.x >= kWarp;
  const int64_t limit = tile.begin + (is_end ? tile.rows - 1 : 0);
  const int64_t guess = static_cast<int64_t>(static_cast<float>(limit) * density);
  const int64_t bound = find_interval(intervals.count, guess, [&](int64_t j) {
    return (is_end ? intervals.targets[j] : intervals.rows(j).end) <= limit;
  });
  if (threadIdx.x % kWarp == 0) bounds[is_end] = bound;
}

// Finds, for each row of the tile, the number of intervals that contain it (the high half of its word) and the first of
// them, counted from of.begin (the low half). At first, the low half counts begins at a row, and the high half ends.
// shifts[i] is the distance from an element of the tile to the element of x that interval of.begin + i adds to it.
template <int kOwn, typename Position, typename Intervals>
__device__ void find_intervals_of_rows(const Intervals& intervals, Range<int64_t> of, const AddTile& tile,
                                       int64_t width, uint32_t* words, Position* shifts, uint32_t* warp_sums) {
  uint32_t counts[kOwn] = {};
  store_bytes<sizeof(counts)>(words + threadIdx.x * kOwn, counts);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < of.size(); i += kThreads) {
    const Range<int64_t> rows = intervals.rows(of.begin + i);
    const int begin = static_cast<int>(clamp<int64_t>(rows.begin - tile.begin, 0, tile.rows));
    const int end = static_cast<int>(clamp<int64_t>(rows.end - tile.begin, begin, tile.rows));
    shifts[i] = static_cast<Position>((intervals.source(of.begin + i) - rows.begin + tile.begin) * width);
    if (begin < tile.rows) atomicAdd(words + begin, 1u);
    if (end < tile.rows) atomicAdd(words + end, 1u << 16);
  }
  __syncthreads();
  load_bytes<sizeof(counts)>(counts, words + threadIdx.x * kOwn);
#pragma unroll
  for (int i = 1; i < kOwn; ++i) counts[i] += counts[i - 1];
  const uint32_t before = sum_block<kThreads / kWarp>(warp_sums, counts[kOwn - 1]).before;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const uint32_t up_to = counts[i] + before;
    counts[i] = ((up_to & 0xffff) - (up_to >> 16)) << 16 | up_to >> 16;
  }
  store_bytes<sizeof(counts)>(words + threadIdx.x * kOwn, counts);
  __syncthreads();
}

// Each sum begins with the element of the background or, without one, of the result.
template <int kColumns, bool kWide, typename Element>
__global__ void __launch_bounds__(kThreads, kBlocks<kColumns, Element>)
    add_intervals(const __grid_constant__ Addition task) {
  constexpr int kOwn = kUnits<kColumns>;
  using Position = std::conditional_t<kWide, uint64_t, uint32_t>;
  using Indices = std::conditional_t<kWide, IndexVector, IndicesOf<int32_t>>;
  __shared__ alignas(16) uint32_t words[kOwn * kThreads];
  __shared__ Position shifts[kIntervals];
  __shared__ uint32_t warp_sums[kThreads / kWarp];
  __shared__ int64_t bounds[2];
  const IntervalMoveOperands& operands = task.operands;
  const AddTile tile(task, blockIdx.x);
  const AddedIntervals<Indices> intervals(operands, tile.problem);
  find_tile_intervals(intervals, tile, task.density, bounds);
  // The tile's units are consecutive in the result, and a thread's are kThreads apart.
  const int thread = static_cast<int>(threadIdx.x);
  const auto exists = [&](int k) { return k * kThreads + thread < tile.units; };
  Element* const out = reinterpret_cast<Element*>(operands.out.of_problem(tile.problem)) + tile.begin * task.width +
                       (tile.first_unit + thread) * kColumns;
  Sum<Element> sums[kOwn][kColumns];
  const Element* const background = reinterpret_cast<const Element*>(operands.background.data);
  if (background) {  // one element for all problems
    const Sum<Element> first = widen(*background);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[k][c] = first;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      Element items[kColumns] = {};
      if (exists(k)) load_bytes<sizeof(items)>(items, out + k * kThreads * kColumns);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[k][c] = widen(items[c]);
    }
  }
  __syncthreads();
  const Element* const x = reinterpret_cast<const Element*>(operands.x.of_problem(tile.problem));
  const Position x_items = static_cast<Position>(operands.x.count * task.width);
  const Position own = static_cast<Position>((tile.first_unit + thread) * kColumns);
  const auto load = [&](Element(&items)[kColumns], uint32_t of, int k, uint32_t i) {
    const bool is_left = (i << 16 | 0xffff) < of;
    const Position at = shifts[is_left ? (of & 0xffff) + i : 0] + own + k * kThreads * kColumns;
    memset(items, 0, sizeof(items));
    if (is_left && at < x_items) load_bytes<sizeof(items)>(items, x + at);
  };
  for (int64_t from = bounds[0]; from < bounds[1]; from += kIntervals) {
    find_intervals_of_rows<kOwn>(intervals, {from, minimum(from + kIntervals, bounds[1])}, tile, task.width, words,
                                 shifts, warp_sums);
    uint32_t of[kOwn], most = 0;
    const bool is_row = task.tiles.parts.divisor == 1;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int unit = k * kThreads + thread;
      of[k] = exists(k) ? words[is_row ? unit : task.tiles.parts.quotient(unit)] : 0;
      most = maximum(most, of[k] >> 16);
    }
    const auto add_rows = [&](auto group) {
      constexpr int kGroup = group, kDeep = kOwn / kGroup;
#pragma unroll
      for (int first = 0; first < kOwn; first += kGroup) {
        uint32_t group_most = 0;
#pragma unroll
        for (int k = 0; k < kGroup; ++k) group_most = maximum(group_most, of[first + k] >> 16);
#pragma unroll 1
        for (uint32_t i = 0; i < group_most; i += kDeep) {
          Element items[kDeep][kGroup][kColumns];
#pragma unroll
          for (int d = 0; d < kDeep; ++d) {
#pragma unroll
            for (int k = 0; k < kGroup; ++k) load(items[d][k], of[first + k], first + k, i + d);
          }
#pragma unroll
          for (int d = 0; d < kDeep; ++d) {
#pragma unroll
            for (int k = 0; k < kGroup; ++k) {
#pragma unroll
              for (int c = 0; c < kColumns; ++c) sums[first + k][c] += widen(items[d][k][c]);
            }
          }
        }
      }
    };
    if (most < kOwn) {
      add_rows(std::integral_constant<int, kOwn>{});
    } else {
      add_rows(std::integral_constant<int, 1>{});
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (!exists(k)) continue;
    Element items[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) items[c] = narrow_to(sums[k][c], Element{});
    store_bytes<sizeof(items)>(out + k * kThreads * kColumns, items);
  }
}

}  // namespace mgpu::cuda::adding
