#include "ops/hash_groups/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

HashGroupsOperands::Scratch HashGroupsOperands::layout(Workspace& workspace) const {
  if (!bucketed) return {};
  const int64_t tiles = ceil_div<int64_t>(length, kPartitionTile), units = ceil_div<int64_t>(tiles, kUnitTiles);
  Scratch scratch{};
  scratch.tiles = static_cast<int>(tiles);
  scratch.units = static_cast<int>(units);
  scratch.unit_starts = workspace.take<uint32_t>(kGroupBuckets * units + 1);
  scratch.runs = workspace.take<uint32_t>(kGroupBuckets * tiles);
  const int key_words = byte_width(key_type) == 8 ? 2 : 1;
  for (int w = 0; w < key_words; ++w) scratch.keys[w] = workspace.take<uint32_t>(tiles * kPartitionTile);
  for (int c = 0; c < columns; ++c) {
    if (has_values[c]) scratch.values[c] = workspace.take<uint32_t>(tiles * kPartitionTile);
  }
  return scratch;
}

int64_t workspace::hash_groups(const Call& call) { return layout_bytes(HashGroupsOperands(call)); }

}  // namespace mgpu
