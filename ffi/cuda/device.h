#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The multiprocessors of an H200. Work that makes float sums is divided for this number, so that their order is the
// same on all devices. So is work that needs scratch memory, because a program may be lowered without a device.
constexpr int64_t kReferenceMultiprocessors = 132;

// Whether a device that runs this code may grant a block so much shared memory. Kernels that need more only trap:
// launches choose others there. Machine code serves the devices of one major number, but PTX serves all later ones.
constexpr bool may_grant([[maybe_unused]] int64_t bytes) {
#if defined(MGPU_ONLY_MACHINE_CODE) && defined(__CUDA_ARCH__)
  constexpr int64_t kMost = __CUDA_ARCH__ < 800 ? 64 : __CUDA_ARCH__ < 900 ? 163 : __CUDA_ARCH__ < 1200 ? 227 : 99;
  return bytes <= kMost << 10;
#else
  return true;
#endif
}

// The bytes of a cache line. In shared memory, items that are copied
// in bulk have the same place in their lines as in device memory.
constexpr int kLineBytes = 128;

}  // namespace mgpu
