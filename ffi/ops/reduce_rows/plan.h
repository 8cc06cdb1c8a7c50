// How CUDA reduces rows: tiles and scratch memory.
#pragma once

#include "cuda/device.h"
#include "ops/reduce_rows/operands.h"

namespace mgpu {

// A worker is a few neighbouring lanes, which take one row after the other; each lane has a vector of columns. A
// block's workers consume a tile of rows and segment ends. A worker has at most 32 lanes, which read 512 bytes of a
// row. So a tile has many rows even if they are wide, and the states that it leaves for the next tile matter little. A
// tile is as large as possible while the tiles fill a large device in whole waves, as a last wave of few tiles would
// cost as much as a whole one.
constexpr int kReduceRowsThreads = 256;
constexpr int kReduceRowsMostLanes = 32;
constexpr int kReduceRowsTileUnits = 4096;                          // rows and ends, at most
constexpr int kReduceRowsLeastUnits = 4;                            // per worker
constexpr int64_t kReduceRowsWave = 3 * kReferenceMultiprocessors;  // three blocks on each

struct RowTiling {
  int64_t units;  // all rows and ends
  int64_t width;  // columns
  int vector;     // columns per lane

  constexpr int64_t vectors() const { return ceil_div<int64_t>(width, vector); }
  // The slices that the columns are cut into, and the lanes that each slice takes.
  constexpr int64_t slices() const { return ceil_div<int64_t>(vectors(), kReduceRowsMostLanes); }
  constexpr int lanes() const { return width > 0 ? static_cast<int>(ceil_div(vectors(), slices())) : 1; }
  constexpr int workers() const { return kReduceRowsThreads / lanes(); }
  constexpr int worker_units() const {
    const int64_t least_tiles =
        maximum<int64_t>(ceil_div<int64_t>(units, kReduceRowsTileUnits / workers() * workers()), 1);
    const int64_t waves = ceil_div(least_tiles * slices(), kReduceRowsWave);
    const int64_t wanted_tiles = maximum(least_tiles, waves * kReduceRowsWave / slices());
    return maximum(static_cast<int>(ceil_div(units, wanted_tiles * workers())), kReduceRowsLeastUnits);
  }
  constexpr int tile_units() const { return workers() * worker_units(); }
  constexpr int64_t tiles() const { return ceil_div<int64_t>(units, tile_units()); }
};

// Scratch memory of the CUDA kernels. For each tile: the number of items before it, its first end or -1, and the states
// of its first and last segments, one row of states each.
struct ReduceRowsOperands::Scratch {
  int64_t* items_before;
  int64_t* first_end;
  char* opening;
  char* open;
};

}  // namespace mgpu
