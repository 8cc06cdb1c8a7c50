#pragma once

#include "cuda/device.h"
#include "ops/reduce_by_id/operands.h"

namespace mgpu {

// For reduce_parts (kernels.cuh). The masks and states of a warp take at most 48 KB of
// shared memory, which every device grants. A block takes one part of a problem's
// rows. All its warps together take up to kIdPartBytes, which an H200 grants a block.
constexpr int kIdMasks = 512;  // words per warp, in which lanes with the same slot find each other
constexpr int64_t kIdTableBytes = (48 << 10) - kIdMasks * 4;
constexpr int64_t kIdPartBytes = 227 << 10;
constexpr int kIdMaxWarps = 32;
constexpr int64_t kIdMaxParts = 2 * kReferenceMultiprocessors;
constexpr int64_t kIdPartItems = 1 << 14;  // items for each part, if there are fewer than kIdMaxParts
// sum_ranges (sum_by_id.cuh) sums few floats, if kSumRanges blocks per problem have room for all limbs.
constexpr int64_t kFewSumItems = 1 << 14;  // the most floats of a problem times min(problems, 8)
constexpr int64_t kSumRanges = 128;
// Up to so many limbs of all results, or up to one per item, are cleared
// without a pass over the items that finds the limbs in use (find_limbs).
constexpr int64_t kMaxClearedLimbs = int64_t{1} << 21;
// sum_items has blocks of kSpreadThreads threads for at most kMaxSpreadItems
// floats, if there are at most kSpreadItemsPerSlot for each result.
constexpr int64_t kMaxSpreadItems = int64_t{1} << 21;
constexpr int64_t kSpreadItemsPerSlot = 128;
constexpr int kSpreadThreads = 256;
constexpr int kFinishThreads = 128;  // per block that rounds sums
// Tables of digits serve problems of at least kDigitItems floats, and kDigitItemsPerSlot for each result, with at most
// kMaxDigitLength rows.
constexpr int64_t kDigitItems = int64_t{1} << 22;
constexpr int64_t kDigitItemsPerSlot = 256;
constexpr int64_t kMaxDigitLength = int64_t{1} << 27;
// The most columns of combine_by_id.cuh: a block counts its items in 32 bits (kMaxPartItems).
constexpr int64_t kMaxIdColumns = int64_t{1} << 30;

}  // namespace mgpu
