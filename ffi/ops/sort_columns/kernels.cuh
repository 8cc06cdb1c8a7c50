// The kernels of a sort by digits on keys of two columns.
#pragma once

#include "algorithm/key_order.h"
#include "ops/segmented_sort/count_digits.cuh"
#include "ops/segmented_sort/scatter_digits.cuh"
#include "ops/sort_columns/plan.h"

namespace mgpu::cuda::sorting {

// Two columns of 32 bits as keys of 64, the first one with the higher bits.
struct KeyColumns {
  uint32_t* high;
  uint32_t* low;

  __device__ __forceinline__ KeyColumns operator+(int64_t items) const { return {high + items, low + items}; }
  __device__ __forceinline__ uint64_t operator[](int64_t i) const { return uint64_t{high[i]} << 32 | low[i]; }
  __device__ __forceinline__ void put(int64_t i, uint64_t key) const {
    high[i] = static_cast<uint32_t>(key >> 32);
    low[i] = static_cast<uint32_t>(key);
  }
};

// The same memory between passes, as room for words of 8 bytes by their places in a row: the first half of all words
// lies in the first column, the other half in the second. Of an odd number of words the last one lies apart.
struct ColumnHalves {
  uint64_t* first;
  uint64_t* second;  // as if it had the first half too
  int half;          // words from this place on are in the second column
  int last;          // the place of the word that lies apart
  uint64_t* apart;

  __device__ __forceinline__ ColumnHalves operator+(int items) const {
    return {first + items, second + items, half - items, last - items, apart};
  }
  __device__ __forceinline__ uint64_t& operator[](int place) const {
    uint64_t* const words = place < half ? first : second;
    return place == last ? *apart : words[place];
  }
};

// Whole rows whose keys are two columns of 32 bits. The first pass joins them and the last one splits them.
template <typename Payload_, bool kSmall_>
struct ColumnProblem : DigitProblem<IntegerOrder<uint64_t>, Payload_, uint32_t, false> {
  static constexpr DigitShape kShape =
      column_digit_shape(std::is_same_v<Payload_, NoPayload> ? 0 : sizeof(Payload_), kSmall_);
  static constexpr int kTile = kShape.tile();
  static constexpr int kCounterCopies = kSmall_ ? 4 : 8;
  static constexpr bool kOfColumns = true;

  KeyColumns input_columns;
  KeyColumns sorted_columns;
  uint64_t* apart;  // room for a word
  uint32_t* taken;  // passes that any row takes

  // All rows take the passes that any of them does: what a row has between passes lies where others have their results.
  __device__ DigitPasses row_passes(int64_t /*row*/) const { return {*this->taken}; }

  __device__ __forceinline__ const KeyColumns& input_keys() const { return input_columns; }
  __device__ __forceinline__ void copy_key(int64_t position) const {
    sorted_columns.put(position, input_columns[position]);
  }
  // The output as the other buffer between passes, from the row on that begins at `row_begin`.
  __device__ __forceinline__ ColumnHalves halves(int64_t row_begin) const {
    const int64_t half = this->rows * this->length / 2;
    const auto place = [&](int64_t position) {
      return static_cast<int>(clamp<int64_t>(position - row_begin, 0, this->length));
    };
    return {reinterpret_cast<uint64_t*>(sorted_columns.high) + row_begin,
            reinterpret_cast<uint64_t*>(sorted_columns.low) + (row_begin - half), place(half), place(2 * half), apart};
  }
};

}  // namespace mgpu::cuda::sorting
