// The movers of a selection load what a kept item gives, and store it: a row of words, or the item's position.
#pragma once

#include "cuda/block/tail.cuh"
#include "ops/move_rows/kernels.cuh"
#include "ops/select/plan.h"

namespace mgpu::cuda::selecting {

constexpr int kThreads = kSelectThreads;

template <typename Item>
struct MoveItems {
  using Value = Item;
  static constexpr int row_words = 1, row_threads = 1;
  static constexpr int kBatch = sizeof(Item) == 16 ? 4 : 8;  // loads of a thread before the first is stored
  Rows x;
  Rows out;
  Fill fill;

  __device__ Value load(int64_t row, int64_t position, int64_t /*word*/ = 0) const {
    return reinterpret_cast<const Item*>(x.of_problem(row))[position];
  }
  __device__ Value filling(int64_t row) const { return fill_word<Item>(fill.of_problem(row), fill.element_bytes); }
  __device__ void store(int64_t row, int64_t slot, Value value, int64_t /*word*/ = 0) const {
    reinterpret_cast<Item*>(out.of_problem(row))[slot] = value;
  }
  __device__ void fill_words(int64_t row, int64_t begin, int64_t end) const {
    fill_items(reinterpret_cast<Item*>(out.of_problem(row)) + begin, end - begin, filling(row));
  }
};

template <typename Item>
struct MoveWideRows {
  using Value = Item;
  static constexpr int kBatch = 4;  // rows from which a thread loads words before it stores the first
  Rows x;
  Rows out;
  Fill fill;
  int64_t row_words;
  int row_threads;  // a power of two, 32 at most

  __device__ Value filling(int64_t row) const { return fill_word<Item>(fill.of_problem(row), fill.element_bytes); }
  __device__ Value load(int64_t row, int64_t position, int64_t word) const {
    return reinterpret_cast<const Item*>(x.of_problem(row))[position * row_words + word];
  }
  __device__ void store(int64_t row, int64_t slot, Value value, int64_t word) const {
    reinterpret_cast<Item*>(out.of_problem(row))[slot * row_words + word] = value;
  }
  __device__ void fill_words(int64_t row, int64_t begin, int64_t end) const {
    fill_items(reinterpret_cast<Item*>(out.of_problem(row)) + begin, end - begin, filling(row));
  }
};

struct SetIndices {
  using Value = int64_t;
  static constexpr int row_words = 1, row_threads = 1;
  static constexpr int kBatch = 8;
  IndexResult indices;
  int64_t size;
  int64_t length;  // the index that stands for no item

  __device__ Value load(int64_t, int64_t position, int64_t /*word*/ = 0) const { return position; }
  __device__ Value filling(int64_t) const { return length; }
  __device__ void store(int64_t row, int64_t slot, Value value, int64_t /*word*/ = 0) const {
    indices.set(row * size + slot, value);
  }
};

template <typename Mover>
__device__ __forceinline__ void fill_words(const Mover& mover, int64_t row, int64_t begin, int64_t end) {
  if constexpr (requires { mover.fill_words(row, begin, end); }) {
    mover.fill_words(row, begin, end);
  } else {
    for (int64_t slot = begin + threadIdx.x; slot < end; slot += kTailThreads) {
      mover.store(row, slot, mover.filling(row));
    }
  }
}

// The items are at position_of(0), …, position_of(count - 1) of the row.
template <typename Mover, typename PositionOf>
__device__ void move_items(const Mover& mover, int64_t row, int count, int64_t slot, PositionOf position_of) {
  const int step = kThreads / mover.row_threads, first_word = static_cast<int>(threadIdx.x) % mover.row_threads;
  for (int first = threadIdx.x / mover.row_threads; first < count; first += Mover::kBatch * step) {
    for (int64_t word = first_word; word < mover.row_words; word += mover.row_threads) {
      typename Mover::Value values[Mover::kBatch];
#pragma unroll
      for (int k = 0; k < Mover::kBatch; ++k) {
        const int i = first + k * step;
        if (i < count) values[k] = mover.load(row, position_of(i), word);
      }
#pragma unroll
      for (int k = 0; k < Mover::kBatch; ++k) {
        const int i = first + k * step;
        if (i < count) mover.store(row, slot + i, values[k], word);
      }
    }
  }
}

}  // namespace mgpu::cuda::selecting
