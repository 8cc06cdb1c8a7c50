// merge on the CPU: runs of the output found by merge path, merged one by one.
#include "operands/merge.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "cpu/merge_tasks.h"
#include "operands/dispatch.h"
#include "operations.h"

namespace mgpu {

namespace {

template <typename Payload, typename Order>
void merge_rows(const MergeOperands& operands, Order order, cpu::Executor& executor) {
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
        const int64_t b_first = pair.a.length;
        cpu::walk_merge_tile(
            tiles, tile,
            [=](int64_t i, int64_t j, int64_t take_b) {
              out[i + j] = select(take_b, static_cast<Payload>(i), static_cast<Payload>(b_first + j));
            },
            [=](int64_t i, int64_t end, int64_t j) { std::iota(out + i + j, out + end + j, static_cast<Payload>(i)); },
            [=](int64_t j, int64_t end, int64_t i) {
              std::iota(out + i + j, out + i + end, static_cast<Payload>(b_first + j));
            });
        std::fill_n(out + dead, tile.dead(), static_cast<Payload>(-1));
      } else {
        merge(static_cast<const Payload*>(operands.a_payload.data) + tile.row * operands.a_payload.stride,
              static_cast<const Payload*>(operands.b_payload.data) + tile.row * operands.b_payload.stride, out);
      }
    }
  });
}

}  // namespace

void cpu::merge(const Call& call, Executor& executor) {
  const MergeOperands operands(call);
  if (operands.pair.slots() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width,
                     [&](auto payload) { merge_rows<decltype(payload)>(operands, order, executor); });
  });
}

}  // namespace mgpu
