#pragma once

#include "cuda/device.h"
#include "ops/reduce_rows/operands.h"

namespace mgpu {

// A worker is up to 32 neighbouring lanes with a vector of columns
// each, which take one row after the other. If rows have more
// columns, slices of columns are taken separately. A block's workers
// consume shares of a tile of items and segment ends. All threads
// first bring short rows (is_staged) to shared memory, as states.
constexpr int kReduceRowsThreads = 256;
constexpr int kReduceRowsMostLanes = 32;
constexpr int kReduceRowsTileBytes = 28 << 10;    // the shared memory for a tile's units
constexpr int kReduceRowsStagedBytes = 28 << 10;  // the same for short rows
constexpr int kReduceRowsStagedUnits = 7;         // the most units per worker for short rows
constexpr int kReduceRowsLeastUnits = 8;          // the fewest units per worker, if they fit
constexpr int kReduceRowsBlocks = 4;              // blocks of a multiprocessor
constexpr int kReduceRowsStagedBlocks = 5;        // the same for short rows
// A table whose rows are read several times by index may be cut by columns into slices for the L2 cache. Such a slice
// has at least as many bytes of each row as a cache line.
constexpr int64_t kReduceRowsSliceBytes = int64_t{36} << 20;
constexpr int64_t kReduceRowsLeastReads = 4;  // the fewest reads of a row, on average
constexpr uint32_t kNoRow = ~0u;  // the number, in 32 bits or in both halves of 64, of the row of a dropped item

// What a plan needs of an operator: the elements that a lane takes; the most columns of a short row; the bytes of a
// state; and whether short rows are staged.
struct RowOperator {
  int vector;
  int short_columns;
  int state_bytes;
  bool stages;
};

template <typename Operator>
constexpr RowOperator row_operator() {
  using Element = typename Operator::Element;
  constexpr int kElement = sizeof(Element), kState = sizeof(typename Operator::State);
  return {maximum(minimum(16 / kElement, 32 / kState), 1), maximum(16 / maximum(kElement, kState), 1), kState,
          sizeof(Element) >= 4 || std::is_same_v<Element, Half> || std::is_same_v<Element, BFloat16>};
}

// Whether sum_weighted_column can sum weighted items. It computes positions of items and of ends with 32 bits.
inline bool is_weighted_column(const RowSources& sources, const Segments& segments) {
  return sources.width == 1 && segments.rows == 1 && !segments.heads.wide && sources.indices.data &&
         !sources.indices.wide && maximum(segments.length, segments.heads_count + 1) < int64_t{1} << 31;
}

struct RowTiling {
  int64_t units;  // all items and ends
  int64_t width;  // columns
  RowOperator op;
  int unit_bytes;  // the shared memory of a unit
  int64_t row_bytes;
  int64_t table_bytes;  // the bytes of a table whose rows are read several times, or 0

  constexpr bool is_staged() const { return op.stages && width <= op.short_columns; }
  // The blocks that run at once on the reference device.
  constexpr int64_t wave() const {
    return (is_staged() ? kReduceRowsStagedBlocks : kReduceRowsBlocks) * kReferenceMultiprocessors;
  }
  constexpr int64_t vectors() const { return ceil_div<int64_t>(width, op.vector); }
  // The slices that the columns are cut into, and the lanes that each slice takes, a power of two.
  constexpr int64_t slices() const {
    const int64_t in_cache = maximum<int64_t>(ceil_div(table_bytes, kReduceRowsSliceBytes), 1);
    const bool fits = in_cache <= row_bytes / kLineBytes && vectors() % in_cache == 0;
    return maximum(ceil_div<int64_t>(vectors(), kReduceRowsMostLanes), fits ? in_cache : 1);
  }
  constexpr int lanes() const { return width > 0 ? 1 << ceil_log2(ceil_div(vectors(), slices())) : 1; }
  constexpr int workers() const { return kReduceRowsThreads / lanes(); }
  constexpr int staged_states() const { return width == 1 ? 1 : op.short_columns; }
  constexpr int most_units() const {
    if (!is_staged()) return kReduceRowsTileBytes / unit_bytes / workers();
    // The number of units is odd, so that threads whose rows lie this far apart access different banks.
    const int fit = kReduceRowsStagedBytes / (staged_states() * op.state_bytes * kReduceRowsThreads);
    return minimum(fit - 1, kReduceRowsStagedUnits) | 1;
  }
  // Tiles should fill the reference device in whole waves, if a worker then has enough units.
  constexpr int worker_units() const {
    const int64_t least_tiles = maximum<int64_t>(ceil_div<int64_t>(units, int64_t{most_units()} * workers()), 1);
    const int64_t waves = ceil_div(least_tiles * slices(), wave());
    const int64_t wanted_tiles = maximum(least_tiles, waves * wave() / slices());
    return maximum(static_cast<int>(ceil_div(units, wanted_tiles * workers())),
                   minimum(kReduceRowsLeastUnits, most_units()));
  }
  constexpr int tile_units() const { return workers() * worker_units(); }
  constexpr int64_t tiles() const { return ceil_div<int64_t>(units, tile_units()); }
};

// For each tile: the number of items before it, a SplitSegment (two words), and two rows of states (`opening` and
// `open` of RowReduction, reduction.cuh).
struct ReduceRowsOperands::Scratch {
  int64_t* items_before;
  int64_t* split;
  char* opening;
  char* open;
};

}  // namespace mgpu
