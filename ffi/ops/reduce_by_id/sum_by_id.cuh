// The kernels of reduce_by_id for sums of floats of 32 and 16 bits. Sums of floats depend on their order, so atomic
// additions of floats would give other bits in each run. Here each item adds an integer to one limb of its id's exact
// sum (algorithm/exact_sum.h). The order of these additions does not matter. Limbs are numbered from the largest
// exponent of a float32, and a mask has the limbs in use, so that the others are cleared but not read.
// docs/notes/by_id.md tells what else was tried.
#pragma once

#include "algorithm/exact_sum.h"
#include "cuda/block/vectors.cuh"
#include "ops/reduce_by_id/combine_by_id.cuh"

namespace mgpu::cuda::id_summing {

using namespace id_combining;

// A limb of an item's sum.
template <typename Element_>
struct LimbOf {
  using Element = Element_;
  using State = uint64_t;
  using Result = uint64_t;
};

// The bytes of an entry of a block's table: two halves of a limb, and the number of the limb.
constexpr int64_t kSumEntryBytes = 12;

// The limbs in use.
struct LimbRange {
  int first;
  int used;          // limbs of finite items
  bool has_special;  // whether there are infinities or NaN

  __device__ LimbRange(const ExactSum& sum, uint64_t mask) {
    const uint64_t special = uint64_t{1} << sum.limbs(), finite = mask & (special - 1) ? mask & (special - 1) : 1;
    first = __ffsll(static_cast<long long>(finite)) - 1;
    const auto low = static_cast<int>(finite), high = static_cast<int>(finite >> 32);
    used = (high != 0 ? 64 - __clz(high) : 32 - __clz(low)) - first;
    has_special = mask & special;
  }
};

template <typename Operator>
struct IdSums {
  IdCombination<LimbOf<typename Operator::Element>> items;  // its states are limbs, [problems, limbs, slots]
  ExactSum sum;
  unsigned long long* mask;  // of the limbs in use
  ResultVector<Operator> result;
  unsigned range_ids = 0;  // the ids of a block of sum_ranges
  // For tables of digits (sum_by_digits.cuh): the slots, rounded up to whole_entries, and the groups of each slot.
  unsigned table_slots = 0;
  unsigned table_groups = 0;

  __device__ unsigned long long* limbs_of(int64_t problem) const {
    return reinterpret_cast<unsigned long long*>(items.states) + problem * (sum.limbs() + 1) * items.slots;
  }

  // Adds limbs to those in use. All threads of a warp call it.
  __device__ void mark_warp(uint64_t used) const {
    used = fold_warp(used, [](uint64_t a, uint64_t b) { return a | b; });
    const bool is_new = (used & ~*static_cast<volatile unsigned long long*>(mask)) != 0;
    if (threadIdx.x % kWarp == 0 && is_new) atomicOr(mask, static_cast<unsigned long long>(used));
  }

  // All threads of a block call it, and wait for each other.
  __device__ void mark(uint64_t used) const {
    __shared__ uint64_t of_warps[kWarp];
    used = fold_warp(used, [](uint64_t a, uint64_t b) { return a | b; });
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = used;
    __syncthreads();
    if (threadIdx.x < kWarp) mark_warp(of_warps[threadIdx.x]);
  }
};

// Finds the limbs of all items, including dead ones, which at worst waste limbs. The mask is clear.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) find_limbs(IdSums<Operator> sums, int64_t count) {
  uint64_t used = 0;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const auto limbs = static_cast<unsigned>(sums.sum.limbs());
    const auto term = sums.sum.term(widen(sums.items.x[i]), ExactSum::kLargestExponent, limbs);
    used |= static_cast<uint64_t>(term.value != 0) << term.limb;
  }
  sums.mark(used);
}

// Clears the limbs in use, or all limbs and the mask, which follows them.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) clear_limbs(IdSums<Operator> sums, bool clears_all) {
  start_next_kernel();
  const int64_t slots = sums.items.slots, problems = sums.items.segments.rows;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  if (clears_all) {
    for (int64_t i = first; i <= problems * (sums.sum.limbs() + 1) * slots; i += step) sums.items.states[i] = 0;
    return;
  }
  const uint64_t used = *sums.mask;
  for (int64_t problem = 0; problem < problems; ++problem) {
    for (int k = 0; k <= sums.sum.limbs(); ++k) {
      if ((used >> k & 1) == 0) continue;
      for (int64_t i = first; i < slots; i += step) sums.limbs_of(problem)[k * slots + i] = 0;
    }
  }
}

// A block's table of limbs. The first limb to reach an entry keeps it, as in combine_items. A limb has two halves, as
// shared memory has no native atomic addition of 64 bits.
class LimbTable {
 public:
  __device__ __forceinline__ LimbTable(uint32_t* words, int entries)
      : low_(words), high_(words + entries), tags_(words + 2 * entries), entries_(entries) {
    for (int i = threadIdx.x; i < entries; i += kThreads) {
      low_[i] = high_[i] = 0;
      tags_[i] = kNobody;
    }
  }

  // Adds the terms of a thread's items to the limbs `keys`, in the table or among `limbs` in device memory. All threads
  // of a warp call it together. The value before an addition to the low half gives the carry. All additions to low
  // halves are in flight before the first carry is needed.
  __device__ __forceinline__ void add(const uint32_t (&keys)[kInFlight], uint64_t (&terms)[kInFlight],
                                      unsigned long long* limbs) const {
    const Places<false, kInFlight> places(keys, tags_, entries_);
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
      if (sum != 0) atomicAdd(limbs + tags_[i], static_cast<unsigned long long>(sum));
    }
  }

 private:
  uint32_t* low_;
  uint32_t* high_;
  uint32_t* tags_;
  int entries_;
};

// Takes the place of a table that would hold only few of many limbs: it adds to device memory.
struct NoTable {
  __device__ __forceinline__ void add(const uint32_t (&keys)[kInFlight], const uint64_t (&terms)[kInFlight],
                                      unsigned long long* limbs) const {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (keys[k] != kNobody) atomicAdd(limbs + keys[k], static_cast<unsigned long long>(terms[k]));
    }
  }
  __device__ __forceinline__ void flush(unsigned long long* /*limbs*/) const {}
};

// Whether ids are so frequent in a sample of a block's items that a table of some limbs pays. `tags` is scratch memory.
template <typename Items>
__device__ inline bool has_frequent_ids(const Items& items, uint32_t* tags) {
  constexpr unsigned kTags = 4096;
  for (unsigned i = threadIdx.x; i < kTags; i += kThreads) tags[i] = kNobody;
  const auto item = static_cast<unsigned>(uint64_t{items.count} * threadIdx.x / kThreads);
  const auto id = items.count > 0 ? static_cast<uint32_t>(items.ids[items.width(item)]) : 0;
  __syncthreads();
  const bool is_known = atomicCAS(tags + (id ^ id >> 12) % kTags, kNobody, id) == id;
  return __syncthreads_count(is_known) > kThreads / 16;
}

// Adds a block's items up in a table, and then the table to the limbs in device memory.
template <typename Operator, typename Items, typename Table>
__device__ __forceinline__ void add_part(const IdSums<Operator>& sums, const Items& items, const Table& table) {
  const auto slot_count = static_cast<unsigned>(sums.items.slots), limb_count = static_cast<unsigned>(sums.sum.limbs());
  auto* const limbs = sums.limbs_of(sums.items.problem());
  uint64_t used = 0;
  __syncthreads();
  items.for_each([&](auto& elements, uint32_t (&keys)[kInFlight], auto /*row_of*/) {
    uint64_t terms[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const auto term = sums.sum.term(widen(elements[k]), ExactSum::kLargestExponent, limb_count);
      terms[k] = term.value;
      if (term.value == 0) keys[k] = kNobody;
      if (keys[k] == kNobody) continue;
      keys[k] += term.limb * slot_count;
      used |= uint64_t{1} << term.limb;
    }
    table.add(keys, terms, limbs);
  });
  sums.mark(used);
  table.flush(limbs);
}

// Adds the items up. The limbs and the mask are clear.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) sum_items(const __grid_constant__ IdSums<Operator> sums) {
  extern __shared__ uint32_t words[];
  start_next_kernel();
  const Part<LimbOf<typename Operator::Element>> items(sums.items, false);
  const bool has_table = has_frequent_ids(items, words);
  wait_for_last_kernel();
  if (has_table) {
    add_part(sums, items, LimbTable(words, sums.items.entries));
  } else {
    add_part(sums, items, NoTable{});
  }
}

// The result of a slot, given its limbs: limb(k) is a reference to limb k.
template <typename Operator, typename Limb>
__device__ float sum_of(const IdSums<Operator>& sums, const LimbRange& range, Limb limb) {
  const uint64_t special = range.has_special ? uint64_t{limb(sums.sum.limbs())} : 0;
  if (special != 0) return ExactSum::special(special);
  const uint32_t largest = ExactSum::kLargestExponent - static_cast<uint32_t>(range.first * sums.sum.binades);
  return sums.sum.round([&](int k) -> decltype(limb(k)) { return limb(range.first + k); }, range.used, largest);
}

template <typename Operator>
__global__ void finish_sums(IdSums<Operator> sums, Operator op) {
  wait_for_last_kernel();
  const int64_t slots = sums.items.slots;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= sums.items.segments.rows * slots) return;
  const int64_t problem = i / slots;
  auto* const limbs = sums.limbs_of(problem) + (i - problem * slots);
  const float sum =
      sum_of(sums, LimbRange(sums.sum, *sums.mask), [=](int k) -> unsigned long long& { return limbs[k * slots]; });
  sums.result.store(i, op.finish(sum, 0));
}

// The halves of sums of 64 bits in shared memory.
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

// A block of sum_ranges goes over a few thousand rows at a time, and lists those whose ids are in its range.
constexpr unsigned kListedIds = 16;  // per thread
constexpr unsigned kListedRows = kListedIds * kThreads;

template <typename Id>
class RowList {
 public:
  __device__ RowList(const Id* ids, unsigned rows, unsigned first_id, unsigned own_ids, uint32_t* list)
      : ids_(ids), rows_(rows), first_(first_id), own_(own_ids), list_(list) {
    is_aligned_ = reinterpret_cast<uintptr_t>(ids) % minimum<int>(4 * sizeof(Id), 16) == 0;
  }

  // Loads the ids of the rows from `begin` on.
  __device__ __forceinline__ void fetch(unsigned begin) {
#pragma unroll
    for (unsigned k = 0; k < kListedIds; k += 4) {
      const unsigned row = row_of(begin, k);
      Id four[4] = {-1, -1, -1, -1};
      if (is_aligned_ && row + 4 <= rows_) {
        load_bytes<sizeof(four)>(four, ids_ + row);
      } else {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          if (row + j < rows_) four[j] = ids_[row + j];
        }
      }
      memcpy(next_ + k, four, sizeof(four));
    }
  }

  // Lists the fetched rows whose ids are in the range. `listed` is 0 before. All threads call it, then __syncthreads().
  __device__ __forceinline__ void list(unsigned begin, uint32_t* listed) const {
    unsigned mine = 0;
#pragma unroll
    for (unsigned k = 0; k < kListedIds; ++k) {
      using Unsigned = std::make_unsigned_t<Id>;
      mine |= static_cast<unsigned>(static_cast<Unsigned>(next_[k]) - Unsigned{first_} < Unsigned{own_}) << k;
    }
    const auto lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto count = static_cast<unsigned>(__popc(mine));
    unsigned place = count;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const unsigned before = shuffle_up(place, distance);
      if (lane >= distance) place += before;
    }
    unsigned base = 0;
    if (lane == kWarp - 1 && place > 0) base = atomicAdd(listed, place);
    place += __shfl_sync(0xffffffffu, base, kWarp - 1) - count;
    for (; mine != 0; mine &= mine - 1) {
      const auto k = static_cast<unsigned>(__ffs(static_cast<int>(mine)) - 1);
      list_[place++] = row_of(begin, k & ~3u) + k % 4;
    }
  }

 private:
  __device__ __forceinline__ static unsigned row_of(unsigned begin, unsigned k) {
    return begin + k * kThreads + threadIdx.x * 4;
  }

  const Id* ids_;
  unsigned rows_;
  unsigned first_;
  unsigned own_;
  uint32_t* list_;
  bool is_aligned_;
  Id next_[kListedIds];
};

// Adds up problems of few items. Each block reads all ids of a problem, and adds up the items of a range of ids, in a
// table of all limbs of these ids. Thus no block waits for another, and no limbs in device memory need to be clear. A
// block that has all ids takes an item per thread at a time. Others list their rows first, as most lanes of a warp
// would have no item.
template <bool kLists, typename Operator>
__global__ void __launch_bounds__(kThreads) sum_ranges(const __grid_constant__ IdSums<Operator> sums, Operator op) {
  extern __shared__ uint32_t table[];
  __shared__ uint32_t used_limbs, listed;
  const auto& combination = sums.items;
  const int64_t problem = blockIdx.x;
  const unsigned first_id = blockIdx.y * sums.range_ids, size = static_cast<unsigned>(combination.size);
  const unsigned own_ids = minimum(sums.range_ids, size - minimum(first_id, size));
  const Quotient width = combination.width;
  const unsigned slots = own_ids * width.divisor, limbs = sums.sum.limbs(), entries = (limbs + 1) * slots;
  const auto rows = static_cast<unsigned>(combination.segments.live(problem)), items = rows * width.divisor;
  const auto* const x = combination.x + problem * combination.x_stride * width.divisor;
  const Halves halves{table, table + entries};
  unsigned used = 0;
  const auto clear = [&] {
    for (unsigned i = threadIdx.x; i < 2 * entries; i += blockDim.x) table[i] = 0;
    if (threadIdx.x == 0) used_limbs = listed = 0;
    __syncthreads();
  };
  const auto add = [&](bool is_own, uint32_t slot, typename Operator::Element element) {
    const auto term = sums.sum.term(widen(element), ExactSum::kLargestExponent, limbs);
    uint64_t value = term.value;
    const uint32_t key = is_own && value != 0 ? slot + term.limb * slots : kNobody;
    if (key != kNobody) used |= 1u << term.limb;
    const bool alike = are_alike(key);
    if (alike) value = fold_warp(value, [](uint64_t a, uint64_t b) { return a + b; });
    if (key != kNobody && (!alike || threadIdx.x % kWarp == 0)) halves.add(key, value);
  };
  with_width<void>(combination.ids.from(problem * combination.ids_stride), [&](auto all_ids) {
    const auto* const ids = all_ids.data;
    using Id = std::remove_cvref_t<decltype(ids[0])>;
    if constexpr (kLists) {
      uint32_t* const list = table + 2 * entries;
      RowList<Id> own(ids, rows, first_id, own_ids, list);
      own.fetch(0);
      clear();
      for (unsigned begin = 0; begin < rows; begin += kListedRows) {
        own.list(begin, &listed);
        if (begin + kListedRows < rows) own.fetch(begin + kListedRows);
        __syncthreads();
        const unsigned found = listed * width.divisor;
        for (unsigned from = threadIdx.x / kWarp * kWarp; from < found; from += kThreads) {
          const unsigned i = minimum(from + threadIdx.x % kWarp, found - 1), place = width(i);
          const unsigned row = list[place], column = i - place * width.divisor;
          const auto own_id = static_cast<unsigned>(ids[row]) - first_id;
          add(from + threadIdx.x % kWarp < found, own_id * width.divisor + column, x[row * width.divisor + column]);
        }
        __syncthreads();
        if (threadIdx.x == 0) listed = 0;
        __syncthreads();
      }
    } else {
      const auto last = [&](unsigned item) { return minimum(item, items - 1); };
      Id id = 0;
      typename Operator::Element element{};
      const auto fetch = [&](unsigned item) { id = ids[width(last(item))], element = x[last(item)]; };
      if (items > 0) fetch(threadIdx.x);
      clear();
      for (unsigned from = threadIdx.x / kWarp * kWarp; from < items; from += blockDim.x) {
        const unsigned item = from + threadIdx.x % kWarp;
        if (from >= blockDim.x) fetch(item);
        const auto own_id = static_cast<std::make_unsigned_t<Id>>(id);
        add(item < items && own_id < own_ids,
            static_cast<unsigned>(own_id) * width.divisor + item - width(item) * width.divisor, element);
      }
    }
  });
  used = fold_warp(used, [](unsigned a, unsigned b) { return a | b; });
  if (threadIdx.x % kWarp == 0 && used != 0) atomicOr(&used_limbs, used);
  __syncthreads();
  const LimbRange range(sums.sum, used_limbs);
  for (unsigned i = threadIdx.x; i < slots; i += blockDim.x) {
    const float sum = sum_of(sums, range, [&](int k) -> HalvedLimb { return {halves, k * slots + i}; });
    sums.result.store(problem * combination.slots + int64_t{first_id} * width.divisor + i, op.finish(sum, 0));
  }
}

}  // namespace mgpu::cuda::id_summing
