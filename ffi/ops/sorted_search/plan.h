// How CUDA searches and matches: tiles.
#pragma once

#include "ops/sorted_pair/plan.h"
#include "ops/sorted_search/operands.h"

namespace mgpu {

// A stage holds a tile's keys. Outputs, an int32 per item, reuse the keys' memory; for matches, one byte per item
// follows.
constexpr int search_index_bytes(int key_width, int items) {
  return maximum(stream_run_bytes(key_width, items), run_bytes(4, kStreamWorkers * items, 2));
}
constexpr StreamShape search_shape(int key_width, bool matches, bool large) {
  return stream_shape(large, kMostStageBytes, [=](int items) {
    return search_index_bytes(key_width, items) + (matches ? run_bytes(1, kStreamWorkers * items, 2) : 0);
  });
}

}  // namespace mgpu
