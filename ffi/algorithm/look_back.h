// The memory through which tiles of a single-pass scan exchange sums (cuda/block/look_back.cuh).
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// Each tile has a slot, each group of kFan tiles has one, and so has each group of kFan groups. Then comes a chain of
// prefixes, one for every kFan^3 tiles. With kWhole, groups that are not full have no slots.
template <int kFan_, bool kWhole = false>
struct LookBackTree {
  static constexpr int kFan = kFan_;
  static constexpr int kLevels = 3;
  static constexpr int64_t kSpan = int64_t{kFan} * kFan * kFan;  // tiles of a link of the chain
  int64_t tiles;

  // After the last level comes the chain.
  MGPU_HOST_DEVICE constexpr int64_t begin(int level) const {
    int64_t slot = 0;
    for (int64_t size = tiles; level > 0; --level) {
      slot += size;
      size = groups(size, kFan);
    }
    return slot;
  }
  MGPU_HOST_DEVICE int64_t slots() const { return begin(kLevels) + groups(tiles, kSpan) + 1; }

  MGPU_HOST_DEVICE static constexpr int64_t groups(int64_t size, int64_t fan) {
    return kWhole ? size / fan : ceil_div(size, fan);
  }

  // A word of 64 bits carries 4 bytes of a value. The caller zeroes the words before every launch.
  MGPU_HOST_DEVICE int64_t words(int64_t bytes) const { return slots() * ceil_div<int64_t>(bytes, 4); }
};

// A lane reads one slot of a level.
using LookBackLayout = LookBackTree<32>;

}  // namespace mgpu
