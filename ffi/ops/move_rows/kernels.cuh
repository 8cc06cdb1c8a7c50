// Rows moved by a load-balancing search: a block finds the objects of a tile of outputs, and asks the operation's route
// where each row comes from and goes to.
#pragma once

#include "cuda/block/load_balance.cuh"
#include "cuda/ptx.cuh"
#include "ops/load_balance/plan.h"
#include "ops/move_rows/rows.h"

namespace mgpu::cuda {

constexpr int kColumns = 16;

// If `writes`, the row at `from` is written to `to`, or the fill if `reads` is false.
struct RowMove {
  const char* from;
  char* to;
  bool reads;
  bool writes;
};

template <typename Word>
__device__ Word fill_word(const char* element, int64_t element_bytes) {
  unsigned long long low, high;
  switch (element_bytes) {
    case 1: low = high = *reinterpret_cast<const uint8_t*>(element) * 0x0101010101010101ull; break;
    case 2: low = high = *reinterpret_cast<const uint16_t*>(element) * 0x0001000100010001ull; break;
    case 4: low = high = *reinterpret_cast<const uint32_t*>(element) * 0x0000000100000001ull; break;
    case 8: low = high = *reinterpret_cast<const uint64_t*>(element); break;
    default: low = reinterpret_cast<const uint64_t*>(element)[0]; high = reinterpret_cast<const uint64_t*>(element)[1];
  }
  if constexpr (sizeof(Word) == 16) {
    return {low, high};
  } else {
    return static_cast<Word>(low);
  }
}

// Copies the words of move_of(0), …, move_of(count - 1); for a move that does not read, fill_of(i) is written. Up to
// kMaxInFlight moves are computed before the first is made, so that a thread's loads overlap.
template <int kMaxInFlight, typename Word, typename FillOf, typename MoveOf>
__device__ void copy_words(int count, FillOf fill_of, MoveOf move_of) {
  constexpr int kBatch = sizeof(Word) == 16 ? 2 : kMaxInFlight;
  const auto copy = [&](int base, auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
    Word words[kBatch];
    char* to[kBatch];
    bool writes[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = base + k * kWorkThreads;
      const int counted = kWhole ? i : minimum(i, count - 1);
      const RowMove move = move_of(counted);
      to[k] = move.to;
      writes[k] = move.writes && (kWhole || i < count);
      words[k] = move.reads ? *reinterpret_cast<const Word*>(move.from) : fill_of(counted);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (writes[k]) *reinterpret_cast<Word*>(to[k]) = words[k];
    }
  };
  int base = 0;
#pragma unroll 1
  for (; base + kBatch * kWorkThreads <= count; base += kBatch * kWorkThreads)
    copy(base + threadIdx.x, std::true_type{});
  if (base + static_cast<int>(threadIdx.x) < count) copy(base + threadIdx.x, std::false_type{});
}

// kRowBytes is 0 for widths known at run time.
template <int kRowBytes>
__device__ int64_t width_of(const Rows& rows) {
  return kRowBytes > 0 ? kRowBytes : rows.row_bytes;
}

// A route says where rows come from and go to. route.of_tile<kRowBytes>(tile) is a function (i, slot, is_made) that
// returns the RowMove of output i. is_made says whether output i belongs to an object of the work list; `slot` is then
// the object's Route::Slot. A route without slots gets TileWork's mark instead, and the object is tile.before + mark.
// of_tile is called only in tiles with live outputs. If Route::fills, outputs without a source become route.fill, and
// route.out_row<kRowBytes>(tile, i) is where such an output i lies.
template <typename Word, typename Route>
__device__ Word route_fill(const Route& route, int64_t problem) {
  if constexpr (Route::fills) {
    return fill_word<Word>(route.fill.of_problem(problem), route.fill.element_bytes);
  } else {
    return {};
  }
}

// A thread makes many moves at once if marks have 32 bits.
// Wider marks take more registers, so moves are few.
using ManyMoves = std::integral_constant<int, 8>;
using FewMoves = std::integral_constant<int, 2>;

template <int kItems, typename Route, bool kNarrowOffsets = false>
using RouteTile = TileWork<kWorkThreads, kItems, typename Route::Slot, kNarrowOffsets>;

template <typename Route>
__device__ auto slots_of(const Route& route) {
  if constexpr (std::is_same_v<typename Route::Slot, NoSlot>) {
    return [](const auto&) { return [](auto, auto) { return NoSlot{}; }; };
  } else {
    return [&](const auto& tile) { return route.slots_of(tile); };
  }
}

// Calls visit(move_of, most) with the moves of a tile; a thread should make up to `most` at once.
template <int kRowBytes, typename Tile, typename Route, typename Visit>
__device__ void with_moves(const Tile& tile, const Route& route, Visit visit) {
  if (tile.live == 0) {
    if constexpr (Route::fills)
      visit([&](int i) { return RowMove{nullptr, route.template out_row<kRowBytes>(tile, i), false, true}; },
            FewMoves{});
    return;
  }
  const auto row = route.template of_tile<kRowBytes>(tile);
  tile.with_slots(slots_of(route)(tile), [&](auto mark_of, auto slot_at) {
    const auto move_of = [&](int i) {
      const auto mark = mark_of(i);
      return row(i, slot_at(mark), i < tile.live && mark >= tile.made);
    };
    constexpr bool kIsQuick = sizeof(mark_of(0)) == sizeof(unsigned);
    visit(move_of, std::conditional_t<kIsQuick, ManyMoves, FewMoves>{});
  });
}

// The least number of blocks on a multiprocessor. Words that are not of 4 bytes, and routes that scatter (not
// Route::fills), take more registers than six blocks leave.
template <typename Word, typename Route>
constexpr int word_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return 3;
#else
  return sizeof(Word) != 4 ? 3 : Route::fills ? 6 : 4;
#endif
}

template <typename Word, typename Route>
__global__ void __launch_bounds__(kWorkThreads, word_blocks<Word, Route>())
    move_words(const __grid_constant__ WorkList work, const __grid_constant__ WorkTiles tiles,
               const __grid_constant__ Route route) {
  using Tile = RouteTile<kWordItems, Route, Route::kNarrowOffsets>;
  __shared__ typename Tile::Shared shared;
  wait_for_last_kernel();
  const Tile tile(shared, work, tiles, slots_of(route));
  const Word fill = route_fill<Word>(route, tile.problem);
  with_moves<sizeof(Word)>(tile, route, [&](auto move_of, auto max_in_flight) {
    copy_words<max_in_flight(), Word>(Route::fills ? tile.size : tile.live, [=](int) { return fill; }, move_of);
  });
}

// Blocks of one tile (blockIdx.y) share the words of its rows.
template <typename Word, int kItems, typename Route>
__global__ void __launch_bounds__(kWorkThreads)
    move_wide_rows(const __grid_constant__ WorkList work, const __grid_constant__ WorkTiles tiles,
                   const __grid_constant__ Route route, int64_t row_words) {
  using Tile = RouteTile<kItems, Route>;
  __shared__ typename Tile::Shared shared;
  __shared__ RowMove moves[Tile::kTile];
  wait_for_last_kernel();
  const Tile tile(shared, work, tiles, slots_of(route));
  const int rows = Route::fills ? tile.size : tile.live;
  with_moves<0>(tile, route, [&](auto move_of, auto) {
    for (int i = threadIdx.x; i < rows; i += kWorkThreads) moves[i] = move_of(i);
  });
  __syncthreads();
  const Word fill = route_fill<Word>(route, tile.problem);
  for (int64_t column = int64_t{blockIdx.y} * kColumns; column < row_words; column += int64_t{gridDim.y} * kColumns) {
    const int columns = static_cast<int>(minimum<int64_t>(kColumns, row_words - column));
    // i / columns as a product, which is exact because i * columns < 2^18.
    static_assert(Tile::kTile * kColumns * kColumns <= 1 << 18);
    const unsigned reciprocal = ((1u << 18) + columns - 1) / columns;
    const auto move_of = [&](int i) {
      const int item = static_cast<int>((static_cast<unsigned>(i) * reciprocal) >> 18);
      const int64_t offset = (column + (i - item * columns)) * int64_t{sizeof(Word)};
      const RowMove move = moves[item];
      return RowMove{move.from + offset, move.to + offset, move.reads, move.writes};
    };
    copy_words<4, Word>(rows * columns, [=](int) { return fill; }, move_of);
  }
}

}  // namespace mgpu::cuda
