// How CUDA reduces by id: parts of the rows, tables and their limits.
#pragma once

#include "cuda/device.h"
#include "ops/reduce_by_id/operands.h"

namespace mgpu {

// Where ids are few, a warp's states of all ids have room in shared memory: with its masks 48 KB at most, which every
// device grants. A part of the rows is a block's; two blocks of a large device's processors each take the largest
// arrays.
constexpr int kIdMasks = 512;  // a warp's words in which lanes of one id meet
constexpr int64_t kIdTableBytes = (48 << 10) - kIdMasks * 4;
constexpr int kIdMostWarps = 32;
constexpr int64_t kIdMostParts = 2 * kReferenceMultiprocessors;
constexpr int64_t kIdPartItems = 1 << 14;  // at least
// Sums of floats as integers: of so many results, each with a sum of 64 bits and an exponent.
constexpr int64_t kMostFixedPointIds = 1 << 15;
constexpr int64_t kFixedPointBytes = 12;
// Where order does not matter a block counts its items in 32 bits, and has whole rows.
constexpr int64_t kMostIdColumns = int64_t{1} << 30;

}  // namespace mgpu
