// NVRTC has no standard library, so the part that the headers use is written out for it.
#pragma once

#ifndef __CUDACC_RTC__

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#else

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
static_assert(sizeof(int64_t) == 8);

#define INT64_MAX 0x7fffffffffffffffL

namespace std {

template <typename T, T v>
struct integral_constant {
  static constexpr T value = v;
  constexpr T operator()() const { return v; }
  constexpr operator T() const { return v; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <typename T, typename U>
constexpr bool is_same_v = false;
template <typename T>
constexpr bool is_same_v<T, T> = true;

template <bool kCondition, typename T, typename U>
struct conditional {
  using type = T;
};
template <typename T, typename U>
struct conditional<false, T, U> {
  using type = U;
};
template <bool kCondition, typename T, typename U>
using conditional_t = typename conditional<kCondition, T, U>::type;

template <typename T>
struct remove_const {
  using type = T;
};
template <typename T>
struct remove_const<const T> {
  using type = T;
};
template <typename T>
using remove_const_t = typename remove_const<T>::type;

template <typename T>
struct remove_cvref {
  using type = T;
};
template <typename T>
struct remove_cvref<const T> : remove_cvref<T> {};
template <typename T>
struct remove_cvref<T&> : remove_cvref<T> {};
template <typename T>
struct remove_cvref<T&&> : remove_cvref<T> {};
template <typename T>
using remove_cvref_t = typename remove_cvref<T>::type;

template <typename T>
using make_signed_t =
    conditional_t<sizeof(T) == 1, int8_t,
                  conditional_t<sizeof(T) == 2, int16_t, conditional_t<sizeof(T) == 4, int32_t, int64_t> > >;

template <typename T>
using make_unsigned_t =
    conditional_t<sizeof(T) == 1, uint8_t,
                  conditional_t<sizeof(T) == 2, uint16_t, conditional_t<sizeof(T) == 4, uint32_t, uint64_t> > >;

// T must be a signed integer.
template <typename T>
struct numeric_limits {
  static_assert(T(-1) < T(0));
  static constexpr T max() { return static_cast<T>((uint64_t{1} << (8 * sizeof(T) - 1)) - 1); }
};

// Not constexpr: NVRTC 12.1 has no builtin for it.
template <typename To, typename From>
__device__ To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

constexpr unsigned bit_floor(unsigned x) {
  unsigned bit = 1;
  while (x / 2 >= bit) bit *= 2;
  return x == 0 ? 0 : bit;
}

template <typename T, T...>
struct integer_sequence {};
template <typename T, int n, T... i>
struct count_up : count_up<T, n - 1, n - 1, i...> {};
template <typename T, T... i>
struct count_up<T, 0, i...> {
  using type = integer_sequence<T, i...>;
};
template <typename T, T n>
using make_integer_sequence = typename count_up<T, n>::type;

}  // namespace std

#endif
