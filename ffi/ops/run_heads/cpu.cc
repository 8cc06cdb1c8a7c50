// First the heads of each tile are counted, then they are written.
#include <algorithm>
#include <vector>

#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "ops/run_heads/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

constexpr int64_t kTile = cpu::kRunHeadsTile;

template <typename Order, typename Visit>
void walk_tile(const RunHeadsOperands& operands, Order order, int64_t row, int64_t tile_in_row, Visit visit) {
  using Word = typename Order::Word;
  const Word* const x = static_cast<const Word*>(operands.keys) + row * operands.rows.length;
  const auto class_of = [&](int64_t i) { return order.rank(order.encode(x[i])); };
  int64_t i = tile_in_row * kTile;
  const int64_t end = std::min(operands.rows.live(row), i + kTile);
  if (i >= end) return;
  Word before = class_of(std::max<int64_t>(i - 1, 0));
  visit(i, i == 0 || class_of(i) != before);
  for (before = class_of(i++); i < end; ++i) {
    const Word own = class_of(i);
    visit(i, own != before);
    before = own;
  }
}

template <typename Order>
void find_heads(const RunHeadsOperands& operands, Order order, cpu::Executor& executor) {
  using Word = typename Order::Word;
  const Segments& rows = operands.rows;
  const int64_t size = operands.size;
  const int64_t row_tiles = operands.row_tiles(kTile);
  const auto* const keys = static_cast<const Word*>(operands.keys);
  auto* const firsts = static_cast<Word*>(operands.firsts);

  std::vector<int64_t> heads_before(rows.rows * (row_tiles + 1));  // the number of heads in the row before each tile
  cpu::parallel_for(executor, rows.rows * row_tiles, [&](int64_t tile) {
    const int64_t row = tile / row_tiles;
    int64_t heads = 0;
    walk_tile(operands, order, row, tile - row * row_tiles, [&](int64_t, bool is_head) { heads += is_head; });
    heads_before[tile + row + 1] = heads;
  });
  for (int64_t row = 0; row < rows.rows; ++row) {
    int64_t* const before = heads_before.data() + row * (row_tiles + 1);
    for (int64_t tile = 0; tile < row_tiles; ++tile) before[tile + 1] += before[tile];
    operands.runs.set(row, before[row_tiles]);
    operands.covered.set(row, rows.live(row));  // overwritten below if a run does not fit
  }
  cpu::parallel_for(executor, rows.rows * row_tiles, [&](int64_t tile) {
    const int64_t row = tile / row_tiles;
    int64_t slot = heads_before[tile + row];
    if (slot > size) return;
    walk_tile(operands, order, row, tile - row * row_tiles, [&](int64_t position, bool is_head) {
      if (!is_head) return;
      if (slot < size) {
        operands.heads.set(row * size + slot, position);
        firsts[row * size + slot] = keys[row * rows.length + position];
      } else if (slot == size) {
        operands.covered.set(row, position);
      }
      ++slot;
    });
  });
  const int64_t pieces = ceil_div(size, kTile);
  cpu::parallel_for(executor, rows.rows * pieces, [&](int64_t piece) {
    const int64_t row = piece / pieces;
    const int64_t begin = (piece - row * pieces) * kTile;
    for (int64_t slot = std::max(begin, heads_before[row * (row_tiles + 1) + row_tiles]);
         slot < std::min(begin + kTile, size); ++slot) {
      operands.heads.set(row * size + slot, rows.length);
      firsts[row * size + slot] = Word{};
    }
  });
}

}  // namespace

void cpu::run_heads(const Call& call, Executor& executor) {
  const RunHeadsOperands operands(call);
  dispatch_order(call, operands.key_type, false, [&](auto order) { find_heads(operands, order, executor); });
}

}  // namespace mgpu
