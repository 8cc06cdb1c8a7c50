// The kernel of segmented_search makes one binary search per needle. It is bound by dependent reads of the haystack, so
// a thread searches for several needles in lockstep. Blocks read neighbouring needles.
#pragma once

#include "ops/segmented_search/operands.h"

namespace mgpu::cuda::segment_searching {

constexpr int kThreads = 256;
constexpr int kItems = 4;   // needles per thread
constexpr int kBlocks = 3;  // per multiprocessor: with more, ptxas postpones reads to save registers

// Hides from the compiler how all items were computed, so that all reads come before the first use.
struct Hold {
  template <typename Item>
  __device__ void operator()(Item (&items)[kItems]) const {
    static_assert(kItems == 4);
    if constexpr (sizeof(Item) == 8) {
      asm volatile("" : "+l"(items[0]), "+l"(items[1]), "+l"(items[2]), "+l"(items[3]));
    } else {
      unsigned words[kItems];
#pragma unroll
      for (int k = 0; k < kItems; ++k) words[k] = static_cast<unsigned>(items[k]);
      asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
#pragma unroll
      for (int k = 0; k < kItems; ++k) items[k] = static_cast<Item>(words[k]);
    }
  }
};

// `lanes` threads share a problem. Each takes kItems needles that are `lanes` apart, so neighbouring threads read
// neighbouring needles.
template <typename Order, typename Index>
__global__ void __launch_bounds__(kThreads, kBlocks)
    search_segments(const __grid_constant__ SegmentedSearchOperands operands, Order order, int64_t lanes) {
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t problem = operands.pair.rows == 1 ? 0 : thread / lanes;
  const int64_t lane = thread - problem * lanes;
  if (lane >= lanes || problem >= operands.pair.rows) return;
  operands.search<kItems, Index>(order, problem, lane, lanes, Hold{});
}

}  // namespace mgpu::cuda::segment_searching
