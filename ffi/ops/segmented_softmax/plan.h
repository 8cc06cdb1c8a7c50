// How CUDA makes softmax of segments: tiles and scratch memory.
#pragma once

#include "cuda/tile_shape.h"
#include "ops/segmented_softmax/operands.h"

namespace mgpu {

// A thread's items, and what it makes of them, stay in registers.
constexpr TileShape softmax_shape(int64_t accumulator_bytes) { return {256, accumulator_bytes > 4 ? 8 : 16}; }

// Scratch memory of the CUDA kernels. Of each tile: the listed heads before it, where its first and its last head are,
// and the maximum and sum of what it has of the segment that is open at its begin and at its end, first alone, then of
// the whole segment.
struct SegmentedSoftmaxOperands::Scratch {
  int64_t* listed;
  int* first_head;
  int* last_head;
  char* opening;
  char* open;
};

}  // namespace mgpu
