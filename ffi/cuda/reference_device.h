// The device that work is cut for where the parts must not depend on the device that runs it.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// Parts of float sums follow from shapes alone, so that every device gives the same bits; so do parts that need scratch
// memory, as a program may be lowered without a device. They fill the multiprocessors of an H100 or H200.
constexpr int64_t kReferenceMultiprocessors = 132;

}  // namespace mgpu
