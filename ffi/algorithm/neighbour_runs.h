// Consecutive sorted runs of an array, which are merged in pairs. A merged pair takes the positions of its two runs.
#pragma once

#include "algorithm/index_vector.h"

namespace mgpu {

// Two runs, [begin, middle) and [middle, end) of a row. The last pair of a row also has the unused slots after it.
struct RunPair {
  int64_t begin;
  int64_t middle;
  int64_t end;
  int64_t slots_end;

  MGPU_HOST_DEVICE int64_t slots() const { return slots_end - begin; }
};

// `slot` counts from the pair's first one.
struct RunTile {
  RunPair pair;
  int64_t slot;
};

// The first run begins with its row, and each other run at the previous end. Ends out of order or out of range never
// give a run outside the row.
struct NeighbourRuns {
  IndexVector ends;    // [rows or 1, count]
  int64_t stride = 0;  // from row to row
  int64_t count = 0;   // the runs of a row; 0 if a merge is of two operands, not of runs

  // Reads no data: the size of scratch memory is computed from shapes.
  MGPU_HOST_DEVICE bool given() const { return count > 0; }
  MGPU_HOST_DEVICE int64_t pairs() const { return (count + 1) / 2; }

  // Calls visit(pair) for the pairs of a row of `length` items, in order, until it returns true.
  template <typename Visit>
  MGPU_HOST_DEVICE void for_each_pair(int64_t row, int64_t length, Visit visit) const {
    const IndexVector own = ends.from(row * stride);
    int64_t end = 0;
    for (int64_t run = 0; run < count; run += 2) {
      const int64_t begin = end;
      const int64_t middle = clamp(own[run], begin, length);
      end = run + 1 < count ? clamp(own[run + 1], middle, length) : middle;
      if (visit(RunPair{begin, middle, end, run + 2 < count ? end : length})) return;
    }
  }
};

}  // namespace mgpu
