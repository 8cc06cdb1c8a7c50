// Sums of floats of up to 32 bits, by additions of integers to the limbs of
// exact sums (algorithm/exact_sum.h). The order of these additions does not
// matter, so the result has the same bits in each run. Limbs are numbered
// from the largest exponent of a float32. docs/notes/by_id.md has the
// trials.
#pragma once

#include "algorithm/exact_sum.h"
#include "cuda/block/vectors.cuh"
#include "ops/reduce_by_id/combine_by_id.cuh"

namespace mgpu::cuda::id_summing {

using namespace id_combining;

// The types of a combination whose states are limbs.
template <typename Element_>
struct LimbOf {
  using Element = Element_;
  using State = uint64_t;
  using Result = uint64_t;
};

// The bytes of an entry of a block's table: two halves of a limb, and the number of the limb.
constexpr int64_t kSumEntryBytes = 12;

// The limbs to read, given a mask of those in use.
struct LimbRange {
  int first;
  int used;          // the number of limbs from the first to the last that finite items use
  bool has_special;  // whether there are infinities or NaN

  __device__ LimbRange(const ExactSum& sum, uint64_t mask) {
    const uint64_t special = uint64_t{1} << sum.limbs(), finite = mask & (special - 1) ? mask & (special - 1) : 1;
    first = __ffsll(static_cast<long long>(finite)) - 1;
    const auto low = static_cast<int>(finite), high = static_cast<int>(finite >> 32);
    used = (high != 0 ? 64 - __clz(high) : 32 - __clz(low)) - first;
    has_special = mask & special;
  }

  __device__ bool has(int limb, const ExactSum& sum) const {
    return limb == sum.limbs() ? has_special : limb >= first && limb < first + used;
  }
};

template <typename Operator>
struct IdSums {
  IdCombination<LimbOf<typename Operator::Element>> items;  // its states are limbs, [problems, limbs, slots]
  ExactSum sum;
  unsigned long long* mask;  // of the limbs in use
  ResultVector<Operator> result;
  unsigned range_ids = 0;  // the number of ids per block of sum_ranges
  // For tables of digits (sum_by_digits.cuh): the slots, rounded up to whole_entries, and the most groups per slot.
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
    if (threadIdx.x < kWarp) mark_warp(threadIdx.x < blockDim.x / kWarp ? of_warps[threadIdx.x] : 0);
  }
};

// Finds the limbs of all items, dead ones too.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) find_limbs(IdSums<Operator> sums, int64_t count) {
  start_next_kernel();
  using Element = typename Operator::Element;
  const auto* const x = sums.items.x;
  constexpr int kItems = Vector<Element>::kItems;
  const auto limbs = static_cast<unsigned>(sums.sum.limbs());
  uint64_t used = 0;
  const auto take = [&](Element element) {
    const float item = widen(element);
    const auto field = std::bit_cast<uint32_t>(item) >> ExactSum::kMantissaBits & ExactSum::kSpecial;
    const unsigned limb =
        field == ExactSum::kSpecial ? limbs : sums.sum.limb(maximum(field, 1u), ExactSum::kLargestExponent);
    used |= static_cast<uint64_t>(item != 0) << limb;
  };
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  const int64_t vectors = reinterpret_cast<uintptr_t>(x) % sizeof(Vector<Element>) == 0 ? count / kItems : 0;
#pragma unroll 4
  for (int64_t i = first; i < vectors; i += step) {
    const auto vector = Vector<Element>::load(x, i * kItems);
#pragma unroll
    for (int k = 0; k < kItems; ++k) take(vector.items[k]);
  }
  for (int64_t i = vectors * kItems + first; i < count; i += step) take(x[i]);
  wait_for_last_kernel();
  sums.mark(used);
}

// Clears the limbs to read, or all limbs and the mask, which follows them.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) clear_limbs(IdSums<Operator> sums, bool clears_all) {
  start_next_kernel();
  const int64_t slots = sums.items.slots, rows = sums.items.segments.rows * (sums.sum.limbs() + 1);
  uint64_t* const limbs = sums.items.states;
  if (clears_all) {
    const int64_t words = rows * slots + 1, step = int64_t{gridDim.x} * kThreads;
    const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    for (int64_t i = first; i < words / 2; i += step) reinterpret_cast<ulonglong2*>(limbs)[i] = ulonglong2{0, 0};
    if (first == 0) limbs[words - 1] = 0;
    return;
  }
  wait_for_last_kernel();
  // A row has one limb of all slots of a problem. Each turn of a block clears a part of a row.
  constexpr int64_t kPart = 4 * kThreads;
  const LimbRange range(sums.sum, *sums.mask);
  const int64_t parts = ceil_div(slots, kPart);
  for (int64_t part = blockIdx.x; part < rows * parts; part += gridDim.x) {
    const int64_t row = part / parts, begin = (part - row * parts) * kPart, end = minimum(begin + kPart, slots);
    if (!range.has(static_cast<int>(row % (sums.sum.limbs() + 1)), sums.sum)) continue;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) limbs[row * slots + i] = 0;
  }
}

__device__ __forceinline__ uint64_t sum_warp(uint64_t value) {
  return fold_warp(value, [](uint64_t a, uint64_t b) { return a + b; });
}

// A block's table of limbs. The first limb to reach an entry keeps it. A limb has two halves, as shared memory has no
// native atomic addition of 64 bits.
class LimbTable {
 public:
  __device__ __forceinline__ LimbTable(uint32_t* words, int entries)
      : low_(words), high_(words + entries), tags_(words + 2 * entries), entries_(entries) {}

  __device__ __forceinline__ void clear() const {
    for (int i = threadIdx.x; i < entries_; i += static_cast<int>(blockDim.x)) {
      low_[i] = high_[i] = 0;
      tags_[i] = kNobody;
    }
  }

  // Adds the terms of a thread's items to the limbs
  // `keys`, in the table or among `limbs` in device
  // memory. All threads of a warp call it together.
  __device__ __forceinline__ void add(uint32_t (&keys)[kInFlight], uint64_t (&terms)[kInFlight],
                                      unsigned long long* limbs) const {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (!are_alike(keys[k])) continue;
      terms[k] = sum_warp(terms[k]);
      if (threadIdx.x % kWarp != 0) keys[k] = kNobody;
    }
    const Places<false, kInFlight> places(keys, tags_, entries_);
    uint32_t before[kInFlight];
    bool in_halves[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const bool is_used = places.is_used(k);
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

  // Adds the entries to the limbs in device memory.
  __device__ __forceinline__ void flush(unsigned long long* limbs) const {
    for (int i = threadIdx.x; i < entries_; i += static_cast<int>(blockDim.x)) {
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

// Whether enough ids of a sample of a block's items are equal for a LimbTable to pay. `tags` is scratch memory.
template <typename Items>
__device__ inline bool has_frequent_ids(const Items& items, uint32_t* tags) {
  const unsigned count = 4 * blockDim.x;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) tags[i] = kNobody;
  const auto item = static_cast<unsigned>(uint64_t{items.count} * threadIdx.x / blockDim.x);
  const auto id = static_cast<uint32_t>(items.ids[items.width(item)]);
  __syncthreads();
  const bool is_known = atomicCAS(tags + (id ^ id >> 12) % count, kNobody, id) == id;
  return __syncthreads_count(is_known) > static_cast<int>(blockDim.x / 16);
}

// A table of limbs, or none if ids are seldom equal (has_frequent_ids).
struct ChosenTable {
  LimbTable table;
  bool is_used = false;

  __device__ __forceinline__ void add(uint32_t (&keys)[kInFlight], uint64_t (&terms)[kInFlight],
                                      unsigned long long* limbs) const {
    if (is_used) return table.add(keys, terms, limbs);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (keys[k] != kNobody) atomicAdd(limbs + keys[k], static_cast<unsigned long long>(terms[k]));
    }
  }
  __device__ __forceinline__ void flush(unsigned long long* limbs) const {
    if (is_used) table.flush(limbs);
  }
};

// Adds a block's items up in a table, and then the table to the limbs in device memory. begin() is called after the
// loads of the first items have started.
template <typename Operator, typename Items, typename Table, typename Begin>
__device__ __forceinline__ void add_part(const IdSums<Operator>& sums, const Items& items, const Table& table,
                                         Begin begin) {
  const auto slot_count = static_cast<unsigned>(sums.items.slots), limb_count = static_cast<unsigned>(sums.sum.limbs());
  auto* const limbs = sums.limbs_of(sums.items.problem());
  uint64_t used = 0;
  const auto add = [&](auto& elements, uint32_t (&keys)[kInFlight], auto /*row_of*/) {
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
  };
  items.for_each(add, begin);
  sums.mark(used);
  table.flush(limbs);
}

// Adds the items up. The previous kernel clears the limbs that the items use.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) sum_items(const __grid_constant__ IdSums<Operator> sums) {
  extern __shared__ uint32_t words[];
  start_next_kernel();
  const Part<LimbOf<typename Operator::Element>> items(sums.items, false);
  if (items.count == 0) return wait_for_last_kernel();
  ChosenTable chosen{LimbTable(words, sums.items.entries)};
  add_part(sums, items, chosen, [&] {
    chosen.is_used = has_frequent_ids(items, words);
    if (chosen.is_used) chosen.table.clear();
    __syncthreads();
    wait_for_last_kernel();
  });
}

// The result of a slot, given its limbs: limb(k) refers to limb k.
template <typename Operator, typename Limb>
__device__ float sum_of(const IdSums<Operator>& sums, const LimbRange& range, Limb limb) {
  const uint64_t special = range.has_special ? uint64_t{limb(sums.sum.limbs())} : 0;
  if (special != 0) return ExactSum::special(special);
  const uint32_t largest = ExactSum::kLargestExponent - static_cast<uint32_t>(range.first * sums.sum.binades);
  // Up to kFew limbs are loaded at once, as the loads of `round` would wait for its stores.
  constexpr int kFew = 3;
  if (range.used > kFew) {
    return sums.sum.round([&](int k) -> decltype(limb(k)) { return limb(range.first + k); }, range.used, largest);
  }
  uint64_t few[kFew];
#pragma unroll
  for (int k = 0; k < kFew; ++k) few[k] = k < range.used ? uint64_t{limb(range.first + k)} : 0;
  return sums.sum.round([&](int k) -> uint64_t& { return few[k]; }, kFew, largest);
}

template <typename Operator>
__global__ void finish_sums(IdSums<Operator> sums, Operator op) {
  const int64_t slots = sums.items.slots;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t problem = sums.items.segments.rows == 1 ? 0 : i / slots;
  auto* const limbs = sums.limbs_of(problem) + (i - problem * slots);
  wait_for_last_kernel();
  if (i >= sums.items.segments.rows * slots) return;
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

// One limb of Halves, as ExactSum::round reads and changes it.
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

// Sums of one slot, for steps in which all lanes of a warp have this slot. Each lane has two limbs in
// registers.
struct Held {
  uint32_t slot = kNobody;
  unsigned limb = 0;
  unsigned lowest = 0;  // the lowest exponent of the second limb
  uint64_t sums[2] = {};

  __device__ __forceinline__ void start(const ExactSum& sum, uint32_t its_slot, uint32_t bits) {
    const unsigned largest = fold_warp(ExactSum::exponent(bits), [](unsigned a, unsigned b) { return maximum(a, b); });
    slot = its_slot;
    limb = sum.limb(minimum(largest, ExactSum::kLargestExponent), ExactSum::kLargestExponent);
    lowest = ExactSum::kSpecial - (limb + 2) * static_cast<unsigned>(sum.binades);
    sums[0] = sums[1] = 0;
  }

  // Adds the item if one of the two limbs has the item's exponent; returns whether one has it.
  __device__ __forceinline__ bool add(const ExactSum& sum, uint32_t bits) {
    const auto binades = static_cast<unsigned>(sum.binades);
    const unsigned place = ExactSum::exponent(bits) - lowest;
    if (place >= 2 * binades) return false;
    const bool is_first = place >= binades, is_normal = (bits << 1 >> (ExactSum::kMantissaBits + 1)) != 0;
    const uint32_t mantissa = (bits & ((1u << ExactSum::kMantissaBits) - 1)) | uint32_t{is_normal}
                                                                                   << ExactSum::kMantissaBits;
    const uint64_t magnitude = uint64_t{mantissa} << (is_first ? place - binades : place);
    const uint64_t value = bits >> 31 != 0 ? 0 - magnitude : magnitude;
    sums[0] += is_first ? value : 0;
    sums[1] += is_first ? 0 : value;
    return true;
  }
};

// A block's sums of the items of a range of ids, with all limbs of these ids.
template <typename Operator>
struct RangeSums {
  const ExactSum& sum;
  Halves halves;
  unsigned slots;
  unsigned used = 0;  // the limbs in use
  Held held{};

  // All threads of a warp call it. Without an item, `slot` is kNobody.
  __device__ __forceinline__ void add(uint32_t slot, float item) {
    if (are_alike(slot)) return add_alike(slot, item);
    if (slot != kNobody) add_one(slot, item);
  }

  // All threads of a warp call it with the same slot.
  __device__ __forceinline__ void add_alike(uint32_t slot, float item) {
    const auto bits = std::bit_cast<uint32_t>(item);
    if (held.slot != slot) {
      flush();
      held.start(sum, slot, bits);
    }
    if (!held.add(sum, bits)) add_one(slot, item);
  }

  __device__ __forceinline__ void add_one(uint32_t slot, float item) {
    const auto term = sum.term(item, ExactSum::kLargestExponent, static_cast<unsigned>(sum.limbs()));
    if (term.value == 0) return;
    used |= 1u << term.limb;
    halves.add(slot + term.limb * slots, term.value);
  }

  __device__ __forceinline__ void flush() {
    if (held.slot == kNobody) return;
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      const uint64_t value = sum_warp(held.sums[k]);
      if (value == 0) continue;
      used |= 1u << (held.limb + k);
      if (threadIdx.x % kWarp == 0) halves.add(held.slot + (held.limb + k) * slots, value);
    }
  }
};

// A thread's ids, for listing the rows whose ids are in a block's range.
constexpr unsigned kListedIds = 16;  // per thread
constexpr unsigned kAtOnce = 2;      // items per thread of add_at_once

template <typename Id>
class RowList {
 public:
  __device__ RowList(const Id* ids, unsigned rows) {
    const bool is_aligned = reinterpret_cast<uintptr_t>(ids) % minimum<int>(4 * sizeof(Id), 16) == 0;
#pragma unroll
    for (unsigned k = 0; k < kListedIds; k += 4) {
      const unsigned first = row(k);
      Id four[4] = {-1, -1, -1, -1};
      if (is_aligned && first + 4 <= rows) {
        load_bytes<sizeof(four)>(four, ids + first);
      } else {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          if (first + j < rows) four[j] = ids[first + j];
        }
      }
      memcpy(ids_ + k, four, sizeof(four));
    }
  }

  // If all rows of a warp have the same id, and the range has it: the place of the id in the range. Otherwise kNobody.
  __device__ __forceinline__ uint32_t one_id(unsigned first_id, unsigned own_ids, unsigned rows) const {
    const Id id = __shfl_sync(0xffffffffu, ids_[0], 0);
    const auto place = static_cast<Unsigned>(id) - Unsigned{first_id};
    if (!__all_sync(0xffffffffu, ids_[0] == id || row(0) >= rows) || place >= Unsigned{own_ids}) return kNobody;
    bool are_one = true;
#pragma unroll
    for (unsigned k = 1; k < kListedIds; ++k) are_one &= ids_[k] == id || row(k) >= rows;
    return __all_sync(0xffffffffu, are_one) ? static_cast<uint32_t>(place) : kNobody;
  }

  // Lists the rows whose ids are in the range. `listed` counts them. All threads of a warp call it.
  __device__ __forceinline__ void list(unsigned first_id, unsigned own_ids, uint32_t* rows, uint32_t* listed) const {
    unsigned mine = 0;
#pragma unroll
    for (unsigned k = 0; k < kListedIds; ++k) {
      mine |= static_cast<unsigned>(static_cast<Unsigned>(ids_[k]) - Unsigned{first_id} < Unsigned{own_ids}) << k;
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
      rows[place++] = row(k);
    }
  }

  // The row of a thread's id k.
  __device__ __forceinline__ static unsigned row(unsigned k) {
    return k / 4 * 4 * blockDim.x + threadIdx.x * 4 + k % 4;
  }

 private:
  using Unsigned = std::make_unsigned_t<Id>;

  Id ids_[kListedIds];
};

// Calls clear() while a thread's items and their ids are loaded, and then adds the items of the range of ids.
template <typename Operator, typename Id, typename Clear>
__device__ __forceinline__ void add_at_once(RangeSums<Operator>& range_sums, const typename Operator::Element* x,
                                            const Id* ids, unsigned rows, Quotient width, unsigned first_id,
                                            unsigned own_ids, Clear clear) {
  using Unsigned = std::make_unsigned_t<Id>;
  const unsigned count = rows * width.divisor;
  Id its_ids[kAtOnce];
  float items[kAtOnce];
#pragma unroll
  for (unsigned k = 0; k < kAtOnce; ++k) {
    const unsigned item = minimum(threadIdx.x + k * blockDim.x, maximum(count, 1u) - 1);
    its_ids[k] = ids[width(item)];
    items[k] = widen(x[item]);
  }
  clear();
#pragma unroll
  for (unsigned k = 0; k < kAtOnce; ++k) {
    const unsigned item = threadIdx.x + k * blockDim.x, column = item - width(item) * width.divisor;
    const auto place = static_cast<Unsigned>(its_ids[k]) - Unsigned{first_id};
    if (item < count && place < Unsigned{own_ids}) {
      range_sums.add_one(static_cast<uint32_t>(place) * width.divisor + column, items[k]);
    }
  }
}

// Adds up problems of few items in one launch. A block reads the live ids of a problem, and adds up the items of a
// range of ids, in a table of all limbs of these ids. If threads have at most kAtOnce items, they load them with their
// ids. Otherwise the block lists the rows with ids of the range first. If rows have one column, a warp whose rows all
// have one id of the range adds their items at once instead.
template <bool kLists, typename Operator>
__global__ void __launch_bounds__(kThreads) sum_ranges(const __grid_constant__ IdSums<Operator> sums, Operator op) {
  extern __shared__ uint32_t table[];
  __shared__ uint32_t used_limbs, listed;
  const auto& combination = sums.items;
  const int64_t problem = blockIdx.x;
  const unsigned first_id = blockIdx.y * sums.range_ids;
  const unsigned own_ids = minimum(sums.range_ids, static_cast<unsigned>(combination.size) - first_id);
  const Quotient width = combination.width;
  const unsigned slots = own_ids * width.divisor, entries = (sums.sum.limbs() + 1) * slots;
  const auto rows = static_cast<unsigned>(combination.segments.live(problem));
  const auto* const x = combination.x + problem * combination.x_stride * width.divisor;
  const IndexVector ids = combination.ids.from(problem * combination.ids_stride);
  uint32_t* const list = table + 2 * entries;
  RangeSums<Operator> range_sums{sums.sum, Halves{table, table + entries}, slots};
  const auto clear = [&] {
    for (unsigned i = threadIdx.x; i < 2 * entries; i += blockDim.x) table[i] = 0;
    if (threadIdx.x == 0) used_limbs = listed = 0;
    __syncthreads();
  };
  with_width<void>(ids, [&](auto all_ids) {
    if constexpr (!kLists) {
      add_at_once(range_sums, x, all_ids.data, rows, width, first_id, own_ids, clear);
    } else {
      const RowList own(all_ids.data, rows);
      clear();
      const uint32_t slot = width.divisor == 1 ? own.one_id(first_id, own_ids, rows) : kNobody;
      if (slot == kNobody) return own.list(first_id, own_ids, list, &listed);
#pragma unroll 4
      for (unsigned k = 0; k < kListedIds; ++k) {
        const float item = widen(x[minimum(own.row(k), rows - 1)]);
        range_sums.add_alike(slot, own.row(k) < rows ? item : 0);
      }
    }
  });
  if constexpr (kLists) {
    __syncthreads();
    const unsigned found = listed * width.divisor;
    for (unsigned from = threadIdx.x / kWarp * kWarp; from < found; from += blockDim.x) {
      const unsigned i = minimum(from + threadIdx.x % kWarp, found - 1), place = width(i), row = list[place];
      const unsigned column = i - place * width.divisor, own_id = static_cast<unsigned>(ids[row]) - first_id;
      const uint32_t slot = from + threadIdx.x % kWarp < found ? own_id * width.divisor + column : kNobody;
      range_sums.add(slot, widen(x[row * width.divisor + column]));
    }
    range_sums.flush();
  }
  if (range_sums.used != 0) atomicOr(&used_limbs, range_sums.used);
  __syncthreads();
  const LimbRange range(sums.sum, used_limbs);
  for (unsigned i = threadIdx.x; i < slots; i += blockDim.x) {
    const float sum = sum_of(sums, range, [&](int k) -> HalvedLimb { return {range_sums.halves, k * slots + i}; });
    sums.result.store(problem * combination.slots + int64_t{first_id} * width.divisor + i, op.finish(sum, 0));
  }
}

}  // namespace mgpu::cuda::id_summing
