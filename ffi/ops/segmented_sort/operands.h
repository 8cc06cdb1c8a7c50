#pragma once

#include "algorithm/segments.h"
#include "ops/common/payload.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;

// kMerging sorts whole rows without radix sorts, and segments by the fastest method. kNearlySorted prefers merges that
// leave out items in place. kPartitioning partitions by the highest `bits` bits, or more: items that share these bits
// may come in any order, but equal items keep their order.
enum class SortMethod : int64_t { kMerging, kFastest, kNearlySorted, kPartitioning };

// Operands: keys [.., n]; heads [.., m], where segments begin, or flags instead, [.., n] bool or [.., ceil(n / 32)]
// uint32; count [.., 1]; payload [.., n]. All but the keys may be absent (empty). Attributes: descending, method, bits,
// payload. Results: keys, and the payload.
struct SegmentedSortOperands {
  DType key_type;
  bool descending;
  SortMethod method;  // kMerging if there are heads or flags
  int bits;           // the lowest bits, in which keys may differ; for a partition, the highest bits
  PayloadMode payload_mode;
  int payload_width = 0;  // bytes; 0 without payload
  Segments segments;
  bool has_flags;
  bool whole_rows;  // without heads and flags
  const void* keys;
  const void* payload;  // null unless given
  void* sorted_keys;
  void* sorted_payload;

  explicit SegmentedSortOperands(const Call& call);

  int64_t index_row_length() const { return payload_mode == PayloadMode::kIndices ? segments.length : 0; }
};

}  // namespace mgpu
