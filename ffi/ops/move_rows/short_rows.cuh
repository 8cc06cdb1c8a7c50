// Moves for batches of short problems. Each output asks the operation's route where to read and write.
#pragma once

#include "cuda/block/work_rows.cuh"
#include "ops/move_rows/kernels.cuh"

namespace mgpu::cuda {

template <int kRowBytes, typename Route>
__device__ RowMove move_in_row(const WorkRows& rows, const Route& route, int slot, int row, int i) {
  return rows.with_output(slot, row, i, [&](const RowOutput& output, int object, bool is_made) {
    if (i >= output.live) {
      if constexpr (Route::fills) return RowMove{nullptr, route.template out_row<kRowBytes>(output, i), false, true};
      return RowMove{};
    }
    const auto move_of = route.template of_tile<kRowBytes>(output);
    if constexpr (std::is_same_v<typename Route::Slot, NoSlot>) {
      return move_of(i, object, is_made);
    } else {
      const int known = maximum(object, 0);  // if there is no object, any may be read
      return move_of(i, slots_of(route)(output)(known, output.row.offsets[known]), is_made);
    }
  });
}

// The least number of blocks per multiprocessor,
// if the kernel then has enough registers.
template <typename Word, bool kWideRows, typename Route>
constexpr int short_row_blocks() {
  using Slot = typename Route::Slot;
  constexpr bool is_gather = requires { requires Route::kGathers && sizeof(Slot) == 4; };
  constexpr bool is_small = sizeof(Word) == 4 && (is_gather || std::is_same_v<Slot, NoSlot>);
  const bool has_room = kWideRows ? sizeof(Word) >= 8 : is_small;
  return work_blocks(has_room ? sizeof(uint32_t) : sizeof(uint64_t));
}

template <typename Word, bool kWideRows, typename Route>
__global__ void __launch_bounds__(kWorkThreads, short_row_blocks<Word, kWideRows, Route>())
    move_short_rows(const __grid_constant__ ShortWork problem, const __grid_constant__ Route route,
                    const __grid_constant__ Divisor row_words, int offsets_room) {
  static_assert(kWorkThreads == kRowThreads);
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ RowMove moves[kWideRows ? kRowThreads : 1];
  const WorkRows rows(problem, offsets_room, shared);
  const int outputs = rows.tile.rows * static_cast<int>(problem.size.divisor);
  const auto row_of = [&](int output) { return static_cast<int>(problem.size.quotient(output)); };
  const auto move_of = [&](int output) {
    const int row = row_of(output);
    return move_in_row<kWideRows ? 0 : sizeof(Word)>(rows, route, output, row,
                                                     output - row * static_cast<int>(problem.size.divisor));
  };
  const Word fill = route_fill<Word>(route, rows.tile.first);
  const auto fill_of = [&](int output) {
    if constexpr (Route::fills) {
      if (route.fill.stride != 0) return route_fill<Word>(route, rows.tile.first + row_of(output));
    }
    return fill;
  };
  if constexpr (!kWideRows) {
    copy_words<4, Word>(outputs, fill_of, move_of);
  } else {
    for (int begin = 0; begin < outputs; begin += kRowThreads) {
      const int count = minimum(kRowThreads, outputs - begin);
      if (static_cast<int>(threadIdx.x) < count) moves[threadIdx.x] = move_of(begin + threadIdx.x);
      __syncthreads();
      const auto word_move = [&](int i) {
        const int item = static_cast<int>(row_words.quotient(i));
        const int64_t offset = (i - item * static_cast<int>(row_words.divisor)) * int64_t{sizeof(Word)};
        const RowMove move = moves[item];
        return RowMove{move.from + offset, move.to + offset, move.reads, move.writes};
      };
      copy_words<4, Word>(
          count * static_cast<int>(row_words.divisor),
          [&](int i) { return fill_of(begin + static_cast<int>(row_words.quotient(i))); }, word_move);
      __syncthreads();
    }
  }
}

}  // namespace mgpu::cuda
