// Makes the parameter of scan_tiles on the host.
#pragma once

#include "ops/scan_rows/kernels.cuh"

namespace mgpu::cuda::row_scanning {

// The caller sets the arrays, `exclusive` and `reverse`.
template <typename Operator>
RowScan<Operator> make_task(const RowScanTiling& tiling, const Segments& segments, int64_t state_bytes,
                            const RowScanScratch& scratch) {
  RowScan<Operator> task{};
  task.segments = segments;
  task.width = tiling.width;
  task.tiles = static_cast<unsigned>(tiling.tiles());
  task.slices = static_cast<unsigned>(tiling.slices());
  task.columns = tiling.columns();
  task.groups = tiling.groups();
  task.element_space = tiling.element_space();
  task.look_back = scratch.look_back;
  task.slice_words = tiling.look_back_words(state_bytes);
  for (int level = 0; level <= RowLookBack::kLevels; ++level) {
    task.level_slots[level] = RowLookBack{tiling.tiles()}.begin(level);
  }
  task.marks = scratch.marks;
  task.mark_words = segments.heads_stride == 0 ? 0 : tiling.mark_words();
  return task;
}

// `congruent` says whether elements and results begin at the same place within a vector of 16 bytes, and `aligned`
// whether this place is the start of the vector.
template <typename Operator>
void set_copies(RowScan<Operator>& task, const RowScanTiling& tiling, bool congruent, bool aligned) {
  task.contiguous = task.slices == 1;
  task.aligned = congruent && (task.contiguous || (aligned && tiling.width % tiling.vector() == 0));
  task.row_copies = Quotient(task.columns / (task.aligned && !task.contiguous ? tiling.vector() : 1));
  task.copied_rows = kThreads / static_cast<int>(task.row_copies.divisor);
}

inline unsigned mark_blocks(const Segments& segments) {
  const int64_t problems = segments.heads_stride == 0 ? 1 : segments.rows;
  return static_cast<unsigned>(ceil_div<int64_t>(problems * segments.heads_count, kThreads));
}

}  // namespace mgpu::cuda::row_scanning
