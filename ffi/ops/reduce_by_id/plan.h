#pragma once

#include "cuda/device.h"
#include "ops/reduce_by_id/operands.h"

namespace mgpu {

// If there are few ids, a warp's states of all ids fit shared memory: with the warp's masks, they take at most 48 KB,
// which every device grants. There are at most two parts of the rows, one per block, for each multiprocessor of the
// reference device.
constexpr int kIdMasks = 512;  // words per warp, in which lanes with the same id find each other
constexpr int64_t kIdTableBytes = (48 << 10) - kIdMasks * 4;
constexpr int kIdMaxWarps = 32;
constexpr int64_t kIdMaxParts = 2 * kReferenceMultiprocessors;
constexpr int64_t kIdPartItems = 1 << 14;  // items per part, at least
// So few floats take one kernel, if the shared memory of so many blocks holds all limbs.
constexpr int64_t kFewSumItems = 1 << 14;
constexpr int64_t kSumRanges = 128;
// Up to so many limbs, or as many as there are items, are all cleared. Of more, a pass over the items finds those in
// use.
constexpr int64_t kMaxClearedLimbs = int64_t{1} << 21;
// So many floats in a problem, and as many for each result, use tables of digits. A problem has at most so many rows
// that a limb has room for a block's digits.
constexpr int64_t kDigitItems = int64_t{1} << 22;
constexpr int64_t kDigitItemsPerSlot = 256;
constexpr int64_t kMaxDigitLength = int64_t{1} << 27;
// If the order does not matter, a block takes whole rows, and counts its items in 32 bits.
constexpr int64_t kMaxIdColumns = int64_t{1} << 30;

}  // namespace mgpu
