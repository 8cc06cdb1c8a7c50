// select on the CPU first counts the kept items of each tile, then moves items.
#include "ops/move_rows/cpu.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cpu/policy.h"
#include "ops/select/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

constexpr int64_t kTile = cpu::kSelectTile;

// Calls visit(position, slot) for the items of `tile` whose flag is `kept`; they go to slots [slot, end).
// To avoid a branch, visit is called for other items too; the next item to keep then gets the same slot.
template <typename Visit>
void visit_kept(const uint8_t* keep, uint8_t kept, Range<int64_t> tile, int64_t slot, int64_t end, Visit visit) {
  for (int64_t i = tile.begin; slot < end; ++i) {
    visit(i, slot);
    slot += (keep[i] != 0) == kept;
  }
}

// write(row, position, slot) moves an item to its slot; pad(row, slots) fills the slots past the kept items.
template <typename Write, typename Pad>
void select_items(const SelectOperands& operands, cpu::Executor& executor, Write write, Pad pad) {
  const int64_t row_tiles = operands.row_tiles(kTile);
  const auto mask_of = [&](int64_t row) { return operands.keep + row * operands.keep_stride; };
  const auto tile_of = [&](int64_t row, int64_t tile) {
    const int64_t live = operands.live(row);
    return Range<int64_t>{std::min(tile * kTile, live), std::min((tile + 1) * kTile, live)};
  };

  std::vector<int64_t> before(operands.rows * (row_tiles + 1));  // kept in the row before each tile
  cpu::parallel_for(executor, operands.rows * row_tiles, [&](int64_t i) {
    const int64_t row = i / row_tiles, tile = i - row * row_tiles;
    const Range<int64_t> items = tile_of(row, tile);
    int64_t kept = 0;
    for (int64_t j = items.begin; j < items.end; ++j) kept += mask_of(row)[j] != 0;
    before[row * (row_tiles + 1) + tile + 1] = kept;
  });
  for (int64_t row = 0; row < operands.rows; ++row) {
    const auto begin = before.begin() + row * (row_tiles + 1);
    std::partial_sum(begin, begin + row_tiles + 1, begin);
    operands.kept.set(row, begin[row_tiles]);
  }
  cpu::parallel_for(executor, operands.rows * row_tiles, [&](int64_t i) {
    const int64_t row = i / row_tiles, tile = i - row * row_tiles;
    const int64_t* const row_before = before.data() + row * (row_tiles + 1);
    const int64_t total = row_before[row_tiles];
    const Range<int64_t> items = tile_of(row, tile);
    const int64_t first = row_before[tile], last = row_before[tile + 1];
    const auto to = [&](int64_t position, int64_t slot) { write(row, position, slot); };
    visit_kept(mask_of(row), true, items, std::min(first, operands.size), std::min(last, operands.size), to);
    if (operands.partition) {
      visit_kept(mask_of(row), false, items, total + items.begin - first, total + items.end - last, to);
      const int64_t end = std::min((tile + 1) * kTile, operands.length);
      for (int64_t j = std::max(tile * kTile, items.end); j < end; ++j) to(j, j);
    }
  });
  if (operands.partition) return;
  const int64_t pieces = ceil_div(operands.size, kTile);
  cpu::parallel_for(executor, operands.rows * pieces, [&](int64_t i) {
    const int64_t row = i / pieces, begin = (i - row * pieces) * kTile;
    const Range<int64_t> slots{std::max(begin, before[row * (row_tiles + 1) + row_tiles]),
                               std::min(begin + kTile, operands.size)};
    if (slots.begin < slots.end) pad(row, slots);
  });
}

void select_indices(const SelectOperands& operands, cpu::Executor& executor) {
  const auto set = [&](int64_t row, int64_t slot, int64_t index) {
    operands.indices.set(row * operands.size + slot, index);
  };
  select_items(
      operands, executor, [&](int64_t row, int64_t position, int64_t slot) { set(row, slot, position); },
      [&](int64_t row, Range<int64_t> slots) {
        for (int64_t slot = slots.begin; slot < slots.end; ++slot) set(row, slot, operands.length);
      });
}

template <int64_t kBytes>
void select_rows(const SelectOperands& operands, cpu::RowMover<kBytes> rows, cpu::Executor& executor) {
  select_items(
      operands, executor,
      [&](int64_t row, int64_t position, int64_t slot) {
        rows.copy(operands.out.of_problem(row), slot, operands.x.of_problem(row), position, 1);
      },
      [&](int64_t row, Range<int64_t> slots) {
        const std::vector<char> fill = cpu::fill_row(operands.fill, row, rows.width());
        rows.repeat(operands.out.of_problem(row), slots, fill.data());
      });
}

}  // namespace

void cpu::select(const Call& call, Executor& executor) {
  const SelectOperands operands(call);
  if (operands.gives_indices) return select_indices(operands, executor);
  cpu::dispatch_row_bytes(operands.out.row_bytes, [&](auto width) {
    select_rows(operands, cpu::RowMover<width>{operands.out.row_bytes}, executor);
  });
}

}  // namespace mgpu
