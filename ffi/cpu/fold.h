// Reducing a contiguous range on the CPU.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace mgpu::cpu {

// A running combination held as a tree with eight children a node: a float sum of n parts rounds log n times, not n.
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

// The combination of a short range x[begin .. end). Sixteen running states make vector instructions of it.
template <typename Operator>
typename Operator::State fold_block(const Operator& op, const typename Operator::Element* x, int64_t begin,
                                    int64_t end) {
  using State = typename Operator::State;
  constexpr int kLanes = 16;
  State state = op.identity();
  if (end - begin >= 2 * kLanes) {
    State lanes[kLanes];
    for (State& lane : lanes) lane = op.identity();
    for (; end - begin >= kLanes; begin += kLanes) {
      for (int i = 0; i < kLanes; ++i) lanes[i] = op.combine(lanes[i], op.extract(x[begin + i], begin + i));
    }
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] = op.combine(lanes[i], lanes[i + width]);
    }
    state = lanes[0];
  }
  for (; begin < end; ++begin) state = op.combine(state, op.extract(x[begin], begin));
  return state;
}

// a or b, by bits where there are bits to choose: compilers make branches of a conditional.
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

// The combination of x[begin .. end) out of `count` items, at most kFew of them. Without a branch on the length, which
// could not be foretold; all but the last few ranges of x take the same vector instructions.
constexpr int kFew = 8;
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
  for (int width = kFew / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = op.combine(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

// The combination of x[begin .. end), in an order that depends on the length alone.
template <typename Operator>
typename Operator::State fold(const Operator& op, const typename Operator::Element* x, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 512;
  if (end - begin <= kBlock) return fold_block(op, x, begin, end);
  Running<Operator> running(op);
  for (; begin < end; begin += kBlock)
    running.add(fold_block(op, x, begin, begin + kBlock < end ? begin + kBlock : end));
  return running.state();
}

}  // namespace mgpu::cpu
