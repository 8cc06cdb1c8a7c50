// How CUDA runs reductions of whole rows and of segments: tiles and scratch memory.
#pragma once

#include "cuda/device.h"
#include "cuda/tile_shape.h"
#include "ops/reduce/operands.h"

namespace mgpu {

// A block of threads reduces this much of a row. 64 KB keep its loads in flight, and divide 2^27 bytes into 2048
// blocks. For more, it takes twice as much, since a block's work before its first load and after its last one matters.
constexpr int64_t kReduceChunkBytes = 1 << 16;
constexpr int64_t kReduceMostChunks = 2048;
// This many rows, up to this long, get one block each: they fill the reference device once, 3 to 8 blocks per
// multiprocessor, and need no second kernel. 2^25 floats in 500 rows take 0.034 ms instead of 0.036. With fewer or
// longer rows, or a second wave of blocks, most multiprocessors would wait for the last row.
constexpr int64_t kReduceLeastBlockRows = 3 * kReferenceMultiprocessors;
constexpr int64_t kReduceMostBlockRows = 8 * kReferenceMultiprocessors;
constexpr int64_t kReduceBlockRowBytes = 1 << 19;
// Up to this length a few lanes of a warp reduce the whole row.
constexpr int64_t kReduceShortRow = 4096;

// For segments: the items that each thread has room for.
constexpr TileShape segmented_reduce_shape(int64_t state_bytes) {
  return {128, state_bytes > 32 ? 4 : state_bytes > 16 ? 8 : state_bytes > 4 ? 16 : 32};
}

// How the CUDA kernels cut segments of states of this many bytes.
struct SegmentTiling {
  SegmentEnds ends;
  int64_t state_bytes;
  int64_t largest_bytes;  // of a state, or of what one is made of

  // The items and ends that a block consumes: fewer than it has room for, as its items begin and end between multiples
  // of 16 bytes.
  static constexpr int tile_units(int64_t largest_bytes) { return segmented_reduce_shape(largest_bytes).tile() - 32; }

  int64_t tiles() const { return ceil_div<int64_t>(ends.units(), tile_units(largest_bytes)); }

  // Scratch memory: the items before each tile, and the states of its first and of its last segment, the latter with a
  // flag.
  struct Scratch {
    int64_t* items_before;
    char* opening;
    char* open;
  };
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
