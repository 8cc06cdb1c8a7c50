#pragma once

#include "algorithm/interval_groups.h"
#include "ops/interval_reduce/operands.h"

namespace mgpu {

// If items are numbers, not rows, a block takes a tile of consecutive intervals.
// If these lie within room() items, three states of each item (its own, a prefix and a suffix)
// fit the 48 KB of shared memory that every device grants.
struct IntervalTile {
  static constexpr int kThreads = 256;
  int state_bytes;
  constexpr int room() const {
    return (state_bytes == 4 ? 14 : state_bytes == 8 ? 7 : 3) * kIntervalGroup * kIntervalGroup;
  }
  constexpr int intervals() const { return kThreads * (state_bytes == 4 ? 8 : state_bytes == 8 ? 2 : 1); }
  constexpr int blocks() const { return state_bytes == 16 ? 2 : 4; }  // the blocks per multiprocessor
};

// If items are rows, a tile has one interval, or as many as have at most this many elements of results.
constexpr int64_t kIntervalTileElements = 2048;

// Level l has a row of states for each whole group of kIntervalGroup^l rows.
struct GroupLevels {
  static constexpr int kMost = 12;
  int64_t rows;
  int levels = 0;             // the levels above the rows
  int64_t begin[kMost] = {};  // the first group of each level, among the groups of all levels
  int64_t total = 0;          // the groups of all levels, each level rounded up to kIntervalGroup

  explicit GroupLevels(int64_t rows) : rows(rows) {
    for (int64_t count = rows; count > kIntervalGroup && levels + 1 < kMost;) {
      count /= kIntervalGroup;
      begin[++levels] = total;
      total += ceil_div<int64_t>(count, kIntervalGroup) * kIntervalGroup;
    }
  }
  MGPU_HOST_DEVICE int64_t count(int level) const { return rows >> (kIntervalGroupBits * level); }
};

// The scratch memory has the number and the list of the tiles that need the totals of groups, and these totals.
struct IntervalReduceOperands::Scratch {
  int64_t tile;   // intervals
  int64_t tiles;  // of a problem
  unsigned* far_count;
  unsigned* far_tiles;
  char* groups;
};

}  // namespace mgpu
