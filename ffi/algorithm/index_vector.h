// Vectors of indices and of counts, int32 or int64.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// 2^60 is far beyond any array, and sums of a few such indices do not overflow.
MGPU_HOST_DEVICE int64_t cut_index(int64_t index) {
  constexpr int64_t kFar = int64_t{1} << 60;
  return clamp(index, -kFar, kFar);
}

struct IndexVector {
  const void* data = nullptr;
  bool wide = false;
  MGPU_HOST_DEVICE int64_t operator[](int64_t i) const {
#ifdef __CUDA_ARCH__
    // Always makes both loads, not one that the width chooses: with predicated loads, kernels compiled by ptxas (CUDA
    // 13.0, sm_90) moved rows to wrong places (docs/notes/reliability.md).
    const int32_t* const words = static_cast<const int32_t*>(data) + (wide ? 2 * i : i);
    const int32_t low = words[0];
    const int32_t high = words[wide];
    return wide ? cut_index(int64_t{high} << 32 | static_cast<uint32_t>(low)) : low;
#else
    return wide ? cut_index(static_cast<const int64_t*>(data)[i]) : static_cast<const int32_t*>(data)[i];
#endif
  }
  MGPU_HOST_DEVICE IndexVector from(int64_t i) const {
    return {static_cast<const char*>(data) + i * (wide ? sizeof(int64_t) : sizeof(int32_t)), wide};
  }
};

template <typename Index>
struct IndicesOf {
  const Index* data;

  explicit MGPU_HOST_DEVICE IndicesOf(IndexVector vector) : data(static_cast<const Index*>(vector.data)) {}
  MGPU_HOST_DEVICE Index operator[](int64_t i) const {
    if constexpr (sizeof(Index) == 8) {
      return cut_index(data[i]);
    } else {
      return data[i];
    }
  }
  MGPU_HOST_DEVICE IndicesOf from(int64_t i) const { return IndicesOf(IndexVector{data + i, sizeof(Index) == 8}); }
};

// One branch on the width serves a whole search or loop.
template <typename Result, typename Visit>
MGPU_HOST_DEVICE Result with_width(IndexVector vector, Visit visit) {
  return vector.wide ? visit(IndicesOf<int64_t>(vector)) : visit(IndicesOf<int32_t>(vector));
}

// A row's live items are its first ones; those after them are dead.
struct LiveCounts {
  IndexVector counts;  // [rows or 1], or null: every item is live
  int64_t stride = 0;  // from row to row

  MGPU_HOST_DEVICE bool given() const { return counts.data; }
  MGPU_HOST_DEVICE int64_t operator()(int64_t row, int64_t length) const {
    return given() ? clamp<int64_t>(counts[row * stride], 0, length) : length;
  }
};

struct IndexResult {
  void* data = nullptr;
  bool wide = false;
  MGPU_HOST_DEVICE void set(int64_t i, int64_t value) const {
    if (wide) {
      static_cast<int64_t*>(data)[i] = value;
    } else {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    }
  }
};

}  // namespace mgpu
