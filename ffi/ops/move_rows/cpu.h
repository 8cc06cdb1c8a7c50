#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "ops/load_balance/cpu.h"
#include "ops/move_rows/rows.h"

namespace mgpu::cpu {

// Passes common widths as constants, and other widths as 0.
template <typename Visit>
void dispatch_row_bytes(int64_t row_bytes, Visit visit) {
  switch (row_bytes) {
    case 1: return visit(std::integral_constant<int64_t, 1>{});
    case 2: return visit(std::integral_constant<int64_t, 2>{});
    case 4: return visit(std::integral_constant<int64_t, 4>{});
    case 8: return visit(std::integral_constant<int64_t, 8>{});
    case 16: return visit(std::integral_constant<int64_t, 16>{});
    default: return visit(std::integral_constant<int64_t, 0>{});
  }
}

template <int64_t kBytes>
struct RowMover {
  int64_t row_bytes;
  int64_t width() const { return kBytes > 0 ? kBytes : row_bytes; }

  // If `count` is 0, the rows may be anywhere: no address is computed.
  void copy(char* to, int64_t to_row, const char* from, int64_t from_row, int64_t count) const {
    constexpr int64_t kMinMemcpyRows = 4;  // for fewer rows, the call of memcpy takes longer than the copy
    if (kBytes > 0 && count < kMinMemcpyRows) {
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(to + (to_row + i) * kBytes, from + (from_row + i) * kBytes, kBytes);
    } else if (count > 0) {
      std::memcpy(to + to_row * width(), from + from_row * width(), count * width());
    }
  }

  void repeat(char* to, Range<int64_t> rows, const char* row) const { repeat(to, rows, rows.end, row); }

  // May also write rows after the range, up to `limit`, which later calls overwrite (write_run).
  void repeat(char* to, Range<int64_t> rows, int64_t limit, const char* row) const {
    if constexpr (kBytes > 0) {
      using Row = std::array<char, kBytes>;
      write_run(reinterpret_cast<Row*>(to), rows, limit,
                [value = *reinterpret_cast<const Row*>(row)](int64_t) { return value; });
    } else {
      for (int64_t i = rows.begin; i < rows.end; ++i) std::memcpy(to + i * row_bytes, row, row_bytes);
    }
  }
};

inline std::vector<char> fill_row(const Fill& fill, int64_t problem, int64_t row_bytes) {
  std::vector<char> row(row_bytes);
  for (int64_t i = 0; i < row_bytes; ++i) row[i] = fill.of_problem(problem)[i % fill.element_bytes];
  return row;
}

// Enough rows to pay for the searches of the task's ends, and few enough to distribute.
inline int64_t rows_per_task(int64_t row_bytes) { return clamp<int64_t>((1 << 17) / row_bytes, 64, 1 << 14); }

}  // namespace mgpu::cpu
