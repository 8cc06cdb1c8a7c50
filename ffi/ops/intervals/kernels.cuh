// Routes tell where the rows of interval operations come from and go to.
#pragma once

#include "cuda/ptx.cuh"
#include "ops/intervals/operands.h"
#include "ops/move_rows/short_rows.cuh"

namespace mgpu::cuda {

struct ExpandRoute {
  using Slot = NoSlot;
  static constexpr bool kNarrowOffsets = false;
  static constexpr bool fills = true;
  Rows values;
  Fill fill;
  Rows out;

  template <int kRowBytes, typename Tile>
  __device__ char* out_row(const Tile& tile, int i) const {
    return out.of_problem(tile.problem) + (tile.begin + i) * width_of<kRowBytes>(out);
  }

  template <int kRowBytes, typename Tile>
  __device__ auto of_tile(const Tile& tile) const {
    const char* const rows = values.of_problem(tile.problem) + tile.before * width_of<kRowBytes>(values);
    char* const out_rows = out_row<kRowBytes>(tile, 0);
    return [=, this](int i, auto mark, bool is_made) {
      return RowMove{rows + mark * width_of<kRowBytes>(values), out_rows + i * width_of<kRowBytes>(out), is_made, true};
    };
  }
};

// Expands values of one word. TileWork (cuda/block/load_balance.cuh) explains slots; here a slot is an object's value.
template <typename Word>
__global__ void __launch_bounds__(kWorkThreads, work_blocks(sizeof(Word)))
    expand_words(const __grid_constant__ WorkList work, const __grid_constant__ WorkTiles tiles,
                 const __grid_constant__ ExpandRoute route) {
  using Tile = TileWork<kWorkThreads, kWordItems, Word>;
  __shared__ typename Tile::Shared shared;
  wait_for_last_kernel();
  const auto values_of = [&](const Tile& tile) {
    return reinterpret_cast<const Word*>(route.values.of_problem(tile.problem)) + tile.before;
  };
  const Tile tile(shared, work, tiles,
                  [&](const Tile& tile) { return [values = values_of(tile)](auto h, auto) { return values[h]; }; });
  const Word fill = fill_word<Word>(route.fill.of_problem(tile.problem), route.fill.element_bytes);
  Word* const out = reinterpret_cast<Word*>(route.out.of_problem(tile.problem)) + tile.begin;
  if (tile.has_slots) {
    tile.store(out, fill, [&](int, auto mark) { return shared.slots[mark]; });
  } else {
    tile.store(out, fill, [values = values_of(tile)](int, auto mark) { return values[mark]; });
  }
}

// A route that gathers, scatters or does both. Distances from outputs to rows wrap;
// they are as wide as starts (IntervalMoveOperands::is_wide). A kernel that learned
// the width at run time read outside of arrays (docs/notes/reliability.md).
template <bool kGathers_, bool kScatters_, typename Distance>
struct MoveRoute {
  static constexpr bool kGathers = kGathers_;
  static constexpr bool kScatters = kScatters_;
  static constexpr bool kNarrowOffsets = sizeof(Distance) == sizeof(int32_t);
  using Slot = Pack<Distance, kGathers + kScatters>;  // distances from outputs to rows: of x, of the result, or of both
  using Starts = IndicesOf<std::make_signed_t<Distance>>;
  static constexpr bool fills = !kScatters;
  Rows x;
  Starts gather_starts;
  int64_t gather_stride;
  Starts scatter_starts;
  int64_t scatter_stride;
  RegionOrder order{};
  Fill fill;
  Rows out;

  explicit MoveRoute(const IntervalMoveOperands& operands)
      : x(operands.x),
        gather_starts(operands.gather.at),
        gather_stride(operands.gather.stride),
        scatter_starts(operands.scatter.at),
        scatter_stride(operands.scatter.stride),
        fill(operands.fill),
        out(operands.out) {}

  template <int kRowBytes, typename Tile>
  __device__ char* out_row(const Tile& tile, int i) const {
    return out.of_problem(tile.problem) + (tile.begin + i) * width_of<kRowBytes>(out);
  }

  template <typename Tile>
  __device__ auto slots_of(const Tile& tile) const {
    Starts gather = gather_starts.from(tile.problem * gather_stride + tile.before);
    Starts scatter = scatter_starts.from(tile.problem * scatter_stride + tile.before);
    if constexpr (kGathers && kScatters) {
      if (order.is_used && *order.is_used != 0) {
        gather = Starts(IndexVector{order.gather_starts}).from(tile.before);
        scatter = Starts(IndexVector{order.scatter_starts}).from(tile.before);
      }
    }
    return [=, begin = static_cast<Distance>(tile.begin)](auto h, auto offset) {
      const Distance rank = begin - static_cast<Distance>(offset);  // of the tile's first output in the object's run
      Slot slot;
      if constexpr (kGathers) slot.items[0] = static_cast<Distance>(gather[h]) + rank;
      if constexpr (kScatters) slot.items[kGathers] = static_cast<Distance>(scatter[h]) + rank;
      return slot;
    };
  }

  template <int kRowBytes, typename Tile>
  __device__ auto of_tile(const Tile& tile) const {
    const char* const rows = x.of_problem(tile.problem);
    char* const out_rows = kScatters ? out.of_problem(tile.problem) : out_row<kRowBytes>(tile, 0);
    return [=, this, begin = static_cast<Distance>(tile.begin)](int i, Slot slot, bool is_made) {
      const Distance source = i + (kGathers ? slot.items[0] : begin);
      const bool has_source = is_made && source < static_cast<Distance>(x.count);
      const char* const from = rows + source * width_of<kRowBytes>(x);
      if constexpr (kScatters) {
        const Distance target = i + slot.items[kGathers];
        return RowMove{from, out_rows + target * width_of<kRowBytes>(out), has_source,
                       has_source && target < static_cast<Distance>(out.count)};
      } else {
        return RowMove{from, out_rows + i * width_of<kRowBytes>(out), has_source, true};
      }
    };
  }
};

// Blocks fill the array with copies of one element.
struct ArrayFill {
  char* out;
  int64_t bytes;
  Fill element;

  int64_t blocks() const {
    constexpr int64_t kBlockBytes = int64_t{kWorkThreads} * 16 * 8;
    return minimum<int64_t>(ceil_div(bytes, kBlockBytes), 1 << 20);
  }

  __device__ void store(int64_t block, int64_t blocks) const {
    const ulonglong2 word = fill_word<ulonglong2>(element.data, element.element_bytes);
    const int64_t words = reinterpret_cast<uintptr_t>(out) % sizeof(word) == 0 ? bytes / int64_t{sizeof(word)} : 0;
    const int64_t first = block * kWorkThreads + threadIdx.x;
    const int64_t threads = blocks * kWorkThreads;
    for (int64_t i = first; i < words; i += threads) reinterpret_cast<ulonglong2*>(out)[i] = word;
    for (int64_t i = words * int64_t{sizeof(word)} + first; i < bytes; i += threads) {
      out[i] = element.data[i % element.element_bytes];
    }
  }
};

static __global__ void __launch_bounds__(kWorkThreads) fill_array(ArrayFill fill) { fill.store(blockIdx.x, gridDim.x); }

}  // namespace mgpu::cuda
