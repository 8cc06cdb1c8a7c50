#pragma once

#include "cuda/tile_shape.h"
#include "ops/run_heads/operands.h"
#include "ops/tile_counts/plan.h"

namespace mgpu {

// A thread has 8 keys of 8 bytes, or 16 narrower keys.
constexpr TileShape run_heads_shape(int key_width) { return {256, key_width == 8 ? 8 : 16}; }

// A tile with at most this many heads stores their positions, of 16 bits each, in place of its bitmap.
constexpr int kept_heads(int tile) { return tile / 16; }

struct RunHeadsOperands::Scratch {
  unsigned* bits;   // for each tile, either a bitmap of its heads, or their positions
  void* kept_keys;  // the keys at the heads of tiles with few heads
  TileCounts tiles;
};

}  // namespace mgpu
