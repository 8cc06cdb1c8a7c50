// How CUDA runs set operations: tiles and scratch memory.
#pragma once

#include "cuda/tile_shape.h"
#include "ops/sets/operands.h"

namespace mgpu {

// A tile of both inputs is one item less than its block has room for, as a split may take one more.
constexpr TileShape set_tile_shape(int key_width) { return {256, key_width == 8 ? 11 : 23}; }
constexpr int set_tile(int key_width) { return set_tile_shape(key_width).tile() - 1; }

// Scratch memory of the CUDA kernels: each row's splits between tiles; the ticket counter and the words of the
// look-back in one array, zeroed before every launch.
struct SetsOperands::Scratch {
  Split<int64_t>* splits;
  uint64_t* look_back;
  int64_t look_back_words;
};

}  // namespace mgpu
