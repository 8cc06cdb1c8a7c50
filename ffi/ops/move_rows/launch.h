#pragma once

#include "cuda/launch/overlapping.h"
#include "ops/load_balance/partition.h"
#include "ops/move_rows/short_rows.cuh"
#include "runtime/workspace.h"

namespace mgpu::cuda {

template <typename Visit>
void dispatch_row_word(int64_t row_bytes, Visit visit) {
  switch (row_word(row_bytes)) {
    case 1: return visit(uint8_t{});
    case 2: return visit(uint16_t{});
    case 4: return visit(uint32_t{});
    case 8: return visit(uint64_t{});
    default: return visit(ulonglong2{});
  }
}

template <typename Word, typename Route>
void launch_wide(const Call& call, const WorkList& work, const WorkTiles& tiles, const Route& route, int64_t row_bytes,
                 cudaStream_t stream) {
  const int64_t row_words = row_bytes / sizeof(Word);
  const dim3 grid(static_cast<unsigned>(work.problems * tiles.tiles),
                  static_cast<unsigned>(minimum<int64_t>(ceil_div<int64_t>(row_words, kColumns), 65535)));
  auto kernel = move_wide_rows<Word, kRowItems, Route>;
  if constexpr (sizeof(Word) == 16) {
    if (work_items(row_bytes, sizeof(Word)) == kWideRowItems) kernel = move_wide_rows<Word, kWideRowItems, Route>;
  }
  launch_overlapping(call, stream, kernel, grid, kWorkThreads, 0, work, tiles, route, row_words);
}

// launch_words(Word{}, work, tiles, blocks) launches the kernel for rows of one word.
template <typename Operands, typename Route, typename LaunchWords>
void move_rows(const Call& call, const Operands& operands, const Route& route, cudaStream_t stream,
               LaunchWords launch_words) {
  const WorkList& work = operands.work;
  if (work.problems * work.size == 0) return;
  const int64_t row_bytes = operands.out.row_bytes;
  const int64_t row_words = row_bytes / row_word(row_bytes);
  if (ShortWork::fits(work, row_words)) {
    const ShortWork problem(work, row_words);
    return dispatch_row_word(row_bytes, [&](auto word) {
      using Word = decltype(word);
      const auto kernel = row_words > 1 ? move_short_rows<Word, true, Route> : move_short_rows<Word, false, Route>;
      launch_rows(call, stream, kernel, problem.tiles, problem.shared_bytes(), problem, route, Divisor(row_words),
                  problem.offsets_room());
    });
  }
  Workspace workspace = workspace_of(call);
  const WorkTiles tiles = operands.layout(workspace);
  partition_work(call, stream, work, tiles);
  dispatch_row_word(row_bytes, [&](auto word) {
    if (is_wide_row(row_bytes)) return launch_wide<decltype(word)>(call, work, tiles, route, row_bytes, stream);
    launch_words(word, work, tiles, work.problems * tiles.tiles);
  });
}

template <typename Operands, typename Route>
void move_rows(const Call& call, const Operands& operands, const Route& route, cudaStream_t stream) {
  const auto launch = [&](auto word, const WorkList& work, const WorkTiles& tiles, int64_t blocks) {
    launch_overlapping(call, stream, move_words<decltype(word), Route>, blocks, kWorkThreads, 0, work, tiles, route);
  };
  move_rows(call, operands, route, stream, launch);
}

}  // namespace mgpu::cuda
