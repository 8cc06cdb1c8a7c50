#pragma once

#include <string>

#include "function/item.h"
#include "ops/segmented_sort/operands.h"

namespace mgpu {

struct Call;

std::string word_type(int64_t word_bytes);

// Operands: keys [.., n] as words of 1, 2 or 4 bytes, or [.., n, 2] or [.., n, 4] uint32, which are words of 8 or 16;
// heads, flags and count, which are the same as in segmented_sort; the arrays that the function captured. Attributes:
// word_bytes, the bytes of a key; captures, the number of captured arrays; payload, which is none or indices. Results:
// keys in the form of the input, and the payload.
struct SortFunctionOperands {
  SegmentedSortOperands sort;
  Captures captures{};

  explicit SortFunctionOperands(const Call& call);
};

// The call for items of any size, which stay in the arrays of their leaves. Operands: the leaves [.., n, ...]; heads,
// flags and count, which are the same as in segmented_sort; the arrays that the function captured. Attributes: leaves,
// the number of leaves; captures, the number of captured arrays; item_bytes, the bytes of an item in all of its arrays.
// Result: the sorted indices [.., n] int32, which are the kernels' keys.
struct SortIndicesFunctionOperands {
  SegmentedSortOperands sort;
  const void* leaves[kMaxLeaves]{};
  Captures captures{};

  explicit SortIndicesFunctionOperands(const Call& call);
};

}  // namespace mgpu
