#pragma once

namespace mgpu {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

}  // namespace mgpu
