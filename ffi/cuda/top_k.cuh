// The kernel of top_k. A block goes over its items tile by tile, and appends those that come before the k-th best so
// far to what it has in shared memory, in the order of their positions. Where that has no more room, all but the best k
// are dropped, which gives a better k-th: digits of the ranks are counted, the most significant first, until it is
// known which go. Of random items, nearly all are read once and compared once.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/cta/scan.cuh"
#include "operands/top_k.h"

namespace mgpu::cuda::ranking {

constexpr int kThreads = top_k_shape(4).tiles.threads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kCounterCopies = 8;       // a lane adds to one of them: lanes seldom meet, whatever the keys
constexpr int kCounters = kDigits + 1;  // of a copy: those of one digit lie in different banks
static_assert(kThreads >= kDigits);

template <typename Order_>
struct TopKTask {
  using Order = Order_;
  using Word = typename Order::Word;

  TopKOperands operands;
  Order order;
  TopKOperands::Levels levels;
  int level;
  TopKOperands::Kept source;  // of any level but the first
  TopKOperands::Kept target;  // of any level but the last

  __device__ int64_t parts() const { return levels.parts[level]; }
  __device__ bool is_last() const { return level + 1 == levels.count; }

  // The row's items in this level. Each part before the last one that has any kept k, as it had no fewer.
  __device__ int64_t items(int64_t row) const {
    int64_t count = operands.counts(row, operands.length);
    for (int i = 0; i < level; ++i) {
      const int64_t whole = count / levels.part[i];
      count = whole * operands.k + minimum(operands.k, count - whole * levels.part[i]);
    }
    return count;
  }
};

template <typename Word>
struct TopKShared {
  static constexpr int kRoom = top_k_shape(sizeof(Word)).room();
  Word codes[kRoom];
  uint32_t positions[kRoom];  // in the row
  unsigned counters[kCounters * kCounterCopies];
  int warp_sums[2][kWarps];
  int digit, before, own;
};

// A part of a row's keys.
template <typename Order>
struct PartOfKeys {
  using Word = typename Order::Word;
  const Word* keys;
  Order order;
  uint32_t begin;  // in the row

  __device__ __forceinline__ Word code(int i) const { return order.encode(keys[i]); }
  __device__ __forceinline__ uint32_t position(int i) const { return begin + static_cast<uint32_t>(i); }
};

// A part of what an earlier level kept.
template <typename Word>
struct PartOfKept {
  const Word* codes;
  const uint32_t* positions;

  __device__ __forceinline__ Word code(int i) const { return codes[i]; }
  __device__ __forceinline__ uint32_t position(int i) const { return positions[i]; }
};

// The best k of the items that a block has been shown, in the order in which they came.
template <typename Order>
class BlockBest {
  using Word = typename Order::Word;
  using Shared = TopKShared<Word>;
  static constexpr int kItems = top_k_shape(sizeof(Word)).tiles.items;
  static constexpr int kTile = kThreads * kItems;

 public:
  __device__ BlockBest(Order order, int k, Shared& shared) : order_(order), k_(k), shared_(shared) {
    for (int i = threadIdx.x; i < kCounters * kCounterCopies; i += kThreads) shared.counters[i] = 0;
  }

  // A warp has kItems times 32 neighbours of a tile, a lane every 32nd of them.
  template <typename Part>
  __device__ void add(const Part& part, int count) {
    const int lane = threadIdx.x % kWarp;
    const int first = static_cast<int>(threadIdx.x) / kWarp * kWarp * kItems + lane;
    Word next[kItems];
    const auto load = [&](int tile) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int at = tile + first + i * kWarp;
        next[i] = at < count ? part.code(at) : Word{0};
      }
    };
    load(0);
    for (int tile = 0; tile < count; tile += kTile) {
      Word codes[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) codes[i] = next[i];
      if (tile + kTile < count) load(tile + kTile);  // on its way while this one is looked at
      const int inside = count - tile - first;
      add_tile(codes, inside, [&](int i) { return part.position(tile + first + i * kWarp); });
    }
  }

  // Drops all but the best k. What is left lies in shared memory after the next barrier.
  __device__ int keep_best() {
    if (count_ <= k_) return count_;
    __syncthreads();
    Word prefix = 0;  // of the ranks of those of which some go and some stay
    int shift = 8 * sizeof(Word);
    int left = k_;  // to be kept of them
    bool all = false;
    while (shift > 0 && !all) {
      shift -= kDigitBits;
      find_digit(prefix, shift, left);
      prefix = static_cast<Word>(prefix | static_cast<Word>(shared_.digit) << shift);
      left -= shared_.before;
      all = shared_.own == left;
    }
    drop(prefix, shift, left);
    count_ = k_;
    set_bound(prefix, shift);
    return count_;
  }

  // The order of a sort, with the entries up to the next power of two. Contains barriers, of which the first makes all
  // entries visible and the last all that are sorted.
  __device__ void sort() {
    const int size = 1 << ceil_log2(count_);
    for (int i = count_ + static_cast<int>(threadIdx.x); i < size; i += kThreads) {
      shared_.codes[i] = static_cast<Word>(~Word{0});
      shared_.positions[i] = ~uint32_t{0};  // no item's: behind all
    }
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {
      for (int distance = run / 2; distance > 0; distance /= 2) {
        for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
          const int a = 2 * pair - (pair & (distance - 1));
          swap_unless(a, a + distance, (a & run) == 0);
        }
        __syncthreads();
      }
    }
  }

  __device__ int count() const { return count_; }

 private:
  // `inside`: items of a lane from `first` on that are in the part, counted in the part's positions.
  template <typename PositionOf>
  __device__ void add_tile(const Word (&codes)[kItems], int inside, PositionOf position_of) {
    const int lane = threadIdx.x % kWarp;
    while (true) {
      unsigned taken[kItems];  // of the warp's lanes
      int warp_count = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        taken[i] = __ballot_sync(~0u, i * kWarp < inside && (takes_all_ || codes[i] < bound_));
        warp_count += __popc(taken[i]);
      }
      const Prefix<int> warps = before_warp(warp_count);
      if (warps.all == 0) return;
      if (count_ + warps.all > Shared::kRoom) {
        keep_best();  // and then there is room for any tile
        continue;
      }
      int to = count_ + warps.before;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (taken[i] >> lane & 1) {
          const int at = to + __popc(taken[i] & ((1u << lane) - 1));
          shared_.codes[at] = codes[i];
          shared_.positions[at] = position_of(i);
        }
        to += __popc(taken[i]);
      }
      count_ += warps.all;
      return;
    }
  }

  // A sum a warp, added up over the warps. Contains one barrier; that of the next call is before the sums are written
  // again, as two sets of them alternate.
  __device__ Prefix<int> before_warp(int warp_sum) {
    turn_ ^= 1;
    return scan_warps<kWarps>(shared_.warp_sums[turn_], warp_sum, 0, [](int x, int y) { return x + y; });
  }

  // The digit at `shift` of the rank that has `left` - 1 before it among those that begin with the same digits as
  // `prefix`, with how many are before that digit and how many have it. The counters are zero before and after.
  __device__ void find_digit(Word prefix, int shift, int left) {
    for (int i = threadIdx.x; i < count_; i += kThreads) {
      const Word rank = order_.rank(shared_.codes[i]);
      const Word differing = static_cast<Word>(rank ^ prefix);
      if (static_cast<Word>(differing >> shift) < kDigits) {
        const int digit = static_cast<int>(rank >> shift) & (kDigits - 1);
        atomicAdd(&shared_.counters[threadIdx.x % kCounterCopies * kCounters + digit], 1u);
      }
    }
    __syncthreads();
    int own = 0;
    if (threadIdx.x < kDigits) {
#pragma unroll
      for (int i = 0; i < kCounterCopies; ++i) {
        unsigned& counter = shared_.counters[i * kCounters + threadIdx.x];
        own += static_cast<int>(counter);
        counter = 0;
      }
    }
    turn_ ^= 1;
    const int before = sum_block<kWarps>(shared_.warp_sums[turn_], own).before;
    if (before < left && left <= before + own) {
      shared_.digit = threadIdx.x;
      shared_.before = before;
      shared_.own = own;
    }
    __syncthreads();
  }

  // Keeps what begins with less than `prefix`, down to the digit at `shift`, and the first `left` of what begins with
  // it.
  __device__ void drop(Word prefix, int shift, int left) {
    const int lane = threadIdx.x % kWarp;
    const unsigned lanes_below = (1u << lane) - 1;
    const Word last = static_cast<Word>(prefix >> shift);
    int less_before = 0, equal_before = 0;
    for (int begin = 0; begin < count_; begin += kThreads) {
      const int i = begin + static_cast<int>(threadIdx.x);
      Word code = 0;
      uint32_t position = 0;
      bool less = false, equal = false;
      if (i < count_) {
        code = shared_.codes[i];
        position = shared_.positions[i];
        const Word first = static_cast<Word>(order_.rank(code) >> shift);
        less = first < last;
        equal = first == last;
      }
      const unsigned less_lanes = __ballot_sync(~0u, less), equal_lanes = __ballot_sync(~0u, equal);
      // All have read theirs when they know: what is kept moves forward, to places that have been read.
      const Prefix<int> warps = before_warp(__popc(less_lanes) | __popc(equal_lanes) << 16);
      const int lesser = less_before + (warps.before & 0xffff) + __popc(less_lanes & lanes_below);
      const int equals = equal_before + (warps.before >> 16) + __popc(equal_lanes & lanes_below);
      if (less || (equal && equals < left)) {
        const int to = lesser + minimum(equals, left);
        shared_.codes[to] = code;
        shared_.positions[to] = position;
      }
      less_before += warps.all & 0xffff;
      equal_before += warps.all >> 16;
    }
  }

  // Whatever comes before the k-th best has a code below the bound. Codes of one rank are neighbours, and a rank is the
  // lowest of them, but for that of the lowest code: nothing comes before it.
  __device__ void set_bound(Word prefix, int shift) {
    const Word last = static_cast<Word>(prefix | static_cast<Word>((Word{1} << shift) - 1));
    const bool is_lowest = shift == 0 && order_.rank(Word{0}) == prefix;
    takes_all_ = shift > 0 && last == static_cast<Word>(~Word{0});
    bound_ = is_lowest ? Word{0} : shift == 0 ? prefix : static_cast<Word>(last + 1);
  }

  __device__ __forceinline__ void swap_unless(int a, int b, bool ascending) {
    const Word a_code = shared_.codes[a], b_code = shared_.codes[b];
    const uint32_t a_position = shared_.positions[a], b_position = shared_.positions[b];
    const Word a_rank = order_.rank(a_code), b_rank = order_.rank(b_code);
    const bool less = a_rank < b_rank || (a_rank == b_rank && a_position < b_position);
    if (less == ascending) return;
    shared_.codes[a] = b_code;
    shared_.codes[b] = a_code;
    shared_.positions[a] = b_position;
    shared_.positions[b] = a_position;
  }

  Order order_;
  int k_;
  Shared& shared_;
  int count_ = 0;
  int turn_ = 0;
  bool takes_all_ = true;
  Word bound_ = 0;
};

// A block a part of a row.
template <typename Order, bool kIsFirst>
__global__ void __launch_bounds__(kThreads, 2) keep_first(const __grid_constant__ TopKTask<Order> task) {
  using Word = typename Order::Word;
  extern __shared__ uint4 shared_memory[];
  auto& shared = *reinterpret_cast<TopKShared<Word>*>(shared_memory);
  const TopKOperands& operands = task.operands;
  const int64_t row = blockIdx.x / task.parts();
  const int64_t part = blockIdx.x - row * task.parts();
  const int64_t begin = part * task.levels.part[task.level];
  const int count = static_cast<int>(clamp<int64_t>(task.items(row) - begin, 0, task.levels.part[task.level]));
  if (count == 0 && !task.is_last()) return;
  const int k = static_cast<int>(operands.k);

  BlockBest<Order> best(task.order, k, shared);
  if constexpr (kIsFirst) {
    const Word* const keys = static_cast<const Word*>(operands.x) + row * operands.length + begin;
    best.add(PartOfKeys<Order>{keys, task.order, static_cast<uint32_t>(begin)}, count);
  } else {
    const int64_t from = row * task.levels.parts[task.level - 1] * operands.k + begin;
    best.add(PartOfKept<Word>{static_cast<const Word*>(task.source.codes) + from, task.source.positions + from}, count);
  }
  const int kept = best.keep_best();
  if (!task.is_last()) {
    __syncthreads();
    const int64_t to = (row * task.parts() + part) * operands.k;
    for (int i = threadIdx.x; i < kept; i += kThreads) {
      static_cast<Word*>(task.target.codes)[to + i] = shared.codes[i];
      task.target.positions[to + i] = shared.positions[i];
    }
    return;
  }
  best.sort();
  auto* const values = static_cast<Word*>(operands.values) + row * operands.k;
  for (int i = threadIdx.x; i < k; i += kThreads) {
    values[i] = i < kept ? task.order.decode(shared.codes[i]) : Word{0};
    operands.indices.set(row * operands.k + i, i < kept ? static_cast<int64_t>(shared.positions[i]) : -1);
  }
}

}  // namespace mgpu::cuda::ranking
