// Before its passes, a radix sort counts the digits of each segment, at all places at once. A digit's place is its
// index in the key's rank, the word that compares as the key does.
#pragma once

#include "cuda/block/partition.cuh"
#include "cuda/block/shared_counters.cuh"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/digit_problem.cuh"

namespace mgpu::cuda::sorting {

constexpr int kCountThreads = 512;

__device__ inline void add_to(uint32_t* sum, uint32_t count) { atomicAdd(sum, count); }
__device__ inline void add_to(uint64_t* sum, uint32_t count) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(count));
}

template <typename P>
__device__ void clear_counters(const P& problem, unsigned* counters) {
  const int all = problem.places * kDigits * P::kCounterCopies;
  for (int i = threadIdx.x; i < all; i += kCountThreads) counters[i] = 0;
}

template <typename P, typename Keys>
__device__ void count_keys(const P& problem, const Keys& keys, int64_t begin, int64_t end, unsigned* counters) {
  using Word = typename P::Word;
  constexpr int kInFlight = 8;
  const int places = problem.places;
  const int skipped_bits = kDigitBits * problem.place(0);
  const SharedCounters own(counters + threadIdx.x % P::kCounterCopies);
  const auto count = [&](Word key) {
    const auto rank = static_cast<Word>(problem.order.rank(problem.order.encode(key)) >> skipped_bits);
#pragma unroll
    for (int place = 0; place < static_cast<int>(sizeof(Word)); ++place) {
      if (place < places) own.add_one((place * kDigits + digit_at(rank, place)) * P::kCounterCopies);
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
}

template <typename P>
__device__ void add_counters(const P& problem, int64_t segment, const unsigned* counters) {
  typename P::Offset* const counts = problem.starts + segment * problem.places * kDigits;
  const int all = problem.places * kDigits * P::kCounterCopies;
  for (int i = threadIdx.x; i < all; i += kCountThreads) {
    unsigned sum = counters[i];
#pragma unroll
    for (int distance = 1; distance < P::kCounterCopies; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (i % P::kCounterCopies == 0 && sum > 0) add_to(counts + i / P::kCounterCopies, sum);
  }
}

// Turns a segment's counts into starts (where the keys with each digit begin), one warp per place.
// Returns the passes that the segment takes, as a bitmap. All threads of one block call it.
template <typename P>
__device__ uint32_t find_starts(const P& problem, int64_t segment, int64_t live_items) {
  using Offset = typename P::Offset;
  constexpr int kEach = kDigits / kWarp;
  __shared__ unsigned taken;
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  const int place = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (place < problem.places) {
    Offset* starts = problem.starts + (segment * problem.places + place) * kDigits + lane * kEach;
    const Offset live = static_cast<Offset>(live_items);
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
    if constexpr (P::kSavesMemory) starts = problem.row_starts(segment) + place * kDigits + lane * kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      starts[i] = before;
      before += counts[i];
    }
    if (!__any_sync(~0u, is_only) && lane == 0) atomicOr(&taken, 1u << place);
  }
  __syncthreads();
  return taken ? taken : 1;
}

// Clears the words by which tiles look back in the next kernels. All blocks call it.
template <typename P>
__device__ void clear_sums(const P& problem, int64_t tiles) {
  const int64_t words = tiles * kDigits;
  const int64_t step = gridDim.x * int64_t{kCountThreads};
  for (int64_t i = blockIdx.x * int64_t{kCountThreads} + threadIdx.x; i < words; i += step) problem.sums[i] = 0;
}

// `parts` blocks share a row, at most `part_items` items each, and the last of these blocks to finish
// computes the starts. Shared memory has problem.places * kDigits * P::kCounterCopies counters.
template <typename P>
__global__ void __launch_bounds__(kCountThreads)
    count_digits(const __grid_constant__ P problem, int64_t parts, int64_t part_items) {
  extern __shared__ unsigned counters[];
  if (problem.is_left_to_merging()) return;
  clear_sums(problem, problem.rows * problem.row_word_tiles());
  const int64_t row = blockIdx.x / parts;
  const int64_t begin = (blockIdx.x - row * parts) * part_items;
  const int64_t limit = minimum(begin + part_items, problem.length);
  const int64_t row_begin = row * problem.length;
  clear_counters(problem, counters);
  __syncthreads();
  count_keys(problem, problem.input.keys + row_begin, begin, minimum(limit, problem.live(row)), counters);
  if constexpr (!P::kSavesMemory)
    copy_dead<kCountThreads>(problem, row_begin, 0, maximum(begin, problem.live(row)), limit);
  __syncthreads();
  add_counters(problem, row, counters);
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(problem.counted + row, 1u) == static_cast<unsigned>(parts) - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const uint32_t passes = find_starts(problem, row, problem.live(row));
  if (threadIdx.x == 0) problem.passes[row] = passes;
}

// A block's part of the key slots of all tiles, and the segment that
// the block is counting. In shared memory, it takes no registers.
template <typename P>
struct CountedPart {
  int64_t at;
  int64_t limit;
  int number;  // the number of the segment that has `at`
  DigitSegment segment;

  __device__ int64_t first() const { return segment.first_tile * P::kTile; }
  __device__ int64_t room() const { return ceil_div<int64_t>(segment.size, P::kTile) * P::kTile; }
  __device__ int64_t begin() const { return at - first(); }
  __device__ int64_t end() const { return minimum(limit - first(), room()); }
};

// Each block counts a part of the slots of all tiles, and adds its counters
// to a segment's counts where the segment or its part ends. The last
// block to finish a segment computes its starts, and describes its tiles.
template <typename P>
__global__ void __launch_bounds__(kCountThreads) count_segments(const __grid_constant__ P problem) {
  extern __shared__ unsigned counters[];
  __shared__ CountedPart<P> part;
  __shared__ bool is_last;
  wait_for_last_kernel();
  const int64_t tiles = problem.totals->tiles;
  clear_sums(problem, tiles);
  const int64_t size = ceil_div<int64_t>(tiles * P::kTile, gridDim.x);
  const int64_t begin = blockIdx.x * size;
  if (begin >= tiles * P::kTile) return;
  const auto starts_before = [&](int segment) { return problem.segments[segment].first_tile <= begin / P::kTile; };
  const int number = warp_partition_point(0, static_cast<int>(problem.totals->segments), starts_before) - 1;
  if (threadIdx.x == 0) part = {begin, minimum(begin + size, tiles * P::kTile), number, problem.segments[number]};
  __syncthreads();

  while (part.at < part.limit) {
    const DigitSegment& segment = part.segment;
    clear_counters(problem, counters);
    __syncthreads();
    count_keys(problem, problem.input.keys + segment.begin, part.begin(), minimum(part.end(), segment.live), counters);
    copy_dead<kCountThreads>(problem, segment.begin, segment.position, maximum(part.begin(), segment.live),
                             minimum(part.end(), segment.size));
    __syncthreads();
    add_counters(problem, part.number, counters);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto count = static_cast<unsigned>(part.end() - part.begin());
      is_last = atomicAdd(problem.counted + part.number, count) + count == static_cast<unsigned>(part.room());
    }
    __syncthreads();
    if (is_last) {
      __threadfence();
      const uint32_t passes = find_starts(problem, part.number, segment.live);
      if (threadIdx.x == 0) atomicOr(problem.taken, passes);
      const int segment_tiles = static_cast<int>(ceil_div<int64_t>(segment.size, P::kTile));
      for (int i = threadIdx.x; i < segment_tiles; i += kCountThreads) {
        const int64_t left = segment.live - int64_t{i} * P::kTile;
        problem.tiles[segment.first_tile + i] = {
            segment.begin, segment.position, part.number, i, static_cast<int>(clamp<int64_t>(left, 0, P::kTile)),
            passes};
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      part.at = part.first() + part.end();
      if (part.at < part.limit) part.segment = problem.segments[++part.number];
    }
    __syncthreads();
  }
}

}  // namespace mgpu::cuda::sorting
