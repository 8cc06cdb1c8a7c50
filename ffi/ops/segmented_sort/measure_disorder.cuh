// Estimates from samples how far nearly sorted rows are from being sorted, to choose between merging and a radix sort.
#pragma once

#include "ops/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

constexpr int kDisorderThreads = 256;
constexpr int kSampleItems = 1024;

// Compares one of every kSampleItems items with the item
// `distance` after it, and counts the pairs that are out of order.
template <typename Order>
__global__ void __launch_bounds__(kDisorderThreads)
    measure_disorder(const __grid_constant__ Order order, const __grid_constant__ Segments segments,
                     const typename Order::Word* keys, int64_t distance, int* inversions) {
  const int64_t sample = blockIdx.x * int64_t{kDisorderThreads} + threadIdx.x;
  // The sampled position within each group of items varies, because items far from their place may be periodic.
  const int64_t position = sample * kSampleItems + static_cast<int64_t>(sample * 0x9E3779B97F4A7C15ull >> 54);
  bool inverted = false;
  if (position < segments.total()) {
    const int64_t row = segments.row(position);
    if (position - row * segments.length + distance < segments.live(row)) {
      inverted = order.less(order.encode(keys[position + distance]), order.encode(keys[position]));
    }
  }
  const int count = __syncthreads_count(inverted);
  if (threadIdx.x == 0 && count > 0) atomicAdd(inversions, count);
}

}  // namespace mgpu::cuda::sorting
