// How CUDA merges: tiles and scratch memory.
#pragma once

#include "ops/merge/operands.h"
#include "ops/sorted_pair/plan.h"

namespace mgpu {

// A stage holds the keys, then the payloads in the same layout. Without a payload, shorter tiles merge 1% faster, and
// rows of 1000 items 15% faster. With a payload they are slower.
constexpr StreamShape merge_shape(int key_width, int payload_width, bool large) {
  return stream_shape(large, payload_width > 0 ? kMostStageBytes : 36 << 10, [=](int items) {
    return stream_run_bytes(key_width, items) + (payload_width > 0 ? stream_run_bytes(payload_width, items) : 0);
  });
}

}  // namespace mgpu
