#include "ops/move_rows/read_rows.h"

namespace mgpu {

Rows read_rows(const Call& call, const Array& array, int64_t problems, const char* name) {
  call.expect(array.rank() >= 2, "rows: expected an array of rows");
  const int64_t elements = array.dimensions[array.rank() - 1];
  call.expect(elements > 0, "rows: expected an element in each");
  const int64_t count = array.dimensions[array.rank() - 2];
  const int64_t width = byte_width(array.dtype);
  return {array.as<char>(), count, call.row_stride(array, count * elements, problems, name, 2) * width,
          elements * width};
}

Fill read_fill(const Call& call, const Array& array, int64_t problems) {
  call.expect(Call::length(array) == 1, "fill_value: expected one element");
  const int64_t width = byte_width(array.dtype);
  return {array.as<char>(), call.row_stride(array, 1, problems, "fill_value") * width, width};
}

}  // namespace mgpu
