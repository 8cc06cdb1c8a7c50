// A block sorts a row in shared memory, one pass per digit. Digits are those of a key's rank (Order::rank), a word
// that compares as the key does.
#pragma once

#include "algorithm/upper_rank.h"
#include "ops/segmented_sort/digit_places.cuh"
#include "ops/segmented_sort/digit_problem.cuh"

namespace mgpu::cuda::sorting {

template <typename Order_, typename Payload_>
struct RowOfDigits {
  using Order = Order_;
  using Payload = Payload_;
  using Word = typename Order::Word;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  struct Item {
    Word key;
    Payload payload;
  };

  Order order;
  int64_t length;
  LiveCounts counts;
  int places;
  int groups;  // the groups of 32 neighbouring items, one per lane, that a warp has
  Columns<const Word, const Payload> input;
  Columns<Word, Payload> output;

  __device__ __forceinline__ void put(int64_t origin, int at, const Item& item) const {
    output.keys[origin + at] = item.key;
    if constexpr (kHasPayload) output.payload[origin + at] = item.payload;
  }
  __device__ __forceinline__ void put_dead(int64_t origin, int at) const {
    put(origin, at, {input.keys[origin + at], payload(origin, at)});
  }
  __device__ __forceinline__ Payload payload(int64_t origin, int place) const {
    if constexpr (kHasPayload) {
      return input.payload ? input.payload[origin + place] : static_cast<Payload>(place);
    } else {
      return {};
    }
  }
};

// Keys that differ in one or two digits. An entry is a narrow code,
// or the item's place in the row beside a code or two digits of a
// rank. Without a narrow code, the key is read again at its place.
template <typename Order_, typename Payload_>
struct RowDigitsProblem : RowOfDigits<Order_, Payload_> {
  using Base = RowOfDigits<Order_, Payload_>;
  using Word = typename Base::Word;
  using Item = typename Base::Item;
  using Base::input;
  using Base::kHasPayload;
  using Base::order;
  static constexpr bool kLooksUp = false;
  static constexpr bool kHasCode = sizeof(Word) <= 2 && Order_::kTotal;
  static constexpr bool kHasPlace = kHasPayload || !kHasCode;
  using Entry = std::conditional_t<kHasPlace, uint32_t, Word>;
  static constexpr int kPlaceBits = 16;
  static_assert(kRowDigitItems * kRowDigitThreads <= 1 << kPlaceBits);

  static constexpr int kItemBytes = sizeof(Entry);

  __device__ __forceinline__ Entry entry(Word key, int place) const {
    static_assert(kPlaceBits == 16);
    if constexpr (!kHasPlace) {
      return order.encode(key);
    } else if constexpr (sizeof(Word) == 2) {
      return upper_rank(order, key) | static_cast<uint32_t>(place);
    } else {
      return static_cast<uint32_t>(order.encode(key)) << kPlaceBits | static_cast<uint32_t>(place);
    }
  }
  // Items past the live ones have the largest digit, so they come last.
  __device__ __forceinline__ static unsigned digit(Entry entry, int pass, bool is_live) {
    const int shift = (kHasPlace ? kPlaceBits : 0) + kDigitBits * pass;
    return is_live ? static_cast<uint32_t>(entry) >> shift & (kDigits - 1) : kDigits - 1;
  }
  // Whether entries hold all that is stored: narrow keys and
  // their indices. Then put_live<1> is faster than put_live<4>.
  __device__ __forceinline__ bool stores_entries() const { return kHasCode && kHasPayload && !input.payload; }
  __device__ __forceinline__ Item item(int64_t origin, Entry entry) const {
    if constexpr (!kHasPlace) return {order.decode(entry), {}};
    const int place = static_cast<int>(entry & ((1u << kPlaceBits) - 1));
    if constexpr (kHasCode) {
      return {order.decode(static_cast<Word>(entry >> kPlaceBits)), this->payload(origin, place)};
    } else {
      return {input.keys[origin + place], this->payload(origin, place)};
    }
  }
};

// Keys of more digits: only places are sorted,
// and digits are looked up in the ranks.
template <typename Order_, typename Payload_>
struct RowRanksProblem : RowOfDigits<Order_, Payload_> {
  using Base = RowOfDigits<Order_, Payload_>;
  using Word = typename Base::Word;
  using Item = typename Base::Item;
  static constexpr bool kLooksUp = true;
  using Entry = uint16_t;
  static_assert(kRowDigitItems * kRowDigitThreads <= 1 << 16);

  static constexpr int kItemBytes = sizeof(Entry) + sizeof(Word);
  __device__ __forceinline__ static bool stores_entries() { return false; }
  __device__ __forceinline__ Item item(int64_t origin, Entry place) const {
    return {this->input.keys[origin + place], this->payload(origin, place)};
  }
};

// The ranks of a row's keys in shared memory. The lower
// halves of all 64-bit ranks come before the upper halves.
template <typename Word>
class RowRanks {
 public:
  __device__ RowRanks(void* words, int items) : words_(static_cast<uint32_t*>(words)), items_(items) {}

  __device__ __forceinline__ void put(int place, Word rank) const {
    words_[place] = static_cast<uint32_t>(rank);
    if constexpr (sizeof(Word) == 8) words_[items_ + place] = static_cast<uint32_t>(rank >> 32);
  }
  __device__ __forceinline__ unsigned digit(int place, int pass) const {
    return digit_at(words_[(sizeof(Word) == 8 ? pass / 4 * items_ : 0) + place], pass % 4);
  }

 private:
  uint32_t* words_;
  int items_;
};

// Each thread loads kTogether items before it stores the first.
template <int kTogether, typename P>
__device__ __forceinline__ void put_live(const P& problem, int64_t origin, const typename P::Entry* sorted, int live) {
  const int threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int begin = static_cast<int>(threadIdx.x); begin < live; begin += kTogether * threads) {
    typename P::Item items[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = begin + i * threads;
      if (at < live) items[i] = problem.item(origin, sorted[at]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = begin + i * threads;
      if (at < live) problem.put(origin, at, items[i]);
    }
  }
}

// Calls read(number) with the smallest of three compile-time numbers that is at least `groups`.
template <typename Read>
__device__ __forceinline__ void read_groups(int groups, Read read) {
  if (groups <= kRowDigitItems / 4) {
    read(std::integral_constant<int, kRowDigitItems / 4>{});
  } else if (groups <= kRowDigitItems / 2) {
    read(std::integral_constant<int, kRowDigitItems / 2>{});
  } else {
    read(std::integral_constant<int, kRowDigitItems>{});
  }
}

template <typename P>
__global__ void __launch_bounds__(kRowDigitThreads) sort_rows_by_digits(const __grid_constant__ P problem) {
  using Entry = typename P::Entry;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ unsigned sums[kDigits / kWarp];
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int warps = threads / kWarp, warp = thread / kWarp, lane = thread % kWarp;
  auto* const all_counts = reinterpret_cast<unsigned (*)[kDigits]>(shared_bytes);
  auto* const sorted = reinterpret_cast<Entry*>(all_counts + warps);
  unsigned* const counts = all_counts[warp];
  const unsigned lanes_before = (1u << lane) - 1;
  const int groups = problem.groups;
  const int first = warp * groups * kWarp + lane;
  const int64_t row = blockIdx.x, origin = row * problem.length;
  const int length = static_cast<int>(problem.length), live = static_cast<int>(problem.counts(row, problem.length));

  // The loads of several groups come before the first use of any.
  Entry entries[kRowDigitItems];
  [[maybe_unused]] const RowRanks<typename P::Word> ranks(sorted + threads * groups, threads * groups);
  const auto read = [&](int begin, auto number, auto take) {
    typename P::Word keys[number()];
#pragma unroll
    for (int i = 0; i < number(); ++i) {
      const int at = first + (begin + i) * kWarp;
      keys[i] = begin + i < groups && at < live ? problem.input.keys[origin + at] : 0;
    }
#pragma unroll
    for (int i = 0; i < number(); ++i) take(i, keys[i]);
  };
  if constexpr (P::kLooksUp) {
    constexpr int kTogether = 32 / sizeof(typename P::Word);
#pragma unroll 1
    for (int begin = 0; begin < groups; begin += kTogether) {
      read(begin, std::integral_constant<int, kTogether>{}, [&](int i, typename P::Word key) {
        const auto rank = problem.order.rank(problem.order.encode(key));
        if (begin + i < groups) ranks.put(first + (begin + i) * kWarp, rank);
      });
    }
#pragma unroll
    for (int i = 0; i < kRowDigitItems; ++i) entries[i] = static_cast<Entry>(first + i * kWarp);
  } else {
    read_groups(groups, [&](auto number) {
      read(0, number, [&](int i, typename P::Word key) { entries[i] = problem.entry(key, first + i * kWarp); });
    });
  }
  [[maybe_unused]] bool is_moved = false;
#pragma unroll 1
  for (int pass = 0; pass < problem.places; ++pass) {
    if (P::kLooksUp ? is_moved : pass > 0) {
#pragma unroll
      for (int i = 0; i < kRowDigitItems; ++i) {
        if (i < groups) entries[i] = sorted[first + i * kWarp];
      }
    }
    [[maybe_unused]] unsigned digits[P::kLooksUp ? kRowDigitItems : 1];
    if constexpr (P::kLooksUp) {
#pragma unroll
      for (int i = 0; i < kRowDigitItems; ++i) {
        if (i < groups) digits[i] = first + i * kWarp < live ? ranks.digit(entries[i], pass) : kDigits - 1;
      }
    }
    const auto digit = [&](int i) {
      if constexpr (P::kLooksUp) {
        return digits[i];
      } else {
        return problem.digit(entries[i], pass, first + i * kWarp < live);
      }
    };
#pragma unroll
    for (int i = 0; i < kDigits / kWarp; ++i) counts[i * kWarp + lane] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowDigitItems; ++i) {
      if (i < groups) atomicAdd(counts + digit(i), 1u);
    }
    __syncthreads();
    unsigned count = 0;
    if (thread < kDigits) {
#pragma unroll 4
      for (int w = 0; w < warps; ++w) count += all_counts[w][thread];
    }
    if constexpr (P::kLooksUp) {
      const int past = thread == kDigits - 1 ? threads * groups - live : 0;
      if (__syncthreads_or(thread < kDigits && static_cast<int>(count) == live + past)) continue;
      is_moved = true;
    }
    if (thread < kDigits) turn_into_places(all_counts, warps, count, sums);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRowDigitItems; ++i) {
      if (i < groups) sorted[take_place(counts, digit(i), lanes_before)] = entries[i];
    }
    __syncthreads();
  }
  if (P::kLooksUp && !is_moved) {
#pragma unroll
    for (int i = 0; i < kRowDigitItems; ++i) {
      if (i < groups) sorted[first + i * kWarp] = entries[i];
    }
    __syncthreads();
  }
  problem.stores_entries() ? put_live<1>(problem, origin, sorted, live) : put_live<4>(problem, origin, sorted, live);
  for (int at = live + thread; at < length; at += threads) problem.put_dead(origin, at);
}

}  // namespace mgpu::cuda::sorting
