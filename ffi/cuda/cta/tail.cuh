// What lies behind the live items of a result of static size.
#pragma once

#include "algorithm/common.h"

namespace mgpu::cuda {

constexpr int kTailThreads = 256;
constexpr int64_t kTailPiece = 4096;

constexpr int64_t tail_pieces(int64_t rows, int64_t size) { return rows * ceil_div(size, kTailPiece); }

// Calls visit(row, slot) for each slot from live(row) to `size` of each row: by kTailThreads threads of any number of
// blocks, a piece of a row at a time.
template <typename Live, typename Visit>
__device__ void for_each_tail_slot(int64_t rows, int64_t size, Live live, Visit visit) {
  const int64_t row_pieces = ceil_div(size, kTailPiece);
  for (int64_t piece = blockIdx.x; piece < rows * row_pieces; piece += gridDim.x) {
    const int64_t row = piece / row_pieces;
    const int64_t begin = (piece - row * row_pieces) * kTailPiece;
    const int64_t end = minimum(begin + kTailPiece, size);
    for (int64_t slot = maximum<int64_t>(begin, live(row)) + threadIdx.x; slot < end; slot += kTailThreads) {
      visit(row, slot);
    }
  }
}

}  // namespace mgpu::cuda
