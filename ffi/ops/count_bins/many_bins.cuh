// Counts in more numbered bins than a block has counters for. Each entry of a table in shared memory counts the first
// of its bins that occurs; other bins are counted in device memory, as in ops/reduce_by_id/combine_by_id.cuh.
#pragma once

#include "ops/count_bins/kernels.cuh"
#include "ops/reduce_by_id/combine_by_id.cuh"

namespace mgpu::cuda::counting {

constexpr int kManyThreads = id_combining::kThreads;
constexpr int kManyInFlight = 4;
constexpr int kManyEntries = 4096;
constexpr int64_t kManyEntryBytes = 8;  // a counter and the number of its bin

// One block per part of a row. The caller zeroes the counts.
template <typename Item>
__global__ void __launch_bounds__(kManyThreads)
    count_many(const __grid_constant__ CountTask task, NumberedBins<Item> bins) {
  using namespace id_combining;
  extern __shared__ uint32_t counters[];
  uint32_t* const tags = counters + kManyEntries;
  for (int i = threadIdx.x; i < kManyEntries; i += kManyThreads) counters[i] = 0, tags[i] = kNobody;
  const CountBinsOperands& operands = task.operands;
  const int64_t row = blockIdx.x / task.parts;
  const int64_t begin = (blockIdx.x - row * task.parts) * task.part;
  const int64_t end = minimum(begin + task.part, operands.length);
  const Item* const items = static_cast<const Item*>(operands.x) + row * operands.x_stride;
  const int64_t first_count = row * operands.bins;
  __syncthreads();
  bins.with_bins(task, row, nullptr, [&](const auto& bin_of) {
    for (int64_t at = begin; at < end; at += kManyInFlight * kManyThreads) {
      Item own[kManyInFlight];
      uint32_t numbers[kManyInFlight];
      const auto place = [&](int k) { return at + k * kManyThreads + threadIdx.x; };
#pragma unroll
      for (int k = 0; k < kManyInFlight; ++k) own[k] = items[minimum(place(k), end - 1)];
#pragma unroll
      for (int k = 0; k < kManyInFlight; ++k) {
        const int bin = place(k) < end ? bin_of(own[k]) : kNoBin;
        numbers[k] = bin == kNoBin ? kNobody : static_cast<uint32_t>(bin);
      }
      const Places<false, kManyInFlight> places(numbers, tags, kManyEntries);
#pragma unroll
      for (int k = 0; k < kManyInFlight; ++k) {
        const bool alike = are_alike(numbers[k]);
        if (!places.is_used(k) || (alike && threadIdx.x % kWarp != 0)) continue;
        const unsigned count = alike ? kWarp : 1;
        if (places.in_table(k)) {
          atomicAdd(places.address(k, counters, counters), count);
        } else {
          add_to(operands.counts, first_count + numbers[k], count);
        }
      }
    }
  });
  __syncthreads();
  for (int i = threadIdx.x; i < kManyEntries; i += kManyThreads) {
    if (counters[i] != 0) add_to(operands.counts, first_count + tags[i], counters[i]);
  }
}

}  // namespace mgpu::cuda::counting
