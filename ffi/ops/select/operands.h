// Moves items to the front of their row: those that a mask selects.
#pragma once

#include "algorithm/index_vector.h"
#include "ops/move_rows/rows.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: x [.., n, elements]; keep [.., n]; count [.., 1] or absent; fill_value [.., 1]. Results: the kept items
// [.., size, elements] or, with `indices`, their positions [.., size]; kept [..], the number of kept items. With
// `indices`, x and fill_value are not read. With `partition`, the other live items follow the kept ones, and then come
// the items past the count.
struct SelectOperands {
  const uint8_t* keep;
  int64_t keep_stride;  // from row to row of the batch: 0 if all rows share a mask
  int64_t rows;
  int64_t length;
  LiveCounts counts;
  bool gives_indices;
  bool partition;
  int64_t size;
  Rows x;
  Rows out;
  Fill fill;
  IndexResult indices;  // null if rows are moved
  IndexResult kept;

  explicit SelectOperands(const Call& call);

  MGPU_HOST_DEVICE int64_t live(int64_t row) const { return counts(row, length); }
  // An empty row has one tile, without items.
  int64_t row_tiles(int64_t tile) const { return maximum<int64_t>(1, ceil_div(length, tile)); }

  // These are for CUDA (plan.h).
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
