#pragma once

#include "cuda/tile_shape.h"
#include "ops/sets/operands.h"

namespace mgpu {

// A tile of both inputs has one item less than its block has room for, because a split may take one item more.
constexpr TileShape set_tile_shape(int key_width) { return {256, key_width == 8 ? 11 : 23}; }
constexpr int set_tile(int key_width) { return set_tile_shape(key_width).tile() - 1; }

// Each row's splits between tiles, and one array of the ticket counter and the look-back words, which is zeroed before
// every launch.
struct SetsOperands::Scratch {
  Split<int64_t>* splits;
  uint64_t* look_back;
  int64_t look_back_words;
};

}  // namespace mgpu
