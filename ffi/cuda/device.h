// What plans assume of devices.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The device that work is cut for if its parts must not depend on the actual one. Parts of float sums follow only from
// shapes, so that every device gives the same bits. So do parts that need scratch memory, as a program may be lowered
// without a device. They fill the multiprocessors of an H100 or H200.
constexpr int64_t kReferenceMultiprocessors = 132;

// In shared memory an item has the same place in its cache line as in device memory: otherwise, the copy engine would
// need two requests for each one.
constexpr int kLineBytes = 128;

}  // namespace mgpu
