// The call of sort_columns as its kernels see it.
#pragma once

#include "algorithm/key_order.h"
#include "ops/segmented_sort/operands.h"

namespace mgpu {

struct Call;

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
};

}  // namespace mgpu
