// Sorts whole rows of 1-byte keys without payload: the
// number of keys with each digit determines the result.
#pragma once

#include "algorithm/partition_point.h"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/digit_problem.cuh"

namespace mgpu::cuda::sorting {

constexpr int kFillThreads = 256;
constexpr int kFilledBytes = 16;  // stored by a thread at once

template <typename P>
constexpr bool kFillsDigits = sizeof(typename P::Word) == 1 && P::Order::kTotal && !P::kHasPayload && !P::kListed;

// `parts` blocks share a row, at most `part_items` items each. The starts must have been found.
template <typename P>
__global__ void __launch_bounds__(kFillThreads)
    fill_digits(const __grid_constant__ P problem, int64_t parts, int64_t part_items) {
  using Offset = typename P::Offset;
  using Word = typename P::Word;
  constexpr int kVector = kFilledBytes;
  __shared__ Offset starts[kDigits + 1];
  wait_for_last_kernel();
  if (problem.is_left_to_merging()) return;
  const int64_t row = blockIdx.x / parts;
  const int64_t live = problem.live(row);
  for (int i = threadIdx.x; i < kDigits; i += kFillThreads) starts[i] = problem.starts[row * kDigits + i];
  if (threadIdx.x == 0) starts[kDigits] = static_cast<Offset>(live);
  __syncthreads();

  Word* const keys = problem.buffers[P::kOutput].keys + row * problem.length;
  const int64_t part = (blockIdx.x - row * parts) * part_items;
  const int64_t end = minimum(part + part_items, live);
  // The digit at a position is the last digit that starts at or before it.
  const auto start = [&](int digit) { return static_cast<int64_t>(starts[digit]); };
  const auto digit_of = [&](int64_t position) {
    return partition_point(0, kDigits, [&](int digit) { return start(digit) <= position; }) - 1;
  };
  const auto key_of = [&](int digit) { return problem.order.decode(static_cast<Word>(digit)); };
  // Vectors are aligned in device memory: the first one may begin before the part, and the last one may end after it.
  const int64_t skew = static_cast<int64_t>(reinterpret_cast<uintptr_t>(keys + part) % kVector);
  for (int64_t at = part - skew + threadIdx.x * kVector; at < end; at += kFillThreads * kVector) {
    const int64_t first = maximum(at, part), last = minimum(at + kVector, end);
    int digit = digit_of(first);
    if (last - first == kVector && start(digit + 1) >= last) {
      const uint32_t word = key_of(digit) * 0x01010101u;
      *reinterpret_cast<uint4*>(keys + at) = {word, word, word, word};
      continue;
    }
    for (int64_t i = first; i < last; ++i) {
      while (start(digit + 1) <= i) ++digit;
      keys[i] = key_of(digit);
    }
  }
}

}  // namespace mgpu::cuda::sorting
