// The call of sort_columns as its kernels see it.
#pragma once

#include "algorithm/key_order.h"
#include "operands/segmented_sort.h"

namespace mgpu {

struct Call;
class Workspace;

// The tiles of such sorts: longer than those of keys of 64 bits, which also sort fewer items. Small ones are for
// devices with less shared memory.
constexpr DigitShape column_digit_shape(int payload_width, bool small) {
  if (small) return {{256, payload_width == 0 ? 23 : payload_width == 4 ? 15 : 13}, 1};
  return {{512, payload_width == 0 ? 19 : payload_width == 4 ? 13 : 11}, 2};
}

// Operands: high [.., n] and low [.., n], of integers of 32 bits, count [.., 1], values [.., n]; the last two may be
// absent. Attributes: high_descending, low_descending, payload. Results: high, low, and the payload.
struct SortColumnsOperands {
  IntegerOrder<uint64_t> order;  // of the columns as one key
  int64_t length;                // of a row, less than 2^30
  int64_t rows;
  LiveCounts counts;
  PayloadMode payload_mode;
  int payload_width = 0;  // bytes; 0 without payload
  uint32_t* high;
  uint32_t* low;
  void* payload = nullptr;  // null unless given
  uint32_t* sorted_high;
  uint32_t* sorted_low;
  void* sorted_payload = nullptr;

  explicit SortColumnsOperands(const Call& call);

  int64_t total() const { return rows * length; }

  // Scratch memory of the CUDA kernels: the buffer beside the output, with room for one more word.
  struct Scratch {
    uint64_t* words;
    void* payload;
    DigitCounts digits;
  };
  static constexpr int kPlaces = 64 / kDigitBits;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
