// How CUDA finds the heads of runs: tiles and scratch memory.
#pragma once

#include "cuda/tile_shape.h"
#include "ops/run_heads/operands.h"
#include "ops/tile_counts/plan.h"

namespace mgpu {

// 64 bytes a thread keep enough loads in flight.
constexpr TileShape run_heads_shape(int key_width) { return {256, key_width == 8 ? 8 : 16}; }

// Of how many heads a tile keeps places of 16 bits, which take as much memory as a bit a key.
constexpr int kept_heads(int tile) { return tile / 16; }

struct RunHeadsOperands::Scratch {
  unsigned* bits;   // of each tile: a bit a key, or the places of its heads
  void* kept_keys;  // the keys of these
  TileCounts tiles;
};

}  // namespace mgpu
