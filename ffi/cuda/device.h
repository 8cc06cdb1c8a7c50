// Assumptions of plans about devices.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The device for which work is divided if its parts must not depend on the actual device. Parts of float sums depend
// only on shapes, so that every device gives the same bits. Parts that need scratch memory depend only on shapes too,
// because a program may be lowered without a device. They fill the multiprocessors of an H100 or H200.
constexpr int64_t kReferenceMultiprocessors = 132;

// The bytes of a cache line. Kernels give an item the same place in its line in shared memory as in device memory.
// Otherwise, the copy engine would need two requests for each line.
constexpr int kLineBytes = 128;

}  // namespace mgpu
