// A block merges a tile of a join, and counts the partners of the
// tile's items of A. Then the block's warps share the output rows.
#pragma once

#include "cuda/block/count_look_back.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/serial_merge.cuh"
#include "ops/join/problem.cuh"

namespace mgpu::cuda::joining {

struct Entry {      // an item of A that has output rows
  int start;        // its first row, counted from the first row to be written
  unsigned origin;  // low half: its place in the tile; high half: 2 + its first partner's place, or a constant below
};
constexpr unsigned kNoPartner = 0;
constexpr unsigned kEntering = 1;  // the first partner is the first of the plan.entering items of B before the tile

// Three counts in one word. The numbers of a tile's items are below 2^16,
// and the number of rows that find_partners counts is below 2^31.
struct Sums {
  uint64_t packed = 0;

  __device__ int rows() const { return static_cast<int>(packed >> 32); }
  __device__ int entries() const { return static_cast<int>(packed >> 16 & 0xffff); }  // items of A with output rows
  __device__ int unmatched() const { return static_cast<int>(packed & 0xffff); }      // items of B without a partner
};

template <typename Order>
struct Shared {
  using P = Problem<Order>;
  using Word = typename P::Word;
  union {
    alignas(kChunkBytes) Word keys[two_runs_room<Word>(P::kTile + 1) + P::kItems];
    Entry entries[P::kTile];
  };
  uint64_t warp_sums[P::kThreads / kWarp];
  Plan plan;
  int64_t slot;            // the slot of the tile's first output row
  int64_t unmatched_slot;  // the slot of its first item of B without a partner
  int64_t skipped;         // the output rows of the first written entry that come before the first written one
  int first_entry;         // the entry of the first written output row
};

template <typename Order>
class Tile {
  using P = Problem<Order>;
  using Word = typename Order::Word;
  static constexpr int kItems = P::kItems;

 public:
  __device__ Tile(const P& problem, Shared<Order>& shared) : problem_(problem), shared_(shared), plan(shared.plan) {}

  // Counts the partners of the thread's items, and returns the sums over the tile. A heavy tile may have more rows.
  // With kFindsUnmatched, also finds the items of B without a partner.
  template <bool kFindsUnmatched>
  __device__ Sums find_partners() {
    const Order order = problem_.tiles.order;
    const auto less = [&](Word x, Word y) { return order.less(x, y); };
    const int a_count = plan.a_count, b_count = plan.runs.b_count;
    start_copy<P::kThreads, P::kTile + 1>(problem_.tiles.pair, plan.runs, shared_.keys);
    finish_copy<P::kThreads>(plan.runs, order, shared_.keys);
    const Word* const a = shared_.keys + plan.runs.a_place;
    const Word* const b = shared_.keys + plan.runs.b_place;
    const int total = a_count + b_count;
    const int diagonal = minimum(static_cast<int>(threadIdx.x) * kItems, total);
    const MergeCursor merged = shared_cursor<P::kTile>(
        shared_.keys, {plan.runs.b_place, plan.runs.b_place + b_count, plan.runs.a_place, plan.runs.a_place + a_count},
        diagonal, less);
    first_b_ = merged.a - plan.runs.b_place;
    first_a_ = diagonal - first_b_;

    const int entering = static_cast<int>(minimum<int64_t>(plan.entering, kMaxEntering));
    Word last = a[0];  // not less than any of B's items so far
    int copies = 0;    // of `last`, among these
    if (first_b_ > 0) {
      last = b[first_b_ - 1];
      const int first = partition_point_near_end(
          0, first_b_ - 1, [&](int j) { return less(b[j], last); },
          [](int begin, int end, auto before) { return partition_point(begin, end, before); });
      const bool enters = first == 0 && a_count > 0 && !less(last, a[0]) && !less(a[0], last);
      copies = first_b_ - first + (enters ? entering : 0);
    } else {
      copies = entering;
    }

    MergeHeads<Word> heads(shared_.keys, {plan.runs.b_place + first_b_, plan.runs.b_place + b_count,
                                          plan.runs.a_place + first_a_, plan.runs.a_place + a_count});
    const uint32_t a_known = shared_address(a + a_count + plan.a_follows);
    int rows = 0;
    unsigned has_partners = 0, is_paired = 0;
#pragma unroll
    for (int step = 0; step < kItems; ++step) {
      const bool in_a = heads.next_is_b(less);
      if (kFindsUnmatched) is_paired |= (heads.b < a_known) & !less(heads.a_key, heads.b_key) ? 1u << step : 0;
      const Word key = in_a ? heads.b_key : heads.a_key;
      copies = less(last, key) ? 0 : copies;
      last = key;
      if (in_a) {
        rows += copies;
      } else {
        ++copies;
      }
      partners_[step] = copies;
      is_a_ |= in_a ? 1u << step : 0;
      has_partners |= in_a & (copies > 0) ? 1u << step : 0;
      // Without this, the compiler keeps the comparisons of all steps in registers.
      keep(is_a_, has_partners, is_paired);
      heads.take(in_a);
    }
    // Past the end, items seem to come from B.
    makes_rows_ = problem_.keep_a ? is_a_ : has_partners;
    is_unmatched_ = kFindsUnmatched ? ((1u << minimum(kItems, total - diagonal)) - 1) & ~is_a_ & ~is_paired : 0;
    rows += __popc(makes_rows_ & ~has_partners);
    const Sums sums{static_cast<uint64_t>(rows) << 32 | __popc(makes_rows_) << 16 | __popc(is_unmatched_)};
    const auto in_block = sum_block<P::kThreads / kWarp>(shared_.warp_sums, sums.packed);
    before_ = {in_block.before};
    rows_before_ = before_.rows();
    __syncthreads();
    return {in_block.all};
  }

  // For a heavy tile: returns its number of rows, at most kLargestCount, and sets rows_before_.
  __device__ int64_t count_many_rows() {
    int64_t rows = 0;
#pragma unroll
    for (int step = 0; step < kItems; ++step) rows += makes_rows_ >> step & 1 ? made_by(step) : 0;
    const auto in_block = sum_block<P::kThreads / kWarp>(shared_.warp_sums, static_cast<uint64_t>(rows));
    __syncthreads();
    rows_before_ = static_cast<int64_t>(minimum<uint64_t>(in_block.before, kLargestCount));
    return static_cast<int64_t>(minimum<uint64_t>(in_block.all, kLargestCount));
  }

  // Places all entries of the tile, to write its output rows [begin, end).
  template <bool kMany>
  __device__ void place(int64_t begin, int64_t end) {
    int64_t start = rows_before_;
    int entry = before_.entries();
    int a = first_a_;
    int b = first_b_;
#pragma unroll
    for (int step = 0; step < kItems; ++step) {
      const bool in_a = is_a_ >> step & 1;
      if (makes_rows_ >> step & 1) {
        const int first = b - partners_[step] + 2;
        const unsigned partner = partners_[step] == 0 ? kNoPartner
                                 : first < 2          ? kEntering
                                                      : static_cast<unsigned>(first);
        Entry noted{static_cast<int>(start), static_cast<unsigned>(a) | partner << 16};
        const int64_t made = kMany ? made_by(step) : maximum(partners_[step], 1);
        if (kMany) {
          const bool covers = start <= begin && begin < start + made;
          if (covers) {
            shared_.skipped = begin - start;
            shared_.first_entry = entry;
          }
          noted.start = covers ? 0 : static_cast<int>(clamp<int64_t>(start - begin, -1, end - begin));
        }
        shared_.entries[entry++] = noted;
        start += made;
      }
      a += in_a;
      b += !in_a;
    }
    __syncthreads();
  }

  template <bool kMany, typename Index>
  __device__ void write(int rows, int entries, int64_t slot) const {
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
    const int share = ceil_div(ceil_div(rows, P::kThreads / kWarp), kWarp) * kWarp;
    const int share_end = minimum(rows, (warp + 1) * share);
    const int64_t out = plan.row * problem_.size + slot;
    Index* const a_out = static_cast<Index*>(problem_.a_indices.data) + out;
    Index* const b_out = static_cast<Index*>(problem_.b_indices.data) + out;
    const Index a_first = static_cast<Index>(plan.a);
    const Index b_first = static_cast<Index>(plan.b - 2);
    const Index entering = static_cast<Index>(plan.b - plan.entering);
    int entry = warp_partition_point(0, entries, [&](int e) { return shared_.entries[e].start < warp * share; }) - 1;
    for (int base = warp * share; base < share_end; base += kWarp) {
      // Every entry has a row, so the 32 rows from `base` on belong to this entry and at most the next 32.
      const int next = entry + 1 + lane;
      const int distance = next < entries ? shared_.entries[next].start - base : kWarp;
      const unsigned marks = or_lanes(distance < kWarp ? 1u << distance : 0u);
      const int mine = entry + __popc(marks & ((2u << lane) - 1));
      entry += __popc(marks);
      const int position = base + lane;
      if (position >= share_end) break;
      const Entry made = shared_.entries[mine];
      const unsigned partner = made.origin >> 16;
      Index b = (partner == kEntering ? entering : b_first + static_cast<Index>(partner)) + (position - made.start);
      if (kMany && mine == shared_.first_entry) b += static_cast<Index>(shared_.skipped);
      a_out[position] = a_first + static_cast<Index>(made.origin & 0xffff);
      b_out[position] = partner == kNoPartner ? Index{-1} : b;
    }
  }

  // Records the thread's items of B without a partner; the tile's first goes to `slot` of the row's list.
  __device__ void list_unmatched(int64_t slot) const {
    const int64_t length = problem_.tiles.pair.b.length;
    int64_t listed = slot + before_.unmatched();
    int64_t b = plan.b + first_b_;
    for (int step = 0; step < kItems; ++step) {
      if (is_unmatched_ >> step & 1) {
        if (listed < length) problem_.scratch.unmatched_items.set(plan.row * length + listed, b);
        ++listed;
      }
      b += !(is_a_ >> step & 1);
    }
  }

 private:
  __device__ int64_t made_by(int step) const {
    const int64_t uncounted = maximum<int64_t>(plan.entering - kMaxEntering, 0);
    return maximum<int64_t>(partners_[step] + (partners_[step] >= kMaxEntering ? uncounted : 0), 1);
  }

  __device__ static unsigned or_lanes(unsigned bits) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(kAllLanes, bits);
#else
    for (int distance = 1; distance < kWarp; distance *= 2) bits |= __shfl_xor_sync(kAllLanes, bits, distance);
    return bits;
#endif
  }

  const P& problem_;
  Shared<Order>& shared_;
  int first_a_;  // the thread's first items, in the tile
  int first_b_;
  int partners_[kItems];  // the partners of the item of A that a step took
  unsigned is_a_ = 0;     // a bit per step
  unsigned makes_rows_ = 0;
  unsigned is_unmatched_ = 0;
  Sums before_;  // the sums of earlier threads
  int64_t rows_before_;

 public:
  const Plan& plan;
};

}  // namespace mgpu::cuda::joining
