// The order of keys is -inf < … < -0 == +0 < … < +inf < NaN with all NaNs equal, or its reverse.
// lax.sort has the same order, except that it treats subnormal numbers as zeros on a CPU.
//
// A key is handled as an unsigned code. `encode` is a bijection; `less` compares codes.
// The kind of a key and the direction are members of an order, not template parameters.
// So integers of one width share compiled kernels, and so do floats of one width.
#pragma once

#include "algorithm/common.h"

namespace mgpu {

enum class KeyKind : int { kUnsigned, kSigned, kFloat };

// A code is the key's bits, with the sign bit flipped for signed keys, and then all bits flipped for a descending
// order.
template <typename Word_>
struct IntegerOrder {
  using Word = Word_;
  static constexpr bool kTotal = true;  // keys that compare equal are the same bits
  Word flip;

  static IntegerOrder make(KeyKind kind, int /*mantissa_bits*/, bool descending) {
    const Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
    const Word all = static_cast<Word>(~Word{0});
    return {static_cast<Word>((kind == KeyKind::kSigned ? sign : Word{0}) ^ (descending ? all : Word{0}))};
  }

  MGPU_HOST_DEVICE Word encode(Word bits) const { return static_cast<Word>(bits ^ flip); }
  MGPU_HOST_DEVICE Word decode(Word code) const { return static_cast<Word>(code ^ flip); }
  MGPU_HOST_DEVICE bool less(Word a, Word b) const { return a < b; }
  MGPU_HOST_DEVICE Word rank(Word code) const { return code; }
  MGPU_HOST_DEVICE Word last_equal(Word code) const { return code; }
  MGPU_HOST_DEVICE bool keeps_bits() const { return flip == 0; }
  MGPU_HOST_DEVICE bool has_equals(Word /*code*/) const { return false; }
  MGPU_HOST_DEVICE bool is_plain(Word /*bits*/) const { return true; }
  MGPU_HOST_DEVICE bool is_nan(Word /*bits*/) const { return false; }
};

// IEEE bits are made monotone, then rotated so that -inf is 0 and every NaN, of either sign, lies above +inf. `less`
// treats both zeros as one value, and all NaNs as one value.
template <typename Word_>
struct FloatOrder {
  using Word = Word_;
  static constexpr bool kTotal = false;  // the zeros are equal, and so are the NaNs
  Word mantissa;                         // mask of the mantissa bits, also the monotone code of -inf
  Word flip;                             // all ones when descending
  Word low;   // codes up to this one are equal: the NaNs when descending, else only the lowest code
  Word high;  // codes from this one are equal: the NaNs when ascending, else only the highest code
  Word zero;  // the lower code of the two zeros

  static FloatOrder make(KeyKind /*kind*/, int mantissa_bits, bool descending) {
    const Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
    const Word all = static_cast<Word>(~Word{0});
    const Word mantissa = static_cast<Word>((Word{1} << mantissa_bits) - 1);
    const Word negative_zero = static_cast<Word>(sign - 1 - mantissa);
    const Word first_nan = static_cast<Word>(Word{0} - 2 * mantissa);
    if (!descending) return {mantissa, Word{0}, Word{0}, first_nan, negative_zero};
    return {mantissa, all, static_cast<Word>(~first_nan), all, static_cast<Word>(~(negative_zero + 1))};
  }

  MGPU_HOST_DEVICE Word encode(Word bits) const {
    const Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
    const Word monotone = bits & sign ? static_cast<Word>(~bits) : static_cast<Word>(bits | sign);
    return static_cast<Word>(static_cast<Word>(monotone - mantissa) ^ flip);
  }

  MGPU_HOST_DEVICE Word decode(Word code) const {
    const Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
    const Word monotone = static_cast<Word>(static_cast<Word>(code ^ flip) + mantissa);
    return monotone & sign ? static_cast<Word>(monotone ^ sign) : static_cast<Word>(~monotone);
  }

  MGPU_HOST_DEVICE bool less(Word a, Word b) const {
    // Short-circuits would be branches, which are often mispredicted.
    return (a < b) & (a < high) & (b > low) & !((a == zero) & (b == static_cast<Word>(zero + 1)));
  }

  // A word whose unsigned order is this order: equal codes have the same word.
  MGPU_HOST_DEVICE Word rank(Word code) const {
    const Word bounded = clamp(code, low, high);
    return static_cast<Word>(bounded - (bounded == static_cast<Word>(zero + 1)));
  }
  // The largest code that is equal to this one.
  MGPU_HOST_DEVICE Word last_equal(Word code) const {
    const Word last = maximum(static_cast<Word>(code + (code == zero)), low);
    return code >= high ? static_cast<Word>(~Word{0}) : last;
  }
  MGPU_HOST_DEVICE bool keeps_bits() const { return false; }

  // Whether the code is of a zero or a NaN, whose rank other codes have too.
  MGPU_HOST_DEVICE bool has_equals(Word code) const {
    const Word size = magnitude(decode(code));
    return (size == 0) | (size > infinity());
  }

  // Whether all codes from `lowest` to `highest` are nonzero numbers of one sign, so that keys are ordered as integers.
  // It may be false if one of the numbers is infinite.
  MGPU_HOST_DEVICE bool is_integer_range(Word lowest, Word highest) const {
    return ((lowest > low) & (highest < zero)) | ((lowest > zero + 1) & (highest < high));
  }
  // The order of the keys in such a range. `bits` are those of any key in it.
  MGPU_HOST_DEVICE IntegerOrder<Word> integer_order(Word bits) const {
    return {static_cast<Word>(bits & kSign ? ~flip : flip)};
  }

  // Plain keys, neither -0 nor a NaN, are equal only if their bits are.
  MGPU_HOST_DEVICE bool is_plain(Word bits) const { return (magnitude(bits) <= infinity()) & (bits != kSign); }
  MGPU_HOST_DEVICE bool is_nan(Word bits) const { return magnitude(bits) > infinity(); }

 private:
  static constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  MGPU_HOST_DEVICE static Word magnitude(Word bits) { return static_cast<Word>(bits & (kSign - 1)); }
  MGPU_HOST_DEVICE Word infinity() const { return static_cast<Word>(kSign - 1 - mantissa); }
};

// One of the orders above, chosen at run time, so that integers and floats of one width share a kernel. It is for
// kernels that use keys' ranks, and lose less by it than a variant must gain (docs/notes/mechanisms.md).
template <typename Word_>
struct KeyOrder {
  using Word = Word_;
  static constexpr bool kTotal = false;
  FloatOrder<Word> floats;
  IntegerOrder<Word> integers;
  bool is_float;

  static KeyOrder make(KeyKind kind, int mantissa_bits, bool descending) {
    return {FloatOrder<Word>::make(kind, mantissa_bits, descending),
            IntegerOrder<Word>::make(kind, mantissa_bits, descending), kind == KeyKind::kFloat};
  }

  MGPU_HOST_DEVICE Word encode(Word bits) const { return is_float ? floats.encode(bits) : integers.encode(bits); }
  MGPU_HOST_DEVICE Word decode(Word code) const { return is_float ? floats.decode(code) : integers.decode(code); }
  MGPU_HOST_DEVICE Word rank(Word code) const { return is_float ? floats.rank(code) : code; }
  MGPU_HOST_DEVICE Word last_equal(Word code) const { return is_float ? floats.last_equal(code) : code; }
};

// The key of a rank, in an ascending order. The key of the zeros' rank is +0.
template <typename Order>
MGPU_HOST_DEVICE typename Order::Word key_of_rank(const Order& order, typename Order::Word rank) {
  using Word = typename Order::Word;
  const Word next = static_cast<Word>(rank + 1);
  return order.decode(next != 0 && order.rank(next) == rank ? next : rank);
}

}  // namespace mgpu
