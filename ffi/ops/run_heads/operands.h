// Finds the starts of runs of equal neighbouring keys.
#pragma once

#include "algorithm/segments.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: keys [.., n]; count [.., 1], the number of live keys, or absent. Results:
//   heads [.., size]    the first position of each run; n past the last run
//   firsts [.., size]   the keys at the heads; 0 past the last run
//   covered [..]        the number of live items in the first `size` runs
//   runs [..]           the number of runs
struct RunHeadsOperands {
  DType key_type;
  const void* keys;
  Segments rows;  // has no heads, only the number of live items of each row
  int64_t size;
  IndexResult heads;
  void* firsts;
  IndexResult covered;
  IndexResult runs;

  explicit RunHeadsOperands(const Call& call);

  // An empty row has one tile, without items.
  int64_t row_tiles(int64_t tile) const { return maximum<int64_t>(1, ceil_div(rows.length, tile)); }

  // These are for CUDA (plan.h).
  int64_t cuda_row_tiles() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
