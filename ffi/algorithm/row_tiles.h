// Tiles of batches of short rows. A block takes a tile, one or more whole neighbouring rows, and gives each row a few
// threads. The number of rows of a tile depends only on the shapes.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// A divisor that is known at the launch. With its reciprocal, kernels divide by a multiplication.
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
  // A slot is a place for one item or result of a row. A tile has up to 8 slots per thread, so that enough loads are in
  // flight. A tile of one row may have up to 16.
  static constexpr int kSlots = 8 * kThreads;
  static constexpr int kMostSlots = 2 * kSlots;
  static constexpr int kMostRows = kThreads;
  // The limit of a kernel's dynamic shared memory. A block gets 48 KB on every device without a request; the rest is
  // for the kernel's static arrays.
  static constexpr int kMostSharedBytes = 45 << 10;

  int64_t rows = 0;   // all rows of the batch
  int tile_rows = 1;  // the rows of a tile
  Divisor lanes;      // the number of threads of a row

  RowTiles() = default;
  // `row_slots` is the number of slots of a row: of its items or of its results, whichever are more. If a tile has more
  // rows than threads, `lanes` becomes 0: no row has threads of its own.
  RowTiles(int64_t rows, int64_t row_slots, int max_rows = kMostRows)
      : rows(rows),
        tile_rows(static_cast<int>(clamp<int64_t>(kSlots / maximum<int64_t>(row_slots, 1), 1, max_rows))),
        lanes(kThreads / tile_rows) {}

  int64_t tiles() const { return ceil_div<int64_t>(rows, tile_rows); }
  // The number of items per thread if the threads of a row share `items` items. The first items of neighbouring threads
  // are this far apart in shared memory. If more than four threads share a row, odd_share makes the distance odd, so
  // that these threads access different banks.
  int share(int64_t items) const { return static_cast<int>(ceil_div<int64_t>(items, lanes.divisor)); }
  int odd_share(int64_t items) const { return lanes.divisor > 4 ? share(items) | 1 : share(items); }
};

// The distance, in items, between the starts of neighbouring rows in shared memory. It is odd, so that threads of
// neighbouring rows access different banks. It is 0 if all rows of the batch share the same items.
constexpr int shared_pitch(int64_t length, bool is_shared) { return is_shared ? 0 : static_cast<int>(length | 1); }
// The number of items of shared memory for the rows of a tile.
constexpr int shared_room(int64_t length, int pitch, int rows) {
  constexpr int kAlign = 16;  // in items, so that the memory after the rows begins at a multiple of 16 bytes
  return ceil_div(pitch == 0 ? static_cast<int>(length) : pitch * rows, kAlign) * kAlign;
}

}  // namespace mgpu
