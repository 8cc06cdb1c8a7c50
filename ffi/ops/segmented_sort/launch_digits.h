#pragma once

#include "cuda/launch/overlapping.h"
#include "ops/segmented_sort/count_digits.cuh"
#include "ops/segmented_sort/scatter_digits.cuh"

namespace mgpu::cuda::sorting {

template <typename P>
constexpr int count_shared_bytes(int places) {
  return places * kDigits * P::kCounterCopies * static_cast<int>(sizeof(unsigned));
}

template <typename P>
constexpr int64_t most_shared_bytes() {
  constexpr int64_t kStatic = 1024;  // static shared memory of the counting kernel, at most
  return maximum<int64_t>(count_shared_bytes<P>(sizeof(typename P::Word)) + kStatic, sizeof(ScatterShared<P>));
}

constexpr int64_t kMinItems = int64_t{1} << 14;  // per block, because its counters take time to clear and to add up

template <typename P>
void launch_count(const Call& call, const P& problem, cudaStream_t stream) {
  const auto count = count_digits<P>;
  const int shared = count_shared_bytes<P>(problem.places);
  allow_shared(call, count, shared);
  const int64_t max_parts = ceil_div(problem.length, kMinItems);
  const int blocks = resident_blocks(call, count, kCountThreads, shared, problem.rows * max_parts);
  const int64_t parts = clamp<int64_t>(blocks / problem.rows, 1, max_parts);
  count<<<problem.rows * parts, kCountThreads, shared, stream>>>(problem, parts, ceil_div(problem.length, parts));
  check_launch(call);
}

template <typename P>
void launch_scatters(const Call& call, const P& problem, int64_t max_tiles, cudaStream_t stream) {
  const auto scatter = scatter_digits<P>;
  constexpr int kShared = sizeof(ScatterShared<P>);
  allow_shared(call, scatter, kShared);
  for (int pass = 0; pass < problem.places; ++pass) {
    launch_overlapping(call, stream, scatter, max_tiles, P::kShape.tiles.threads, kShared, problem, pass);
  }
}

}  // namespace mgpu::cuda::sorting
