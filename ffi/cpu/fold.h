#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "algorithm/operators.h"

namespace mgpu::cpu {

// Combines parts in a tree with eight children per node; the top node may have more.
template <typename Operator>
class Running {
  using State = typename Operator::State;

 public:
  explicit Running(const Operator& op) : op_(op) { reset(); }

  void reset() {
    for (State& level : levels_) level = op_.identity();
    parts_ = 0;
  }

  void add(State part) {
    ++parts_;
    for (int level = 0; level < kLevels; ++level) {
      part = levels_[level] = op_.combine(levels_[level], part);
      if (level == kLevels - 1 || parts_ % (int64_t{kFan} << (3 * level)) != 0) return;
      levels_[level] = op_.identity();
    }
  }

  State state() const {
    State state = levels_[0];
    for (int level = 1; level < kLevels; ++level) state = op_.combine(levels_[level], state);
    return state;
  }

 private:
  static constexpr int kFan = 8;
  static constexpr int kLevels = 4;
  const Operator& op_;
  State levels_[kLevels];
  int64_t parts_;
};

// fold_few reads ranges of up to this many items as windows of this size, with the items past their ends masked.
constexpr int kFew = 8;

// Arithmetic states are selected by their bits, to avoid branches.
template <typename State>
State choose(bool first, State a, State b) {
  if constexpr (std::is_arithmetic_v<State>) {
    using Bits = std::conditional_t<sizeof(State) == 8, uint64_t, uint32_t>;
    const Bits mask = Bits{0} - Bits{first};
    return std::bit_cast<State>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & ~mask));
  } else {
    return first ? a : b;
  }
}

template <typename Operator>
typename Operator::State fold_lanes(const Operator& op, typename Operator::State (&lanes)[kFew]) {
  for (int width = kFew / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = op.combine(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

// x[begin .. end) has at most kFew of the `count` items of x.
template <typename Operator>
typename Operator::State fold_few(const Operator& op, const typename Operator::Element* x, int64_t begin, int64_t end,
                                  int64_t count) {
  typename Operator::Element items[kFew];
  typename Operator::State lanes[kFew];
  const int length = static_cast<int>(end - begin);
  if (begin + kFew <= count) {
    std::memcpy(items, x + begin, sizeof(items));
  } else {
    for (int i = 0; i < kFew; ++i) items[i] = i < length ? x[begin + i] : typename Operator::Element{};
  }
  for (int i = 0; i < kFew; ++i) lanes[i] = choose(i < length, op.extract(items[i], begin + i), op.identity());
  return fold_lanes(op, lanes);
}

template <typename Operator>
constexpr bool kElementIsState = false;
template <typename State, ArithmeticKind kKind>
constexpr bool kElementIsState<Arithmetic<State, State, kKind>> = true;

// Combines kGroup ranges of at most kFew items each, for operators that use no
// positions; results have the bits that fold_few gives. Range s is the first
// lengths[s] items of x from begins[s] on, where kFew items can be read.
constexpr int kGroup = 32;
template <typename Operator>
void fold_few_of_group(const Operator op, const typename Operator::Element* x, const int32_t* begins,
                       const int* lengths, typename Operator::State* states) {
  using State = typename Operator::State;
  using Bits = std::conditional_t<sizeof(State) == 8, uint64_t, uint32_t>;
  constexpr int kLanes = kFew / 2;
  constexpr Bits kAll = ~Bits{0};
  static constexpr Bits kLive[2 * kFew] = {kAll, kAll, kAll, kAll, kAll, kAll, kAll, kAll};
  State extracted[kElementIsState<Operator> ? 1 : kGroup * kFew];
  if constexpr (!kElementIsState<Operator>) {  // one loop over all ranges, which compilers can vectorize
    typename Operator::Element items[kGroup * kFew];
    for (int s = 0; s < kGroup; ++s) std::memcpy(items + s * kFew, x + begins[s], kFew * sizeof(items[0]));
    for (int i = 0; i < kGroup * kFew; ++i) extracted[i] = op.extract(items[i], 0);
  }
  State lanes[kGroup * kLanes];
  for (int s = 0; s < kGroup; ++s) {
    const Bits* const live = kLive + kFew - lengths[s];
    const auto item = [&](int k) {
      State state;
      if constexpr (kElementIsState<Operator>) {
        state = x[begins[s] + k];
      } else {
        state = extracted[s * kFew + k];
      }
      const Bits identity = std::bit_cast<Bits>(op.identity());
      return std::bit_cast<State>((std::bit_cast<Bits>(state) & live[k]) | (identity & ~live[k]));
    };
    for (int k = 0; k < kLanes; ++k) lanes[s * kLanes + k] = op.combine(item(k), item(k + kLanes));
  }
  for (int s = 0; s < kGroup; ++s) {
    const State* const group_lanes = lanes + s * kLanes;
    states[s] = op.combine(op.combine(group_lanes[0], group_lanes[2]), op.combine(group_lanes[1], group_lanes[3]));
  }
}

// The combination of x[begin .. end): fewer than kFew items one by one, others
// by kFew running states, and from 8 * kFew items on by twice as many. Items that
// fill no whole step are taken from a window of kFew items at the end of the range.
template <typename Operator>
typename Operator::State fold_block(const Operator& op, const typename Operator::Element* x, int64_t begin,
                                    int64_t end) {
  using State = typename Operator::State;
  constexpr int kWide = 2 * kFew;
  if (end - begin < kFew) {
    State state = op.identity();
    for (; begin < end; ++begin) state = op.combine(state, op.extract(x[begin], begin));
    return state;
  }
  State lanes[kFew];
  for (State& lane : lanes) lane = op.identity();
  if (end - begin >= 4 * kWide) {
    State wide[kWide];
    for (State& lane : wide) lane = op.identity();
    for (; end - begin >= kWide; begin += kWide) {
      for (int i = 0; i < kWide; ++i) wide[i] = op.combine(wide[i], op.extract(x[begin + i], begin + i));
    }
    for (int i = 0; i < kFew; ++i) lanes[i] = op.combine(wide[i], wide[i + kFew]);
  }
  for (; end - begin >= kFew; begin += kFew) {
    for (int i = 0; i < kFew; ++i) lanes[i] = op.combine(lanes[i], op.extract(x[begin + i], begin + i));
  }
  const int64_t window = end - kFew;
  const int taken = static_cast<int>(begin - window);
  for (int i = 0; i < kFew; ++i) {
    const State state = op.extract(x[window + i], window + i);
    lanes[i] = op.combine(lanes[i], choose(i >= taken, state, op.identity()));
  }
  return fold_lanes(op, lanes);
}

constexpr int64_t kFoldBlock = 512;

// The order of combination depends only on the length.
template <typename Operator>
typename Operator::State fold(const Operator& op, const typename Operator::Element* x, int64_t begin, int64_t end) {
  if (end - begin <= kFoldBlock) return fold_block(op, x, begin, end);
  Running<Operator> running(op);
  for (; begin < end; begin += kFoldBlock)
    running.add(fold_block(op, x, begin, begin + kFoldBlock < end ? begin + kFoldBlock : end));
  return running.state();
}

}  // namespace mgpu::cpu
