// The memory through which the tiles of a single-pass scan tell each other their sums (cuda/cta/look_back.cuh): a
// closed formula of the number of tiles, for the workspace.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// A slot a tile, one every 32 tiles, one every 1024: what a warp reads in three loads.
struct LookBackLayout {
  static constexpr int64_t kFan = 32;
  int64_t tiles;

  MGPU_HOST_DEVICE int64_t groups() const { return ceil_div(tiles, kFan); }
  MGPU_HOST_DEVICE int64_t slots() const { return tiles + groups() + ceil_div(groups(), kFan) + 1; }

  // 64-bit words of all slots, for values of `bytes` bytes: a word carries 4 of them. To be zeroed before every launch.
  MGPU_HOST_DEVICE int64_t words(int64_t bytes) const { return slots() * ceil_div<int64_t>(bytes, 4); }
};

}  // namespace mgpu
