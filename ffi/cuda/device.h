// What plans take for granted of devices.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The device that work is cut for where its parts must not depend on the one that runs it. Parts of float sums follow
// from shapes alone, so that every device gives the same bits; so do parts that need scratch memory, as a program may
// be lowered without a device. They fill the multiprocessors of an H100 or H200.
constexpr int64_t kReferenceMultiprocessors = 132;

// In shared memory an item lies where it lies within its cache line: runs that begin elsewhere cost the copy engine two
// requests for each of one.
constexpr int kLineBytes = 128;

}  // namespace mgpu
