#pragma once

#include "ops/load_balance/operands.h"

namespace mgpu {

// A thread finds the objects of kWordItems outputs of one word,
// or of kRowItems rows of several words,
// or of kWideRowItems rows of at least kWideRowBytes in words of 16 bytes.
constexpr int kWorkThreads = 256;
constexpr int kWordItems = 16;
constexpr int kRowItems = 4;
constexpr int kWideRowItems = 1;
constexpr int64_t kWideRowBytes = 256;
constexpr int work_items(int64_t row_bytes, int word_bytes) {
  if (row_bytes <= word_bytes) return kWordItems;
  return word_bytes == 16 && row_bytes >= kWideRowBytes ? kWideRowItems : kRowItems;
}
// The least number of blocks per multiprocessor, for kernels with words of this size.
constexpr int work_blocks(int word_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return 4;
#else
  return word_bytes == 1 ? 4 : word_bytes > 4 ? 6 : 8;
#endif
}

}  // namespace mgpu
