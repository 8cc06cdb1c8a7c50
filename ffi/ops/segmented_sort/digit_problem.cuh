// A radix sort sorts whole rows, or segments of rows, by one digit per pass, the least significant
// first (Adinets and Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs",
// 2022). A digit has 8 bits of a key's rank, an unsigned word in the order of the keys (key_order.h).
#pragma once

#include "ops/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

template <typename Word, typename Payload>
struct Columns {
  Word* keys;
  Payload* payload;  // null in the input if the payload is the position in the row

  // The keys and the payload as one array, with each payload beside its key.
  __device__ __forceinline__ uint64_t* entries() const { return reinterpret_cast<uint64_t*>(keys); }
};

// A bitmap of the passes that a segment takes: those in whose digits its keys differ, or the first
// one if there are none. Passes alternate between two buffers, and the last one ends in the output.
struct DigitPasses {
  uint32_t taken;

  __device__ bool takes(int pass) const { return taken >> pass & 1; }
  __device__ int before(int pass) const { return __popc(taken & ((1u << pass) - 1)); }
  __device__ int after(int pass) const { return __popc(taken >> pass) - 1; }
};

struct ListedSegments {
  const DigitSegment* segments;  // [totals->segments]
  DigitTile* tiles;              // [totals->tiles]
  const DigitTotals* totals;
  uint32_t* taken;  // the passes that any segment takes
};
// Whole rows do without these members: more
// bytes of parameters made their passes slower.
struct WholeRows {};

template <typename Word, typename Payload, bool kFew>
constexpr DigitShape kDigitShape =
    digit_shape(sizeof(Word), std::is_same_v<Payload, NoPayload> ? 0 : sizeof(Payload), kFew);

// A whole row is a segment. With kListed, segments are those that a kernel
// has listed. Tiles lie within segments, and are numbered over all of them.
template <typename Order_, typename Payload_, typename Offset_, bool kListed_, bool kFew = false>
struct DigitProblem : std::conditional_t<kListed_, ListedSegments, WholeRows> {
  using Order = Order_;
  using Payload = Payload_;
  using Offset = Offset_;  // counts the items of a row; two bits are spare
  using Word = typename Order::Word;
  static constexpr bool kListed = kListed_;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  static constexpr DigitShape kShape = kDigitShape<Word, Payload, kFew>;
  static constexpr int kTile = kShape.tile();
  // Neighbouring lanes add to different copies of a counter.
  static constexpr int kCounterCopies = 8;
  // Whether a key and its payload, of 4 bytes each,
  // are one word of 8 bytes in the scratch memory.
  static constexpr bool kJoined = kHasPayload && sizeof(Word) == 4 && sizeof(Payload) == 4;
  static constexpr int kOutput = 0, kScratch = 1;
  // Whether to save memory. Then a row's last tile has no look-back words,
  // digits are counted in the scratch memory for keys, and the starts are
  // stored at the beginning of the row's result. The row's first tile reads
  // them there, and other tiles wait for its words before they store a key.
  static constexpr bool kSavesMemory = sizeof(Word) == 2 && !kHasPayload && !kListed;

  Order order;
  int64_t length;
  int64_t rows;
  LiveCounts counts;
  int places;       // the number of sorted digits: the lowest or, for a partition, the highest ones
  int first_place;  // the lowest digit of a partition
  int64_t row_tiles;
  Columns<Word, Payload> input;
  Columns<Word, Payload> buffers[2];  // the output, and the scratch memory
  Offset* starts;                     // [segments, places, kDigits]: a digit's count, later that of lower digits
  Offset* sums;                       // [tiles, kDigits], the words of the look-back
  uint64_t* tickets;                  // [places]
  unsigned* counted;  // for a row, the blocks that counted it; for a listed segment, its tiles' counted positions
  uint32_t* passes;   // [rows], the passes that each whole row takes
  Disorder disorder;  // the kernels do nothing if it was measured and is not large

  // Only keys of 4 bytes are partitioned.
  __device__ __forceinline__ int place(int pass) const {
    if constexpr (sizeof(Word) == 4) {
      return first_place + pass;
    } else {
      return pass;
    }
  }
  __device__ bool is_left_to_merging() const { return disorder.inversions && !disorder.is_large(); }

  __device__ int64_t live(int64_t row) const { return counts(row, length); }

  __device__ DigitPasses row_passes(int64_t row) const { return {passes[row]}; }

  __device__ __forceinline__ int64_t row_word_tiles() const { return row_tiles - kSavesMemory; }
  __device__ __forceinline__ Offset* row_starts(int64_t row) const {
    const auto result = reinterpret_cast<uintptr_t>(buffers[kOutput].keys + row * length);
    return reinterpret_cast<Offset*>((result + sizeof(Offset) - 1) / sizeof(Offset) * sizeof(Offset));
  }

  __device__ __forceinline__ static Payload position_payload(int64_t position) {
    if constexpr (kHasPayload) {
      return static_cast<Payload>(position);
    } else {
      return {};
    }
  }
};

template <typename Word>
__device__ __forceinline__ int digit_at(Word rank, int place) {
  uint32_t bits = static_cast<uint32_t>(rank);
  if constexpr (sizeof(Word) == 8) {
    if (place >= 4) bits = static_cast<uint32_t>(rank >> 32);
    place &= 3;
  }
  return static_cast<int>(__byte_perm(bits, 0, 0x4440 | place));
}

// Copies the items past a segment's live ones, which stay in place. The segment begins at `origin`, and at `position`
// of its row. All threads of a block call it.
template <int kThreads, typename P>
__device__ void copy_dead(const P& problem, int64_t origin, int64_t position, int64_t begin, int64_t end) {
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    problem.buffers[P::kOutput].keys[origin + i] = problem.input.keys[origin + i];
    if constexpr (P::kHasPayload) {
      problem.buffers[P::kOutput].payload[origin + i] =
          problem.input.payload ? problem.input.payload[origin + i] : P::position_payload(position + i);
    }
  }
}

}  // namespace mgpu::cuda::sorting
