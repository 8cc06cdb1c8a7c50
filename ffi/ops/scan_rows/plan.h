// How CUDA scans the columns of rows: tiles and scratch memory.
#pragma once

#include "algorithm/look_back.h"
#include "ops/scan_rows/operands.h"

namespace mgpu {

constexpr int kScanRowsThreads = 256;
using RowLookBack = LookBackTree<16>;

// A block takes a tile: some rows of a slice of the columns, in shared memory. A thread walks down a few rows of one
// column. The tiles follow from the shapes alone, so results have the same bits on every device.
//
// A slice is narrow, so that a tile has many rows: the data that tiles publish and read back is a state for each of a
// tile's columns. But a line of 128 bytes is read by one block. If a problem has few rows, slices are wider instead.
struct RowScanTiling {
  int64_t rows;   // of a problem
  int64_t width;  // elements of a row
  int64_t element_bytes;

  // The rows of a thread. Lanes of neighbouring groups of rows read different banks, because all rows but one are a
  // multiple of 128 bytes. A tile takes 33 to 35 KB.
  static constexpr int thread_rows(int64_t element_bytes) { return static_cast<int>(1 + 128 / element_bytes); }
  constexpr int vector() const { return static_cast<int>(16 / element_bytes); }

  // The columns of a slice. Slices begin at whole vectors of 16 bytes.
  constexpr int columns() const {
    const int64_t groups = clamp<int64_t>(ceil_div<int64_t>(rows, thread_rows(element_bytes)), 1, kScanRowsThreads);
    const int64_t least = maximum(128 / element_bytes, kScanRowsThreads / groups);
    const int64_t slices = maximum(ceil_div<int64_t>(width, kScanRowsThreads), maximum<int64_t>(width / least, 1));
    const int64_t columns = ceil_div(width, slices);
    return static_cast<int>(slices == 1 ? columns : ceil_div<int64_t>(columns, vector()) * vector());
  }
  constexpr int64_t slices() const { return ceil_div<int64_t>(width, columns()); }
  // The groups of rows of a tile, with one thread for each column.
  constexpr int groups() const { return kScanRowsThreads / columns(); }
  constexpr int tile_rows() const { return groups() * thread_rows(element_bytes); }
  constexpr int64_t tiles() const { return maximum<int64_t>(ceil_div<int64_t>(rows, tile_rows()), 1); }

  // The shared memory of a tile: its elements, which begin within a vector, and a bit for each row.
  constexpr int element_space() const { return (ceil_div(tile_rows() * columns(), vector()) + 1) * 16; }
  constexpr int64_t shared_bytes() const { return element_space() + (tile_rows() / 128 + 2) * 16; }

  // The words through which the tiles of a slice of a problem exchange states.
  int64_t look_back_words(int64_t state_bytes) const {
    return tiles() == 1 ? 0 : RowLookBack{tiles()}.words(columns() * state_bytes);
  }
  // The words with a bit for each row of a problem.
  int64_t mark_words() const { return rows / 32 + 1; }
};

// Scratch memory of the CUDA kernels: a ticket counter, then the words of each problem's slices; the marks of rows that
// restart the scan. All are zeroed before a launch.
struct ScanRowsOperands::Scratch {
  uint64_t* look_back;
  uint32_t* marks;
  int64_t words;
};

}  // namespace mgpu
