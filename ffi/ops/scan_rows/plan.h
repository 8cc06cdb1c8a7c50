#pragma once

#include "algorithm/look_back.h"
#include "ops/scan_rows/operands.h"

namespace mgpu {

class Workspace;

constexpr int kScanRowsThreads = 256;

using RowLookBack = LookBackTree<16, true>;

// A block loads a tile, some rows of a slice of the columns, into shared memory.
// A thread takes a few rows of one column. The tiles follow from the shapes alone.
//
// If a slice has several tiles, a tile publishes a sum for each of its columns
// and reads the sums of earlier tiles. Slices of wide rows have about 128 bytes
// of a row. If a problem has too few rows for all threads, slices are wider.
//
// An item of a caller's function has leaves, numbers of one width in separate arrays of rows. A tile has a separate
// plane of shared memory for each leaf.
struct RowScanTiling {
  int64_t rows;           // the rows of a problem
  int64_t width;          // the elements of a row
  int64_t element_bytes;  // the bytes of a number, or of one leaf of an item
  int leaves = 0;         // the leaves of an item; 0 if elements are numbers

  // A thread's rows should hold 136 bytes of a column or,
  // in the planes of several leaves together, 208.
  static constexpr int64_t most_rows(int64_t element_bytes, int leaves) {
    return (leaves > 1 ? 208 : 136) / (element_bytes * maximum(leaves, 1));
  }
  // After its first row, a thread loads so many
  // rows at once. If rows have less than 128 bytes,
  // a thread has an odd number of rows in all, so
  // that neighbouring groups read different banks.
  static constexpr int step(int64_t element_bytes, int leaves, bool wide) {
    return leaves == 0 ? 8 : wide && most_rows(element_bytes, leaves) % 5 == 1 ? 5 : 4;
  }
  static constexpr int thread_rows(int64_t element_bytes, int leaves, bool wide) {
    const int step = RowScanTiling::step(element_bytes, leaves, wide);
    return static_cast<int>(1 + maximum<int64_t>((most_rows(element_bytes, leaves) - 1) / step, 1) * step);
  }
  // Whether a row has at least 128 bytes.
  constexpr bool wide() const { return width * element_bytes >= 128; }
  constexpr int thread_rows() const { return thread_rows(element_bytes, leaves, wide()); }
  constexpr int vector() const { return static_cast<int>(16 / element_bytes); }

  // In a row, a slice begins at a multiple of 16 bytes.
  constexpr int columns() const {
    const int64_t groups = clamp<int64_t>(ceil_div<int64_t>(rows, thread_rows()), 1, kScanRowsThreads);
    const int64_t least = maximum(128 / element_bytes, kScanRowsThreads / groups);
    const int64_t slices = maximum(ceil_div<int64_t>(width, kScanRowsThreads), maximum<int64_t>(width / least, 1));
    const int64_t columns = ceil_div(width, slices);
    return static_cast<int>(slices == 1 ? columns : ceil_div<int64_t>(columns, vector()) * vector());
  }
  constexpr int64_t slices() const { return ceil_div<int64_t>(width, columns()); }
  // A group has one thread for each column, and takes thread_rows() rows.
  constexpr int groups() const { return kScanRowsThreads / columns(); }
  constexpr int tile_rows() const { return groups() * thread_rows(); }
  constexpr int64_t tiles() const { return maximum<int64_t>(ceil_div<int64_t>(rows, tile_rows()), 1); }

  // The first element of a plane may begin within a vector of 16 bytes, as it does in memory, so there is one more
  // vector.
  constexpr int element_space() const { return (ceil_div(tile_rows() * columns(), vector()) + 1) * 16; }
  // The memory holds the planes of a tile, then a bit for each row, which says whether the row is a head.
  constexpr int64_t shared_bytes() const { return maximum(leaves, 1) * element_space() + (tile_rows() / 128 + 2) * 16; }

  // The number of 64-bit words through which the tiles of one slice exchange sums.
  int64_t look_back_words(int64_t state_bytes) const {
    return tiles() == 1 ? 0 : RowLookBack{tiles()}.words(columns() * state_bytes);
  }
  // Words of 32 bits, with a bit for each row of a problem.
  int64_t mark_words() const { return rows / 32 + 1; }
};

// A ticket counter and the look-back words of each problem's slices, then
// the bits that mark heads. They are zeroed before the first kernel.
struct RowScanScratch {
  uint64_t* look_back;
  uint32_t* marks;
  int64_t words;  // 64-bit words in all

  RowScanScratch(Workspace& workspace, const Segments& segments, const RowScanTiling& tiling, int64_t state_bytes);
};

}  // namespace mgpu
