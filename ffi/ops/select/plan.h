// How CUDA selects: tiles and scratch memory.
#pragma once

#include "ops/select/operands.h"
#include "ops/tile_counts/plan.h"

namespace mgpu {

// A thread reads the mask in vectors of 16 bytes.
constexpr int kSelectThreads = 256;
constexpr int kSelectTile = 16 * kSelectThreads;

// Scratch memory of the CUDA kernels: the bitmap of the mask, tile by tile, and the tiles' counts.
struct SelectOperands::Scratch {
  unsigned* bits;
  TileCounts tiles;
};

}  // namespace mgpu
