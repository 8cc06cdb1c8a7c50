// A search tree over each row of a haystack, for searches on CUDA.
#pragma once

#include "cuda/device.h"
#include "ops/segmented_search/operands.h"

namespace mgpu {

// Level 0 is the haystack itself. Each level above has every fanout-th key of the level below
// it, as a code. A node is the keys of one sector. The top level is small enough for shared
// memory. A row's positions in the tree count from the start of the sector of its first key.
struct SearchTree {
  static constexpr int kSectorBytes = 32;
  static constexpr int kMaxLevels = 24;
  static constexpr int kTopBytes = 128 << 10;
  static constexpr int kSmallTopBytes = 32 << 10;
  // A node of prefixes stands for the nodes of levels 1 and 2 between two neighbouring keys of level 3,
  // and is as large as one node. It has 16 words of 16 bits: a shift and, for each sector but the first,
  // kPrefixBits bits of its first key, from the shift on. In all higher bits, the two keys agree.
  static constexpr int kPrefixBits = 15;
  static constexpr int kPrefixLevel = 2;  // nodes of prefixes take the place of this level; level 1 is not made

  int levels = 0;  // the levels above the haystack; if there are none, the haystack is the top
  int top_keys = 0;
  bool has_prefixes = false;
  int64_t offsets[kMaxLevels + 1] = {};  // where levels begin in a row's tree, in keys
  int64_t row_keys = 0;
  int64_t row_stride = 0;  // from row to row; 0 if all rows share the haystack
  int64_t rows = 0;
  void* keys = nullptr;  // scratch memory

  // Allows the keys of two sectors beyond `top_bytes`, because a row may begin within a sector.
  static constexpr int max_top_keys(int key_width, int64_t top_bytes) {
    return static_cast<int>(top_bytes / key_width) + 2 * fanout(key_width);
  }
  static constexpr int fanout(int key_width) { return kSectorBytes / key_width; }
  // Keys that are a power of two apart would be in few banks of shared memory, so the place grows faster than i.
  static MGPU_HOST_DEVICE constexpr int top_place(int i) { return (i * 1057) >> 10; }

  static SearchTree of(const SegmentedSearchOperands& operands, int64_t max_top_bytes);
  int64_t shared_bytes(int key_width) const { return key_width * int64_t{top_place(top_keys) + 1}; }
};

}  // namespace mgpu
