// A block puts a bucket's rows of b into a table in shared memory and looks up rows of a in it.
// The first chunk of a bucket's rows of a has a block of its own, and other blocks share the further chunks.
//
// The table has a slot for each value of the kBucketSlotBits bits that follow the bucket's bits in a code. Entries in a
// slot are sorted by code, then by their rows in b. So the partners of a row of a are one range of the table.
#pragma once

#include "algorithm/partition_point.h"
#include "cuda/block/partition.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/sort_entries.cuh"
#include "cuda/block/tail.cuh"
#include "cuda/ptx.cuh"
#include "ops/bucket_join/plan.h"

namespace mgpu::cuda::bucket_joining {

constexpr int kThreads = kBucketShape.threads;
constexpr int kItems = kBucketShape.items;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSlots = 1 << kBucketSlotBits;
constexpr int kThreadWords = kSlots / 2 / kThreads;  // words of counters
static_assert(kBucketCapacity == kThreads * kItems && kBucketChunk == kThreads * kItems);
static_assert(kThreadWords == 4, "a thread scans its counters as one vector");
static_assert(kBucketCapacity < 1 << 15, "a counter has 16 bits, and so has a place in the table");

constexpr int resident_blocks_wanted() {
#if !defined(__CUDA_ARCH__)
  return kBucketBlocks;
#elif __CUDA_ARCH__ < 800
  return 1;
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
  return 2;
#else
  return kBucketBlocks;
#endif
}

constexpr int32_t kLargest = 0x7fffffff;

struct BucketShared {
  uint32_t codes[kBucketCapacity];
  int32_t rows[kBucketCapacity];
  // A counter for each slot, two per word: at first the number of the slot's entries, later the place of its first
  // entry. The word after the counters holds the number of all entries.
  alignas(16) uint32_t begins[kSlots / 2 + 4];
  int sums[kWarps];
  unsigned long long first_slot;
};

// Places in the table, two per register.
struct PackedPlaces {
  uint32_t words[kItems / 2];
  __device__ __forceinline__ int get(int k) const { return static_cast<int>(words[k / 2] >> k % 2 * 16 & 0xffff); }
  __device__ __forceinline__ void set(int k, int place) {
    words[k / 2] = __byte_perm(words[k / 2], static_cast<uint32_t>(place), k % 2 == 0 ? 0x3254 : 0x5410);
  }
};

class BucketTable {
 public:
  __device__ BucketTable(BucketShared& shared, int bucket_bits) : shared_(shared), bucket_bits_(bucket_bits) {}

  // `count` is at most kBucketCapacity. All threads of the block call it; the last step is a barrier.
  __device__ __forceinline__ void build(const uint32_t* codes, const int32_t* rows, int count) {
    const auto thread = static_cast<int>(threadIdx.x);
    auto* const counters = reinterpret_cast<uint4*>(shared_.begins) + thread;
    uint32_t code[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = k * kThreads + thread;
      code[k] = i < count ? codes[i] : 0;
    }
    *counters = make_uint4(0, 0, 0, 0);
    __syncthreads();
    PackedPlaces places{};  // at first, how many entries each item found in its slot
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k * kThreads + thread >= count) continue;
      const int at = slot(code[k]);
      const int shift = at % 2 * 16;
      places.set(k, static_cast<int>(atomicAdd(shared_.begins + at / 2, 1u << shift) >> shift & 0xffff));
    }
    __syncthreads();
    int32_t row[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = k * kThreads + thread;
      row[k] = i < count ? rows[i] : 0;
    }
    const bool has_long_list = count_to_begins(counters);
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k * kThreads + thread >= count) continue;
      const int place = begin(slot(code[k])) + places.get(k);
      shared_.codes[place] = code[k];
      shared_.rows[place] = row[k];
    }
    __syncthreads();
    if (has_long_list) {
      sort(count);
      return;
    }
    // An entry that is alone in its slot is in its place already.
    unsigned company = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k * kThreads + thread >= count) continue;
      int other = begin(slot(code[k]));
      const int end = begin(slot(code[k]) + 1);
      if (end - other == 1) continue;
      company |= 1u << k;
      int place = other;
      for (; other < end; ++other) {
        const uint32_t its_code = shared_.codes[other];
        place += its_code < code[k] || (its_code == code[k] && shared_.rows[other] < row[k]);
      }
      places.set(k, place);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if ((company >> k & 1) == 0) continue;
      shared_.codes[places.get(k)] = code[k];
      shared_.rows[places.get(k)] = row[k];
    }
    __syncthreads();
  }

  __device__ __forceinline__ void find(uint32_t code, int& first, int& number) const {
    const int at = slot(code);
    const int end = begin(at + 1);
    first = partition_point(begin(at), end, [&](int i) { return shared_.codes[i] < code; });
    number = partition_point(first, end, [&](int i) { return shared_.codes[i] == code; }) - first;
  }

  __device__ __forceinline__ int32_t row(int place) const { return shared_.rows[place]; }

 private:
  __device__ __forceinline__ int slot(uint32_t code) const { return bucket_slot(code, bucket_bits_); }
  __device__ __forceinline__ int begin(int slot) const {
    return reinterpret_cast<const uint16_t*>(shared_.begins)[slot];
  }

  // Turns the counters into the places where the slots begin, by an exclusive scan. Returns whether a slot has too many
  // entries for each to count those before it. Ends with a barrier.
  __device__ __forceinline__ bool count_to_begins(uint4* counters) {
    int sum = 0, longest = 0;
    for_each_word(counters, [&](uint32_t& word) {
      const int low = static_cast<int>(word & 0xffff), high = static_cast<int>(word >> 16);
      sum += low + high;
      longest = maximum(longest, maximum(low, high));
    });
    const auto [before, all] = sum_block<kWarps>(shared_.sums, sum);
    auto next = static_cast<uint32_t>(before);
    // The counters are read again, to save registers.
    *counters = for_each_word(counters, [&](uint32_t& word) {
      const uint32_t second = next + (word & 0xffff);
      const uint32_t pair = next | second << 16;
      next = second + (word >> 16);
      word = pair;
    });
    if (threadIdx.x == 0) shared_.begins[kSlots / 2] = static_cast<uint32_t>(all);
    return __syncthreads_or(longest > kBucketMaxComparedEntries);
  }

  template <typename Visit>
  __device__ __forceinline__ static uint4 for_each_word(const uint4* counters, Visit visit) {
    uint4 words = *counters;
    visit(words.x);
    visit(words.y);
    visit(words.z);
    visit(words.w);
    return words;
  }

  // Ends with a barrier. The codes of a bucket share the bits above the slot's, so sorting by code also sorts by slot.
  __device__ void sort(int count) {
    using Entry = SortedEntry<uint32_t>;
    const auto thread = static_cast<int>(threadIdx.x);
    Entry entries[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = k * kThreads + thread;
      entries[k] = i < count ? Entry{shared_.codes[i], static_cast<uint32_t>(shared_.rows[i])}
                             : Entry{~uint32_t{0}, static_cast<uint32_t>(kLargest)};  // comes last
    }
    __syncthreads();
    sort_entries<kThreads>(entries, reinterpret_cast<Entry*>(&shared_), kBucketCapacity);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = thread * kItems + k;
      if (i >= count) break;
      shared_.codes[i] = entries[k].rank();
      shared_.rows[i] = static_cast<int32_t>(entries[k].number());
    }
    __syncthreads();
  }

  BucketShared& shared_;
  int bucket_bits_;
};

struct BucketPart {
  int bucket;
  int chunk;
};

// The result for a row of a, in one word: the place in the table where its partners begin (high half), and the number
// of its output rows (low half).
constexpr uint32_t kLone = 0xffffu << 16;  // stands for that place if a row has no partners

// All threads of the block call it.
__device__ __forceinline__ void join_part(const BucketJoinOperands& operands, int problem, BucketPart part,
                                          unsigned long long* counters, BucketShared& shared) {
  const BucketSide a = operands.a_side(problem);
  const BucketSide b = operands.b_side(problem);
  const Range<int64_t> a_bucket = a.bucket(part.bucket);
  const Range<int64_t> b_bucket = b.bucket(part.bucket);
  const auto a_begin = static_cast<int>(minimum(a_bucket.begin + int64_t{part.chunk} * kBucketChunk, a_bucket.end));
  const auto a_count = static_cast<int>(minimum<int64_t>(a_bucket.end - a_begin, kBucketChunk));
  const auto b_count = static_cast<int>(minimum<int64_t>(b_bucket.size(), kBucketCapacity));
  if (a_count == 0 || (b_count == 0 && !operands.keep_a)) return;

  BucketTable table(shared, operands.bits);
  table.build(b.codes + b_bucket.begin, b.rows + b_bucket.begin, b_count);

  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const uint32_t* const codes = a.codes + a_begin;
  const int32_t* const rows = a.rows + a_begin;
  uint32_t found[kItems];  // at first the code, later the word that kLone describes
  int32_t row[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int i = k * kThreads + thread;
    found[k] = i < a_count ? codes[i] : 0;
    row[k] = i < a_count ? rows[i] : 0;
  }
  int made = 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    int first = 0, number = 0;
    if (k * kThreads + thread < a_count) {
      table.find(found[k], first, number);
      found[k] = static_cast<uint32_t>(first) << 16 | static_cast<uint32_t>(number);
      if (number == 0 && operands.keep_a) found[k] = kLone | 1;
    } else {
      found[k] = 0;
    }
    made += static_cast<int>(found[k] & 0xffff);
  }

  // One atomic addition claims slots of the output for the whole block. Each warp takes those after the earlier warps'.
  const auto [before, all] = sum_block<kWarps>(shared.sums, made);
  if (thread == 0) shared.first_slot = atomicAdd(counters + problem, static_cast<unsigned long long>(all));
  const int warp_before = __shfl_sync(~0u, before, 0);
  __syncthreads();
  const auto first_slot = static_cast<int64_t>(shared.first_slot) + warp_before;
  int32_t* const a_out = operands.a_rows + int64_t{problem} * operands.size + first_slot;
  int32_t* const b_out = operands.b_rows + int64_t{problem} * operands.size + first_slot;
  const auto room = static_cast<int>(clamp<int64_t>(operands.size - first_slot, 0, kLargest));
  const auto put = [&](int slot, int32_t a_row, uint32_t its_found, int rank) {
    if (slot >= room) return;
    a_out[slot] = a_row;
    b_out[slot] = its_found >= kLone ? -1 : table.row(static_cast<int>(its_found >> 16) + rank);
  };
  int slot = 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const auto number = static_cast<int>(found[k] & 0xffff);
    if (!__any_sync(~0u, number > 1)) {
      const unsigned makers = __ballot_sync(~0u, number == 1);
      if (number == 1) put(slot + __popc(makers & ((1u << lane) - 1)), row[k], found[k], 0);
      slot += __popc(makers);
      continue;
    }
    // Each lane finds the row of a that its slot belongs to.
    const int up_to = sum_up_to(number);
    const int total = __shfl_sync(~0u, up_to, kWarp - 1);
    for (int first = 0; first < total && slot + first < room; first += kWarp) {
      const int own = first + lane;
      int maker = 0;
#pragma unroll
      for (int step = kWarp / 2; step > 0; step /= 2) {
        if (__shfl_sync(~0u, up_to, maker + step - 1) <= own) maker += step;
      }
      const int its_begin = __shfl_sync(~0u, up_to - number, maker);
      const int32_t its_row = __shfl_sync(~0u, row[k], maker);
      const uint32_t its_found = __shfl_sync(~0u, found[k], maker);
      if (own < total) put(slot + own, its_row, its_found, own - its_begin);
    }
    slot += total;
  }
}

// The first blocks of a problem take the buckets' first
// chunks. The other blocks share the further chunks.
static __global__ void __launch_bounds__(kThreads, resident_blocks_wanted())
    join_buckets(const __grid_constant__ BucketJoinOperands operands, unsigned long long* counters) {
  start_next_kernel();
  __shared__ BucketShared shared;
  const auto buckets = static_cast<int>(operands.buckets());
  const auto blocks = static_cast<unsigned>(operands.blocks());
  const auto problem = static_cast<int>(blockIdx.x / blocks);
  // The chunk's number among those beyond the first of each bucket. Numbers from -buckets to -1 are first chunks.
  int chunk = static_cast<int>(blockIdx.x % blocks) - buckets;
#pragma unroll 1
  for (;;) {
    BucketPart part{buckets + chunk, 0};
    if (chunk >= 0) {
      const int32_t* const extra = operands.extra_chunks + problem * operands.extra_stride;
      const auto chunks = static_cast<int>(minimum<int64_t>(extra[buckets], operands.max_extra_chunks()));
      if (chunk >= chunks) return;
      part.bucket = warp_partition_point<>(0, buckets, [&](int i) { return extra[i + 1] <= chunk; });
      part.bucket = minimum(part.bucket, buckets - 1);
      part.chunk = 1 + clamp(chunk - extra[part.bucket], 0, chunks);
    }
    join_part(operands, problem, part, counters, shared);
    if (chunk < 0) return;
    __syncthreads();  // before the next part uses the shared memory
    chunk += static_cast<int>(operands.extra_blocks());
  }
}

static __global__ void finish_counts(const __grid_constant__ BucketJoinOperands operands,
                                     const unsigned long long* counters) {
  wait_for_last_kernel();
  for (int64_t problem = blockIdx.x * int64_t{kTailThreads} + threadIdx.x; problem < operands.problems;
       problem += gridDim.x * int64_t{kTailThreads}) {
    operands.set_count(problem, counters[problem]);
  }
  for_each_tail_slot(
      operands.problems, operands.size,
      [&](int64_t problem) {
        return static_cast<int64_t>(minimum<unsigned long long>(counters[problem], operands.size));
      },
      [&](int64_t problem, int64_t slot) {
        operands.a_rows[problem * operands.size + slot] = -1;
        operands.b_rows[problem * operands.size + slot] = -1;
      });
}

}  // namespace mgpu::cuda::bucket_joining
