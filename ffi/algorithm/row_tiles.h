// Batches of short rows: a tile is several whole rows, one after the other, and each row has a few threads. A tile's
// contents depend only on the shapes.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// A divisor that is known at the launch, so that a quotient is a product.
struct Divisor {
  unsigned divisor = 1;
  unsigned reciprocal = 1u << 31;

  Divisor() = default;
  explicit Divisor(int64_t number)
      : divisor(static_cast<unsigned>(number)), reciprocal(((1u << 31) - 1) / maximum(divisor, 1u) + 1) {}

  // The quotient is exact if x * divisor < 2^31. A divisor of 0 divides like 1.
  MGPU_HOST_DEVICE unsigned quotient(unsigned x) const {
    return static_cast<unsigned>((uint64_t{x} * reciprocal) >> 31);
  }
};

struct RowTiles {
  static constexpr int kThreads = 256;
  // A thread of a tile of many rows takes about 8 slots, which keep enough loads in flight; a tile of one row can have
  // twice as many.
  static constexpr int kSlots = 8 * kThreads;
  static constexpr int kMostSlots = 2 * kSlots;
  static constexpr int kMostRows = kThreads;
  // Every device grants 48 KB without a request; the fixed part of kernels comes on top.
  static constexpr int kMostSharedBytes = 45 << 10;

  int64_t rows = 0;   // all rows of the batch
  int tile_rows = 1;  // the rows of a tile
  Divisor lanes;      // threads of a row

  RowTiles() = default;
  // `row_slots` is the number of a row's slots in a tile, of operands or of results. If a tile may have more rows than
  // threads, rows have no lanes.
  RowTiles(int64_t rows, int64_t row_slots, int max_rows = kMostRows)
      : rows(rows),
        tile_rows(static_cast<int>(clamp<int64_t>(kSlots / maximum<int64_t>(row_slots, 1), 1, max_rows))),
        lanes(kThreads / tile_rows) {}

  int64_t tiles() const { return ceil_div<int64_t>(rows, tile_rows); }
  // The number of items that a thread takes of `items` items of a row. If more than four threads share a row, odd_share
  // makes it odd, so that threads whose items lie this far apart access different banks.
  int share(int64_t items) const { return static_cast<int>(ceil_div<int64_t>(items, lanes.divisor)); }
  int odd_share(int64_t items) const { return lanes.divisor > 4 ? share(items) | 1 : share(items); }
};

// The distance from row to row in shared memory, in items. It is odd, so that threads of neighbouring rows access
// different banks, or 0 if all rows share one.
constexpr int shared_pitch(int64_t length, bool is_shared) { return is_shared ? 0 : static_cast<int>(length | 1); }
constexpr int shared_room(int64_t length, int pitch, int rows) {
  constexpr int kAlign = 16;  // the alignment of the memory after the rows
  return ceil_div(pitch == 0 ? static_cast<int>(length) : pitch * rows, kAlign) * kAlign;
}

}  // namespace mgpu
