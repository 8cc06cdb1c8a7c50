#pragma once

#include "cuda/device.h"
#include "ops/hash_groups/operands.h"

namespace mgpu {

constexpr int kGroupBucketBits = 8, kGroupBuckets = 1 << kGroupBucketBits;
constexpr int kFillThreads = 512;
constexpr int kCountThreads = 512, kCountItems = 8;
constexpr int kCountCopies = 8;  // counters for each bucket, of different lanes
// A block that partitions has 4 counters per thread, to scan them as one vector.
constexpr int kPartitionThreads = 512, kPartitionBlocks = 2;
constexpr int kRankCopies = 4 * kPartitionThreads / kGroupBuckets;
template <typename Word>
constexpr int kPartitionTile = sizeof(Word) == 8 ? 4096 : 8192;  // half as many rows where shared memory is small
// A block that combines rows has a table of this many entries, or fewer where shared memory is small.
constexpr int kGroupEntries = 8192, kCombineThreads = 1024;
template <typename Word>
constexpr int kGroupItems = sizeof(Word) == 8 ? 4 : 2;  // rows that a thread combines at a time
template <typename Word>
constexpr int kCombineBlocks = sizeof(Word) == 8 ? 1 : 2;

// Scratch memory of the CUDA kernels: the rows, bucket after bucket, and where buckets begin. Null without a partition.
struct HashGroupsOperands::Scratch {
  uint32_t* totals;  // [kGroupBuckets], the rows of each bucket, later the place of its next row
  uint32_t* starts;  // [kGroupBuckets + 1]
  void* keys;
  uint32_t* values[kMaxGroupColumns];
};

}  // namespace mgpu
