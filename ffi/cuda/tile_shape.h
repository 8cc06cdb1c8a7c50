#pragma once

namespace mgpu {

// A block's threads and the items that each takes. The number of items is odd if lanes read their items from shared
// memory, so that they access different banks.
struct TileShape {
  int threads;
  int items;
  constexpr int tile() const { return threads * items; }
};

}  // namespace mgpu
