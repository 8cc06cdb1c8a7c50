// The primitives of compiled functions, on scalars, as XLA defines them. jit/function_data.cc writes a line such as
// `const float v7 = xla::add(v3, v5);`, and accepts only the types that each primitive supports.
#pragma once

#include "algorithm/floats.h"

namespace mgpu::xla {

template <typename T>
constexpr bool is_small = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <typename T>
constexpr bool is_float = is_small<T> || std::is_same_v<T, float> || std::is_same_v<T, double>;
template <typename T>
constexpr bool is_integer = !is_float<T> && !std::is_same_v<T, bool>;
template <typename T>
constexpr bool is_signed = T(-1) < T(0);

// The type in which a primitive computes: float for 16-bit floats, and an unsigned type of at least 32 bits for
// integers, which wrap.
template <typename T>
struct Wide {
  using Type = std::conditional_t<is_integer<T>, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>, T>;
};
template <>
struct Wide<Half> {
  using Type = float;
};
template <>
struct Wide<BFloat16> {
  using Type = float;
};
template <typename T>
using WideOf = typename Wide<T>::Type;

// An integer truncated to fewer bits. ptxas 13.0 compares the negative of a 16-bit register without truncating it
// (neg.s16, setp.s16): -(-32768) > 32767. The empty asm hides the word that the 16 bits are taken from.
template <typename To, typename From>
MGPU_HOST_DEVICE To cut(From x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(To) == 2 && sizeof(From) > 2) {
    uint32_t word = static_cast<uint32_t>(x);
    asm("" : "+r"(word));
    return static_cast<To>(word);
  }
#endif
  return static_cast<To>(x);
}

template <typename T>
MGPU_HOST_DEVICE WideOf<T> up(T x) {
  if constexpr (is_small<T>) {
    return widen(x);
  } else {
    return static_cast<WideOf<T>>(x);
  }
}
template <typename T>
MGPU_HOST_DEVICE T down(WideOf<T> x) {
  if constexpr (is_small<T>) {
    return narrow_to(x, T{});
  } else if constexpr (is_integer<T>) {
    return cut<T>(x);
  } else {
    return static_cast<T>(x);
  }
}

// Returns ~x, for subtraction and negation. When ptxas 13.0 fuses two extrema into one instruction (VIMNMX3, sm_90), it
// loses the sign of a negated operand: min(min(a, -b), c) may become min(min(a, b), c). It does not recognize a
// negation behind an empty asm.
template <typename Word>
MGPU_HOST_DEVICE Word complement(Word x) {
  x = ~x;
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(Word) == 4) asm("" : "+r"(x));
#endif
  return x;
}

template <typename To, typename From>
MGPU_HOST_DEVICE To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  return std::bit_cast<To>(x);
}

// A double rounded to odd: the last bit of the float is set if bits were cut off. Rounded further to 16 bits, it gives
// what the double would.
MGPU_HOST_DEVICE float odd_float(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  if (back == x || x != x || x - x != 0) return nearest;
  const uint32_t word = bits<uint32_t>(nearest);
  if (word & 1) return nearest;
  const bool away = x < 0 ? back < x : back > x;  // rounded away from zero
  return bits<float>(away ? word - 1 : word + 1);
}

// ---- Conversions. Floats become integers by truncation; out of range they become the nearest integer, NaN becomes 0.

template <typename To, typename From>
MGPU_HOST_DEVICE To saturate(From x) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(To)) - is_signed<To>;
  constexpr From kLimit = static_cast<From>(uint64_t{1} << (kBits - 1)) * From{2};
  constexpr To kLargest = static_cast<To>(~uint64_t{0} >> (64 - kBits));
  if (x != x) return To{0};
  if (x >= kLimit) return kLargest;
  if constexpr (is_signed<To>) {
    if (x < -kLimit) return static_cast<To>(-kLargest - 1);
  } else {
    if (x < From{0}) return To{0};
  }
  return static_cast<To>(x);
}

template <typename To, typename From>
MGPU_HOST_DEVICE To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (is_small<From>) {
    return convert<To>(widen(x));
  } else if constexpr (is_small<To>) {
    if constexpr (std::is_same_v<From, double>) {
      return narrow_to(odd_float(x), To{});
    } else {
      return narrow_to(static_cast<float>(x), To{});
    }
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (is_float<From> && is_integer<To>) {
    return saturate<To>(x);
  } else if constexpr (is_integer<From> && is_integer<To>) {
    return cut<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// ---- Arithmetic. Integers wrap; x / 0 has all bits set, x % 0 is x, and the least integer divided by -1 is itself.

#define MGPU_BINARY(name, expression)     \
  template <typename T>                   \
  MGPU_HOST_DEVICE T name(T x, T y) {     \
    const WideOf<T> a = up(x), b = up(y); \
    return down<T>(expression);           \
  }
MGPU_BINARY(add, a + b)
MGPU_BINARY(mul, a* b)
#undef MGPU_BINARY

template <typename T>
MGPU_HOST_DEVICE T sub(T x, T y) {
  if constexpr (is_integer<T>) {
    return down<T>(up(x) + complement(up(y)) + 1);
  } else {
    return down<T>(up(x) - up(y));
  }
}
template <typename T>
MGPU_HOST_DEVICE T neg(T x) {
  if constexpr (is_integer<T>) {
    return down<T>(complement(up(x)) + 1);
  } else {
    return down<T>(-up(x));
  }
}

template <typename T>
MGPU_HOST_DEVICE T mulhi(T x, T y) {
  if constexpr (sizeof(T) < 8) {
    using Double = std::conditional_t<is_signed<T>, int64_t, uint64_t>;
    return static_cast<T>(static_cast<Double>(x) * static_cast<Double>(y) >> (8 * sizeof(T)));
  } else {
#ifdef __CUDA_ARCH__
    if constexpr (is_signed<T>) {
      return __mul64hi(x, y);
    } else {
      return __umul64hi(x, y);
    }
#else
    using Double = std::conditional_t<is_signed<T>, __int128, unsigned __int128>;
    return static_cast<T>(static_cast<Double>(x) * static_cast<Double>(y) >> 64);
#endif
  }
}
template <typename T>
MGPU_HOST_DEVICE T div(T x, T y) {
  if constexpr (is_integer<T>) {
    if (y == 0) return static_cast<T>(~T{0});
    if constexpr (is_signed<T>) {
      if (y == -1) return neg(x);
    }
    return static_cast<T>(x / y);
  } else {
    return down<T>(up(x) / up(y));
  }
}
template <typename T>
MGPU_HOST_DEVICE T rem(T x, T y) {
  if constexpr (is_integer<T>) {
    if (y == 0) return x;
    if constexpr (is_signed<T>) {
      if (y == -1) return T{0};
    }
    return static_cast<T>(x % y);
  } else if constexpr (std::is_same_v<T, double>) {
    return ::fmod(x, y);
  } else {
    return down<T>(::fmodf(up(x), up(y)));
  }
}

// ---- Order. Signed integers compare as signed. The minimum and the maximum of a NaN and anything are NaN.

template <typename T>
MGPU_HOST_DEVICE auto comparable(T x) {
  if constexpr (is_small<T>) {
    return widen(x);
  } else {
    return x;
  }
}
#define MGPU_COMPARE(name, op)             \
  template <typename T>                    \
  MGPU_HOST_DEVICE bool name(T x, T y) {   \
    return comparable(x) op comparable(y); \
  }
MGPU_COMPARE(eq, ==)
MGPU_COMPARE(ne, !=)
MGPU_COMPARE(lt, <)
MGPU_COMPARE(le, <=)
MGPU_COMPARE(gt, >)
MGPU_COMPARE(ge, >=)
#undef MGPU_COMPARE

template <typename T>
MGPU_HOST_DEVICE T max(T x, T y) {
  return ne(x, x) || gt(x, y) ? x : y;
}
template <typename T>
MGPU_HOST_DEVICE T min(T x, T y) {
  return ne(x, x) || lt(x, y) ? x : y;
}
template <typename T>
MGPU_HOST_DEVICE T clamp(T low, T x, T high) {
  return min(max(low, x), high);
}

// A NaN replaces any number, and nothing replaces a NaN.
template <typename T>
MGPU_HOST_DEVICE bool above(T item, T extremum) {
  return !ne(extremum, extremum) && (ne(item, item) || gt(item, extremum));
}
template <typename T>
MGPU_HOST_DEVICE bool below(T item, T extremum) {
  return !ne(extremum, extremum) && (ne(item, item) || lt(item, extremum));
}

// ---- Bits. A shift by the width or more leaves zeros, or copies of the sign.

#define MGPU_BITS(name, op)           \
  template <typename T>               \
  MGPU_HOST_DEVICE T name(T x, T y) { \
    return static_cast<T>(x op y);    \
  }
MGPU_BITS(and_, &)
MGPU_BITS(or_, |)
MGPU_BITS(xor_, ^)
#undef MGPU_BITS
template <typename T>
MGPU_HOST_DEVICE T not_(T x) {
  if constexpr (std::is_same_v<T, bool>) {
    return !x;
  } else {
    return down<T>(complement(up(x)));
  }
}
template <typename T>
constexpr int kWidth = 8 * static_cast<int>(sizeof(T));
template <typename T>
MGPU_HOST_DEVICE T shift_left(T x, T by) {
  const auto places = static_cast<std::make_unsigned_t<T>>(by);
  return places >= kWidth<T> ? T{0} : static_cast<T>(up(x) << places);
}
template <typename T>
MGPU_HOST_DEVICE T shift_right_logical(T x, T by) {
  const auto places = static_cast<std::make_unsigned_t<T>>(by);
  return places >= kWidth<T> ? T{0} : static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) >> places);
}
template <typename T>
MGPU_HOST_DEVICE T shift_right_arithmetic(T x, T by) {
  const auto places = static_cast<std::make_unsigned_t<T>>(by);
  const int most = places >= kWidth<T> ? kWidth<T> - 1 : static_cast<int>(places);
  return static_cast<T>(static_cast<std::make_signed_t<T>>(x) >> most);
}
template <typename T>
MGPU_HOST_DEVICE T population_count(T x) {
  const uint64_t word = static_cast<std::make_unsigned_t<T>>(x);
#ifdef __CUDA_ARCH__
  return static_cast<T>(__popcll(word));
#else
  return static_cast<T>(__builtin_popcountll(word));
#endif
}
template <typename T>
MGPU_HOST_DEVICE T clz(T x) {
  const uint64_t word = static_cast<std::make_unsigned_t<T>>(x);
#ifdef __CUDA_ARCH__
  const int zeros = __clzll(word);
#else
  const int zeros = word ? __builtin_clzll(word) : 64;
#endif
  return static_cast<T>(zeros - (64 - kWidth<T>));
}

// ---- Functions of one number.

template <typename T>
MGPU_HOST_DEVICE T abs(T x) {
  if constexpr (is_integer<T>) {
    if constexpr (is_signed<T>) {
      return x < 0 ? neg(x) : x;
    } else {
      return x;
    }
  } else if constexpr (std::is_same_v<T, double>) {
    return ::fabs(x);
  } else {
    return down<T>(::fabsf(up(x)));
  }
}
template <typename T>
MGPU_HOST_DEVICE T sign(T x) {
  if constexpr (is_float<T>) {
    const auto number = up(x);
    return number > 0 ? down<T>(1) : number < 0 ? down<T>(-1) : x;
  } else {
    return static_cast<T>((T{0} < x) - (x < T{0}));
  }
}
template <typename T>
MGPU_HOST_DEVICE bool is_finite(T x) {
  return up(x) - up(x) == 0;
}
template <typename T>
MGPU_HOST_DEVICE T square(T x) {
  return mul(x, x);
}
template <typename T>
MGPU_HOST_DEVICE T one_minus_square(T x) {
  if constexpr (is_integer<T>) {
    return sub(T{1}, mul(x, x));
  } else {
    return down<T>((1 - up(x)) * (1 + up(x)));
  }
}

#define MGPU_UNARY(name, of_float, of_double)  \
  template <typename T>                        \
  MGPU_HOST_DEVICE T name(T x) {               \
    if constexpr (std::is_same_v<T, double>) { \
      return ::of_double(x);                   \
    } else {                                   \
      return down<T>(::of_float(up(x)));       \
    }                                          \
  }
#define MGPU_MATH(name) MGPU_UNARY(name, name##f, name)
MGPU_MATH(floor)
MGPU_MATH(ceil)
MGPU_UNARY(round_away, roundf, round)
MGPU_UNARY(round_even, rintf, rint)
MGPU_MATH(exp)
MGPU_MATH(exp2)
MGPU_MATH(expm1)
MGPU_MATH(log)
MGPU_MATH(log1p)
MGPU_MATH(log2)
MGPU_MATH(sin)
MGPU_MATH(cos)
MGPU_MATH(tan)
MGPU_MATH(asin)
MGPU_MATH(acos)
MGPU_MATH(atan)
MGPU_MATH(sinh)
MGPU_MATH(cosh)
MGPU_MATH(tanh)
MGPU_MATH(asinh)
MGPU_MATH(acosh)
MGPU_MATH(atanh)
MGPU_MATH(sqrt)
MGPU_MATH(cbrt)
MGPU_MATH(erf)
MGPU_MATH(erfc)
MGPU_MATH(lgamma)
#undef MGPU_MATH
#undef MGPU_UNARY
template <typename T>
MGPU_HOST_DEVICE T rsqrt(T x) {
  if constexpr (std::is_same_v<T, double>) {
    return 1 / ::sqrt(x);
  } else {
    return down<T>(1 / ::sqrtf(up(x)));
  }
}
template <typename T>
MGPU_HOST_DEVICE T logistic(T x) {
  if constexpr (std::is_same_v<T, double>) {
    return 1 / (1 + ::exp(-x));
  } else {
    return down<T>(1 / (1 + ::expf(-up(x))));
  }
}

// ---- Functions of two numbers.

template <typename T, typename Power>
MGPU_HOST_DEVICE T pow(T x, Power y) {
  if constexpr (std::is_same_v<T, double>) {
    return ::pow(x, static_cast<double>(y));
  } else {
    return down<T>(::powf(up(x), convert<float>(y)));
  }
}
template <typename T>
MGPU_HOST_DEVICE T atan2(T y, T x) {
  if constexpr (std::is_same_v<T, double>) {
    return ::atan2(y, x);
  } else {
    return down<T>(::atan2f(up(y), up(x)));
  }
}
// Steps through the bits, so that denormals are not skipped.
template <typename T>
MGPU_HOST_DEVICE T nextafter(T x, T y) {
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  constexpr Word kSign = static_cast<Word>(Word{1} << (kWidth<T> - 1));
  if (ne(x, x) || ne(y, y)) return add(x, y);
  const Word word = bits<Word>(x);
  const Word other = bits<Word>(y);
  const Word magnitude = static_cast<Word>(word & ~kSign);
  const Word to = static_cast<Word>(other & ~kSign);
  if (word == other || (magnitude == 0 && to == 0)) return y;
  if (magnitude == 0) return bits<T>(static_cast<Word>((other & kSign) | 1));
  const bool shrinks = magnitude > to || (word & kSign) != (other & kSign);
  return bits<T>(static_cast<Word>(shrinks ? word - 1 : word + 1));
}

// ---- Choices by an index that comes from data. nearest_place clamps it to one of `size` places.

template <typename T>
MGPU_HOST_DEVICE int64_t nearest_place(T i, int64_t size) {
  if constexpr (is_signed<T>) {
    if (i < 0) return 0;
  }
  return static_cast<uint64_t>(i) >= static_cast<uint64_t>(size) ? size - 1 : static_cast<int64_t>(i);
}
template <typename T>
MGPU_HOST_DEVICE bool is_place(T i, int64_t size) {
  if constexpr (is_signed<T>) {
    if (i < 0) return false;
  }
  return static_cast<uint64_t>(i) < static_cast<uint64_t>(size);
}
template <typename T>
MGPU_HOST_DEVICE T pick(int64_t, T last) {
  return last;
}
template <typename T, typename... Rest>
MGPU_HOST_DEVICE T pick(int64_t i, T first, Rest... rest) {
  return i == 0 ? first : pick<T>(i - 1, rest...);
}

// An effect for a loop that may not end: C++ lets a compiler assume that a loop without effects ends.
MGPU_HOST_DEVICE void make_progress() { asm volatile(""); }

}  // namespace mgpu::xla
