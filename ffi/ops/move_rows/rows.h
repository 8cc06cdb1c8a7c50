// Arrays whose items are rows of any type, moved whole as bytes.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

// An array [.., count, elements], which all problems of a batch may share.
struct Rows {
  char* data;
  int64_t count;   // rows per problem
  int64_t stride;  // bytes from problem to problem
  int64_t row_bytes;

  MGPU_HOST_DEVICE char* of_problem(int64_t problem) const { return data + problem * stride; }
};

// The element [.., 1] that fills rows without a source.
struct Fill {
  const char* data;
  int64_t stride;  // bytes from problem to problem
  int64_t element_bytes;

  MGPU_HOST_DEVICE const char* of_problem(int64_t problem) const { return data + problem * stride; }
};

// The widest word, up to 16 bytes, that divides a row: a CUDA thread moves this much at a time.
constexpr int row_word(int64_t row_bytes) {
  int word = 16;
  while (row_bytes % word != 0) word /= 2;
  return word;
}
constexpr bool is_wide_row(int64_t row_bytes) { return row_bytes > row_word(row_bytes); }

}  // namespace mgpu
