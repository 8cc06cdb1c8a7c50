#include "ops/common/read.h"

namespace mgpu {

namespace {

SortedRows sorted_rows(const Call& call, const Array& keys, const Array& counts, int64_t rows, const char* name) {
  SortedRows side;
  side.keys = keys.data;
  side.length = Call::length(keys);
  side.stride = call.row_stride(keys, side.length, rows, name);
  side.stored = keys.size();
  side.counts = call.live_counts(counts, rows);
  return side;
}

}  // namespace

SortedPair read_sorted_pair(const Call& call, const Array& a, const Array& b, const Array& a_count,
                            const Array& b_count, int64_t rows) {
  call.expect(a.dtype == b.dtype, "expected keys of one type");
  return {rows, sorted_rows(call, a, a_count, rows, "a"), sorted_rows(call, b, b_count, rows, "b")};
}

}  // namespace mgpu
