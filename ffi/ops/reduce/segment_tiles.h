#pragma once

#include <cstdint>
#include <vector>

#include "algorithm/partition_point.h"
#include "ops/reduce/operands.h"
#include "runtime/executor.h"

namespace mgpu::cpu {

struct SegmentTiles {
  int64_t units;
  int64_t tile;
  int64_t count;
  std::vector<int64_t> items_before;  // before each tile, and after the last

  // Heads out of order would give tiles that overlap; clamping puts each end in exactly one tile.
  SegmentTiles(const SegmentEnds& ends, int64_t tile, Executor& executor)
      : units(ends.units()), tile(tile), count(ceil_div(units, tile)), items_before(count + 1) {
    parallel_for(executor, count + 1, [&](int64_t i) {
      items_before[i] = ends.items_before(
          diagonal(i), [](auto begin, auto end, auto before) { return partition_point(begin, end, before); });
    });
    for (int64_t i = 1; i <= count; ++i) {
      const int64_t previous = items_before[i - 1];
      items_before[i] = clamp(items_before[i], previous, previous + diagonal(i) - diagonal(i - 1));
    }
  }

  int64_t diagonal(int64_t i) const { return i * tile < units ? i * tile : units; }
  int64_t ends_before(int64_t i) const { return diagonal(i) - items_before[i]; }
};

}  // namespace mgpu::cpu
