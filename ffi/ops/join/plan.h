#pragma once

#include "cuda/tile_shape.h"
#include "ops/join/operands.h"

namespace mgpu {

constexpr TileShape join_tile_shape(int key_width) { return {256, key_width == 8 ? 11 : 23}; }
constexpr int64_t kJoinHeavy = 1 << 16;  // a tile with more output rows is heavy: blocks share it
constexpr int64_t kJoinUnit = 1 << 15;   // the output rows of a heavy tile that a block writes at a time

// The boundary of two tiles, in the merge in which B's items come before equal items of A. `b` is the number of B's
// items before it; `entering` is how many of these have the key of A's next item.
struct JoinEdge {
  int64_t b;
  int64_t entering;
};

struct JoinHeavyTile {
  int64_t first_unit;
  int64_t slot;  // the slot of the first output row
  int64_t rows;
  int64_t tile;
};

struct JoinOperands::Scratch {
  JoinEdge* edges;  // row_tiles() + 1 for each row
  JoinHeavyTile* heavy;
  int64_t* paired;              // for each row, the number of output rows that come from A
  int64_t* unmatched;           // for each row, the number of items of B without a partner
  IndexResult unmatched_items;  // the items of B without a partner, with room for b.length per row
  uint64_t* zeroed;             // the counter of tickets; zeroed_words words from here on are zeroed before the kernels
  uint64_t* heavy_state;        // 2^40 times the number of heavy tiles, plus the number of their units
  uint64_t* row_words;          // for each tile, a word of the look-back over output rows
  uint64_t* unmatched_words;    // for each tile, a word of the look-back over items of B without a partner
  int64_t zeroed_words;
};

}  // namespace mgpu
