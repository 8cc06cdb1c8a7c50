#pragma once

#include "algorithm/row_tiles.h"
#include "ops/segmented_softmax/operands.h"

namespace mgpu {

constexpr int kSoftmaxThreads = 256;
constexpr int kSoftmaxSector = 32;     // bytes of memory that are moved at once
constexpr int kSoftmaxTileRows = 512;  // the most rows of a tile, unless its rows are short
constexpr int kSoftmaxMostLanes = 32;

// A thread owns one column of 16 or 32 neighbouring rows, and a block
// has rows of `lanes` threads, so a tile is taller than wide. Tiles
// depend on shapes and types alone, so that the order of sums does too.
struct SoftmaxTiling {
  int64_t rows;
  int64_t width;
  int thread_rows;
  bool is_staged;  // short rows go through shared memory, so that memory is read in whole sectors
  int lane_bits = 0;
  int64_t slabs;  // the parts that the columns are cut into
  int slab_columns;
  int tile_rows;

  // Unless rows are shorter, the lanes cover at least a
  // sector, or two if rows do not begin where sectors do.
  SoftmaxTiling(int64_t rows, int64_t width, int element_bytes)
      : rows(rows),
        width(width),
        thread_rows(element_bytes == 8 ? 16 : 32),
        is_staged(width * element_bytes < kSoftmaxSector) {
    const bool is_aligned = width * element_bytes % kSoftmaxSector == 0;
    const int wanted = maximum(kSoftmaxThreads * thread_rows / kSoftmaxTileRows,
                               kSoftmaxSector / element_bytes * (is_aligned ? 1 : 2));
    while (lanes() < width && lanes() < wanted) ++lane_bits;
    // For a short array, tiles become wider, so that few of their rows are empty.
    while (lanes() < width && lanes() < kSoftmaxMostLanes && kSoftmaxThreads / lanes() * thread_rows >= 2 * rows) {
      ++lane_bits;
    }
    slabs = maximum<int64_t>(ceil_div<int64_t>(width, lanes()), 1);
    slab_columns = static_cast<int>(ceil_div<int64_t>(width, slabs));
    tile_rows = kSoftmaxThreads / lanes() * thread_rows;
  }

  MGPU_HOST_DEVICE int lanes() const { return 1 << lane_bits; }
  int64_t tiles() const { return ceil_div<int64_t>(rows, tile_rows); }

  // A thread's rows are contiguous in shared memory. A gap before the next thread's rows makes their banks differ.
  MGPU_HOST_DEVICE int group_items() const { return thread_rows * static_cast<int>(width); }
  MGPU_HOST_DEVICE int gap(int accumulator_bytes) const {
    return lane_bits == 0 ? 16 / accumulator_bytes : (maximum(lanes(), 4) - group_items()) & 31;
  }
  // Shared memory has a place for each row of each thread or, in a staged tile, for each item, and the gaps.
  int64_t shared_bytes(int accumulator_bytes) const {
    const int64_t group = is_staged ? group_items() + gap(accumulator_bytes) : thread_rows * lanes();
    return kSoftmaxThreads / lanes() * group * accumulator_bytes;
  }
};

// For each tile: the number of heads before it (where the start of each problem counts as one more head), its first and
// last heads, and for each column a Part (kernels.cuh) of the segment that crosses the tile's start (`opening`) and one
// of the segment that crosses the tile's end (`open`). In the tile where a segment begins, join_parts replaces `open`
// by the Part of the whole segment.
struct SegmentedSoftmaxOperands::Scratch {
  int64_t* listed;
  int* first_head;
  int* last_head;
  char* opening;
  char* open;
};

}  // namespace mgpu
