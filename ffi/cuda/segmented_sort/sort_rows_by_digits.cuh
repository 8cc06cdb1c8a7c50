// Rows whose items fit into a block, of keys that differ in one or two digits: a block sorts a row by one digit after
// the other in shared memory, and reads and writes it once. Merging would take as long for keys of 8 bits as for any.
#pragma once

#include "cuda/segmented_sort/digit_places.cuh"
#include "cuda/segmented_sort/digit_problem.cuh"

namespace mgpu::cuda::sorting {

template <typename Order_, typename Payload_>
struct RowDigitsProblem {
  using Order = Order_;
  using Payload = Payload_;
  using Word = typename Order::Word;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  // What is sorted: narrow codes alone, or two digits of a rank, or such a code, and the item's place in the row. Codes
  // of floats are no ranks. A rank is found once, not for each pass, and the key is read again at its place.
  static constexpr bool kHasCode = sizeof(Word) <= 2 && Order::kTotal;
  static constexpr bool kHasPlace = kHasPayload || !kHasCode;
  using Entry = std::conditional_t<kHasPlace, uint32_t, Word>;
  static constexpr int kPlaceBits = 16;
  static_assert(kRowDigitItems * kRowDigitThreads <= 1 << kPlaceBits);

  Order order;
  int64_t length;  // of a row
  LiveCounts counts;
  int places;  // of digits
  int groups;  // of neighbouring items that a warp has, one a lane
  Columns<const Word, const Payload> input;
  Columns<Word, Payload> output;

  __device__ __forceinline__ Entry entry(Word key, int place) const {
    const Word rank = order.rank(order.encode(key));
    if constexpr (kHasPlace) {
      return static_cast<uint32_t>(rank) << kPlaceBits | static_cast<uint32_t>(place);
    } else {
      return rank;
    }
  }
  // The last ones, whose digits are the greatest, are those past the live items.
  __device__ __forceinline__ static unsigned digit(Entry entry, int pass, bool is_live) {
    const int shift = (kHasPlace ? kPlaceBits : 0) + kDigitBits * pass;
    return is_live ? static_cast<uint32_t>(entry) >> shift & (kDigits - 1) : kDigits - 1;
  }
  // Stores an item of the row that begins at `origin`.
  __device__ __forceinline__ void put(int64_t origin, int at, Entry entry) const {
    if constexpr (kHasPlace) {
      const int place = static_cast<int>(entry & ((1u << kPlaceBits) - 1));
      if constexpr (kHasCode) {
        output.keys[origin + at] = order.decode(static_cast<Word>(entry >> kPlaceBits));
      } else {
        output.keys[origin + at] = input.keys[origin + place];
      }
      put_payload(origin, at, place);
    } else {
      output.keys[origin + at] = order.decode(entry);
    }
  }
  __device__ __forceinline__ void put_dead(int64_t origin, int at) const {
    output.keys[origin + at] = input.keys[origin + at];
    put_payload(origin, at, at);
  }

 private:
  __device__ __forceinline__ void put_payload(int64_t origin, int at, int place) const {
    if constexpr (kHasPayload) {
      output.payload[origin + at] = input.payload ? input.payload[origin + place] : static_cast<Payload>(place);
    }
  }
};

// The counters of the warps, then the row's items.
template <typename P>
constexpr int row_digits_shared_bytes(int threads) {
  return threads / kWarp * kDigits * static_cast<int>(sizeof(unsigned)) +
         threads * kRowDigitItems * static_cast<int>(sizeof(typename P::Entry));
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
  const int length = static_cast<int>(problem.length);
  const int live = static_cast<int>(problem.counts(row, problem.length));

  Entry entries[kRowDigitItems];
#pragma unroll
  for (int i = 0; i < kRowDigitItems; ++i) {
    const int at = first + i * kWarp;
    entries[i] = Entry{0};
    if (i < groups && at < live) entries[i] = problem.entry(problem.input.keys[origin + at], at);
  }
#pragma unroll 1
  for (int pass = 0; pass < problem.places; ++pass) {
    if (pass > 0) {
#pragma unroll
      for (int i = 0; i < kRowDigitItems; ++i) {
        if (i < groups) entries[i] = sorted[first + i * kWarp];
      }
    }
    const auto digit = [&](int i) { return problem.digit(entries[i], pass, first + i * kWarp < live); };
#pragma unroll
    for (int i = 0; i < kDigits / kWarp; ++i) counts[i * kWarp + lane] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowDigitItems; ++i) {
      if (i < groups) atomicAdd(counts + digit(i), 1u);
    }
    __syncthreads();
    if (thread < kDigits) {
      unsigned count = 0;
#pragma unroll 4
      for (int w = 0; w < warps; ++w) count += all_counts[w][thread];
      turn_into_places(all_counts, warps, count, sums);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRowDigitItems; ++i) {
      if (i < groups) sorted[take_place(counts, digit(i), lanes_before)] = entries[i];
    }
    __syncthreads();
  }
#pragma unroll 4
  for (int at = thread; at < live; at += threads) problem.put(origin, at, sorted[at]);
  for (int at = live + thread; at < length; at += threads) problem.put_dead(origin, at);
}

}  // namespace mgpu::cuda::sorting
