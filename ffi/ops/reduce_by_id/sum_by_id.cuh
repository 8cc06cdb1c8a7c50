// The kernels of reduce_by_id for sums of floats of 32 and 16 bits. Sums of floats depend on their order, so atomic
// additions of floats would give other bits in each run. Here each item adds an integer to one limb of its id's exact
// sum (algorithm/exact_sum.h). The order of these additions does not matter. One pass over the items finds the range of
// their exponents, which determines the limbs in use. Then blocks add items up in a table in shared memory as far as
// possible, as in combine_by_id.cuh. Here each entry of a table is a limb.
//
// On an H200, on 2026-11-29, sums of 2^25 items by 10^6 ids take 0.420 ms, where 0.42 was predicted, and 0.204 if ids
// are skewed. A sort takes 0.855, and plain atomic additions of floats take 0.367. docs/notes/by_id.md tells what else
// was tried.
#pragma once

#include "algorithm/exact_sum.h"
#include "cuda/block/vectors.cuh"
#include "ops/reduce_by_id/combine_by_id.cuh"

namespace mgpu::cuda::id_summing {

using namespace id_combining;

// The magnitudes of items as the bits of floats, whose integer order is that of the floats.
struct Magnitudes {
  uint32_t largest;   // the largest of finite items
  uint32_t smallest;  // the smallest of items that are not 0, minus 1
  uint32_t most;      // the largest of all items, also infinities and NaN

  __device__ static Magnitudes none() { return {0, ~uint32_t{0}, 0}; }
  __device__ static Magnitudes join(const Magnitudes& a, const Magnitudes& b) {
    return {maximum(a.largest, b.largest), minimum(a.smallest, b.smallest), maximum(a.most, b.most)};
  }
};

template <typename Element_>
struct FindMagnitudes {
  using Element = Element_;
  using State = Magnitudes;
  using Result = uint32_t;
  static constexpr bool kGivesIndex = false;

  __device__ State identity() const { return Magnitudes::none(); }
  __device__ State extract(Element element, int64_t /*position*/) const {
    const unsigned bits = std::bit_cast<uint32_t>(widen(element)) & 0x7fffffffu;
    return {bits < ExactSum::kSpecial << ExactSum::kMantissaBits ? bits : 0, bits - 1, bits};
  }
  __device__ State combine(const State& a, const State& b) const { return Magnitudes::join(a, b); }
};

// The bytes of an entry of a block's table: two halves of a limb, and the number of the limb.
constexpr int64_t kSumEntryBytes = 12;

// The limbs in use.
struct LimbRange {
  uint32_t largest;  // the largest exponent of finite items
  int used;          // limbs of finite items; the limb of special items follows them
  int all;           // with the limb of special items, if there are any

  __device__ LimbRange(const ExactSum& sum, const Magnitudes& magnitudes)
      : largest(ExactSum::exponent(magnitudes.largest)) {
    // There may be no finite item, or none but zeros.
    const uint32_t smallest = minimum(ExactSum::exponent(magnitudes.smallest + 1), largest);
    used = static_cast<int>(sum.limb(smallest, largest)) + 1;
    all = used + (magnitudes.most >> ExactSum::kMantissaBits == ExactSum::kSpecial);
  }

  // All limbs.
  __device__ explicit LimbRange(const ExactSum& sum)
      : largest(ExactSum::kLargestExponent), used(sum.limbs()), all(used + 1) {}
};

template <typename Operator>
struct IdSums {
  IdCombination<FindMagnitudes<typename Operator::Element>> items;  // `states` are the magnitudes that blocks found
  int64_t x_count;                                                  // elements of all problems
  int blocks;                                                       // blocks that find magnitudes
  bool clears_all;                                                  // whether these blocks clear all limbs
  int64_t table_bytes;                                              // shared memory of a block that adds items
  ExactSum sum;
  Magnitudes* magnitudes;
  uint64_t* limbs;  // [problems, limbs, slots]
  ResultVector<Operator> result;
  // For tables of digits (sum_by_digits.cuh): the slots, rounded up to whole_entries, and the groups of each slot.
  unsigned table_slots = 0;
  unsigned table_groups = 0;

  __device__ uint64_t* limbs_of(int64_t problem) const { return limbs + problem * (sum.limbs() + 1) * items.slots; }
};

// Joins the magnitudes that the threads of a block found. All threads get the result.
__device__ inline Magnitudes join_block(Magnitudes own) {
  __shared__ Magnitudes of_warps[kWarp];
  const int lane = threadIdx.x % kWarp;
  own = fold_warp(own, Magnitudes::join);
  if (lane == 0) of_warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  return fold_warp(lane < static_cast<int>(blockDim.x) / kWarp ? of_warps[lane] : Magnitudes::none(), Magnitudes::join);
}

// Finds the magnitudes of all items, including dead items, which at worst waste limbs.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) find_magnitudes(IdSums<Operator> sums) {
  start_next_kernel();
  using Find = FindMagnitudes<typename Operator::Element>;
  const auto* const x = sums.items.x;
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const int64_t share = ceil_div<int64_t>(sums.x_count, sums.blocks), begin = blockIdx.x * share,
                end = minimum(begin + share, sums.x_count);
  Magnitudes found = Magnitudes::none();
  for (int64_t from = begin; from < end; from += kMaxPartItems / 2) {
    const int64_t to = minimum(from + kMaxPartItems / 2, end);
    found = Magnitudes::join(
        found, fold_strided<4, Gathered<Find>>(Find{}, x, aligned, from, to, static_cast<int>(threadIdx.x), kThreads));
  }
  found = join_block(found);
  if (threadIdx.x == 0) sums.items.states[blockIdx.x] = found;
  if (!sums.clears_all) return;
  const int64_t limbs = sums.items.segments.rows * sums.items.slots * (sums.sum.limbs() + 1);
  for (int64_t k = int64_t{blockIdx.x} * kThreads + threadIdx.x; k < limbs; k += int64_t{gridDim.x} * kThreads) {
    sums.limbs[k] = 0;
  }
}

// Joins what all blocks found. Block 0 stores it for later kernels.
template <typename Operator>
__device__ Magnitudes join_blocks(const IdSums<Operator>& sums) {
  const auto i = static_cast<int>(threadIdx.x);
  const Magnitudes found = join_block(i < sums.blocks ? sums.items.states[i] : Magnitudes::none());
  if (blockIdx.x == 0 && i == 0) *sums.magnitudes = found;
  return found;
}

// Clears the limbs in use.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) clear_limbs(IdSums<Operator> sums) {
  wait_for_last_kernel();
  start_next_kernel();
  const int64_t used = LimbRange(sums.sum, join_blocks(sums)).all * sums.items.slots;
  const int64_t problems = sums.items.segments.rows;
  for (int64_t k = int64_t{blockIdx.x} * kThreads + threadIdx.x; k < problems * used;
       k += int64_t{gridDim.x} * kThreads) {
    const int64_t problem = problems == 1 ? 0 : k / used;
    sums.limbs_of(problem)[k - problem * used] = 0;
  }
}

// A block's table of limbs. If it does not hold all limbs, the first limb to reach an entry keeps it, as in
// combine_items. A limb has two halves, as shared memory has no native atomic addition of 64 bits.
template <bool kHoldsAll>
class LimbTable {
 public:
  __device__ __forceinline__ LimbTable(uint32_t* words, int entries)
      : low_(words), high_(words + entries), tags_(words + 2 * entries), entries_(entries) {
    for (int i = threadIdx.x; i < entries; i += kThreads) {
      low_[i] = high_[i] = 0;
      if constexpr (!kHoldsAll) tags_[i] = kNobody;
    }
  }

  // Adds the terms of a thread's items to the limbs `keys`, in the table or among `limbs` in device memory. All threads
  // of a warp call it together. The value before an addition to the low half gives the carry. All additions to low
  // halves are in flight before the first carry is needed.
  __device__ __forceinline__ void add(const uint32_t (&keys)[kInFlight], uint64_t (&terms)[kInFlight],
                                      unsigned long long* limbs) const {
    const Places<kHoldsAll, kInFlight> places(keys, tags_, entries_);
    uint32_t before[kInFlight];
    bool in_halves[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      bool is_used = places.is_used(k);
      if (are_alike(keys[k])) {
        terms[k] = fold_warp(terms[k], [](uint64_t a, uint64_t b) { return a + b; });
        is_used &= threadIdx.x % kWarp == 0;
      }
      before[k] = 0;
      in_halves[k] = is_used && places.in_table(k);
      if (in_halves[k]) {
        before[k] = atomicAdd(places.address(k, low_, low_), static_cast<uint32_t>(terms[k]));
      } else if (is_used) {
        atomicAdd(limbs + keys[k], static_cast<unsigned long long>(terms[k]));
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const auto low_part = static_cast<uint32_t>(terms[k]);
      const uint32_t high_part = static_cast<uint32_t>(terms[k] >> 32) + (before[k] + low_part < before[k]);
      if (in_halves[k] && high_part != 0) atomicAdd(places.address(k, high_, high_), high_part);
    }
  }

  // Adds all entries to the limbs in device memory.
  __device__ __forceinline__ void flush(unsigned long long* limbs) const {
    for (int i = threadIdx.x; i < entries_; i += kThreads) {
      const uint64_t sum = uint64_t{high_[i]} << 32 | low_[i];
      if (sum != 0) atomicAdd(limbs + (kHoldsAll ? entry_of(i) : tags_[i]), static_cast<unsigned long long>(sum));
    }
  }

 private:
  uint32_t* low_;
  uint32_t* high_;
  uint32_t* tags_;  // unused if the table holds all limbs
  int entries_;
};

template <bool kHoldsAll, typename Operator>
__device__ __forceinline__ void add_part(const IdSums<Operator>& sums, const LimbRange& range, uint32_t* words) {
  const auto& combination = sums.items;
  const auto slot_count = static_cast<unsigned>(combination.slots);
  const LimbTable<kHoldsAll> table(
      words, kHoldsAll ? static_cast<int>(whole_entries(range.all * combination.slots)) : combination.entries);
  const int64_t problem = blockIdx.x / static_cast<unsigned>(combination.parts);
  using Find = FindMagnitudes<typename Operator::Element>;
  const Part<Find> items(combination, problem, blockIdx.x - problem * combination.parts, kHoldsAll);
  auto* const limbs = reinterpret_cast<unsigned long long*>(sums.limbs_of(problem));
  __syncthreads();
  items.for_each([&](auto& elements, uint32_t (&keys)[kInFlight], auto /*row_of*/) {
    uint64_t terms[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const auto term = sums.sum.term(widen(elements[k]), range.largest, static_cast<unsigned>(range.used));
      terms[k] = term.value;
      if (keys[k] != kNobody) keys[k] = term.value == 0 ? kNobody : keys[k] + term.limb * slot_count;
    }
    table.add(keys, terms, limbs);
  });
  __syncthreads();
  table.flush(limbs);
}

// Adds the items up. The table holds all limbs if there is room for them.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) sum_items(const __grid_constant__ IdSums<Operator> sums) {
  extern __shared__ uint32_t halves[];
  wait_for_last_kernel();  // the limbs are clear
  start_next_kernel();
  const LimbRange range(sums.sum, sums.clears_all ? join_blocks(sums) : *sums.magnitudes);
  if (whole_entries(range.all * sums.items.slots) * int64_t{sizeof(uint64_t)} <= sums.table_bytes) {
    add_part<true>(sums, range, halves);
  } else {
    add_part<false>(sums, range, halves);
  }
}

// The result of a slot, given its limbs: limb(k) is limb k.
template <typename Operator, typename Limb>
__device__ float sum_of(const IdSums<Operator>& sums, const LimbRange& range, Limb limb) {
  const uint64_t special = range.all > range.used ? uint64_t{limb(range.used)} : 0;
  return special != 0 ? ExactSum::special(special) : sums.sum.round(limb, range.used, range.largest);
}

template <typename Operator>
__global__ void finish_sums(IdSums<Operator> sums, Operator op) {
  wait_for_last_kernel();
  const int64_t slots = sums.items.slots;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= sums.items.segments.rows * slots) return;
  const LimbRange range(sums.sum, *sums.magnitudes);
  const int64_t problem = i / slots;
  uint64_t* const limbs = sums.limbs_of(problem) + (i - problem * slots);
  const float sum = sum_of(sums, range, [=](int k) -> uint64_t& { return limbs[k * slots]; });
  sums.result.store(i, op.finish(sum, 0));
}

// The halves of sums of 64 bits in shared memory, which has no native atomic addition of so many bits.
struct Halves {
  uint32_t* low;
  uint32_t* high;

  __device__ uint64_t sum(unsigned entry) const { return uint64_t{high[entry]} << 32 | low[entry]; }
  __device__ void add(unsigned entry, uint64_t value) const {
    const auto low_part = static_cast<uint32_t>(value);
    const uint32_t before = atomicAdd(low + entry, low_part);
    const uint32_t high_part = static_cast<uint32_t>(value >> 32) + (before + low_part < before);
    if (high_part != 0) atomicAdd(high + entry, high_part);
  }
};

// A limb with these halves, as ExactSum::round changes it.
struct HalvedLimb {
  const Halves& halves;
  unsigned entry;

  __device__ operator uint64_t() const { return halves.sum(entry); }
  __device__ void operator=(uint64_t sum) const {
    halves.low[entry] = static_cast<uint32_t>(sum);
    halves.high[entry] = static_cast<uint32_t>(sum >> 32);
  }
  __device__ void operator+=(uint64_t sum) const { *this = *this + sum; }
};

// Adds up a problem of few items in one block, whose table holds all limbs. Most of the time of a small problem is that
// of its instructions, so these loops are short, and items are read twice.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) sum_problem(const __grid_constant__ IdSums<Operator> sums, Operator op) {
  extern __shared__ uint32_t table[];
  const auto& combination = sums.items;
  const int64_t problem = blockIdx.x;
  const Quotient width = combination.width;
  const auto count = static_cast<unsigned>(combination.segments.live(problem) * width.divisor);
  const auto* const x = combination.x + problem * combination.x_stride * width.divisor;
  const IndexVector ids = combination.ids.from(problem * combination.ids_stride);
  Magnitudes found = Magnitudes::none();
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
    found = Magnitudes::join(found, FindMagnitudes<typename Operator::Element>{}.extract(x[i], 0));
  }
  const LimbRange range(sums.sum, join_block(found));
  const auto slots = static_cast<unsigned>(combination.slots);
  const unsigned entries = static_cast<unsigned>(range.all) * slots;
  const Halves halves{table, table + entries};
  for (unsigned i = threadIdx.x; i < 2 * entries; i += blockDim.x) table[i] = 0;
  __syncthreads();
  for (unsigned first = 0; first < count; first += blockDim.x) {
    const unsigned i = first + threadIdx.x;
    uint32_t key = kNobody;
    uint64_t value = 0;
    if (i < count) {
      const unsigned row = width(i);
      const int64_t id = ids[row];
      const auto term = sums.sum.term(widen(x[i]), range.largest, static_cast<unsigned>(range.used));
      value = term.value;
      if (id >= 0 && id < combination.size && value != 0) {
        key = static_cast<uint32_t>(id) * width.divisor + (i - row * width.divisor) + term.limb * slots;
      }
    }
    const bool alike = are_alike(key);
    if (alike) value = fold_warp(value, [](uint64_t a, uint64_t b) { return a + b; });
    if (key != kNobody && (!alike || threadIdx.x % kWarp == 0)) halves.add(key, value);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < slots; i += blockDim.x) {
    const float sum = sum_of(sums, range, [&](int k) -> HalvedLimb { return {halves, k * slots + i}; });
    sums.result.store(problem * slots + i, op.finish(sum, 0));
  }
}

}  // namespace mgpu::cuda::id_summing
