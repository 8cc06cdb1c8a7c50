// The counts of tiles that one kernel makes and a later one needs summed up.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

class Workspace;

constexpr int kTileGroup = 16;

// A row's tiles are in groups of kTileGroup, of which the last may have fewer.
struct TileCounts {
  int64_t rows;
  int64_t row_groups;
  int* counts;            // [rows, row_groups, kTileGroup]
  int64_t* before_group;  // [rows, row_groups], of the row
};

TileCounts take_tile_counts(Workspace& workspace, int64_t rows, int64_t row_tiles);

}  // namespace mgpu
