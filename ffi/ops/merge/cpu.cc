// Merge path finds runs of the output, and each is merged sequentially.
#include "ops/sorted_pair/cpu.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "ops/common/dispatch.h"
#include "ops/merge/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

// `a_index` is the payload of A's first item, if the payload is indices.
template <typename Payload, typename Order>
void merge_rows(const MergeOperands& operands, Order order, cpu::Executor& executor, int64_t a_index = 0) {
  using Word = typename Order::Word;
  const MergeTiles<Order> tiles{operands.pair, order};
  const SortedPair& pair = operands.pair;
  cpu::for_each_merge_tile(executor, tiles, [&](const MergeTile& tile) {
    const int64_t row = tile.row * pair.row_slots();
    const int64_t dead = tile.begin + tile.live();  // the first dead slot of the tile
    const auto merge = [&](const auto* a, const auto* b, auto* out) {
      cpu::walk_merge_tile(
          tiles, tile, [=](int64_t i, int64_t j, int64_t take_b) { out[i + j] = select(take_b, a[i], b[j]); },
          [=](int64_t i, int64_t end, int64_t j) { std::copy(a + i, a + end, out + i + j); },
          [=](int64_t j, int64_t end, int64_t i) { std::copy(b + j, b + end, out + i + j); });
      std::fill_n(out + dead, tile.dead(), 0);
    };
    merge(static_cast<const Word*>(pair.a.keys) + tile.row * pair.a.stride,
          static_cast<const Word*>(pair.b.keys) + tile.row * pair.b.stride, static_cast<Word*>(operands.keys) + row);
    if constexpr (!std::is_same_v<Payload, NoPayload>) {
      Payload* const out = static_cast<Payload*>(operands.payload) + row;
      if (operands.gives_indices()) {
        const int64_t b_index = operands.b_index;
        cpu::walk_merge_tile(
            tiles, tile,
            [=](int64_t i, int64_t j, int64_t take_b) {
              out[i + j] = select(take_b, static_cast<Payload>(a_index + i), static_cast<Payload>(b_index + j));
            },
            [=](int64_t i, int64_t end, int64_t j) {
              std::iota(out + i + j, out + end + j, static_cast<Payload>(a_index + i));
            },
            [=](int64_t j, int64_t end, int64_t i) {
              std::iota(out + i + j, out + i + end, static_cast<Payload>(b_index + j));
            });
        std::fill_n(out + dead, tile.dead(), static_cast<Payload>(-1));
      } else {
        merge(static_cast<const Payload*>(operands.a_payload.data) + tile.row * operands.a_payload.stride,
              static_cast<const Payload*>(operands.b_payload.data) + tile.row * operands.b_payload.stride, out);
      }
    }
  });
}

// Each pair of runs is merged as two separate arrays.
template <typename Payload, typename Order>
void merge_runs(const MergeOperands& operands, Order order, cpu::Executor& executor) {
  using Word = typename Order::Word;
  const SortedRows& a = operands.pair.a;
  const auto moved = [](auto* items, int64_t by) { return items ? items + by : nullptr; };
  for (int64_t row = 0; row < operands.pair.rows; ++row) {
    Word* const keys = static_cast<Word*>(operands.keys) + row * a.length;
    Payload* const payload = moved(static_cast<Payload*>(operands.payload), row * a.length);
    int64_t end = 0;
    operands.runs.for_each_pair(row, a.length, [&](const RunPair& runs) {
      const auto side = [&](int64_t begin, int64_t end) {
        return SortedRows{static_cast<const Word*>(a.keys) + row * a.stride + begin, end - begin, 0, 0, {}};
      };
      const auto values = [&](const MergeOperands::Payload& payload, int64_t begin) {
        return MergeOperands::Payload{moved(static_cast<const Payload*>(payload.data), row * payload.stride + begin)};
      };
      MergeOperands part = operands;
      part.pair = {1, side(runs.begin, runs.middle), side(runs.middle, runs.end)};
      part.a_payload = values(operands.a_payload, runs.begin);
      part.b_payload = values(operands.b_payload, runs.middle);
      part.b_index = runs.middle;
      part.keys = keys + runs.begin;
      part.payload = moved(payload, runs.begin);
      merge_rows<Payload>(part, order, executor, runs.begin);
      end = runs.end;
      return false;
    });
    std::fill(keys + end, keys + a.length, Word{0});
    if constexpr (!std::is_same_v<Payload, NoPayload>) {
      std::fill(payload + end, payload + a.length, static_cast<Payload>(operands.gives_indices() ? -1 : 0));
    }
  }
}

}  // namespace

void cpu::merge(const Call& call, Executor& executor) {
  const MergeOperands operands(call);
  if (operands.pair.slots() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width, [&](auto payload) {
      using Payload = decltype(payload);
      operands.runs.given() ? merge_runs<Payload>(operands, order, executor)
                            : merge_rows<Payload>(operands, order, executor);
    });
  });
}

}  // namespace mgpu
