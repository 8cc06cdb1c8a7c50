// The first pass over the keys of a sort by digits: how many have each digit, at all places at once.
#pragma once

#include "cuda/segmented_sort/digit_problem.cuh"

namespace mgpu::cuda::sorting {

constexpr int kCountThreads = 512;
constexpr int kCounterCopies = 8;  // a lane adds to one of them: lanes seldom meet in a bank, whatever the keys

__device__ inline void add_to(uint32_t* sum, uint32_t count) { atomicAdd(sum, count); }
__device__ inline void add_to(uint64_t* sum, uint32_t count) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(count));
}

// Copies what lies past a row's live items, which stays where it is.
template <typename P>
__device__ void copy_dead(const P& problem, int64_t row_begin, int64_t begin, int64_t end) {
  const auto& [keys, payload] = problem.buffers[0];
  for (int64_t i = begin + threadIdx.x; i < end; i += kCountThreads) {
    keys[row_begin + i] = problem.input.keys[row_begin + i];
    if constexpr (P::kHasPayload) {
      payload[row_begin + i] = problem.input.payload ? problem.input.payload[row_begin + i] : P::position_payload(i);
    }
  }
}

// Makes starts of a row's counts, a warp a place, and notes which passes the row takes. By all threads of one block.
template <typename P>
__device__ void find_starts(const P& problem, int64_t row) {
  using Offset = typename P::Offset;
  constexpr int kEach = kDigits / kWarp;
  __shared__ unsigned taken;
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  const int place = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (place < problem.places) {
    Offset* const starts = problem.starts + (row * problem.places + place) * kDigits + lane * kEach;
    const Offset live = static_cast<Offset>(problem.live(row));
    Offset counts[kEach];
    Offset sum = 0;
    bool is_only = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      counts[i] = __ldcg(starts + i);
      sum += counts[i];
      is_only |= counts[i] == live;
    }
    Offset before = sum;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const Offset below = __shfl_up_sync(~0u, before, distance);
      if (lane >= distance) before += below;
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      starts[i] = before;
      before += counts[i];
    }
    if (!__any_sync(~0u, is_only) && lane == 0) atomicOr(&taken, 1u << place);
  }
  __syncthreads();
  if (threadIdx.x == 0) problem.passes[row] = taken ? taken : 1;
}

// By all blocks: the words of the look-back, which the passes after this kernel read.
template <typename P>
__device__ void clear_sums(const P& problem) {
  const int64_t words = problem.rows * problem.row_tiles * kDigits;
  const int64_t step = gridDim.x * int64_t{kCountThreads};
  for (int64_t i = blockIdx.x * int64_t{kCountThreads} + threadIdx.x; i < words; i += step) problem.sums[i] = 0;
}

// Counts the digits of `part_items` items of a row, of which `parts` blocks have one part each. The last of them to be
// done finds the starts. Shared memory is for problem.places * kDigits * kCounterCopies counters.
template <typename P>
__global__ void __launch_bounds__(kCountThreads)
    count_digits(const __grid_constant__ P problem, int64_t parts, int64_t part_items) {
  using Word = typename P::Word;
  constexpr int kInFlight = 8;  // loads before the first use
  extern __shared__ unsigned counters[];
  if (problem.is_left_to_merging()) return;
  clear_sums(problem);
  const int64_t row = blockIdx.x / parts;
  const int64_t begin = (blockIdx.x - row * parts) * part_items;
  const int64_t limit = minimum(begin + part_items, problem.length);
  const int64_t end = minimum(limit, problem.live(row));
  const int64_t row_begin = row * problem.length;
  const int places = problem.places;
  const int skipped_bits = kDigitBits * problem.place(0);
  const int all = places * kDigits * kCounterCopies;
  for (int i = threadIdx.x; i < all; i += kCountThreads) counters[i] = 0;
  __syncthreads();

  const Word* const keys = problem.input.keys + row_begin;
  unsigned* const own = counters + threadIdx.x % kCounterCopies;
  const auto count = [&](Word key) {
    const auto rank = static_cast<Word>(problem.order.rank(problem.order.encode(key)) >> skipped_bits);
#pragma unroll
    for (int place = 0; place < static_cast<int>(sizeof(Word)); ++place) {
      if (place < places) atomicAdd(own + (place * kDigits + digit_at(rank, place)) * kCounterCopies, 1u);
    }
  };
  int64_t at = begin + threadIdx.x;
  for (; at + (kInFlight - 1) * kCountThreads < end; at += kInFlight * kCountThreads) {
    Word key[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) key[i] = keys[at + i * kCountThreads];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) count(key[i]);
  }
  for (; at < end; at += kCountThreads) count(keys[at]);
  copy_dead(problem, row_begin, maximum(begin, problem.live(row)), limit);
  __syncthreads();

  typename P::Offset* const counts = problem.starts + row * places * kDigits;
  for (int i = threadIdx.x; i < all; i += kCountThreads) {
    unsigned sum = counters[i];
#pragma unroll
    for (int distance = 1; distance < kCounterCopies; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (i % kCounterCopies == 0 && sum > 0) add_to(counts + i / kCounterCopies, sum);
  }
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(problem.counted + row, 1) == static_cast<int>(parts) - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  find_starts(problem, row);
}

}  // namespace mgpu::cuda::sorting
