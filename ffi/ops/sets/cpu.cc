// The tiles of the balanced path are walked to count their kept items, then again to write them.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "algorithm/serial_merge.h"
#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "ops/sets/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

constexpr int64_t kTile = cpu::kSetTile;

template <typename Order, typename Payload>
class SetWalk {
  using Word = typename Order::Word;

 public:
  SetWalk(const SetsOperands& operands, Order order)
      : operands_(operands), pair_(operands.pair), order_(order), row_tiles_(operands.row_tiles(kTile)) {}

  void run(cpu::Executor& executor) const {
    const int64_t tiles = pair_.rows * row_tiles_;
    std::vector<int64_t> offsets(tiles + 1);
    cpu::parallel_for(executor, tiles, [&](int64_t tile) {
      int64_t kept = 0;
      walk(
          tile, [&](int64_t keep, int64_t, int64_t, int64_t) { kept += keep; },
          [&](bool, int64_t, int64_t count) { kept += count; });
      offsets[tile + 1] = kept;
    });
    for (int64_t tile = 0; tile < tiles; ++tile) offsets[tile + 1] += offsets[tile];
    for (int64_t row = 0; row < pair_.rows; ++row) operands_.counts.set(row, row_offset(offsets, row, row_tiles_));
    cpu::parallel_for(executor, tiles, [&](int64_t tile) {
      const int64_t row = tile / row_tiles_;
      const int64_t in_row = tile - row * row_tiles_;
      write(tile, row, row_offset(offsets, row, in_row), row_offset(offsets, row, in_row + 1));
    });
    cpu::parallel_for(executor, pair_.rows * ceil_div(operands_.size, kTile), [&](int64_t piece) {
      const int64_t row = piece / ceil_div(operands_.size, kTile);
      const int64_t begin = (piece - row * ceil_div(operands_.size, kTile)) * kTile;
      const int64_t end = std::min(begin + kTile, operands_.size);
      fill(row, std::max(begin, row_offset(offsets, row, row_tiles_)), end);
    });
  }

 private:
  int64_t row_offset(const std::vector<int64_t>& offsets, int64_t row, int64_t tile) const {
    return offsets[row * row_tiles_ + tile] - offsets[row * row_tiles_];
  }

  const Word* a_row(int64_t row) const { return static_cast<const Word*>(pair_.a.keys) + row * pair_.a.stride; }
  const Word* b_row(int64_t row) const { return static_cast<const Word*>(pair_.b.keys) + row * pair_.b.stride; }

  Split<int64_t> split(int64_t row, int64_t diagonal) const {
    const int64_t a_live = pair_.a.live(row);
    const int64_t b_live = pair_.b.live(row);
    return balanced_path(
        a_live, b_live, std::min(diagonal, a_live + b_live), [&](int64_t i) { return order_.encode(a_row(row)[i]); },
        [&](int64_t i) { return order_.encode(b_row(row)[i]); }, [&](Word x, Word y) { return order_.less(x, y); },
        operands_.duplicates, [](auto begin, auto end, auto before) { return partition_point(begin, end, before); });
  }

  // Calls step(keep, from_b, i, j) for each step while both sides have items. Calls keep_rest(from_b, first, count) for
  // the rest of one side if all of it is kept.
  template <typename Step, typename KeepRest>
  void walk(int64_t tile, Step step, KeepRest keep_rest) const {
    const int64_t row = tile / row_tiles_;
    const int64_t diagonal = (tile - row * row_tiles_) * kTile;
    const Split<int64_t> begin = split(row, diagonal);
    const Split<int64_t> end = part_end(begin, split(row, diagonal + kTile), kTile + 1);
    const Word* const a = a_row(row);
    const Word* const b = b_row(row);
    const SetRule rule = operands_.rule;
    int64_t i = begin.a, j = begin.b;
    while (i < end.a && j < end.b) {
      const Word x = order_.encode(a[i]);
      const Word y = order_.encode(b[j]);
      const SetStep taken = set_step(order_.less(x, y), order_.less(y, x), rule);
      step(taken.keep, taken.take_a ^ 1, i, j);
      i += taken.take_a;
      j += taken.take_b;
    }
    if (rule.a_unpaired && i < end.a) keep_rest(false, i, end.a - i);
    if (rule.b_unpaired && j < end.b) keep_rest(true, j, end.b - j);
  }

  // Writes as far as the row has slots.
  void write(int64_t tile, int64_t row, int64_t begin, int64_t end) const {
    end = std::min(end, operands_.size);
    Word* const keys = static_cast<Word*>(operands_.keys) + row * operands_.size;
    write_items(tile, begin, end, keys, a_row(row), b_row(row));
    if constexpr (!std::is_same_v<Payload, NoPayload>) {
      Payload* const payload = static_cast<Payload*>(operands_.payload) + row * operands_.size;
      if (operands_.gives_indices) {
        struct Positions {
          Payload first;
          Payload operator[](int64_t i) const { return static_cast<Payload>(first + i); }
        };
        write_items(tile, begin, end, payload, Positions{0}, Positions{static_cast<Payload>(pair_.a.length)});
      } else {
        write_items(tile, begin, end, payload,
                    static_cast<const Payload*>(operands_.a_values.data) + row * operands_.a_values.stride,
                    static_cast<const Payload*>(operands_.b_values.data) + row * operands_.b_values.stride);
      }
    }
  }

  // If nothing of B is kept, B may have no values, so none is read.
  template <typename Item, typename ItemsA, typename ItemsB>
  void write_items(int64_t tile, int64_t begin, int64_t end, Item* out, ItemsA a, ItemsB b) const {
    if (operands_.rule.b_unpaired) {
      write_kept<true>(tile, begin, end, out, a, b);
    } else {
      write_kept<false>(tile, begin, end, out, a, b);
    }
  }

  template <bool kKeepsB, typename Item, typename ItemsA, typename ItemsB>
  void write_kept(int64_t tile, int64_t begin, int64_t end, Item* out, ItemsA a, ItemsB b) const {
    // Every step writes to the slot, but only a kept item advances it.
    int64_t slot = begin;
    walk(
        tile,
        [&](int64_t keep, int64_t from_b, int64_t i, int64_t j) {
          if (slot < end) {
            if constexpr (kKeepsB) {
              out[slot] = select<Item>(from_b, a[i], b[j]);
            } else {
              out[slot] = a[i];
            }
          }
          slot += keep;
        },
        [&](bool from_b, int64_t first, int64_t count) {
          for (int64_t i = first; i < first + count && slot < end; ++i) out[slot++] = from_b ? b[i] : a[i];
        });
  }

  void fill(int64_t row, int64_t begin, int64_t end) const {
    if (begin >= end) return;
    const auto fill_slots = [&](auto* out, auto value) {
      std::fill(out + row * operands_.size + begin, out + row * operands_.size + end, value);
    };
    fill_slots(static_cast<Word*>(operands_.keys),
               static_cast<const Word*>(operands_.fill.data)[row * operands_.fill.stride]);
    if constexpr (!std::is_same_v<Payload, NoPayload>) {
      const SetsOperands::Rows& value = operands_.values_fill;
      fill_slots(static_cast<Payload*>(operands_.payload),
                 operands_.gives_indices ? static_cast<Payload>(-1)
                                         : static_cast<const Payload*>(value.data)[row * value.stride]);
    }
  }

  const SetsOperands& operands_;
  const SortedPair& pair_;
  Order order_;
  int64_t row_tiles_;
};

}  // namespace

void cpu::sets(const Call& call, Executor& executor) {
  const SetsOperands operands(call);
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    dispatch_payload(call, operands.payload_width,
                     [&](auto payload) { SetWalk<decltype(order), decltype(payload)>(operands, order).run(executor); });
  });
}

}  // namespace mgpu
