#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The device for which work is divided if its parts must not depend on the actual device: an H100 or H200. Parts of
// float sums do not, so that every device gives the same bits. Parts that need scratch memory do not, because a program
// may be lowered without a device.
constexpr int64_t kReferenceMultiprocessors = 132;

// The bytes of a cache line. Kernels give an item the same place in its line in shared memory as in device memory:
// otherwise, the copy engine needs two requests for each line.
constexpr int kLineBytes = 128;

}  // namespace mgpu
