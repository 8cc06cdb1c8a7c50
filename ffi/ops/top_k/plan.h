#pragma once

#include "cuda/device.h"
#include "cuda/tile_shape.h"
#include "ops/top_k/operands.h"

namespace mgpu {

// A block has room for one tile more than it may keep.
constexpr int kTopKMaxK = 2048;
struct TopKShape {
  TileShape tiles;
  constexpr int tile() const { return tiles.tile(); }
  constexpr int room() const { return kTopKMaxK + tile(); }
};
constexpr int kTopKThreads = 512;
// For more than kTopKBlocks blocks per multiprocessor.
constexpr int kTopKManyThreads = 256;
constexpr TopKShape top_k_shape(int key_width, int threads = kTopKThreads) {
  return {{threads, maximum(key_width == 8 ? 4 : 8, 16 / key_width)}};
}
constexpr int kTopKSample = 2048;      // the most items of a sample, if one block has the row
constexpr int kTopKSharedSamples = 2;  // a sample is this many times as large if several blocks share a row
constexpr int kTopKSampleShare = 4;    // a row is sampled if it has at least this many times the items of a sample
constexpr int64_t kTopKBlocks = 2;  // the blocks per multiprocessor that are wanted; if rows are few, blocks share them
constexpr int64_t kTopKMinTiles = 4;
// How many of the kept items a block takes in later levels; in the last one, up to twice as many.
constexpr int64_t kTopKMergedPart = 1 << 15;
constexpr int64_t kTopKMaxLength = (int64_t{1} << 32) - 1;

// Shapes for short rows: `lanes` lanes of a warp have a row in registers, `items`
// items each, and find up to `max_k` items. The launch takes the first shape that
// fits. With 16 or 32 lanes, items within a bound are listed in shared memory.
// With fewer lanes, each item of a row is compared with every other.
constexpr int kTopKRowThreads = 128;
constexpr int kTopKRowRoom = 4;
struct TopKRowShape {
  int lanes, items, max_k;
  constexpr int64_t length() const { return int64_t{lanes} * items; }
  constexpr bool takes(int64_t row, int64_t k) const { return row <= length() && k <= max_k; }
};
constexpr TopKRowShape kTopKRowShapes[] = {{1, 8, 8},   {8, 4, 32},   {16, 4, 12},  {16, 16, 12}, {16, 32, 12},
                                           {32, 8, 64}, {32, 16, 64}, {32, 32, 64}, {32, 64, 64}};
constexpr int kTopKRowShapeCount = sizeof(kTopKRowShapes) / sizeof(TopKRowShape);
constexpr TopKRowShape kTopKRowLargest = kTopKRowShapes[kTopKRowShapeCount - 1];  // fits all rows that other shapes fit

// The levels of a row. In the first level, a block takes a part of the row's items; in each later level, a part of the
// items that the previous level kept. Each block keeps the best k of its part. The last level has one block per row.
struct TopKOperands::Levels {
  static constexpr int kMaxLevels = 4;
  int count = 0;
  int64_t part[kMaxLevels];
  int64_t parts[kMaxLevels];  // blocks of a row: 1 in the last level
};

// The items that levels keep: one list per row, in two alternating buffers, and the length of each list.
struct TopKOperands::Kept {
  void* codes;
  uint32_t* positions;
};
struct TopKOperands::Scratch {
  Kept kept[2];
  uint32_t* counts;  // [levels - 1, rows]
};

}  // namespace mgpu
