// The two sorted operands of a call.
#pragma once

#include "algorithm/sorted_pair.h"
#include "call.h"
#include "operands/dispatch.h"
#include "workspace.h"

namespace mgpu {

inline SortedRows sorted_rows(const Call& call, const Array& keys, const Array& counts, int64_t rows,
                              const char* name) {
  SortedRows side;
  side.keys = keys.data;
  side.length = Call::length(keys);
  side.stride = call.row_stride(keys, side.length, rows, name);
  side.stored = keys.size();
  if (Call::length(counts) > 0) {
    side.counts = call.index_vector(counts, "count");
    side.counts_stride = call.row_stride(counts, 1, rows, "count");
  }
  return side;
}

inline SortedPair sorted_pair(const Call& call, const Array& a, const Array& b, const Array& a_count,
                              const Array& b_count, int64_t rows) {
  call.expect(a.dtype == b.dtype, "expected keys of one type");
  call.expect(is_key(a.dtype), "expected keys of a type that has an order");
  return {rows, sorted_rows(call, a, a_count, rows, "a"), sorted_rows(call, b, b_count, rows, "b")};
}

// What a CUDA kernel that walks along a merge keeps: where A is split at the begin of each tile, of at least kLeastTile
// slots unless its row has fewer, and the number of tiles taken.
struct MergeSplits {
  static constexpr int64_t kLeastTile = 1344;
  int64_t* splits;
  unsigned long long* taken;

  static MergeSplits layout(const SortedPair& pair, Workspace& workspace) {
    return {workspace.take<int64_t>(pair.rows * ceil_div(pair.row_slots(), kLeastTile)),
            workspace.take<unsigned long long>(1)};
  }
};

}  // namespace mgpu
