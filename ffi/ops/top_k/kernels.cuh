// A block goes over its items tile by tile, and lists those that may be
// among the best k in shared memory. When the list is full, all but the best
// k are dropped, and the k-th best item becomes a bound for later items. In
// long rows, the first bound is guessed from a sample. If several blocks
// share a row, each block of a level keeps the best k items of its part, and
// the next level selects from these, until one block has all of them.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/block/scan.cuh"
#include "cuda/block/select_digits.cuh"
#include "cuda/block/sort_entries.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/top_k/plan.h"

namespace mgpu::cuda::ranking {

template <typename Order_>
struct TopKTask {
  using Order = Order_;
  using Word = typename Order::Word;

  TopKOperands operands;
  Order order;
  TopKOperands::Levels levels;
  int level;
  TopKOperands::Kept source;  // unused in the first level
  TopKOperands::Kept target;  // unused in the last level
  uint32_t* counts;           // [levels - 1, rows]: how many items each level keeps

  MGPU_HOST_DEVICE int64_t parts() const { return levels.parts[level]; }
  __device__ bool is_last() const { return level + 1 == levels.count; }

  __device__ int64_t items(int64_t row) const {
    return level == 0 ? operands.live(row) : counts[(level - 1) * operands.rows + row];
  }
};

template <typename Word, int kThreads>
struct TopKShared {
  static constexpr int kRoom = top_k_shape(sizeof(Word), kThreads).room();
  Word codes[kRoom];
  uint32_t positions[kRoom];
  typename SelectDigits<kThreads>::Shared digits;
  int count;          // the number of listed items and of items that wait for room
  int first_waiting;  // the place that the first waiting item would take
};

// A filter is true for all items within a bound, and for few others.
template <typename Order>
struct Filter {
  using Word = typename Order::Word;
  Order order;
  Word last;

  __device__ Filter(Order order, Word last_code) : order(order), last(last_code) {}
  __device__ __forceinline__ bool operator()(Word key) const { return order.encode(key) <= last; }
};

// Floats are compared directly, without codes. A NaN always counts as within the bound.
template <typename Word>
  requires(sizeof(Word) >= 4)
struct Filter<FloatOrder<Word>> {
  Word sign;  // the sign bit in descending order, else 0: xor with it reverses comparisons
  Word last;

  __device__ Filter(const FloatOrder<Word>& order, Word last_code)
      : sign(static_cast<Word>(order.flip & (Word{1} << (8 * sizeof(Word) - 1)))),
        last(order.decode(last_code) ^ sign) {}
  __device__ __forceinline__ bool operator()(Word key) const {
    if constexpr (sizeof(Word) == 4) {
      return !(__uint_as_float(key ^ sign) > __uint_as_float(last));
    } else {
      return !(__longlong_as_double(static_cast<long long>(key ^ sign)) >
               __longlong_as_double(static_cast<long long>(last)));
    }
  }
};

template <typename Order>
struct PartOfKeys {
  using Word = typename Order::Word;
  const Word* items;
  Order order;
  uint32_t begin;

  __device__ Filter<Order> filter(Word last_code) const { return {order, last_code}; }
  __device__ __forceinline__ Word code(Word item) const { return order.encode(item); }
  __device__ __forceinline__ uint32_t position(int i) const { return begin + static_cast<uint32_t>(i); }
};

// The items are in any order.
template <typename Word>
struct PartOfKept {
  const Word* items;  // codes
  const uint32_t* positions;

  __device__ Filter<IntegerOrder<Word>> filter(Word last_code) const { return {IntegerOrder<Word>{0}, last_code}; }
  __device__ __forceinline__ Word code(Word item) const { return item; }
  __device__ __forceinline__ uint32_t position(int i) const { return positions[i]; }
};

// The best k of the items that a block has seen, in any order. Among equal items, the one at the lowest position is the
// best.
template <typename Order, int kThreads>
class BlockBest {
  using Word = typename Order::Word;
  using Shared = TopKShared<Word, kThreads>;
  using Vector = Vector<Word>;
  using Digits = LeadingDigits<Word>;
  static constexpr int kItems = top_k_shape(sizeof(Word), kThreads).tiles.items;
  static constexpr int kTile = kThreads * kItems;
  static constexpr int kVectors = kItems / Vector::kItems;
  static constexpr int kSample = minimum(kThreads * Vector::kItems, kTopKSample);
  static_assert(kTopKSharedSamples * kSample <= Shared::kRoom);
  static constexpr uint32_t kNoPosition = ~uint32_t{0};  // after all positions

 public:
  __device__ BlockBest(Order order, int k, Shared& shared)
      : order_(order), k_(k), shared_(shared), select_digits_(shared.digits) {
    clear();
  }

  __device__ void clear() {
    __syncthreads();
    set_count(0);
    set_bound(static_cast<Word>(~Word{0}), kNoPosition);
    __syncthreads();
  }

  // Guesses a bound from a sample of a row, before anything is added,
  // and returns whether it did. The bound is about item number `wanted`
  // of the sorted sample. If fewer than k items of the row are within
  // it, the guess was wrong. The sample is taken at random places.
  template <typename Row>
  __device__ bool guess(const Row& row, int64_t count, bool is_split) {
    const int sample = is_split ? kTopKSharedSamples * kSample : kSample;
    if (count < kTopKSampleShare * sample) return false;
    const float expected = static_cast<float>(k_) * static_cast<float>(sample) / static_cast<float>(count);
    // The expected number of the k best items in the sample, plus four standard
    // deviations, plus 6. So the guess is rarely wrong for random items.
    const int wanted = minimum(k_, static_cast<int>(expected + 4 * sqrtf(expected)) + 6);
    if (wanted >= sample) return false;
    constexpr int kPair = 2 * Vector::kItems;  // the items of two neighbouring vectors
    const int vectors = sample / Vector::kItems;
    const int lead = lead_of(row);
    const auto stride = static_cast<uint32_t>(count / (vectors / 2));
    for (int i = threadIdx.x; i < vectors; i += kThreads) {
      const uint32_t somewhere = __umulhi(static_cast<uint32_t>(i / 2 + 1) * 0x9e3779b9u, stride - kPair);
      int64_t at = (int64_t{i / 2} * stride + somewhere + lead) / kPair * kPair - lead;
      if (at < 0) at += kPair;
      const Vector vector = Vector::load(row.items + at, i % 2 * Vector::kItems);
#pragma unroll
      for (int k = 0; k < Vector::kItems; ++k) shared_.codes[k * vectors + i] = row.code(vector.items[k]);
    }
    __syncthreads();
    const Digits last = find_last(sample, wanted, wanted / 4 + 2);
    set_bound(last.highest(), kNoPosition);
    return true;
  }

  template <typename Part>
  __device__ void add(const Part& part, int count) {
    const int lane = threadIdx.x % kWarp;
    const int first = (static_cast<int>(threadIdx.x) / kWarp * kWarp * kVectors + lane) * Vector::kItems;
    const auto place = [&](int tile, int vector) { return tile + first + vector * kWarp * Vector::kItems; };
    Word next[kItems];
    const auto load = [&](int tile) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = place(tile, v);
        if (at >= 0 && at + Vector::kItems <= count) {
          const Vector vector = Vector::load(part.items + at, 0);
#pragma unroll
          for (int i = 0; i < Vector::kItems; ++i) next[v * Vector::kItems + i] = vector.items[i];
        } else {
#pragma unroll
          for (int i = 0; i < Vector::kItems; ++i) {
            next[v * Vector::kItems + i] = at + i >= 0 && at + i < count ? part.items[at + i] : Word{0};
          }
        }
      }
    };
    auto filter = part.filter(bound_);
    const int begin = -lead_of(part);
    load(begin);
    for (int tile = begin; tile < count; tile += kTile) {
      Word items[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) items[i] = next[i];
      if (tile + kTile < count) load(tile + kTile);
      unsigned taken = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) taken |= filter(items[i]) ? 1u << i : 0;
      if (tile < 0 || tile + kTile > count) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const int at = place(tile, i / Vector::kItems) + i % Vector::kItems;
          if (at < 0 || at >= count) taken &= ~(1u << i);
        }
      }
      bool waits = false;
      const auto append_own = [&] {
        return append(items, taken,
                      [&](int i) { return part.position(place(tile, i / Vector::kItems) + i % Vector::kItems); });
      };
      if (__any_sync(~0u, taken != 0)) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) items[i] = part.code(items[i]);
        waits = !append_own();
      }
      while (__syncthreads_or(waits)) {
        count_ = minimum(shared_.count, shared_.first_waiting);
        keep_best();
        __syncthreads();
        set_count(count_);
        __syncthreads();
        filter = part.filter(bound_);
        if (waits) waits = !append_own();
      }
    }
    count_ = shared_.count;
  }

  // Returns how many items remain. They are in shared memory after the next barrier.
  __device__ int keep_best() {
    if (count_ <= k_) return count_;
    __syncthreads();
    const Digits last = find_last(count_, k_, 0);
    uint32_t last_position = kNoPosition;
    if (last.matching > last.rank) {  // of the items that equal the k-th best, only some stay
      last_position = select_digits_
                          .template operator()<uint32_t>(
                              count_, last.rank, [&](int i) { return shared_.positions[i]; },
                              [&](int i) { return order_.rank(shared_.codes[i]) == last.prefix; },
                              [](const auto&) { return false; })
                          .highest();
    }
    drop(last, last_position);
    count_ = k_;
    set_bound(last.highest(), last_position);
    return count_;
  }

  // Thread t gets the items from t * kShare on. Contains barriers.
  using Entry = SortedEntry<Word>;
  template <int kShare>
  __device__ void sort(Entry (&entries)[kShare]) {
    const int size = maximum(1 << ceil_log2(count_), kShare);
    const int threads = size / kShare;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kShare; ++k) {
      const int i = k * threads + static_cast<int>(threadIdx.x);
      const bool exists = static_cast<int>(threadIdx.x) < threads && i < count_;
      entries[k] = exists ? Entry{order_.rank(shared_.codes[i]), shared_.positions[i]}
                          : Entry{static_cast<Word>(~Word{0}), kNoPosition};
    }
    __syncthreads();
    static_assert(kThreads * kShare * sizeof(Entry) <= sizeof(shared_.codes) + sizeof(shared_.positions));
    sort_entries<kThreads>(entries, reinterpret_cast<Entry*>(&shared_), size);
  }

  __device__ int count() const { return count_; }

 private:
  // How many items of the part's first vector come before the part.
  template <typename Part>
  __device__ static int lead_of(const Part& part) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(part.items) % sizeof(Vector) / sizeof(Word));
  }

  // Returns false if there is no room for the warp's items.
  template <typename PositionOf>
  __device__ __forceinline__ bool append(const Word (&codes)[kItems], unsigned taken, PositionOf position_of) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!(taken >> i & 1)) continue;
      const bool is_behind =
          bound_position_ != kNoPosition && order_.rank(codes[i]) == bound_rank_ && position_of(i) >= bound_position_;
      if (codes[i] > bound_ || is_behind) taken &= ~(1u << i);
    }
    const int own = __popc(taken);
    const int up_to = sum_up_to(own);
    const int all = shuffle(up_to, kWarp - 1);
    if (all == 0) return true;
    int to = 0;
    if (threadIdx.x % kWarp == 0) {
      to = atomicAdd(&shared_.count, all);
      if (to + all > Shared::kRoom) atomicMin(&shared_.first_waiting, to);
    }
    to = shuffle(to, 0);
    if (to + all > Shared::kRoom) return false;
    to += up_to - own;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (taken >> i & 1) {
        shared_.codes[to] = codes[i];
        shared_.positions[to++] = position_of(i);
      }
    }
    return true;
  }

  __device__ void set_count(int count) {
    if (threadIdx.x == 0) {
      shared_.count = count;
      shared_.first_waiting = Shared::kRoom;
    }
    count_ = count;
  }

  // Finds leading digits of item number `rank` in sorted order, from 1 on, of the first `count` listed items, until at
  // most `spare` worse items share these digits.
  __device__ Digits find_last(int count, int rank, int spare) {
    return select_digits_.template operator()<Word>(
        count, rank, [&](int i) { return order_.rank(shared_.codes[i]); }, [](int) { return true; },
        [=](const Digits& known) { return known.matching - known.rank <= spare; });
  }

  // Keeps the items below the known digits and, of
  // those with these digits, the ones up to a position.
  __device__ void drop(const Digits& known, uint32_t last_position) {
    const int lane = threadIdx.x % kWarp;
    const Word last = static_cast<Word>(known.prefix >> known.shift);
    int kept_before = 0;
    for (int begin = 0; begin < count_; begin += kThreads) {
      const int i = begin + static_cast<int>(threadIdx.x);
      Word code = 0;
      uint32_t position = 0;
      bool stays = false;
      if (i < count_) {
        code = shared_.codes[i];
        position = shared_.positions[i];
        const Word first = static_cast<Word>(order_.rank(code) >> known.shift);
        stays = first < last || (first == last && position <= last_position);
      }
      const unsigned lanes = __ballot_sync(~0u, stays);
      // All threads have read their items after
      // this barrier. Kept items move forward.
      const Prefix<int> warps = select_digits_.before_warp(__popc(lanes));
      if (stays) {
        const int to = kept_before + warps.before + __popc(lanes & ((1u << lane) - 1));
        shared_.codes[to] = code;
        shared_.positions[to] = position;
      }
      kept_before += warps.all;
    }
  }

  // Better items than the k-th best have an Order::rank up to `rank`, and if it is `rank`, they have a position before
  // `position`.
  __device__ void set_bound(Word rank, uint32_t position) {
    bound_rank_ = rank;
    bound_position_ = position;
    bound_ = order_.last_equal(rank);
  }

  Order order_;
  int k_;
  Shared& shared_;
  SelectDigits<kThreads> select_digits_;
  int count_ = 0;
  Word bound_;
  Word bound_rank_;
  uint32_t bound_position_;
};

// A level: each block keeps the best k items of its part of a row. The last level also sorts and stores them.
template <typename Order, bool kIsFirst, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) keep_best_k(const __grid_constant__ TopKTask<Order> task) {
  using Word = typename Order::Word;
  extern __shared__ uint4 shared_memory[];
  auto& shared = *reinterpret_cast<TopKShared<Word, kThreads>*>(shared_memory);
  const TopKOperands& operands = task.operands;
  if (!kIsFirst) wait_for_last_kernel();
  start_next_kernel();
  const int64_t row = blockIdx.x / task.parts();
  const int64_t part = blockIdx.x - row * task.parts();
  const int64_t begin = part * task.levels.part[task.level];
  const int count = static_cast<int>(clamp<int64_t>(task.items(row) - begin, 0, task.levels.part[task.level]));
  if (count == 0 && !task.is_last()) return;
  const int k = static_cast<int>(operands.k);

  BlockBest<Order, kThreads> best(task.order, k, shared);
  const auto keys_from = [&](int64_t first) {
    return PartOfKeys<Order>{static_cast<const Word*>(operands.x) + row * operands.length + first, task.order,
                             static_cast<uint32_t>(first)};
  };
  const int64_t live = operands.live(row);
  bool guessed_wrong = false;
  if constexpr (kIsFirst) {
    const bool is_guess = best.guess(keys_from(0), live, task.parts() > 1);
    best.add(keys_from(begin), count);
    guessed_wrong = is_guess && task.is_last() && best.count() < minimum<int64_t>(k, live);
  } else {
    const int64_t from = row * task.levels.parts[task.level - 1] * operands.k + begin;
    best.add(PartOfKept<Word>{static_cast<const Word*>(task.source.codes) + from, task.source.positions + from}, count);
    guessed_wrong = task.is_last() && count < minimum<int64_t>(k, live);
  }
  if (guessed_wrong) {  // rare for random items; this block then reads the whole row
    constexpr int64_t kPiece = int64_t{1} << 30;
    best.clear();
#pragma unroll 1
    for (int64_t first = 0; first < live; first += kPiece) {
      best.add(keys_from(first), static_cast<int>(minimum(live - first, kPiece)));
    }
  }
  const int kept = best.keep_best();
  __syncthreads();
  if (!task.is_last()) {
    if (threadIdx.x == 0)
      shared.count = static_cast<int>(atomicAdd(task.counts + task.level * operands.rows + row, kept));
    __syncthreads();
    const int64_t to = row * task.parts() * operands.k + shared.count;
    for (int i = threadIdx.x; i < kept; i += kThreads) {
      static_cast<Word*>(task.target.codes)[to + i] = shared.codes[i];
      task.target.positions[to + i] = shared.positions[i];
    }
    return;
  }
  const Word* const keys = static_cast<const Word*>(operands.x) + row * operands.length;
  auto* const values = static_cast<Word*>(operands.values) + row * operands.k;
  const auto store_in_order = [&]<int kShare>() {
    typename BlockBest<Order, kThreads>::Entry entries[kShare];
    best.sort(entries);
    const int first = static_cast<int>(threadIdx.x) * kShare;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      if (first + i >= k) break;
      const bool exists = first + i < kept;
      const Word rank = entries[i].rank();
      const uint32_t position = entries[i].number();
      // Zeros and NaNs are read again, because their rank does not determine their bits.
      values[first + i] = !exists ? Word{0} : task.order.has_equals(rank) ? keys[position] : task.order.decode(rank);
      operands.indices.set(row * operands.k + first + i, exists ? static_cast<int64_t>(position) : -1);
    }
  };
  k <= kThreads ? store_in_order.template operator()<1>() : store_in_order.template operator()<kTopKMaxK / kThreads>();
}

}  // namespace mgpu::cuda::ranking
