// A result of static size may have more slots than live items. These functions are for the slots after the live items.
#pragma once

#include "algorithm/common.h"

namespace mgpu::cuda {

constexpr int kTailThreads = 256;
constexpr int64_t kTailPiece = 4096;

constexpr int64_t tail_pieces(int64_t rows, int64_t size) { return rows * ceil_div(size, kTailPiece); }

// Calls visit(row, begin, end) for the slots from live(row) to `size` of each row, one piece of a row at a time, with
// kTailThreads threads of any number of blocks. A piece may be empty, with begin >= end.
template <typename Live, typename Visit>
__device__ void for_each_tail_piece(int64_t rows, int64_t size, Live live, Visit visit) {
  const int64_t row_pieces = ceil_div(size, kTailPiece);
  for (int64_t piece = blockIdx.x; piece < rows * row_pieces; piece += gridDim.x) {
    const int64_t row = piece / row_pieces;
    const int64_t begin = (piece - row * row_pieces) * kTailPiece;
    visit(row, maximum<int64_t>(begin, live(row)), minimum(begin + kTailPiece, size));
  }
}

template <typename Live, typename Visit>
__device__ void for_each_tail_slot(int64_t rows, int64_t size, Live live, Visit visit) {
  for_each_tail_piece(rows, size, live, [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t slot = begin + threadIdx.x; slot < end; slot += kTailThreads) visit(row, slot);
  });
}

template <typename Item>
__device__ void fill_items(Item* to, int64_t count, Item value) {
  constexpr int kItems = 16 / sizeof(Item);
  struct alignas(16) Word {
    Item items[kItems];
  } word;
#pragma unroll
  for (int k = 0; k < kItems; ++k) word.items[k] = value;
  const auto misplaced = static_cast<int>(reinterpret_cast<uintptr_t>(to) / sizeof(Item) % kItems);
  const int64_t lead = minimum<int64_t>(count, (kItems - misplaced) % kItems);
  const int64_t words = maximum<int64_t>(count - lead, 0) / kItems;
  if (static_cast<int64_t>(threadIdx.x) < lead) to[threadIdx.x] = value;
  for (int64_t i = threadIdx.x; i < words; i += kTailThreads) reinterpret_cast<Word*>(to + lead)[i] = word;
  const int64_t rest = lead + words * kItems + threadIdx.x;
  if (rest < count) to[rest] = value;
}

}  // namespace mgpu::cuda
