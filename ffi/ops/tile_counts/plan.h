#pragma once

#include "algorithm/common.h"

namespace mgpu {

class Workspace;

constexpr int kTileGroup = 16;

// A row's last group may have fewer than kTileGroup tiles.
struct TileCounts {
  int64_t rows;
  int64_t row_groups;
  int* counts;            // [rows, row_groups, kTileGroup]
  int64_t* before_group;  // [rows, row_groups]: the sum of the row's counts before each group
};

TileCounts take_tile_counts(Workspace& workspace, int64_t rows, int64_t row_tiles);

}  // namespace mgpu
