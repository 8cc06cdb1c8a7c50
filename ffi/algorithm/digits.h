// The width of the digits into which sorts and selections divide keys.
#pragma once

namespace mgpu {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

}  // namespace mgpu
