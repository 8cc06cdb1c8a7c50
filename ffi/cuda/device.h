#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The multiprocessors of an H200. Work that makes float sums is divided for this number, so that every device gives the
// same bits. So is work that needs scratch memory, because a program may be lowered without a device.
constexpr int64_t kReferenceMultiprocessors = 132;

// The bytes of a cache line. Items have the same place in their lines in shared memory as in device memory: otherwise,
// the copy engine needs two requests for each line.
constexpr int kLineBytes = 128;

}  // namespace mgpu
