// The kernels of reduce_by_id for sums of floats of 32 and 16 bits by few ids. Sums of floats depend on their order, so
// atomic additions of floats would give other bits in each run. Here each item becomes an integer multiple of a power
// of two. The largest exponent among the items of an id, which combine_by_id.cuh finds, determines this power. Integers
// add up to the same bits in any order. With n items, the sum of an id is off by at most n / 2^(62 - log2 n) of its
// largest item, less than a sum in float32 loses.
//
// 2^25 items by 5,000 ids on an H200, 2026-11-28: 0.217 ms, and 0.213 if ids are skewed (predicted: 0.23; by
// kernels.cuh, with one table per warp: 0.62 and 0.83). docs/notes/by_id.md has what was tried.
#pragma once

#include "algorithm/fixed_point.h"
#include "ops/reduce_by_id/combine_by_id.cuh"

namespace mgpu::cuda::id_summing {

using namespace id_combining;

// An operator that finds the largest exponent of items, as the smallest complement of an exponent.
template <typename Element_>
struct LargestExponent {
  using Element = Element_;
  using State = uint32_t;
  using Result = uint32_t;
  static constexpr bool kIsIdempotent = true;
  static constexpr bool kIsMinimum = true;

  __device__ static uint32_t exponent(State state) { return FixedPoint::kSpecial - state; }
  __device__ State identity() const { return FixedPoint::kSpecial - 1; }
  __device__ State extract(Element element, int64_t /*position*/) const {
    return FixedPoint::kSpecial - FixedPoint::exponent(widen(element));
  }
  __device__ State combine(State a, State b) const { return minimum(a, b); }
};

// The bytes of shared memory of an entry: two halves of its sum, and its exponent or its owner.
constexpr int64_t entry_bytes(bool holds_all) { return holds_all ? 9 : 12; }

template <typename Operator>
struct IdSums {
  IdCombination<LargestExponent<typename Operator::Element>> items;  // `states` are the exponents
  FixedPoint point;
  uint64_t* sums;
  ResultVector<Operator> result;
};

template <typename Operator>
__global__ void clear_sums(IdSums<Operator> sums) {
  start_next_kernel();
  const int64_t count = sums.items.segments.rows * sums.items.slots;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  sums.sums[i] = 0;
  sums.items.states[i] = LargestExponent<typename Operator::Element>{}.identity();
}

// If a block's table does not hold all sums, the first sum to reach an entry keeps it, as in combine_items.
template <bool kHoldsAll, typename Operator>
__global__ void __launch_bounds__(kThreads) sum_items(IdSums<Operator> sums) {
  start_next_kernel();
  using Exponent = LargestExponent<typename Operator::Element>;
  extern __shared__ uint32_t halves[];
  const auto& combination = sums.items;
  const int64_t problem = blockIdx.x / static_cast<unsigned>(combination.parts);
  uint32_t* const low = halves;
  uint32_t* const high = low + combination.entries;
  uint32_t* const tags = high + combination.entries;                             // unless the table holds all
  auto* const largest = reinterpret_cast<uint8_t*>(high + combination.entries);  // if it holds all
  const uint32_t* const exponents = combination.states + problem * combination.slots;
  auto* const totals = reinterpret_cast<unsigned long long*>(sums.sums) + problem * combination.slots;
  wait_for_last_kernel();  // the exponents are known
  for (int i = threadIdx.x; i < combination.entries; i += kThreads) {
    low[i] = high[i] = 0;
    if constexpr (kHoldsAll) {
      largest[i] = static_cast<uint8_t>(Exponent::exponent(exponents[i]));
    } else {
      tags[i] = kNobody;
    }
  }

  const Part<Exponent> items(combination, problem, blockIdx.x - problem * combination.parts);
  __syncthreads();
  constexpr int kInFlight = 4;
  float values[kInFlight];
  items.template for_each<kInFlight>(
      [&](int k, unsigned item, unsigned /*row*/) { values[k] = widen(items.x[item]); },
      [&](uint32_t (&slots)[kInFlight]) {
        const Places<kHoldsAll, kInFlight> places(slots, tags, combination.entries);
        // A sum has two halves, as shared memory has no atomic addition of 64 bits: the value before an addition to the
        // lower half tells the carry. All additions to lower halves are in flight before the first carry is needed.
        uint32_t low_parts[kInFlight], high_parts[kInFlight], before[kInFlight];
        bool in_halves[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          bool is_used = places.is_used(k);
          const int64_t slot = is_used ? slots[k] : 0;
          uint64_t value =
              sums.point.encode(values[k], kHoldsAll ? largest[slot] : Exponent::exponent(exponents[slot]));
          if (are_alike(slots[k])) {
            value = fold_warp(value, [](uint64_t a, uint64_t b) { return a + b; });
            is_used &= threadIdx.x % kWarp == 0;
          }
          low_parts[k] = static_cast<uint32_t>(value);
          high_parts[k] = static_cast<uint32_t>(value >> 32);
          before[k] = 0;
          in_halves[k] = is_used && places.in_table(k);
          if (in_halves[k]) {
            before[k] = atomicAdd(places.address(k, low, low), low_parts[k]);
          } else if (is_used) {
            atomicAdd(totals + slots[k], static_cast<unsigned long long>(value));
          }
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          high_parts[k] += before[k] + low_parts[k] < before[k];
          if (in_halves[k] && high_parts[k] != 0) atomicAdd(places.address(k, high, high), high_parts[k]);
        }
      });
  __syncthreads();
  for (int i = threadIdx.x; i < combination.entries; i += kThreads) {
    const uint64_t sum = uint64_t{high[i]} << 32 | low[i];
    if (sum != 0) atomicAdd(totals + (kHoldsAll ? i : tags[i]), static_cast<unsigned long long>(sum));
  }
}

template <typename Operator>
__global__ void finish_sums(IdSums<Operator> sums, Operator op) {
  wait_for_last_kernel();
  const int64_t count = sums.items.segments.rows * sums.items.slots;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const uint32_t largest = LargestExponent<typename Operator::Element>::exponent(sums.items.states[i]);
  sums.result.store(i, op.finish(sums.point.decode(sums.sums[i], largest), 0));
}

}  // namespace mgpu::cuda::id_summing
