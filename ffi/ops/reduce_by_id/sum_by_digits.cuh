// For sums of many floats by few ids, a block's table has digits: integers of 32 bits for up
// to seven consecutive exponents. A block chooses the exponents of its digits from a sample of
// its items. Items with other exponents go to a small table of limbs, as in sum_by_id.cuh. In
// the end, both tables are added to the limbs in device memory. docs/notes/by_id.md has the
// trials.
#pragma once

#include "ops/reduce_by_id/sum_by_id.cuh"

namespace mgpu::cuda::id_summing {

// A slot has groups of words: two digits, and their carries in units of 2^32 times the first digit's unit.
constexpr unsigned kDigitBinades = 7;
constexpr unsigned kGroupBinades = 2 * kDigitBinades;
constexpr unsigned kGroupWords = 3;
constexpr int64_t kMaxDigitRows = int64_t{1} << 25;  // per block, so that the carries of a slot fit their word
// Neighbouring lanes add to different copies of a group, if there is room for copies.
constexpr unsigned kMaxCopies = 8;
constexpr int kOtherEntries = 2048;  // of the table of limbs

// Consecutive exponents, for which a table has digits.
struct ExponentWindow {
  // An item is scaled by a power of two to a digit's unit. From this lowest exponent on, the power is a finite float.
  static constexpr unsigned kLeast = 23;
  static constexpr unsigned kMaxGroups = ceil_div(ExactSum::kSpecial - kLeast, kGroupBinades);

  unsigned lowest;
  unsigned count;
  unsigned groups;
  unsigned inside;  // sampled items

  __device__ __forceinline__ static unsigned binades(unsigned groups) {
    return minimum(groups * kGroupBinades, ExactSum::kSpecial - kLeast);
  }
  __device__ __forceinline__ unsigned above_lowest(uint32_t bits) const { return (bits * 2 - (lowest << 24)) >> 24; }
  __device__ __forceinline__ bool holds(uint32_t bits) const { return bits * 2 - (lowest << 24) < count << 24; }
};

// Chooses the exponents of a block's digits: those of one group, or of max_groups if these hold enough more of the
// sampled items. Returns no groups if over 1/128 of the sampled normal numbers are outside.
template <typename Items>
__device__ inline ExponentWindow choose_window(const Items& items, unsigned max_groups) {
  constexpr int kSamples = 4;
  __shared__ unsigned counts[ExactSum::kSpecial + 1];
  __shared__ unsigned of_warps[2][kThreads / kWarp];
  const unsigned i = threadIdx.x;
  if (i <= ExactSum::kSpecial) counts[i] = 0;
  unsigned exponents[kSamples] = {};
  if (items.count > 0) {
#pragma unroll
    for (int k = 0; k < kSamples; ++k) {
      const auto item = uint64_t{items.count} * (k * kThreads + i) / (kSamples * kThreads);
      exponents[k] = std::bit_cast<uint32_t>(widen(items.x[item])) >> ExactSum::kMantissaBits & ExactSum::kSpecial;
    }
  }
  __syncthreads();
  unsigned sampled = 0;
#pragma unroll
  for (const unsigned exponent : exponents) {
    const bool is_normal = exponent != 0 && exponent != ExactSum::kSpecial;
    if (is_normal) atomicAdd(counts + exponent, 1u);
    sampled += static_cast<unsigned>(__syncthreads_count(is_normal));
  }
  const auto larger = [](unsigned a, unsigned b) { return maximum(a, b); };
  const unsigned groups[] = {1, max_groups};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const unsigned binades = ExponentWindow::binades(groups[k]);
    unsigned best = 0;
    // Of windows with equally many items, the lowest is best.
    if (i >= ExponentWindow::kLeast && i + binades <= ExactSum::kSpecial) {
      unsigned inside = 0;
      for (unsigned e = i; e < i + binades; ++e) inside += counts[e];
      best = inside << 8 | (ExactSum::kSpecial - i);
    }
    best = fold_warp(best, larger);
    if (i % kWarp == 0) of_warps[k][i / kWarp] = best;
  }
  __syncthreads();
  const auto window = [&](int k) {
    const unsigned best = fold_warp(of_warps[k][i % kWarp], larger);
    return ExponentWindow{ExactSum::kSpecial - (best & 0xff), ExponentWindow::binades(groups[k]), groups[k], best >> 8};
  };
  const ExponentWindow one = window(0), all = window(1);
  ExponentWindow chosen = all.inside - one.inside > sampled / 512 ? all : one;
  if (sampled - chosen.inside > sampled / 128) chosen.groups = 0;
  return chosen;
}

// A block's table of digits: for each copy of each word of each group, one entry per slot.
class DigitTable {
 public:
  // `slots` is a multiple of 32. The table takes up to `most_groups` groups per slot, and a word per copy.
  __device__ __forceinline__ DigitTable(uint32_t* words, unsigned slots, unsigned most_groups,
                                        const ExponentWindow& window)
      : words_(words),
        slots_(slots),
        window_(window),
        copies_(minimum(most_groups / window.groups, kMaxCopies)),
        // The same word of different copies is in different banks.
        copy_words_(window.groups * kGroupWords * slots + 1),
        own_(threadIdx.x % copies_ * copy_words_) {
    for (unsigned i = threadIdx.x; i < copies_ * copy_words_; i += kThreads) words[i] = 0;
  }

  // Adds the items to the digits of their slots. Returns whether some have a
  // slot, but exponents outside of the window. Items without a digit add 0 to
  // some word.
  template <typename Element>
  __device__ __forceinline__ bool add(const Element (&elements)[kInFlight], const uint32_t (&slots)[kInFlight]) const {
    unsigned at[kInFlight];
    uint32_t values[kInFlight], before[kInFlight], overflows = 0;
    bool is_left = false;
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const float x = widen(elements[k]);
      const auto bits = std::bit_cast<uint32_t>(x);
      const bool is_used = slots[k] != kNobody, is_inside = window_.holds(bits);
      const unsigned digit = digit_of(bits);
      const auto scale = std::bit_cast<float>(((277 - window_.lowest) << 23) - digit * (kDigitBinades << 23));
      at[k] = own_ + (is_used && is_inside ? (digit + digit / 2) * slots_ + entry_of(slots[k]) : threadIdx.x % kWarp);
      values[k] = is_used && is_inside ? static_cast<uint32_t>(static_cast<int32_t>(x * scale)) : 0;
      before[k] = atomicAdd(words_ + at[k], values[k]);
      is_left |= is_used && !is_inside;
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) overflows |= overflow(before[k], values[k]);
    if (static_cast<int32_t>(overflows) < 0) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (static_cast<int32_t>(overflow(before[k], values[k])) >= 0) continue;
        const unsigned second = digit_of(std::bit_cast<uint32_t>(widen(elements[k]))) & 1;
        const uint32_t unit = 1u << second * kDigitBinades;
        atomicAdd(words_ + at[k] + (2 - second) * slots_, static_cast<int32_t>(values[k]) > 0 ? unit : 0 - unit);
      }
    }
    return is_left;
  }

  // Adds the sums to the limbs in device memory, which are `stride` apart. Returns a mask of the limbs it added to.
  __device__ __forceinline__ unsigned flush(const ExactSum& sum, int64_t stride, unsigned long long* limbs) const {
    unsigned used = 0;
    for (unsigned group = 0; group < window_.groups; ++group) {
      for (unsigned i = threadIdx.x; i < slots_; i += kThreads) {
        int64_t total = 0;
        for (unsigned copy = 0; copy < copies_; ++copy) {
          const uint32_t* const words = words_ + copy * copy_words_ + group * kGroupWords * slots_ + i;
          const auto word = [&](int k) { return int64_t{static_cast<int32_t>(words[k * slots_])}; };
          total += word(0) + word(1) * (1 << kDigitBinades) + word(2) * (int64_t{1} << 32);
        }
        if (total == 0) continue;
        sum.add_multiple(total, window_.lowest + group * kGroupBinades, [&](unsigned limb, uint64_t part) {
          if (part == 0) return;
          atomicAdd(limbs + limb * stride + entry_of(i), static_cast<unsigned long long>(part));
          used |= 1u << limb;
        });
      }
    }
    return used;
  }

 private:
  __device__ __forceinline__ unsigned digit_of(uint32_t bits) const {
    return window_.above_lowest(bits) * 9363 >> 16;  // divides a number below 256 by kDigitBinades
  }

  // The highest bit tells whether a sum of two signed numbers overflows.
  __device__ __forceinline__ static uint32_t overflow(uint32_t a, uint32_t b) { return (a ^ (a + b)) & (b ^ (a + b)); }

  uint32_t* words_;
  unsigned slots_;
  ExponentWindow window_;
  unsigned copies_;
  unsigned copy_words_;
  unsigned own_;  // the first word of the thread's copy
};

template <typename Operator, typename Items>
__device__ __forceinline__ void add_digits_of(const IdSums<Operator>& sums, const Items& items,
                                              const ExponentWindow& window, uint32_t* words) {
  const auto slots = static_cast<unsigned>(sums.items.slots);
  auto* const limbs = sums.limbs_of(sums.items.problem());
  const LimbTable others(words, kOtherEntries);
  const DigitTable digits(words + kOtherEntries * (kSumEntryBytes / sizeof(uint32_t)), sums.table_slots,
                          sums.table_groups, window);
  others.clear();
  __syncthreads();
  items.for_each([&](auto& elements, uint32_t (&keys)[kInFlight], auto /*row_of*/) {
    if (!__any_sync(0xffffffffu, digits.add(elements, keys))) return;
    bool is_left = false;
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const auto bits = std::bit_cast<uint32_t>(widen(elements[k]));
      if (window.holds(bits) || bits * 2 == 0) keys[k] = kNobody;
      is_left |= keys[k] != kNobody;
    }
    if (!__any_sync(0xffffffffu, is_left)) return;  // only zeros were outside
    uint64_t terms[kInFlight];
    unsigned used = 0;  // sums of up to kMaxDigitLength rows have at most 20 limbs
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const auto term = sums.sum.term(widen(elements[k]), ExactSum::kLargestExponent, sums.sum.limbs());
      terms[k] = term.value;
      if (keys[k] == kNobody) continue;
      keys[k] += term.limb * slots;
      used |= 1u << term.limb;
    }
    sums.mark_warp(used);
    others.add(keys, terms, limbs);
  });
  __syncthreads();
  const unsigned used = digits.flush(sums.sum, slots, limbs);
  others.flush(limbs);
  sums.mark(used);
}

// Adds the items up. The limbs and the mask are clear.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) add_digits(const __grid_constant__ IdSums<Operator> sums) {
  extern __shared__ uint32_t words[];
  start_next_kernel();
  using Items = Part<LimbOf<typename Operator::Element>>;
  const Items items(sums.items, true);
  const ExponentWindow window = choose_window(items, minimum(sums.table_groups, ExponentWindow::kMaxGroups));
  wait_for_last_kernel();
  if (window.groups == 0) {
    const LimbTable limbs(words, sums.items.entries);
    limbs.clear();
    __syncthreads();
    add_part(sums, Items(sums.items, false), limbs, [] {});
  } else {
    add_digits_of(sums, items, window, words);
  }
}

}  // namespace mgpu::cuda::id_summing
