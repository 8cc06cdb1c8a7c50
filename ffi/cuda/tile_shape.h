#pragma once

namespace mgpu {

// A block's threads and the items that each takes. If the number of items is odd,
// lanes that each have neighbouring items in shared memory access different banks.
struct TileShape {
  int threads;
  int items;
  constexpr int tile() const { return threads * items; }
};

}  // namespace mgpu
