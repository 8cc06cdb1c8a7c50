#pragma once

#include "ops/select/operands.h"
#include "ops/tile_counts/plan.h"

namespace mgpu {

// A thread reads the mask in vectors of 16 bytes.
constexpr int kSelectThreads = 256;
constexpr int kSelectTile = 16 * kSelectThreads;

// Several blocks share a tile of wide rows if there are few tiles. Each of them then has at least this many bytes to
// move if all rows are kept.
constexpr int64_t kSelectShareBytes = 16 << 10;
constexpr int64_t kSelectBlocks = 1024;
constexpr int64_t select_shares(int64_t tiles, int64_t row_bytes) {
  return clamp<int64_t>(kSelectTile * row_bytes / kSelectShareBytes, 1, ceil_div(kSelectBlocks, tiles));
}

// The bitmap of the mask, tile by tile, and the tiles' counts.
struct SelectOperands::Scratch {
  unsigned* bits;
  TileCounts tiles;
};

}  // namespace mgpu
