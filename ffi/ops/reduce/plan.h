#pragma once

#include "cuda/device.h"
#include "cuda/tile_shape.h"
#include "ops/reduce/operands.h"

namespace mgpu {

// The bytes of a row that a block reduces (a chunk). If the rows have more
// bytes together than kReduceMaxChunks chunks, a chunk is twice as long.
constexpr int64_t kReduceChunkBytes = 1 << 16;
constexpr int64_t kReduceMaxChunks = 2048;
// If there are kReduceMinBlockRows to
// kReduceMaxBlockRows rows, of up to
// kReduceBlockRowBytes each, a chunk is a whole row.
constexpr int64_t kReduceMinBlockRows = 3 * kReferenceMultiprocessors;
constexpr int64_t kReduceMaxBlockRows = 8 * kReferenceMultiprocessors;
constexpr int64_t kReduceBlockRowBytes = 1 << 19;
constexpr int64_t kReduceShortRow = 4096;

constexpr TileShape segmented_reduce_shape(int64_t state_bytes) {
  return {128, state_bytes > 32 ? 4 : state_bytes > 16 ? 8 : state_bytes > 4 ? 16 : 32};
}

struct SegmentTiling {
  SegmentEnds ends;
  int64_t state_bytes;
  int64_t largest_bytes;  // the bytes of a state, or of an item if that is larger

  // A block consumes fewer items and ends than it has room for,
  // because its items may begin and end between multiples of 16 bytes.
  static constexpr int tile_units(int64_t largest_bytes) { return segmented_reduce_shape(largest_bytes).tile() - 32; }

  int64_t tiles() const { return ceil_div<int64_t>(ends.units(), tile_units(largest_bytes)); }

  // The number of items before each tile, and the states of the tile's first and last
  // segments. `open` also has a flag for each tile: whether the tile has an end.
  struct Scratch {
    int64_t* items_before;
    char* opening;
    char* open;
  };
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
