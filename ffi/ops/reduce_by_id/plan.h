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
// For exact sums of floats: the most blocks that find the magnitudes of items, and the bytes that each of them stores.
constexpr int kMagnitudeBlocks = 1024;
constexpr int64_t kMagnitudesBytes = 12;
// So few items of a problem take one kernel, and one block, if its shared memory holds all limbs.
constexpr int64_t kBlockSumItems = 1 << 12;
// The blocks that find magnitudes clear up to so many limbs, used or not. More have a kernel that clears those in use.
constexpr int64_t kMaxClearedLimbs = 1 << 17;
// Sums of so many items in all, and in each problem, use tables of digits. A problem has at most so many rows that a
// limb has room for a block's digits.
constexpr int64_t kDigitItems = int64_t{1} << 24;
constexpr int64_t kDigitProblemItems = int64_t{1} << 18;
constexpr int64_t kMaxDigitLength = int64_t{1} << 27;
// If the order does not matter, a block takes whole rows, and counts its items in 32 bits.
constexpr int64_t kMaxIdColumns = int64_t{1} << 30;

}  // namespace mgpu
