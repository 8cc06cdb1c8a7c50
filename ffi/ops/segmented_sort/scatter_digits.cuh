// A pass of a radix sort. A block sorts a tile of a segment stably by one digit, in shared memory. Then each digit's
// items go after the items of that digit in earlier tiles, whose number a look-back adds up.
#pragma once

#include "cuda/block/look_back.cuh"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/digit_places.cuh"
#include "ops/segmented_sort/digit_problem.cuh"

namespace mgpu::cuda::sorting {

// A word of the look-back counts a tile's items of a digit (a sum), or is the place in the segment after them (a
// prefix); the two upper bits say which. Words need no clearing between passes: a pass leaves prefixes, and in the
// segment's next pass the mark of these prefixes means that nothing is published.
template <typename Offset>
struct DigitSums {
  static constexpr int kShift = 8 * sizeof(Offset) - 2;
  static constexpr unsigned kNothing = 0, kSum = 1, kPrefix = 2;
  unsigned turn;  // 0 or 2

  __device__ __forceinline__ Offset word(unsigned state, Offset value) const {
    return static_cast<Offset>(state ^ turn) << kShift | value;
  }
  __device__ __forceinline__ unsigned state(Offset word) const { return static_cast<unsigned>(word >> kShift) ^ turn; }
  __device__ __forceinline__ static Offset value(Offset word) { return word & ((Offset{1} << kShift) - 1); }

  // The place in the segment of a digit's first item in a tile after the first. `column` has the digit's words.
  template <int kWindow>
  __device__ __forceinline__ Offset before(const Offset* column, int tile) const {
    Offset sum = 0;
    for (int at = tile - 1;; at -= kWindow) {
      const Offset* const from = column + int64_t{at} * kDigits;
      Offset words[kWindow];
#pragma unroll
      for (int i = 0; i < kWindow; ++i) {
        words[i] = 0;
        if (at >= i) load_relaxed(words[i], from - i * kDigits);
      }
#pragma unroll
      for (int i = 0; i < kWindow; ++i) {
        while (state(words[i]) == kNothing) load_relaxed(words[i], from - i * kDigits);
        sum += value(words[i]);
        if (state(words[i]) == kPrefix) return sum;  // the first tile at the latest
      }
    }
  }
};

__device__ __forceinline__ uint64_t join_words(uint32_t code, uint32_t payload) {
  return uint64_t{payload} << 32 | code;
}
__device__ __forceinline__ void split_words(uint64_t entry, uint32_t& code, uint32_t& payload) {
  code = static_cast<uint32_t>(entry);
  payload = static_cast<uint32_t>(entry >> 32);
}

struct PassTile {
  int segment;
  int index;   // the number in the segment
  int size;    // live items; 0 if the segment does not take the pass
  int before;  // passes that the segment has taken
  int after;   // passes that it takes after this one
  __device__ bool is_first_pass() const { return before == 0; }
  __device__ bool is_last_pass() const { return after == 0; }
};

template <typename P, bool kJoined = P::kJoined>
struct DigitTileItems {
  alignas(16) typename P::Word codes[P::kTile];
  alignas(16) typename P::Payload payload[P::kHasPayload ? P::kTile : 1];

  __device__ __forceinline__ void put(unsigned at, typename P::Word code, const typename P::Payload& its_payload) {
    codes[at] = code;
    if constexpr (P::kHasPayload) payload[at] = its_payload;
  }
  __device__ __forceinline__ void get(int at, typename P::Word& code, typename P::Payload& its_payload) const {
    code = codes[at];
    if constexpr (P::kHasPayload) its_payload = payload[at];
  }
};
template <typename P>
struct DigitTileItems<P, true> {
  alignas(16) uint64_t entries[P::kTile];

  __device__ __forceinline__ void put(unsigned at, uint32_t code, uint32_t payload) {
    entries[at] = join_words(code, payload);
  }
  __device__ __forceinline__ void get(int at, uint32_t& code, uint32_t& payload) const {
    split_words(entries[at], code, payload);
  }
};

struct ListedTile {
  DigitTile tile;
};

template <typename P>
struct ScatterShared : std::conditional_t<P::kListed, ListedTile, WholeRows> {
  static constexpr int kWarps = P::kShape.tiles.threads / kWarp;
  unsigned counts[kWarps][kDigits];   // a warp's items by digit; later the place of the warp's next one in the tile
  typename P::Offset bases[kDigits];  // what to add to a place in the tile to get the place in the segment
  unsigned sums[kDigits / kWarp];
  int64_t ticket;
  int place;
  typename P::Order order;
  DigitTileItems<P> items;
};

template <typename P>
class DigitScatter {
  using Word = typename P::Word;
  using Payload = typename P::Payload;
  using Offset = typename P::Offset;
  using Columns = sorting::Columns<Word, Payload>;
  using Shared = ScatterShared<P>;
  static constexpr int kThreads = P::kShape.tiles.threads;
  static constexpr int kItems = P::kShape.tiles.items;
  static constexpr int kWarps = Shared::kWarps;
  static_assert(kThreads >= kDigits);

 public:
  __device__ DigitScatter(const P& problem, Shared& shared, int pass)
      : problem_(problem), shared_(shared), pass_(pass) {
    if (threadIdx.x == 0) {
      shared.place = place();
      shared.order = problem.order;
    }
  }

  // Contains a barrier.
  __device__ __forceinline__ PassTile take() {
    PassTile tile;
    DigitPasses passes;
    int64_t left;
    if constexpr (P::kListed) {
      if (threadIdx.x == 0) {
        shared_.ticket = draw_ticket(problem_.tickets + pass_);
        shared_.tile = problem_.tiles[shared_.ticket];
      }
      __syncthreads();
      tile.segment = shared_.tile.segment;
      tile.index = shared_.tile.index;
      passes = {shared_.tile.passes};
      left = shared_.tile.size;
    } else {
      const int64_t ticket = take_ticket(problem_.tickets + pass_, shared_.ticket);
      const auto place = static_cast<unsigned>(ticket), row_tiles = static_cast<unsigned>(problem_.row_tiles);
      tile.segment = problem_.rows == 1 ? 0 : static_cast<int>(place / row_tiles);
      tile.index = static_cast<int>(place - tile.segment * row_tiles);
      passes = problem_.row_passes(tile.segment);
      left = problem_.live(tile.segment) - int64_t{tile.index} * P::kTile;
    }
    tile.size = passes.takes(pass_) ? static_cast<int>(clamp<int64_t>(left, 0, P::kTile)) : 0;
    tile.before = passes.before(pass_);
    tile.after = passes.after(pass_);
    return tile;
  }

  template <bool kWhole>
  __device__ __forceinline__ void load(const PassTile& tile) {
    const int source_buffer = (tile.after + 1) % 2;
    const Columns source = tile.is_first_pass() ? problem_.input : problem_.buffers[source_buffer];
    const int64_t in_segment = int64_t{tile.index} * P::kTile + first();
    const int64_t begin = segment_begin(tile) + in_segment;
    if constexpr (P::kJoined) {
      if (!tile.is_first_pass() && source_buffer == P::kScratch) {
        const uint64_t* const entries = source.entries() + begin;
        uint64_t loaded[kItems];
        load_column<kWhole>(entries, tile.size, loaded);
#pragma unroll
        for (int i = 0; i < kItems; ++i) split_words(loaded[i], codes_[i], payload_[i]);
        return;
      }
    }
    load_column<kWhole>(source.keys + begin, tile.size, codes_);
    if constexpr (P::kHasPayload) {
      if (tile.is_first_pass() && !source.payload) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) payload_[i] = P::position_payload(position() + in_segment + i * kWarp);
      } else {
        load_column<kWhole>(source.payload + begin, tile.size, payload_);
      }
    }
  }

  // Copies the dead items in the last pass: until then, the result's memory may hold starts (P::kSavesMemory).
  __device__ __forceinline__ void finish(const PassTile& tile) const {
    if (tile.size == P::kTile || tile.after != 0 || !problem_.row_passes(tile.segment).takes(pass_)) return;
    const int64_t begin = int64_t{tile.index} * P::kTile;
    copy_dead<kThreads>(problem_, segment_begin(tile), 0, begin + tile.size,
                        minimum(begin + P::kTile, problem_.length));
  }

  template <bool kWhole>
  __device__ __forceinline__ void scatter(const PassTile& tile) {
    count<kWhole>(tile);
    __syncthreads();
    DigitColumn column{};
    if (threadIdx.x < kDigits) column = publish<kWhole>(tile);
    __syncthreads();
    rank<kWhole>(tile);
    if (threadIdx.x < kDigits) look_back(tile, column);
    __syncthreads();
    store<kWhole>(tile);
  }

 private:
  struct DigitColumn {
    Offset base;     // where the digit begins in the segment; set only in the segment's first tile
    unsigned start;  // where the digit begins in the tile
    unsigned count;
  };

  __device__ __forceinline__ static int first() { return threadIdx.x / kWarp * (kWarp * kItems) + threadIdx.x % kWarp; }
  __device__ __forceinline__ int64_t segment_begin(const PassTile& tile) const {
    if constexpr (P::kListed) {
      return shared_.tile.begin;
    } else {
      return tile.segment * problem_.length;
    }
  }
  __device__ __forceinline__ int64_t position() const {
    if constexpr (P::kListed) {
      return shared_.tile.position;
    } else {
      return 0;
    }
  }
  // One word per tile of the segment, kDigits apart.
  __device__ __forceinline__ Offset* words(const PassTile& tile) const {
    int64_t first_tile;
    if constexpr (P::kListed) {
      first_tile = shared_.ticket - tile.index;
    } else {
      first_tile = tile.segment * problem_.row_word_tiles();
    }
    return problem_.sums + first_tile * kDigits + threadIdx.x;
  }
  __device__ __forceinline__ bool has_words(const PassTile& tile) const {
    return !P::kSavesMemory || tile.index < problem_.row_word_tiles();
  }
  // Items past the tile's live ones count as the largest digit, and come last.
  template <bool kWhole>
  __device__ __forceinline__ int digit(const typename P::Order& order, int i, int place, int size) const {
    const int digit = digit_at(order.rank(codes_[i]), place);
    return kWhole || first() + i * kWarp < size ? digit : kDigits - 1;
  }
  template <bool kWhole, typename T>
  __device__ __forceinline__ static void load_column(const T* from, int size, T (&items)[kItems]) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (kWhole || first() + i * kWarp < size) items[i] = from[i * kWarp];
    }
  }

  template <bool kWhole>
  __device__ __forceinline__ void count(const PassTile& tile) {
    unsigned* const counts = shared_.counts[threadIdx.x / kWarp];
#pragma unroll
    for (int i = 0; i < kDigits / kWarp; ++i) counts[i * kWarp + threadIdx.x % kWarp] = 0;
    __syncwarp();
    if (tile.is_first_pass()) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) codes_[i] = problem_.order.encode(codes_[i]);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) atomicAdd(counts + digit<kWhole>(problem_.order, i, place(), tile.size), 1u);
  }

  // Publishes the tile's count of a digit, and turns the warps' counts into places. One thread per digit calls it.
  template <bool kWhole>
  __device__ __forceinline__ DigitColumn publish(const PassTile& tile) {
    const DigitSums<Offset> sums{tile.before % 2 ? 2u : 0u};
    const int digit = threadIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    unsigned count = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) count += shared_.counts[w][digit];
    DigitColumn column{0, 0, count};
    if (!kWhole && digit == kDigits - 1) column.count -= P::kTile - tile.size;
    if (tile.index == 0) {
      column.base = P::kSavesMemory ? problem_.row_starts(tile.segment)[pass_ * kDigits + digit]
                                    : problem_.starts[(tile.segment * problem_.places + pass_) * kDigits + digit];
      if (has_words(tile)) store_relaxed(words(tile), sums.word(sums.kPrefix, column.base + column.count));
    } else if (has_words(tile)) {
      store_relaxed(words(tile) + int64_t{tile.index} * kDigits, sums.word(sums.kSum, column.count));
    }
    // The same steps as turn_into_places
    // (digit_places.cuh).
    unsigned end = count;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const unsigned below = __shfl_up_sync(~0u, end, distance);
      if (lane >= distance) end += below;
    }
    if (lane == kWarp - 1) shared_.sums[warp] = end;
    barrier_sync<1, kDigits>();
#pragma unroll
    for (int w = 0; w < kDigits / kWarp - 1; ++w) end += w < warp ? shared_.sums[w] : 0;
    column.start = end - count;
    unsigned next = column.start;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const unsigned of_warp = shared_.counts[w][digit];
      shared_.counts[w][digit] = next;
      next += of_warp;
    }
    return column;
  }

  template <bool kWhole>
  __device__ __forceinline__ void rank(const PassTile& tile) {
    // Reads the place and the order from shared memory, so
    // that the compiler computes digits from the codes again.
    const int place = *const_cast<volatile int*>(&shared_.place);
    typename P::Order order;
    read_back(order);
    unsigned* const counts = shared_.counts[threadIdx.x / kWarp];
    const unsigned lanes_before = (1u << threadIdx.x % kWarp) - 1;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int own = digit<kWhole>(order, i, place, tile.size);
      const unsigned at = take_place(counts, own, lanes_before);
      shared_.items.put(at, codes_[i], payload_[P::kHasPayload ? i : 0]);
    }
  }
  __device__ __forceinline__ void read_back(typename P::Order& order) const {
    constexpr int kWords = sizeof(order) / sizeof(Word);
    static_assert(sizeof(order) % sizeof(Word) == 0);
    const volatile Word* const words = reinterpret_cast<const volatile Word*>(&shared_.order);
    Word values[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) values[i] = words[i];
    memcpy(&order, values, sizeof(order));
  }

  // One thread per digit calls it.
  __device__ __forceinline__ void look_back(const PassTile& tile, const DigitColumn& column) {
    Offset base = column.base;
    if (tile.index > 0) {
      const DigitSums<Offset> sums{tile.before % 2 ? 2u : 0u};
      base = sums.template before<P::kShape.window>(words(tile), tile.index);
      if (has_words(tile)) {
        store_relaxed(words(tile) + int64_t{tile.index} * kDigits, sums.word(sums.kPrefix, base + column.count));
      }
    }
    shared_.bases[threadIdx.x] = base - static_cast<Offset>(column.start);
  }

  template <bool kWhole>
  __device__ __forceinline__ void store(const PassTile& tile) {
    const int target_buffer = tile.after % 2;
    const Columns target = problem_.buffers[target_buffer];
    const int64_t begin = segment_begin(tile);
    if (P::kJoined && target_buffer == P::kScratch) {
      uint64_t* const entries = target.entries() + begin;
      store_items<kWhole>(tile, [&](Offset place, Word code, const Payload& payload) {
        if constexpr (P::kJoined) entries[place] = join_words(code, payload);
      });
    } else {
      Word* const keys = target.keys + begin;
      Payload* const payloads = P::kHasPayload ? target.payload + begin : nullptr;
      const bool decodes = tile.is_last_pass();
      store_items<kWhole>(tile, [&](Offset place, Word code, const Payload& payload) {
        keys[place] = decodes ? problem_.order.decode(code) : code;
        if constexpr (P::kHasPayload) payloads[place] = payload;
      });
    }
  }
  __device__ __forceinline__ int place() const { return problem_.place(pass_); }

  // Neighbouring threads have neighbouring items of the tile.
  template <bool kWhole, typename Put>
  __device__ __forceinline__ void store_items(const PassTile& tile, Put put) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int at = i * kThreads + threadIdx.x;
      if (!kWhole && at >= tile.size) break;
      Word code;
      Payload payload;
      shared_.items.get(at, code, payload);
      put(shared_.bases[digit_at(problem_.order.rank(code), place())] + static_cast<Offset>(at), code, payload);
    }
  }

  const P& problem_;
  Shared& shared_;
  int pass_;
  Word codes_[kItems];
  Payload payload_[P::kHasPayload ? kItems : 1];
};

template <typename P>
__global__ void __launch_bounds__(P::kShape.tiles.threads, P::kShape.blocks)
    scatter_digits(const __grid_constant__ P problem, int pass) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<ScatterShared<P>*>(shared_bytes);
  // Kernels that count or scatter do not call start_next_kernel:
  // earlier starts of passes would load multiprocessors unevenly.
  wait_for_last_kernel();
  if (problem.is_left_to_merging()) return;
  if constexpr (P::kListed) {
    if (!DigitPasses{*problem.taken}.takes(pass) || blockIdx.x >= problem.totals->tiles) return;
  } else {
    if (problem.rows == 1 && !problem.row_passes(0).takes(pass)) return;
  }
  DigitScatter<P> scatter(problem, shared, pass);
  const PassTile tile = scatter.take();
  if (tile.size == P::kTile) {
    scatter.template load<true>(tile);
    scatter.template scatter<true>(tile);
  } else if (tile.size > 0) {
    scatter.template load<false>(tile);
    scatter.template scatter<false>(tile);
  }
  if constexpr (P::kSavesMemory) scatter.finish(tile);
}

}  // namespace mgpu::cuda::sorting
