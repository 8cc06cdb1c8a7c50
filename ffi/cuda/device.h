#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The multiprocessors of an H200. Work that makes float sums is divided for this number, so that their order is the
// same on all devices. So is work that needs scratch memory, because a program may be lowered without a device.
constexpr int64_t kReferenceMultiprocessors = 132;

// The bytes of a cache line. In shared memory, items that are copied
// in bulk have the same place in their lines as in device memory.
constexpr int kLineBytes = 128;

}  // namespace mgpu
