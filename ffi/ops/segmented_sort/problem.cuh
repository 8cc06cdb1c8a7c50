// The parameter of the kernels that sort segments tile by tile.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/block/tile_heads.cuh"
#include "ops/segmented_sort/plan.h"

namespace mgpu::cuda::sorting {

template <typename Order, typename Payload>
struct Buffer {
  typename Order::Word* keys;
  Payload* payload;
};

struct Disorder {
  const int* inversions = nullptr;  // null: not measured
  int max_inversions = 0;           // with more, rows are sorted by digits
  __device__ bool is_large() const { return inversions && *inversions > max_inversions; }
};

// Orders that compute the codes of keys from
// their positions. Their comparisons read memory.
template <typename Order>
concept IsOfPositions = requires(const Order& order) { order.input_code(int64_t{}); };

// Orders that are compiled when a program is loaded.
template <typename Order>
concept IsCompiled = requires { typename Order::Item; };

// The blocks that a multiprocessor should hold.
template <typename Order, typename Payload>
constexpr int sort_blocks_per_processor() {
  constexpr int kWidth = sizeof(typename Order::Word);
  constexpr int kPayloadWords = std::is_same_v<Payload, NoPayload> ? 0 : sizeof(Payload) / 4;
  if (IsOfPositions<Order> || (IsCompiled<Order> && kWidth != 4)) return 3 - kPayloadWords;
  if (kWidth == 8) return 3;
  return kWidth == 4 || kPayloadWords > 0 ? 5 - kPayloadWords : 4;
}

template <typename Order, typename Payload>
struct Problem {
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  static constexpr TileShape kShape = tile_shape(sizeof(typename Order::Word));
  static constexpr int kTile = kShape.threads * kShape.items;
  static constexpr bool kLeavesLongSegments =
      sizeof(typename Order::Word) <= 4 && !IsOfPositions<Order> && !IsCompiled<Order>;
  // Whether tiles hold ranks (Order::rank), which are faster to
  // compare, instead of codes. The codes are read again at the end.
  static constexpr bool kRanksInTiles = kHasPayload && std::is_same_v<Order, FloatOrder<uint16_t>>;
  static constexpr int kBlocksPerProcessor = sort_blocks_per_processor<Order, Payload>();

  Order order;
  Segments segments;
  int64_t total;
  int64_t tiles;
  Buffer<Order, Payload> input;
  // A segment that takes r rounds starts in buffers[r % 2] and alternates, so it ends in buffers[0], the output,
  // without a copy.
  Buffer<Order, Payload> buffers[2];
  TileDescriptor* descriptors;
  int* rounds;       // the most that any segment takes
  MergePlan* plans;  // the tiles with something to merge in this round, in no order
  int* planned;      // the number of plans of each round
  bool leaves_long;  // whether long segments are left to the kernels that sort by digits

  __device__ typename Order::Word input_code(int64_t position) const {
    if constexpr (IsOfPositions<Order>) {
      return order.input_code(position);
    } else {
      return order.encode(input.keys[position]);
    }
  }
  __device__ static decltype(auto) order_in_tile(const Order& order) {
    if constexpr (kRanksInTiles) {
      return IntegerOrder<uint16_t>{};
    } else {
      return (order);
    }
  }
  __device__ typename Order::Word tile_code(int64_t position) const {
    const auto code = input_code(position);
    if constexpr (kRanksInTiles) {
      return order.rank(code);
    } else {
      return code;
    }
  }
  __device__ Payload input_payload(int64_t position) const {
    if (input.payload) return input.payload[position];
    return static_cast<Payload>(position - segments.row(position) * segments.length);
  }

  __device__ bool is_merged(int rounds) const {
    return !kLeavesLongSegments || !leaves_long || rounds != TileDescriptor::kByDigits;
  }

  __device__ int tile_size(int64_t tile) const {
    return static_cast<int>(minimum<int64_t>(kTile, total - tile * kTile));
  }
};

}  // namespace mgpu::cuda::sorting
