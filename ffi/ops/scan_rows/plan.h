// How CUDA scans the columns of rows: tiles and scratch memory.
#pragma once

#include "algorithm/look_back.h"
#include "ops/scan_rows/operands.h"

namespace mgpu {

class Workspace;

constexpr int kScanRowsThreads = 256;
using RowLookBack = LookBackTree<16>;

// A block takes a tile: some rows of a slice of the columns, in shared memory. A thread walks down a few rows of one
// column. The tiles follow from the shapes alone, so results have the same bits on every device.
//
// Slices are narrow, so that tiles have many rows: for each of its columns, a tile publishes a state, and reads states
// back. But slices are wide enough that one block reads a whole line of 128 bytes. If a problem has few rows, slices
// are wider.
//
// An element may also be an item of a caller's function, whose leaves, all of the same width, are arrays of rows. A
// tile has each leaf's elements in a plane of its own.
struct RowScanTiling {
  int64_t rows;   // the rows of a problem
  int64_t width;  // the elements of a row
  int64_t element_bytes;
  int leaves = 0;  // the leaves of an item; 0 if elements are numbers

  // The number of rows that are loaded at once. It is smaller for items, as each copy of a caller's function takes time
  // to compile.
  static constexpr int step(int leaves) { return leaves > 0 ? 4 : 8; }
  // The number of rows of a thread. All of them but one hold about 128 bytes per column, in all planes together, or
  // more if there are many leaves. The one further row makes lanes of neighbouring groups read different banks. A tile
  // takes 33 to 35 KB, or with many leaves up to 46 KB.
  static constexpr int thread_rows(int64_t element_bytes, int leaves) {
    const int64_t bytes = element_bytes * maximum(leaves, 1);
    return static_cast<int>(1 + maximum<int64_t>(128 / bytes / step(leaves), 1) * step(leaves));
  }
  constexpr int thread_rows() const { return thread_rows(element_bytes, leaves); }
  constexpr int vector() const { return static_cast<int>(16 / element_bytes); }

  // The columns of a slice. Slices begin at whole vectors of 16 bytes.
  constexpr int columns() const {
    const int64_t groups = clamp<int64_t>(ceil_div<int64_t>(rows, thread_rows()), 1, kScanRowsThreads);
    const int64_t least = maximum(128 / element_bytes, kScanRowsThreads / groups);
    const int64_t slices = maximum(ceil_div<int64_t>(width, kScanRowsThreads), maximum<int64_t>(width / least, 1));
    const int64_t columns = ceil_div(width, slices);
    return static_cast<int>(slices == 1 ? columns : ceil_div<int64_t>(columns, vector()) * vector());
  }
  constexpr int64_t slices() const { return ceil_div<int64_t>(width, columns()); }
  // The groups of rows of a tile, with one thread for each column.
  constexpr int groups() const { return kScanRowsThreads / columns(); }
  constexpr int tile_rows() const { return groups() * thread_rows(); }
  constexpr int64_t tiles() const { return maximum<int64_t>(ceil_div<int64_t>(rows, tile_rows()), 1); }

  // The shared memory of a tile: the elements of each leaf, which begin within a vector, and a bit for each row.
  constexpr int element_space() const { return (ceil_div(tile_rows() * columns(), vector()) + 1) * 16; }
  constexpr int64_t shared_bytes() const { return maximum(leaves, 1) * element_space() + (tile_rows() / 128 + 2) * 16; }

  // The words through which the tiles of a slice of a problem exchange states.
  int64_t look_back_words(int64_t state_bytes) const {
    return tiles() == 1 ? 0 : RowLookBack{tiles()}.words(columns() * state_bytes);
  }
  // The number of 32-bit words that have a bit for each row of a problem.
  int64_t mark_words() const { return rows / 32 + 1; }
};

// Scratch memory of the CUDA kernels: a ticket counter, then the look-back words of each problem's slices, then the
// marks of heads. All are zeroed before a launch.
struct RowScanScratch {
  uint64_t* look_back;
  uint32_t* marks;
  int64_t words;

  RowScanScratch(Workspace& workspace, const Segments& segments, const RowScanTiling& tiling, int64_t state_bytes);
};

}  // namespace mgpu
