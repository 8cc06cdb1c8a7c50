#pragma once

#include "algorithm/common.h"

namespace mgpu {

// Divides numbers below 2^31 by a number from 1 to 2^31, by a multiplication (Granlund and Montgomery, 1994).
struct Quotient {
  unsigned divisor;
  unsigned factor;
  int shift;

  explicit Quotient(int64_t number) : divisor(static_cast<unsigned>(number)), shift(ceil_log2(number)) {
    factor = static_cast<unsigned>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor);
  }
  MGPU_HOST_DEVICE unsigned operator()(unsigned x) const {
    return divisor == 1 ? x : multiply_high(x, factor) >> (shift - 1);
  }

 private:
  MGPU_HOST_DEVICE static unsigned multiply_high(unsigned a, unsigned b) {
#ifdef __CUDA_ARCH__
    return __umulhi(a, b);  // nvcc 13.0 compiles the other form to more instructions
#else
    return static_cast<unsigned>(uint64_t{a} * b >> 32);
#endif
  }
};

}  // namespace mgpu
