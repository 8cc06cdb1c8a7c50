// Arrays whose items are rows of any type, moved whole: bytes, as the kernels see them.
#pragma once

#include "algorithm/common.h"
#include "call.h"

namespace mgpu {

// [.., count, elements]; all problems of a batch may share one array.
struct Rows {
  char* data;
  int64_t count;   // rows a problem
  int64_t stride;  // bytes from problem to problem
  int64_t row_bytes;

  MGPU_HOST_DEVICE char* of_problem(int64_t problem) const { return data + problem * stride; }
};

inline Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name) {
  call.expect(array.rank() >= 2, "rows: expected an array of rows");
  const int64_t elements = array.dimensions[array.rank() - 1];
  call.expect(elements > 0, "rows: expected an element in each");
  const int64_t count = array.dimensions[array.rank() - 2];
  const int64_t width = byte_width(array.dtype);
  return {array.as<char>(), count, call.row_stride(array, count * elements, problems, name, 2) * width,
          elements * width};
}

// The element [.., 1] that fills rows without a source.
struct Fill {
  const char* data;
  int64_t stride;  // bytes from problem to problem
  int64_t element_bytes;

  MGPU_HOST_DEVICE const char* of_problem(int64_t problem) const { return data + problem * stride; }
};

inline Fill read_fill(const Call& call, const Array& array, const Array& rows, int64_t problems) {
  call.expect(array.dtype == rows.dtype && Call::length(array) == 1,
              "fill_value: expected one element of the rows' type");
  const int64_t width = byte_width(array.dtype);
  return {array.as<char>(), call.row_stride(array, 1, problems, "fill_value") * width, width};
}

// The widest word, up to 16 bytes, that divides a row: what a CUDA thread moves at a time.
constexpr int row_word(int64_t row_bytes) {
  int word = 16;
  while (row_bytes % word != 0) word /= 2;
  return word;
}
constexpr bool is_wide_row(int64_t row_bytes) { return row_bytes > row_word(row_bytes); }

}  // namespace mgpu
