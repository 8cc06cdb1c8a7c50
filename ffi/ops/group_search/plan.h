#pragma once

#include "cuda/device.h"
#include "cuda/tile_shape.h"
#include "ops/group_search/operands.h"

namespace mgpu {

// Every device has room for a table of kGroupTable
// groups and a tile. Scratch memory has the size for
// the reference device (kReferenceMultiprocessors).
constexpr TileShape kGroupSearchShape{256, 4};
constexpr int kGroupSearchBlocks = 3;          // blocks that a multiprocessor should hold
constexpr int64_t kGroupSearchPart = 1 << 13;  // about the fewest rows of both sides in a part
constexpr int kGroupLastsThreads = 512;

// If problems have several parts: the number of rows of a before each part, and the last row of b of each group, at
// first within each part, later before it.
struct GroupSearchOperands::Scratch {
  int64_t* splits;
  void* lasts;  // [problems, parts, kGroupTable], as wide as positions
};

}  // namespace mgpu
