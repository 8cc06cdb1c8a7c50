// The operators of reductions and scans. An operator makes a state from an element and its position, combines states,
// and finishes a state into a result. dead() is the result for an item past its row's count.
// If an operator commutes, as those in this file do, a kernel may combine states in another order than the items'.
#pragma once

#include "algorithm/common.h"
#include "algorithm/floats.h"

namespace mgpu {

enum class OperatorKind : int64_t { kAdd, kMul, kMin, kMax, kArgmin, kArgmax, kAnd, kOr, kXor, kLogsumexp };

constexpr bool gives_index(OperatorKind kind) { return kind == OperatorKind::kArgmin || kind == OperatorKind::kArgmax; }
constexpr bool gives_largest(OperatorKind kind) { return kind == OperatorKind::kMax || kind == OperatorKind::kArgmax; }

// Integers wrap, so signed ones are computed as unsigned, and narrow ones in 32 bits; 16-bit floats accumulate in
// float32. kEither chooses between sum and product at run time.
enum class ArithmeticKind { kSum, kProduct, kEither };

template <typename Element_, typename State_, ArithmeticKind kKind>
struct Arithmetic {
  using Element = Element_;
  using State = State_;
  using Result = Element_;
  static constexpr bool kGivesIndex = false;
  static constexpr bool kCommutes = true;
  static constexpr bool kIsIdempotent = false;

  bool multiply;

  MGPU_HOST_DEVICE bool multiplies() const {
    return kKind == ArithmeticKind::kEither ? multiply : kKind == ArithmeticKind::kProduct;
  }
  MGPU_HOST_DEVICE State identity() const { return multiplies() ? State{1} : State{0}; }
  MGPU_HOST_DEVICE State extract(Element element, int64_t /*position*/) const {
    return static_cast<State>(widen(element));
  }
  MGPU_HOST_DEVICE State combine(State a, State b) const { return multiplies() ? a * b : a + b; }
  MGPU_HOST_DEVICE Result finish(State state, int64_t /*row_begin*/) const { return narrow_to(state, Result{}); }
  MGPU_HOST_DEVICE Result dead() const { return Result{}; }
};

// The sum or product in a reduction of elements that are narrower than a state, or may be. It learns at run time
// whether elements are signed, and ResultVector learns whether results are states or have the elements' type. So one
// kernel serves all of these types.
template <typename Element_, typename State_, ArithmeticKind kKind>
struct NarrowArithmetic : Arithmetic<Element_, State_, kKind> {
  using Narrow = Element_;
  using Result = State_;

  Element_ sign;  // the highest bit if elements are signed, else 0; unused for floats

  MGPU_HOST_DEVICE State_ extract(Element_ element, int64_t /*position*/) const {
    if constexpr (std::is_integral_v<Element_>) {
      return State_{static_cast<Element_>(element ^ sign)} - State_{sign};
    } else {
      return widen(element);
    }
  }
  MGPU_HOST_DEVICE Result finish(State_ state, int64_t /*row_begin*/) const { return state; }
};

template <typename Operator>
constexpr bool kIsNarrow = requires { typename Operator::Narrow; };

// Bools have only the lowest bit.
template <typename Word>
struct Bitwise {
  using Element = Word;
  using State = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;
  using Result = Word;
  static constexpr bool kGivesIndex = false;
  static constexpr bool kCommutes = true;
  static constexpr bool kIsIdempotent = false;

  OperatorKind kind;
  Word ones;  // all bits that an element can have

  static Bitwise make(OperatorKind kind, bool is_bool) {
    return {kind, is_bool ? Word{1} : static_cast<Word>(~Word{0})};
  }

  MGPU_HOST_DEVICE State identity() const { return kind == OperatorKind::kAnd ? ones : Word{0}; }
  MGPU_HOST_DEVICE State extract(Element element, int64_t /*position*/) const { return element; }
  MGPU_HOST_DEVICE State combine(State a, State b) const {
    return kind == OperatorKind::kAnd ? a & b : kind == OperatorKind::kOr ? a | b : a ^ b;
  }
  MGPU_HOST_DEVICE Result finish(State state, int64_t /*row_begin*/) const { return static_cast<Word>(state); }
  MGPU_HOST_DEVICE Result dead() const { return Word{0}; }
};

MGPU_HOST_DEVICE float exponential(float x) { return expf(x); }
MGPU_HOST_DEVICE float logarithm(float x) { return logf(x); }
// These are long, and kernels would have many copies.
MGPU_HOST_DEVICE_CALL double exponential(double x) { return exp(x); }
MGPU_HOST_DEVICE_CALL double logarithm(double x) { return log(x); }

// The logarithm of a sum of exponentials: the largest element, and the sum of the exponentials of all elements'
// differences from it.
template <typename Real>
struct ScaledSum {
  Real largest;
  Real sum;
};

template <typename Element_, typename Real>
struct LogSumExp {
  using Element = Element_;
  using State = ScaledSum<Real>;
  using Result = Element;
  static constexpr bool kGivesIndex = false;
  static constexpr bool kCommutes = true;

  MGPU_HOST_DEVICE State identity() const { return {-infinity(), Real{0}}; }
  MGPU_HOST_DEVICE State extract(Element element, int64_t /*position*/) const {
    return {static_cast<Real>(widen(element)), Real{1}};
  }
  // A NaN counts as the largest. The difference of equal infinities would be NaN, so equal elements have scale 1.
  // Single values are selected, as nvcc would put states that are selected into local memory.
  MGPU_HOST_DEVICE State combine(State a, State b) const {
    const bool a_first = a.largest >= b.largest || a.largest != a.largest;
    const Real high = a_first ? a.largest : b.largest;
    const Real low = a_first ? b.largest : a.largest;
    const Real high_sum = a_first ? a.sum : b.sum;
    const Real low_sum = a_first ? b.sum : a.sum;
    const Real scale = high == low ? Real{1} : exponential(low - high);
    return {high, high_sum + low_sum * scale};
  }
  MGPU_HOST_DEVICE Result finish(const State& state, int64_t /*row_begin*/) const {
    return narrow_to(state.largest + logarithm(state.sum), Element{});
  }
  MGPU_HOST_DEVICE Result dead() const { return Element{}; }

 private:
  static constexpr Real infinity() { return static_cast<Real>(__builtin_huge_valf()); }
};

// Unsigned codes of keys: the minimum or maximum that is sought has the smallest code.
// A float's bits are made monotone, and all bits are flipped for a maximum.
// A NaN has the code 0, so it wins, as in jnp.min and jnp.max.
template <typename Word>
struct ExtremumOrder {
  Word fold;  // bits that a negative float flips
  Word flip;
  Word largest_number;  // magnitudes above it are NaN; all ones for integers
  Word negative_zero;   // 0 for integers
  Word last;            // the code of the identity: the largest value for a minimum, the smallest for a maximum

  static ExtremumOrder make(bool is_signed, int mantissa_bits, bool largest) {
    const Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
    const Word all = static_cast<Word>(~Word{0});
    const Word flip = static_cast<Word>((is_signed ? sign : Word{0}) ^ (largest ? all : Word{0}));
    if (mantissa_bits == 0) return {Word{0}, flip, all, Word{0}, all};
    const Word magnitude = static_cast<Word>(~sign);
    const Word infinity = static_cast<Word>(magnitude - ((Word{1} << mantissa_bits) - 1));
    ExtremumOrder order{magnitude, flip, infinity, sign, all};
    order.last = order.encode(largest ? static_cast<Word>(sign | infinity) : infinity);
    return order;
  }

  MGPU_HOST_DEVICE Word encode(Word bits) const {
    const Word magnitude = static_cast<Word>(bits & (static_cast<Word>(~Word{0}) >> 1));
    return magnitude > largest_number ? Word{0} : static_cast<Word>(bits ^ folded(bits) ^ flip);
  }
  MGPU_HOST_DEVICE Word decode(Word code) const {
    const Word bits = static_cast<Word>(code ^ flip);
    return static_cast<Word>(bits ^ folded(bits));
  }

 private:
  MGPU_HOST_DEVICE Word folded(Word bits) const {
    using Signed = std::make_signed_t<Word>;
    return static_cast<Word>(static_cast<Word>(static_cast<Signed>(bits) >> (8 * sizeof(Word) - 1)) & fold);
  }
};

template <typename Word>
struct Extremum {
  using Element = Word;
  using State = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;
  using Result = Word;
  static constexpr bool kGivesIndex = false;
  static constexpr bool kCommutes = true;
  static constexpr bool kIsIdempotent = true;
  static constexpr bool kIsMinimum = true;  // combining two states gives the smaller one, as unsigned integers

  ExtremumOrder<Word> order;

  MGPU_HOST_DEVICE State identity() const { return order.last; }
  MGPU_HOST_DEVICE State extract(Element element, int64_t /*position*/) const { return order.encode(element); }
  MGPU_HOST_DEVICE State combine(State a, State b) const { return minimum(a, b); }
  MGPU_HOST_DEVICE Result finish(State state, int64_t /*row_begin*/) const {
    return order.decode(static_cast<Word>(state));
  }
  MGPU_HOST_DEVICE Result dead() const { return Word{0}; }
};

// The smallest pair is the first extremum, in any order of combination.
struct CodeAndPosition {
  uint64_t code;
  uint64_t position;
};
MGPU_HOST_DEVICE bool operator<(const CodeAndPosition& a, const CodeAndPosition& b) {
  return a.code < b.code || (a.code == b.code && a.position < b.position);
}

// The state is one 64-bit key, code above position, if both fit.
template <typename Word, typename State_>
struct ArgExtremum {
  using Element = Word;
  using State = State_;
  using Result = int64_t;
  static constexpr bool kGivesIndex = true;
  static constexpr bool kCommutes = true;
  static constexpr bool kPacked = std::is_same_v<State, uint64_t>;
  static constexpr int kPositionBits = kPacked ? 64 - 8 * static_cast<int>(sizeof(Word)) : 64;
  static constexpr uint64_t kNowhere = ~uint64_t{0} >> (64 - kPositionBits);  // positions lie below it
  static constexpr bool kIsIdempotent = true;
  static constexpr bool kIsMinimum = kPacked;

  ExtremumOrder<Word> order;

  MGPU_HOST_DEVICE static State make(Word code, uint64_t position) {
    if constexpr (kPacked) {
      return uint64_t{code} << kPositionBits | position;
    } else {
      return {code, position};
    }
  }
  MGPU_HOST_DEVICE State identity() const { return make(static_cast<Word>(~Word{0}), kNowhere); }
  // Both zeros have the same code.
  MGPU_HOST_DEVICE Word encode(Element element) const {
    return order.encode(element == order.negative_zero ? Word{0} : element);
  }
  MGPU_HOST_DEVICE State extract(Element element, int64_t position) const {
    return make(encode(element), static_cast<uint64_t>(position));
  }
  MGPU_HOST_DEVICE State combine(State a, State b) const { return b < a ? b : a; }
  MGPU_HOST_DEVICE Result finish(State state, int64_t row_begin) const {
    uint64_t position;
    if constexpr (kPacked) {
      position = state & kNowhere;
    } else {
      position = state.position;
    }
    return position == kNowhere ? -1 : static_cast<int64_t>(position) - row_begin;
  }
  MGPU_HOST_DEVICE Result dead() const { return -1; }
};

// Combinations of integer states have the same bits in any order.
// There is no atomic instruction for products; callers exclude these.
template <typename Operator>
constexpr bool has_integer_state() {
  return std::is_same_v<typename Operator::State, uint32_t> || std::is_same_v<typename Operator::State, uint64_t>;
}

// The combination since a part's last restart, and whether there was one. Combining such states is associative but does
// not commute.
template <typename State>
struct SinceRestart {
  using Flag = std::conditional_t<sizeof(State) % 8 == 0, uint64_t, uint32_t>;  // leaves no padding
  State state;
  Flag restarted;
};
constexpr int64_t since_restart_bytes(int64_t state_bytes) { return state_bytes + (state_bytes % 8 == 0 ? 8 : 4); }

template <typename Operator, typename State>
MGPU_HOST_DEVICE SinceRestart<State> combine_since(const Operator& op, const SinceRestart<State>& a,
                                                   const SinceRestart<State>& b) {
  if (b.restarted) return b;
  return {op.combine(a.state, b.state), a.restarted};
}

}  // namespace mgpu
