// Tiles of batches of short rows. A block takes a tile of whole neighbouring rows, which share its threads.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// Kernels multiply by the reciprocal instead of dividing.
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
  // A slot is a place for one item or result of a row.
  // A tile has up to kSlots of them, or a single row.
  static constexpr int kSlots = 8 * kThreads;
  static constexpr int kMostSlots = 2 * kSlots;
  static constexpr int kMostRows = kThreads;
  // A block gets 48 KB of shared memory on every device without a request; the rest is for static arrays.
  static constexpr int kMostSharedBytes = 45 << 10;

  int64_t rows = 0;
  int tile_rows = 1;
  Divisor lanes;

  RowTiles() = default;
  // `row_slots` is the number of a row's items or results, whichever are more. If a tile has more rows than threads,
  // `lanes` becomes 0.
  RowTiles(int64_t rows, int64_t row_slots, int max_rows = kMostRows)
      : rows(rows),
        tile_rows(static_cast<int>(clamp<int64_t>(kSlots / maximum<int64_t>(row_slots, 1), 1, max_rows))),
        lanes(kThreads / tile_rows) {}

  int64_t tiles() const { return ceil_div<int64_t>(rows, tile_rows); }
  // The items of a thread if the threads of a row share `items` items.
  // odd_share is odd if more than four threads share a row, against bank conflicts.
  int share(int64_t items) const { return static_cast<int>(ceil_div<int64_t>(items, lanes.divisor)); }
  int odd_share(int64_t items) const { return lanes.divisor > 4 ? share(items) | 1 : share(items); }
};

// The distance, in items, from row to row of shared memory: odd, against bank conflicts between rows,
// or 0 if all rows share the same items.
constexpr int shared_pitch(int64_t length, bool is_shared) { return is_shared ? 0 : static_cast<int>(length | 1); }
constexpr int shared_room(int64_t length, int pitch, int rows) {
  constexpr int kAlign = 16;  // in items, so that the memory after the rows begins at a multiple of 16 bytes
  return ceil_div(pitch == 0 ? static_cast<int>(length) : pitch * rows, kAlign) * kAlign;
}

}  // namespace mgpu
