// How CUDA computes the softmax of segments: tiles and scratch memory.
#pragma once

#include "cuda/tile_shape.h"
#include "ops/segmented_softmax/operands.h"

namespace mgpu {

// A thread's items and their exponentials stay in registers.
constexpr TileShape softmax_shape(int64_t accumulator_bytes) { return {256, accumulator_bytes > 4 ? 8 : 16}; }

// Scratch memory of the CUDA kernels. For each tile: the number of listed heads before it, its first and last heads,
// and the maximum and sum of the segments that are open at its start and at its end. These are first of the tile's own
// part, and then of the whole segment.
struct SegmentedSoftmaxOperands::Scratch {
  int64_t* listed;
  int* first_head;
  int* last_head;
  char* opening;
  char* open;
};

}  // namespace mgpu
