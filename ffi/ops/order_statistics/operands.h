// Finds the items at given ranks, which are positions in each row's sorted order.
#pragma once

#include "algorithm/index_vector.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Each pass finds digits of at most this many bits.
constexpr int kRankDigitBits = 11;
constexpr int kRankDigits = 1 << kRankDigitBits;

// Operands: x [.., n]; ranks [.., m]; count [.., 1], the number of live items, or absent. Result: values
// [.., m]. A negative rank gives the first item, and a rank past the live items the last of these.
// Without live items, the result is 0. All NaNs of a row's result have the same bits, and a zero is +0.
struct OrderStatisticsOperands {
  DType key_type;
  int64_t rows;
  int64_t length;
  int64_t rank_count;
  IndexVector ranks;
  int64_t ranks_stride;  // from row to row
  LiveCounts counts;
  const void* x;
  int64_t x_stride;  // from row to row
  void* values;

  explicit OrderStatisticsOperands(const Call& call);

  MGPU_HOST_DEVICE int64_t live(int64_t row) const { return counts(row, length); }
  MGPU_HOST_DEVICE int64_t rank(int64_t row, int64_t i) const {
    return clamp<int64_t>(ranks[row * ranks_stride + i], 0, live(row) - 1);
  }

  // takes_sample() says whether rows may be sampled (plan.h), and
  // between_room() how many items of a row's intervals can be collected.
  MGPU_HOST_DEVICE bool takes_sample() const;
  MGPU_HOST_DEVICE int64_t between_room() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
