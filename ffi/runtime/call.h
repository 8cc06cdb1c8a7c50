// One call of an operation, as plain data without XLA or Python.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "algorithm/index_vector.h"
#include "runtime/dtype.h"

namespace mgpu {

constexpr std::string_view dtype_name(DType dtype) {
  constexpr std::string_view names[] = {"uint8",   "uint16",  "uint32", "uint64",    "int8",
                                        "int16",   "int32",   "int64",  "float16",   "bfloat16",
                                        "float32", "float64", "bool",   "complex64", "complex128"};
  return names[static_cast<int>(dtype)];
}

// A dense row-major array. `data` is null when only sizes are asked for. Leading dimensions beyond the operation's own
// rank are batch dimensions; an operand the batch does not touch has none.
struct Array {
  void* data = nullptr;
  DType dtype = DType::u8;
  std::vector<int64_t> dimensions;

  int rank() const { return static_cast<int>(dimensions.size()); }

  int64_t extent(int first, int last) const {
    int64_t product = 1;
    for (int axis = first; axis < last; ++axis) product *= dimensions[axis];
    return product;
  }
  int64_t size() const { return extent(0, rank()); }
  int64_t bytes() const { return size() * byte_width(dtype); }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

struct Attributes {
  virtual ~Attributes() = default;
  virtual int64_t operator[](std::string_view name) const = 0;
};

struct CallError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// If the host runs out of memory, the error is std::bad_alloc itself.
struct DeviceMemoryError final : std::bad_alloc {
  const char* what() const noexcept override { return "out of memory on the GPU"; }
};

struct FunctionData;

// An array has fewer bytes than this; the number of rows times the items of a row is also less, even if all rows share
// their items. So sizes computed from these do not overflow.
constexpr int64_t kMaxArrayBytes = int64_t{1} << 47;

struct Call {
  std::string_view operation;
  std::vector<Array> operands;
  std::vector<Array> results;  // without the scratch memory
  const Attributes& attributes;
  const FunctionData* function = nullptr;  // the caller's function; null if there is none, or if only sizes are sought
  Array workspace = {};                    // the scratch memory of a CUDA call (take_workspace)

  // The number of problems in the batch, from an array whose own rank is `rank`.
  static int64_t batch(const Array& array, int rank) { return array.extent(0, array.rank() - rank); }

  static int64_t length(const Array& array) { return array.dimensions.empty() ? 1 : array.dimensions.back(); }

  IndexVector index_vector(const Array& array, const char* name) const {
    if (array.dtype != DType::s32 && array.dtype != DType::s64) {
      fail(std::string(name) + ": expected int32 or int64, got " + std::string(dtype_name(array.dtype)));
    }
    return {array.data, array.dtype == DType::s64};
  }

  // Rejects rows that share so many items that later products of sizes could overflow.
  void expect_items(int64_t rows, int64_t length, const char* name) const {
    if (length > 0 && rows >= kMaxArrayBytes / length) {
      fail(std::string(name) + ": expected less than 2^47 items in all rows, got " + std::to_string(rows) +
           " rows of " + std::to_string(length));
    }
  }

  // The distance from row to row of an operand of `length` items per row: 0 if all `rows` rows share one. `own_rank` is
  // the operand's rank without batch dimensions.
  int64_t row_stride(const Array& array, int64_t length, int64_t rows, const char* name, int own_rank = 1) const {
    expect_items(rows, length, name);
    if (array.rank() <= own_rank) return 0;
    if (array.size() != rows * length) {
      fail(std::string(name) + ": expected " + std::to_string(rows) + " rows, got " + std::to_string(array.size()) +
           " items of " + std::to_string(length) + " a row");
    }
    return length;
  }

  LiveCounts live_counts(const Array& array, int64_t rows, const char* name = "count") const {
    if (length(array) == 0) return {};
    return {index_vector(array, name), row_stride(array, 1, rows, name)};
  }

  IndexResult index_result(const Array& array, int64_t size, const char* name) const {
    const IndexVector vector = index_vector(array, name);
    if (array.size() != size) {
      fail(std::string(name) + ": expected " + std::to_string(size) + " items, got " + std::to_string(array.size()));
    }
    return {array.data, vector.wide};
  }

  [[noreturn]] void fail(const std::string& what) const { throw CallError(std::string(operation) + ": " + what); }
  void expect(bool holds, const char* what) const {
    if (!holds) fail(what);
  }
};

}  // namespace mgpu
