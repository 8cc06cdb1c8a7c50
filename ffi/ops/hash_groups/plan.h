#pragma once

#include "cuda/device.h"
#include "ops/hash_groups/operands.h"

namespace mgpu {

constexpr int kGroupBucketBits = 8, kGroupBuckets = 1 << kGroupBucketBits;
constexpr int kFillThreads = 512;
constexpr int kPartitionThreads = 512, kPartitionBlocks = 2, kPartitionTile = 8192;
constexpr int kRankCopies = 8;  // counters for each bucket, of different lanes
constexpr int kUnitTiles = 32;  // a unit is a bucket's rows in this many tiles, one tile per lane
constexpr int kStartThreads = 1024;
// A block that combines rows has a table of this many entries, or fewer where shared memory is small.
constexpr int kGroupEntries = 8192, kCombineThreads = 1024;
template <typename Word>
constexpr int kGroupItems = sizeof(Word) == 8 ? 2 : 1;  // rows that a thread combines at a time
template <typename Word>
constexpr int kCombineBlocks = sizeof(Word) == 8 ? 1 : 2;

// Scratch memory of the CUDA kernels: the rows of each tile by bucket. Null without a partition.
struct HashGroupsOperands::Scratch {
  int tiles;
  int units;              // of each bucket
  uint32_t* unit_starts;  // [kGroupBuckets * units + 1], the number of rows before each unit, at first in each
  uint32_t* runs;         // [kGroupBuckets, tiles], where a bucket's rows begin in a tile, plus their number << 16
  uint32_t* keys[2];      // [tiles * kPartitionTile], the lower words, and the upper ones of keys of 64 bits
  uint32_t* values[kMaxGroupColumns];
};

}  // namespace mgpu
