#pragma once

#include "cuda/device.h"
#include "ops/reduce_by_id/operands.h"

namespace mgpu {

// If there are few ids, a warp's states of all ids fit shared memory: with the warp's masks, they take at most 48 KB,
// which every device grants. Each block takes one part of a problem's rows. A problem has at most two parts for each
// multiprocessor of the reference device.
constexpr int kIdMasks = 512;  // words per warp, in which lanes with the same id find each other
constexpr int64_t kIdTableBytes = (48 << 10) - kIdMasks * 4;
constexpr int kIdMaxWarps = 32;
constexpr int64_t kIdMaxParts = 2 * kReferenceMultiprocessors;
constexpr int64_t kIdPartItems = 1 << 14;  // items for each part, until there are kIdMaxParts
// One kernel sums few floats, if kSumRanges blocks per problem have room for all limbs (algorithm/exact_sum.h).
constexpr int64_t kFewSumItems = 1 << 14;  // the most floats of a problem, times the number of problems up to 8
constexpr int64_t kSumRanges = 128;
// All limbs are cleared if there are at most kMaxClearedLimbs of them, or no more than items. Otherwise a pass over the
// items finds the limbs in use, and only these are cleared.
constexpr int64_t kMaxClearedLimbs = int64_t{1} << 21;
// At most kMaxSpreadItems floats, and at most kSpreadItemsPerSlot for each result, are added up by blocks of
// kSpreadThreads instead of 1024 threads, so that a device runs more blocks at once.
constexpr int64_t kMaxSpreadItems = int64_t{1} << 21;
constexpr int64_t kSpreadItemsPerSlot = 128;
constexpr int kSpreadThreads = 256;
constexpr int kFinishThreads = 128;  // per block that rounds sums
// Tables of digits serve problems of at least kDigitItems floats, and kDigitItemsPerSlot for each result. A problem has
// at most kMaxDigitLength rows, so that a limb has room for a block's digits.
constexpr int64_t kDigitItems = int64_t{1} << 22;
constexpr int64_t kDigitItemsPerSlot = 256;
constexpr int64_t kMaxDigitLength = int64_t{1} << 27;
// If the items' order does not matter, a block takes up to kMaxPartItems and one more row, and counts them in 32 bits.
constexpr int64_t kMaxIdColumns = int64_t{1} << 30;

}  // namespace mgpu
