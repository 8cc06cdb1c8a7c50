// A few lanes of a warp have a row in registers. With one lane, each pair of its items is
// compared. With 8 lanes, all items are listed in shared memory; with more, at least the k items
// within a bound. A listed item's place in the result is the number of listed items before it.
#pragma once

#include "cuda/block/ranked_place.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/sort_lanes.cuh"
#include "function/item.h"
#include "ops/top_k/plan.h"

namespace mgpu::cuda::short_rows {

template <typename Order>
struct TopK {
  TopKOperands operands;
  Order order;
  bool is_aligned;
};

template <typename Word, TopKRowShape kShape>
struct TopKWarp {
  static constexpr int kRows = kWarp / kShape.lanes;
  static constexpr int kRoom = kTopKRowRoom * kShape.lanes;  // the entries of a row's list
  static constexpr int kBatch = 4;
  static constexpr int kPitch = (kRoom + kBatch) | 1;  // lanes of different rows use different banks
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr int kResults = kRows * kShape.max_k;

  RankedPlace<Word> places[kRows][kShape.lanes == 1 ? 1 : kPitch];
  // For each result: the place of its item in the warp's rows, and its position in its row. Each lane also has room for
  // one item that is no result.
  uint32_t first[kResults + kWarp];

  __device__ static uint32_t pack(int in_rows, int in_row) { return static_cast<uint32_t>(in_rows) << 16 | in_row; }
  __device__ static int in_rows(uint32_t packed) { return static_cast<int>(packed >> 16); }
  __device__ static int in_row(uint32_t packed) { return static_cast<int>(packed & 0xffff); }
};

template <typename Order, TopKRowShape kShape>
class RowLanes {
  using Word = typename Order::Word;
  using Shared = TopKWarp<Word, kShape>;
  using Place = RankedPlace<Word>;
  static constexpr int kLanes = kShape.lanes;
  static constexpr int kItems = kShape.items;
  using Bits = std::conditional_t<(kItems > 32), uint64_t, uint32_t>;  // one bit per item
  static constexpr Word kLastCode = static_cast<Word>(~Word{0});

 public:
  // The warp has `rows` rows, from row `first` of the batch on, which begin at `items`.
  __device__ RowLanes(const TopK<Order>& task, const Word* items, int64_t first, int rows, Shared& shared)
      : order_(task.order),
        shared_(shared),
        row_(static_cast<int>(threadIdx.x % kWarp / kLanes)),
        lane_(static_cast<int>(threadIdx.x % kLanes)),
        k_(static_cast<int>(task.operands.k)) {
    // A lane without a row takes the last row. Its results are not stored.
    const int known = minimum(row_, rows - 1);
    const int length = static_cast<int>(task.operands.length);
    begin_ = known * length;
    items_ = items + (begin_ + lane_);
    live_ = static_cast<int>(task.operands.counts(first + known, length));
    wanted_ = minimum(k_, live_);
    own_ = (live_ - lane_ + kLanes - 1) / kLanes;
    load(task.is_aligned);
  }

  __device__ void keep_best_k() {
    if constexpr (kLanes == 1) {
      rank_own();
    } else {
      const int listed = kShape.max_k >= kShape.length() ? list_all() : list_up_to_bound();
      if (lane_ < Shared::kBatch - 1) shared_.places[row_][listed + lane_] = static_cast<Place>(~Place{0});
      __syncwarp();
      rank_listed(listed);
    }
#pragma unroll 1
    for (int i = wanted_ + lane_; i < k_; i += kLanes) shared_.first[row_ * k_ + i] = Shared::kNone;
  }

 private:
  __device__ __forceinline__ int position(int i) const { return i * kLanes + lane_; }

  // Places without an item get the largest code.
  __device__ __forceinline__ void load(bool is_aligned) {
    const Word filling = order_.decode(kLastCode);
    if (own_ < kItems) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) codes_[i] = i < own_ ? items_[i * kLanes] : filling;
    } else if (kLanes == 1 && is_aligned) {
      load_bytes<sizeof(codes_)>(codes_, items_);
    } else {
#pragma unroll
      for (int i = 0; i < kItems; ++i) codes_[i] = items_[i * kLanes];
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) codes_[i] = order_.encode(codes_[i]);
  }

  __device__ __forceinline__ Place place(Word code, int i) const { return ranked_place(order_, code, position(i)); }

  // Stores the position of an item that has `before` items before it. An
  // item that is no result goes to a spare place, which avoids a branch.
  __device__ __forceinline__ void put(int before, int position) {
    const int to = before < wanted_ ? row_ * k_ + before : Shared::kResults + row_ * kLanes + lane_;
    shared_.first[to] = Shared::pack(begin_ + position, position);
  }

  __device__ __forceinline__ Prefix<int> sum_row(int own) const {
    const int up_to = sum_up_to(own);
    const int before_row = shuffle(up_to - own, row_ * kLanes);
    return {up_to - own - before_row, shuffle(up_to, row_ * kLanes + kLanes - 1) - before_row};
  }

  __device__ __forceinline__ Bits live_bits() const {
    return own_ >= 8 * static_cast<int>(sizeof(Bits)) ? ~Bits{0} : (Bits{1} << own_) - 1;
  }
  __device__ __forceinline__ static int count_bits(Bits bits) {
    if constexpr (sizeof(Bits) == 8) {
      return __popcll(bits);
    } else {
      return __popc(bits);
    }
  }
  __device__ __forceinline__ static int first_bit(Bits bits) {
    if constexpr (sizeof(Bits) == 8) {
      return __ffsll(static_cast<long long>(bits)) - 1;
    } else {
      return __ffs(static_cast<int>(bits)) - 1;
    }
  }

  // Each pair of items is compared once, by a lane that has its whole row.
  __device__ __forceinline__ void rank_own() {
    int before[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      codes_[i] = order_.rank(codes_[i]);
      before[i] = kItems - 1 - i;
    }
#pragma unroll
    for (int j = 1; j < kItems; ++j) {
#pragma unroll
      for (int i = 0; i < j; ++i) {
        const bool in_order = codes_[i] <= codes_[j];
        before[j] += in_order;
        before[i] -= in_order;
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) put(before[i], i);  // live items come before places without an item
  }

  __device__ __forceinline__ int list_all() {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (i < own_) shared_.places[row_][position(i)] = place(codes_[i], i);
    }
    return live_;
  }

  // Lists at least the wanted items, and at most kRoom.
  __device__ __forceinline__ int list_up_to_bound() {
    using Least = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;
    Least smallest = codes_[0];
#pragma unroll
    for (int i = 1; i < kItems; ++i) smallest = minimum<Least>(smallest, codes_[i]);
    smallest = shuffle(sort_lanes<kLanes>(smallest), row_ * kLanes + clamp(wanted_, 1, kLanes) - 1);

    // At least `wanted_` items are within `high`, and fewer are within the value before `low`.
    Word low = 0, high = wanted_ <= kLanes ? static_cast<Word>(smallest) : kLastCode, bound = high;
    Bits taken = 0;
    Prefix<int> listed;
    listed.all = live_;
    while (true) {
      const Word last = order_.last_equal(bound);
      Bits up_to = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) up_to |= codes_[i] <= last ? Bits{1} << i : 0;
      up_to &= live_bits();
      const Prefix<int> found = sum_row(count_bits(up_to));
      if (found.all >= wanted_) {
        high = bound;
        taken = up_to;
        listed = found;
      } else {
        low = static_cast<Word>(bound + 1);
      }
      if constexpr (kItems <= kTopKRowRoom) break;
      const bool goes_on = listed.all > Shared::kRoom && low < high;
      if (!__any_sync(~0u, goes_on)) break;
      bound = goes_on ? static_cast<Word>(low + static_cast<Word>(high - low) / 2) : high;
    }
    if constexpr (kItems > kTopKRowRoom) {
      if (__any_sync(~0u, listed.all > Shared::kRoom)) {
        taken = take_first_equals(order_.rank(high));
        listed = sum_row(count_bits(taken));
      }
    }
#pragma unroll 1
    for (int to = listed.before; taken != 0; taken &= taken - 1) {
      const int i = first_bit(taken);
      shared_.places[row_][to++] = place(order_.encode(items_[i * kLanes]), i);
    }
    return listed.all;
  }

  // Takes the items whose rank (Order::rank) is below `last` and, of those whose
  // rank is `last`, the first ones, up to the wanted number. It reads the row again.
  __device__ Bits take_first_equals(Word last) const {
    const auto rank_of = [&](int i) { return i < own_ ? order_.rank(order_.encode(items_[i * kLanes])) : kLastCode; };
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < own_; ++i) before += rank_of(i) < last;
    int remaining = wanted_ - sum_row(before).all;
    const unsigned row_lanes = (kLanes == kWarp ? ~0u : (1u << kLanes % kWarp) - 1) << row_ * kLanes;
    const unsigned lanes_before = row_lanes & ((1u << threadIdx.x % kWarp) - 1);
    Bits taken = 0;
#pragma unroll 1
    for (int i = 0; i < kItems; ++i) {
      const Word rank = rank_of(i);
      const bool is_equal = i < own_ && rank == last;
      const unsigned equals = __ballot_sync(~0u, is_equal);
      const bool is_taken = (i < own_ && rank < last) || (is_equal && __popc(equals & lanes_before) < remaining);
      taken |= static_cast<Bits>(is_taken) << i;
      remaining -= __popc(equals & row_lanes);
    }
    return taken;
  }

  __device__ __forceinline__ void rank_listed(int listed) {
    const Place* const places = shared_.places[row_];
#pragma unroll 1
    for (int own = lane_; own < listed; own += kLanes) {
      const Place place = places[own];
      int before = 0;
#pragma unroll 1
      for (int i = 0; i < listed; i += Shared::kBatch) {
#pragma unroll
        for (int j = 0; j < Shared::kBatch; ++j) before += places[i + j] < place;
      }
      put(before, static_cast<int>(static_cast<uint32_t>(place)));
    }
  }

  Order order_;
  Shared& shared_;
  int row_, lane_;
  int k_;
  int begin_;          // the row's first item in the warp's rows
  const Word* items_;  // the row's items from this lane's first one on
  int live_, wanted_;
  int own_;  // the number of live items of this lane
  Word codes_[kItems];
};

template <typename Order, int kShape>
__global__ void __launch_bounds__(kTopKRowThreads) keep_best_k_of_rows(const __grid_constant__ TopK<Order> task) {
  using Word = typename Order::Word;
  constexpr TopKRowShape shape = kTopKRowShapes[kShape];
  using Shared = TopKWarp<Word, shape>;
  constexpr int kWarps = kTopKRowThreads / kWarp;
  __shared__ Shared warps[kWarps];
  Shared& shared = warps[threadIdx.x / kWarp];
  const TopKOperands& operands = task.operands;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * Shared::kRows;
  if (first >= operands.rows) return;
  const int rows = static_cast<int>(minimum<int64_t>(Shared::kRows, operands.rows - first));
  const Word* const items = static_cast<const Word*>(operands.x) + first * operands.length;
  RowLanes<Order, shape>(task, items, first, rows, shared).keep_best_k();
  __syncwarp();

  // The results of neighbouring rows are adjacent.
  const int64_t to = first * operands.k;
  const int results = rows * static_cast<int>(operands.k);
  constexpr int kUnroll = shape.lanes == 1 ? 4 : 1;
#pragma unroll kUnroll
  for (int i = static_cast<int>(threadIdx.x % kWarp); i < results; i += kWarp) {
    const uint32_t packed = shared.first[i];
    const bool is_live = packed != Shared::kNone;
    static_cast<Word*>(operands.values)[to + i] = is_live ? items[Shared::in_rows(packed)] : Word{0};
    operands.indices.set(to + i, is_live ? Shared::in_row(packed) : -1);
  }
}

}  // namespace mgpu::cuda::short_rows
