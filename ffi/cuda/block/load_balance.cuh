// Load-balancing search by a block: finds the object, such as a segment, that each output of a tile belongs to.
#pragma once

#include "algorithm/load_balance.h"
#include "cuda/block/partition.cuh"

namespace mgpu::cuda {

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T items[kCount];
};

struct NoSlot {};

// One tile of outputs. Each nonempty object that starts in the tile marks its first output, and a running maximum over
// the marks gives outputs their objects. A Slot holds the data of an object that its outputs need. slot_of(h, offset)
// gives the slot of object `before` + h, which has this offset. With kNarrowOffsets, offsets never have 64 bits.
template <int kThreads, int kItems, typename Slot = NoSlot, bool kNarrowOffsets = false>
struct TileWork {
  static constexpr int kTile = kThreads * kItems;
  static constexpr int kWarps = kThreads / kWarp;
  // In a tile of more objects than this, each output searches for its object.
  static constexpr int kMaxMarks = minimum(8 * kTile, 65535);
  static constexpr bool kHasSlots = !std::is_same_v<Slot, NoSlot>;
  // The slots of a tile, one of them for the object `before`. In a tile of more objects, outputs make their own slots.
  static constexpr int kMostSlots = kTile * sizeof(uint32_t) / sizeof(Slot) + 1;

  struct Shared {
    // For each output: 0 for the object `before`, otherwise 1 + the object's number in the tile.
    alignas(16) uint16_t marks[kTile];
    union {
      uint32_t high_marks[kTile];  // the bits above the 16 of marks, in a searched tile
      Slot slots[kMostSlots];
    };
    int warp_last[kWarps];
  };

  const Shared& shared;
  WorkRow row;  // only `first` and the members that row.start reads are set
  int64_t problem;
  int64_t begin;
  int size;
  int live;        // outputs of the tile before the problem's total
  int64_t before;  // the object before the first one that starts in the tile
  unsigned made;   // outputs with a smaller mark belong to no object
  bool searched;
  bool has_slots;

  // All threads of the block call it. slots_of(*this) returns slot_of.
  template <typename SlotsOf>
  __device__ TileWork(Shared& shared, const WorkList& work, const WorkTiles& tiles, SlotsOf slots_of) : shared(shared) {
    const unsigned tiles_a_problem = static_cast<unsigned>(tiles.tiles);
    const int64_t* cells = tiles.cells;
    unsigned tile = blockIdx.x;
    problem = 0;
    if (work.problems > 1) {
      problem = tile / tiles_a_problem;
      tile %= tiles_a_problem;
      cells += problem * tiles.stride();
    }
    row.offsets = work.offsets_of(problem);
    row.drift = work.drift;
    const Range<int64_t> heads{cells[tile], maximum(cells[tile], cells[tile + 1])};
    row.first = cells[tiles_a_problem + 1];
    const int64_t total = cells[tiles_a_problem + 2];
    begin = int64_t{tile} * kTile;
    size = static_cast<int>(minimum<int64_t>(kTile, work.size - begin));
    live = static_cast<int>(clamp<int64_t>(total - begin, 0, size));
    before = heads.begin - 1;
    made = before < row.first ? 1 : 0;
    searched = heads.size() > kMaxMarks;
    has_slots = kHasSlots && heads.size() < kMostSlots && !searched;
    if (live == 0) return;
    if (searched) {
      search(shared, work, heads);
    } else {
      mark(shared, static_cast<int>(heads.size()), slots_of(*this));
    }
  }

  __device__ TileWork(Shared& shared, const WorkList& work, const WorkTiles& tiles)
      : TileWork(shared, work, tiles, [](auto&) { return [](auto, auto) { return NoSlot{}; }; }) {}

  // Calls visit(mark_of): output i belongs to object `before` + mark_of(i), if i < live and mark_of(i) >= made. Marks
  // have 32 bits, or 64 in a searched tile.
  template <typename Visit>
  __device__ void with_marks(Visit visit) const {
    if (searched) {
      visit([&](int i) { return shared.marks[i] + (int64_t{shared.high_marks[i]} << 16); });
    } else {
      visit([&](int i) { return unsigned{shared.marks[i]}; });
    }
  }

  // Like with_marks, with visit(mark_of, slot_at): slot_at(mark) is the Slot, or with NoSlot the mark itself.
  // slot_at is safe for outputs that belong to no object.
  template <typename SlotOf, typename Visit>
  __device__ void with_slots(SlotOf slot_of, Visit visit) const {
    if constexpr (!kHasSlots) {
      with_marks([&](auto mark_of) { visit(mark_of, [](auto mark) { return mark; }); });
    } else if (has_slots) {
      visit([&](int i) { return unsigned{shared.marks[i]}; }, [&](unsigned mark) { return shared.slots[mark]; });
    } else if (!kNarrowOffsets && row.offsets.wide) {
      with_searched_slots(static_cast<const int64_t*>(row.offsets.data), slot_of, visit);
    } else {
      with_searched_slots(static_cast<const int32_t*>(row.offsets.data), slot_of, visit);
    }
  }

  // Whether output i is its object's first. No two objects may start at the same output.
  __device__ bool is_first(int i) const {
    const int previous = shared.marks[maximum(i - 1, 0)];
    return shared.marks[i] != (i == 0 ? 0 : previous);
  }

  // For each output of the tile, out[i] = value(i, mark) if it has an object, else `fill`.
  template <typename Word, typename Value>
  __device__ void store(Word* out, Word fill, Value value) const {
    constexpr int kVector = 16 / sizeof(Word);
    constexpr int kBatch = clamp(16 / kVector, 1, 4);
    const bool by_vectors = !searched && reinterpret_cast<uintptr_t>(out) % 16 == 0;
    const int vectors = by_vectors ? size / kVector : 0;
    for (int base = threadIdx.x; base < vectors; base += kBatch * kThreads) {
      Pack<Word, kVector> words[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int v = base + b * kThreads;
        if (v >= vectors) break;
        const auto marks = reinterpret_cast<const Pack<uint16_t, kVector>*>(shared.marks)[v];
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const int i = v * kVector + k;
          const unsigned mark = marks.items[k];
          words[b].items[k] = i < live && mark >= made ? value(i, mark) : fill;
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int v = base + b * kThreads;
        if (v < vectors) reinterpret_cast<Pack<Word, kVector>*>(out)[v] = words[b];
      }
    }
    with_marks([&](auto mark_of) {
      for (int i = vectors * kVector + threadIdx.x; i < size; i += kThreads) {
        const auto mark = mark_of(i);
        out[i] = i < live && mark >= made ? value(i, mark) : fill;
      }
    });
  }

 private:
  template <typename Offset, typename SlotOf, typename Visit>
  __device__ void with_searched_slots(const Offset* offsets, SlotOf slot_of, Visit visit) const {
    visit([&](int i) { return shared.marks[i] + (searched ? int64_t{shared.high_marks[i]} << 16 : 0); },
          [&](int64_t mark) {
            const int64_t h = maximum<int64_t>(mark, before < 0);
            return slot_of(h, offsets[before + h]);
          });
  }

  __device__ void search(Shared& shared, const WorkList& work, Range<int64_t> heads) const {
    WorkRow row = work.row(problem);
    row.first = this->row.first;
    const auto find = [&](int i, Range<int64_t> range) {
      return partition_point(range.begin, range.end, [&](int64_t j) { return row.starts_before(j, begin + i + 1); });
    };
    // A thread's outputs are neighbours.
    const int end = minimum(static_cast<int>(threadIdx.x + 1) * kItems, size);
    Range<int64_t> range = heads;
    for (int i = threadIdx.x * kItems; i < end; ++i) {
      if (range.size() > 0) {
        range.begin = find(i, range);
        if (i % kItems == 0 && i + 1 < end) {
          const bool one = range.size() == 0 || !row.starts_before(range.begin, begin + end);
          range.end = one ? range.begin : find(end - 1, range);
        }
      }
      const int64_t mark = range.begin - heads.begin;
      shared.marks[i] = static_cast<uint16_t>(mark);
      shared.high_marks[i] = static_cast<uint32_t>(mark >> 16);
    }
    __syncthreads();
  }

  // `offsets`[0] is the offset of the object `before`.
  // Positions of invalid offsets are truncated to 32 bits.
  template <typename Offset, typename SlotOf>
  __device__ void mark_heads(Shared& shared, const Offset* offsets, int heads, SlotOf slot_of) const {
    constexpr int kBatch = 4;
    const unsigned drift = static_cast<unsigned>(row.drift);
    const unsigned shift = static_cast<unsigned>(row.drift * (before - row.first) - begin);
    const auto position_of = [&](Offset offset, int h) { return static_cast<unsigned>(offset) + shift + drift * h; };
    const int first = kHasSlots && before >= 0 ? 0 : 1;
    for (int base = first + threadIdx.x; base <= heads; base += kBatch * kThreads) {
      Offset offset[kBatch];
      Offset next[kBatch];
      Slot slots[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int h = base + b * kThreads;
        offset[b] = h <= heads ? offsets[h] : 0;
        next[b] = h < heads ? offsets[h + 1] : 0;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) slots[b] = slot_of(minimum(base + b * kThreads, heads), offset[b]);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int h = base + b * kThreads;
        if (has_slots && h <= heads) shared.slots[h] = slots[b];
        const unsigned position = position_of(offset[b], h);
        // Of several objects with one start, all but the last are empty.
        const bool is_last = h == heads || (h < heads && position_of(next[b], h + 1) != position);
        if (h > 0 && is_last && position < size) shared.marks[position] = static_cast<uint16_t>(h);
      }
    }
  }

  template <typename SlotOf>
  __device__ void mark(Shared& shared, int heads, SlotOf slot_of) const {
    auto* const chunks = reinterpret_cast<Pack<uint16_t, kItems>*>(shared.marks);
    Pack<uint16_t, kItems> chunk{};
    chunks[threadIdx.x] = chunk;
    if (kHasSlots && before < 0 && threadIdx.x == 0) shared.slots[0] = Slot{};
    __syncthreads();
    if (row.offsets.wide) {
      mark_heads(shared, static_cast<const int64_t*>(row.offsets.data) + before, heads, slot_of);
    } else {
      mark_heads(shared, static_cast<const int32_t*>(row.offsets.data) + before, heads, slot_of);
    }
    __syncthreads();
    if (heads == 0) return;

    chunk = chunks[threadIdx.x];
    const int lane = threadIdx.x % kWarp;
    int marks[kItems];
    int last = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) marks[k] = last = maximum<int>(last, chunk.items[k]);
    const int warp = threadIdx.x / kWarp;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, last, distance);
      if (lane >= distance) last = maximum(last, other);
    }
    if (lane == kWarp - 1) shared.warp_last[warp] = last;
    int before = __shfl_up_sync(0xffffffffu, last, 1);
    if (lane == 0) before = 0;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps - 1; ++w) {
      if (w < warp) before = maximum(before, shared.warp_last[w]);
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) chunk.items[k] = static_cast<uint16_t>(maximum(marks[k], before));
    chunks[threadIdx.x] = chunk;
    __syncthreads();
  }
};

}  // namespace mgpu::cuda
