// partition_point by lanes of a warp or by a block, with one probe
// per thread in each step, so that few steps wait for memory.
#pragma once

#include "algorithm/common.h"

namespace mgpu::cuda {

constexpr int kWarp = 32;

// partition_point by a group of kLanes neighbouring lanes. All lanes of the warp call it; the groups may search
// different ranges.
template <int kLanes = kWarp, typename Index, typename Predicate>
__device__ Index warp_partition_point(Index begin, Index end, Predicate before) {
  constexpr unsigned kGroup = kLanes == kWarp ? ~0u : (1u << (kLanes % kWarp)) - 1;
  const int lane = threadIdx.x % kLanes;
  const int shift = threadIdx.x % kWarp - lane;
  while (__any_sync(0xffffffffu, begin < end)) {
    const Index count = maximum(end - begin, Index{0});
    Index probe = begin;
    if constexpr (sizeof(Index) == 4) {
      constexpr uint32_t kPart = (uint64_t{1} << 32) / (kLanes + 1);
      probe += static_cast<Index>(__umulhi(static_cast<uint32_t>(count), kPart * (lane + 1)));
    } else {
      probe += static_cast<Index>((static_cast<int64_t>(count) * (lane + 1)) / (kLanes + 1));
    }
    const bool not_before = count > 0 && !before(probe);
    const unsigned ballot = __ballot_sync(0xffffffffu, not_before) >> shift & kGroup;
    const int part = ballot ? __ffs(ballot) - 1 : kLanes;  // the first probe that is not before
    const Index low = __shfl_sync(0xffffffffu, probe, maximum(part - 1, 0), kLanes);
    const Index high = __shfl_sync(0xffffffffu, probe, minimum(part, kLanes - 1), kLanes);
    if (count > 0 && part > 0) begin = low + 1;
    if (part < kLanes) end = high;
  }
  return begin;
}

// Several searches by a block of kThreads threads, all of which call it: begins[k] becomes the first i in [begins[k],
// ends[k]) for which `before(k, i)` is false, or ends[k].
template <int kThreads, int kSearches, typename Predicate>
__device__ void block_partition_points(int64_t (&begins)[kSearches], int64_t (&ends)[kSearches], Predicate before) {
  const auto is_open = [&] {
    bool open = false;
#pragma unroll
    for (int k = 0; k < kSearches; ++k) open = open || begins[k] < ends[k];
    return open;
  };
  while (is_open()) {
    const auto probe = [&](int k, int i) { return begins[k] + (ends[k] - begins[k]) * (i + 1) / (kThreads + 1); };
    bool is_before[kSearches];
#pragma unroll
    for (int k = 0; k < kSearches; ++k) {
      is_before[k] = begins[k] < ends[k] && before(k, probe(k, static_cast<int>(threadIdx.x)));
    }
#pragma unroll
    for (int k = 0; k < kSearches; ++k) {
      const int part = __syncthreads_count(is_before[k]);
      if (begins[k] >= ends[k]) continue;
      const int64_t low = part > 0 ? probe(k, part - 1) + 1 : begins[k];
      if (part < kThreads) ends[k] = probe(k, part);
      begins[k] = low;
    }
  }
}

}  // namespace mgpu::cuda
