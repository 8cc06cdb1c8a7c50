// Packs of short rows: as many whole rows as the vectors of a warp hold, with one vector of 16 bytes per lane.
#pragma once

#include "algorithm/row_tiles.h"
#include "cuda/block/partition.cuh"

namespace mgpu::cuda {

// If the rows of a pack fill whole vectors, packs begin where vectors do. Otherwise, a vector at either end of a pack
// may also have items of the pack beside it.
struct PackedRows {
  Divisor length;
  int rows = 0;  // 0 if rows are too long
  bool shares_vectors = false;
  int most_back = 0;  // the most lanes from a lane back to the one in which the row of its last item begins

  PackedRows(int64_t row_length, int vector) : length(row_length) {
    if (row_length > kWarp * vector) return;
    const int size = static_cast<int>(row_length);
    int period = vector;  // rows that fill whole vectors
    while (period > 1 && size * (period / 2) % vector == 0) period /= 2;
    rows = kWarp * vector / size / period * period;
    shares_vectors = rows == 0;
    if (shares_vectors) rows = (kWarp * vector - (vector - 1)) / size;
    most_back = ceil_div(size, vector) - 1;
  }
};

}  // namespace mgpu::cuda
