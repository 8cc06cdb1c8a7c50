#pragma once

#include "ops/sorted_pair/plan.h"
#include "ops/sorted_search/operands.h"

namespace mgpu {

// A stage holds a tile's keys. Outputs, an int32 per item, reuse the keys' memory; for matches, a flag of one byte per
// item follows.
constexpr int search_index_bytes(int key_width, int items) {
  return maximum(pipeline_run_bytes(key_width, items), run_bytes(4, kPipelineWorkers * items, 2));
}
constexpr PipelineShape search_shape(int key_width, bool matches, bool large_stages) {
  return pipeline_shape(large_stages, kMaxStageBytes, [=](int items) {
    return search_index_bytes(key_width, items) + (matches ? run_bytes(1, kPipelineWorkers * items, 2) : 0);
  });
}

}  // namespace mgpu
