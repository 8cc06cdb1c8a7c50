#pragma once

#include "ops/merge/operands.h"
#include "ops/sorted_pair/plan.h"

namespace mgpu {

// A stage, a tile's buffer in shared memory, holds the keys, then the payloads
// in the same layout. Without a payload, a stage has a smaller limit.
constexpr PipelineShape merge_shape(int key_width, int payload_width, bool large_stages) {
  return pipeline_shape(large_stages, payload_width > 0 ? kMaxStageBytes : 36 << 10, [=](int items) {
    return pipeline_run_bytes(key_width, items) + (payload_width > 0 ? pipeline_run_bytes(payload_width, items) : 0);
  });
}

}  // namespace mgpu
