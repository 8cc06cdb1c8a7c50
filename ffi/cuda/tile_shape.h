// What a block works on at a time.
#pragma once

namespace mgpu {

// A block's threads and the items that each takes. The latter is odd where lanes read their items from shared memory,
// so that they meet different banks.
struct TileShape {
  int threads;
  int items;
  constexpr int tile() const { return threads * items; }
};

}  // namespace mgpu
