// CUB's and Thrust's device-wide algorithms, for the benchmarks to compare with.
#pragma once

#include <cstddef>

#include "runtime/call.h"

// clang-format off
#define MGPU_PEERS(PEER)          \
  PEER(argmax)                    \
  PEER(batched_copy)              \
  PEER(exclusive_sum)             \
  PEER(inclusive_max)             \
  PEER(load_balance_search)       \
  PEER(merge)                     \
  PEER(merge_sort)                \
  PEER(radix_sort)                \
  PEER(reduce_by_key)             \
  PEER(segmented_radix_sort)      \
  PEER(segmented_reduce_sum)      \
  PEER(segmented_sort)            \
  PEER(select_flagged)            \
  PEER(set_difference)            \
  PEER(set_intersection)          \
  PEER(set_symmetric_difference)  \
  PEER(set_union)                 \
  PEER(sorted_search)             \
  PEER(sum)
// clang-format on

struct CUstream_st;

namespace mgpu::peers {

// Temporary memory from XLA's own pool: no peer pays for cudaMalloc.
struct Scratch {
  virtual ~Scratch() = default;
  virtual void* allocate(size_t bytes) = 0;
};

#define MGPU_DECLARE(name) void name(const Call& call, CUstream_st* stream, Scratch& scratch);
MGPU_PEERS(MGPU_DECLARE)
#undef MGPU_DECLARE

}  // namespace mgpu::peers
