#pragma once

#include "cuda/device.h"
#include "cuda/tile_shape.h"
#include "ops/bucket_join/operands.h"

namespace mgpu {

// A block keeps a bucket's rows of b in shared memory, and a chunk of the bucket's rows of a in registers.
// If a slot of its table has more than kBucketMaxComparedEntries entries, the block sorts the bucket
// instead of comparing entries within slots.
constexpr TileShape kBucketShape{512, 8};
static_assert(kBucketShape.tile() == kBucketCapacity && kBucketShape.tile() == kBucketChunk);
constexpr int kBucketMaxComparedEntries = 32;
constexpr int kBucketBlocks = 3;                                       // per multiprocessor; fewer on small ones
constexpr int64_t kBucketExtraBlocks = 8 * kReferenceMultiprocessors;  // the most blocks for chunks beyond the first

MGPU_HOST_DEVICE int64_t BucketJoinOperands::extra_blocks() const {
  return minimum<int64_t>(max_extra_chunks(), kBucketExtraBlocks);
}
MGPU_HOST_DEVICE int64_t BucketJoinOperands::blocks() const { return buckets() + extra_blocks(); }

}  // namespace mgpu
