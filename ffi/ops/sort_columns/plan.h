// How CUDA sorts by two columns: tiles and scratch memory.
#pragma once

#include "ops/segmented_sort/plan.h"
#include "ops/sort_columns/operands.h"

namespace mgpu {

// The tiles of such sorts: longer than those of keys of 64 bits, which also sort fewer items. Small ones are for
// devices with less shared memory.
constexpr DigitShape column_digit_shape(int payload_width, bool small) {
  if (small) return {{256, payload_width == 0 ? 23 : payload_width == 4 ? 15 : 13}, 1};
  return {{512, payload_width == 0 ? 19 : payload_width == 4 ? 13 : 11}, 2};
}

// The buffer beside the output, with room for one more word.
struct SortColumnsScratch {
  uint64_t* words;
  void* payload;
  DigitCounts digits;
};

struct SortColumnsPlan {
  static constexpr int kPlaces = 64 / kDigitBits;
  const SortColumnsOperands& operands;
  bool is_small;

  SortColumnsPlan(const SortColumnsOperands& operands, bool is_small) : operands(operands), is_small(is_small) {}
  SortColumnsPlan(const SortColumnsOperands& operands, const Traits& traits);

  // What a block asks for at most.
  static constexpr int64_t shared_bytes(int payload_width) {
    const DigitShape shape = column_digit_shape(payload_width, false);
    return shape.tiles.threads / 32 * kDigits * 4 + kDigits * 4 + shape.tile() * int64_t{8 + payload_width} + 128;
  }
  SortColumnsScratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
