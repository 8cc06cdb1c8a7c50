// How CUDA reduces by id: parts of the rows, tables and their limits.
#pragma once

#include "cuda/device.h"
#include "ops/reduce_by_id/operands.h"

namespace mgpu {

// If ids are few, a warp's states of all ids fit shared memory: at most 48 KB with its masks, which every device
// grants. Each block takes a part of the rows; two blocks of a large device's multiprocessors each take the largest
// arrays.
constexpr int kIdMasks = 512;  // a warp's words in which lanes with the same id meet
constexpr int64_t kIdTableBytes = (48 << 10) - kIdMasks * 4;
constexpr int kIdMostWarps = 32;
constexpr int64_t kIdMostParts = 2 * kReferenceMultiprocessors;
constexpr int64_t kIdPartItems = 1 << 14;  // or more
// Sums of floats as integers: the most results, each with a sum of 64 bits and an exponent.
constexpr int64_t kMostFixedPointIds = 1 << 15;
constexpr int64_t kFixedPointBytes = 12;
// If order does not matter, a block counts its items in 32 bits, and has whole rows.
constexpr int64_t kMostIdColumns = int64_t{1} << 30;

}  // namespace mgpu
